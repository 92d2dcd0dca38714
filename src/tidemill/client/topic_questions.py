"""What a consumer can be asked about topics without reading them: partitions, ends, times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidemill.client.admin_types import ListedOffset, OffsetSpec, Results
from tidemill.client.cluster import Cluster
from tidemill.client.offsets import list_offsets
from tidemill.types import TopicPartition


class TopicQuestions:
    """Questions to the brokers; an heir says when there is nobody to ask (`_ready`)."""

    def __init__(self, cluster: Cluster, isolation_level: str) -> None:
        self._cluster = cluster
        self._isolation_level = isolation_level

    def _ready(self) -> Cluster:
        """The cluster, if it can be asked now."""
        return self._cluster

    async def partitions_for(self, topic: str) -> list[int]:
        """The topic's partitions; raises if there is no such topic."""
        cluster = self._ready()
        answer = await cluster.fetch_metadata([topic])
        if topic in cluster.view.errors:
            raise cluster.view.errors[topic]
        return sorted(entry.partition_index for t in answer.topics for entry in t.partitions)

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """The first offset that exists in each partition."""
        found = await self._list(dict.fromkeys(partitions, OffsetSpec.EARLIEST))
        return {partition: listed.offset for partition, listed in found.raise_first().items()}

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset of the next record to be written, as far as this consumer may read."""
        found = await self._list(dict.fromkeys(partitions, OffsetSpec.LATEST))
        return {partition: listed.offset for partition, listed in found.raise_first().items()}

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        """The first offset whose record is of the given time (ms) or later, or None."""
        specs = {partition: OffsetSpec.at_time(time) for partition, time in times.items()}
        found = (await self._list(specs)).raise_first()
        return {
            partition: listed.offset if listed.offset >= 0 else None
            for partition, listed in found.items()
        }

    async def _list(
        self, specs: Mapping[TopicPartition, OffsetSpec]
    ) -> Results[TopicPartition, ListedOffset]:
        return await list_offsets(self._ready(), specs, isolation_level=self._isolation_level)
