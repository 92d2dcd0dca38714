"""The end of a topic's life as something that is written to: sealed, seen to be, and measured.

`max.message.bytes=0` makes every leader refuse every batch, whatever acks its producer wants. Each
leader is asked whether it knows, with a batch whose checksum is wrong: its size is looked at first,
so MESSAGE_TOO_LARGE means sealed, CORRUPT_MESSAGE not yet, and neither writes anything. What a
leader has taken until then is its log's end, not the high watermark: the last records may still be
on their way to the followers.
"""

from __future__ import annotations

import asyncio

from tidemill.client.admin import Admin
from tidemill.client.admin_types import AlterOp, ConfigResource
from tidemill.client.by_leader import ask_leaders
from tidemill.client.cluster import Cluster
from tidemill.client.connection import Connection
from tidemill.client.errors import ClientError, failure_of
from tidemill.copying.opening import describe
from tidemill.copying.reading import log_ends
from tidemill.copying.topics import SEALED, SIZE_SETTING, CopyError
from tidemill.errors import ErrorCode
from tidemill.types import TopicPartition
from tidemill.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidemill.wire.records import BatchBuilder

ASK_AGAIN_S = 0.1
_LAST_VERSION_BY_NAME = 12
_LAST_BYTE_MASK = 0x01


async def seal(admin: Admin, cluster: Cluster, topic: str) -> dict[TopicPartition, int]:
    """Refuse all writes from now on; the final end of each partition."""
    await _set(admin, topic, AlterOp.set(SIZE_SETTING, SEALED))
    described = await describe(admin, topic)
    if described is None:
        raise CopyError(f"there is no topic {topic}")
    partitions = [TopicPartition(topic, each.index) for each in described.partitions]
    waiting = partitions
    while waiting:
        sealed = await _sealed(cluster, waiting)
        waiting = [partition for partition in waiting if not sealed[partition]]
        await asyncio.sleep(ASK_AGAIN_S if waiting else 0)
    return await log_ends(cluster, partitions)


async def _set(admin: Admin, topic: str, op: AlterOp) -> None:
    (await admin.alter_configs({ConfigResource.topic(topic): [op]})).raise_first()


async def _sealed(cluster: Cluster, partitions: list[TopicPartition]) -> dict[TopicPartition, bool]:
    async def ask(
        connection: Connection, part: list[TopicPartition]
    ) -> dict[TopicPartition, bool | ClientError]:
        topic = TopicProduceData(name=part[0].topic)
        for partition in part:
            topic.partition_data.append(
                PartitionProduceData(index=partition.partition, records=_damaged_batch())
            )
        request = ProduceRequest(
            acks=1, timeout_ms=cluster.settings.request_timeout_ms, topic_data=[topic]
        )
        answer: ProduceResponse = await connection.request(
            request, max_version=_LAST_VERSION_BY_NAME
        )
        return {
            TopicPartition(part[0].topic, entry.index): _meaning(part[0].topic, entry.error_code)
            for each in answer.responses
            for entry in each.partition_responses
        }

    return (await ask_leaders(cluster, partitions, ask)).raise_first()


def _meaning(topic: str, code: int) -> bool | ClientError:
    if code == ErrorCode.MESSAGE_TOO_LARGE:
        return True
    if code == ErrorCode.CORRUPT_MESSAGE:
        return False
    return failure_of(topic, code)


def _damaged_batch() -> bytes:
    """A batch that no log takes: its last byte is not what its checksum says."""
    builder = BatchBuilder()
    builder.append(0, None, b"is this topic sealed?")
    batch = bytearray(builder.build())
    batch[-1] ^= _LAST_BYTE_MASK
    return bytes(batch)
