"""Where partitions end, and what stands in a stretch of one.

There are two ends. Readers see up to the high watermark; a leader may have taken more, which shows
when its followers have it. Who has to know what will be there asks for the leader's own end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from tidemill.client.admin import Admin
from tidemill.client.admin_types import OffsetSpec
from tidemill.client.cluster import Cluster
from tidemill.client.consumer import Consumer
from tidemill.client.consumer_types import ConsumerRecord
from tidemill.client.offsets import end_of_epochs
from tidemill.types import TopicPartition

POLL_MS = 500
LOOK_AGAIN_S = 0.1


async def latest(admin: Admin, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """How far readers see."""
    specs: Mapping[TopicPartition, OffsetSpec] = dict.fromkeys(partitions, OffsetSpec.LATEST)
    found = (await admin.list_offsets(specs)).raise_first()
    return {partition: listed.offset for partition, listed in found.items()}


async def log_ends(
    cluster: Cluster, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """How much the leaders have taken: the end of the epoch they lead in."""
    while True:
        epochs = await _epochs(cluster, partitions)
        ends = (await end_of_epochs(cluster, epochs)).raise_first()
        # A leader that was elected meanwhile was asked about its predecessor's end.
        if epochs == await _epochs(cluster, partitions):
            return {partition: end for partition, (_, end) in ends.items()}


async def _epochs(
    cluster: Cluster, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """Which epoch each partition is led in; waits while one has no leader."""
    topics = sorted({partition.topic for partition in partitions})
    while True:
        await cluster.fetch_metadata(topics)
        found = {partition: cluster.view.leader(*partition) for partition in partitions}
        epochs = {at: info.leader_epoch for at, info in found.items() if info is not None}
        if len(epochs) == len(found):
            return epochs
        await asyncio.sleep(LOOK_AGAIN_S)


async def settled_ends(
    cluster: Cluster, admin: Admin, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """The leaders' ends, once readers see that far: what a writer that died left on its way."""
    ends = await log_ends(cluster, partitions)
    waiting = True
    while waiting:
        visible = await latest(admin, partitions)
        waiting = any(visible[partition] < end for partition, end in ends.items())
        await asyncio.sleep(LOOK_AGAIN_S if waiting else 0)
    return ends


async def read_range(
    consumer: Consumer, partition: TopicPartition, start: int, end: int
) -> list[ConsumerRecord]:
    """The records of a partition from `start` up to `end`; the consumer is used for it alone."""
    consumer.assign([partition])
    consumer.seek(partition, start)
    records: list[ConsumerRecord] = []
    while start < end:
        records += await consumer.poll(timeout_ms=POLL_MS)
        start = await consumer.position(partition)
    return [record for record in records if record.offset < end]
