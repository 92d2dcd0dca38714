"""Batches as the wire wants them: compressed where due, put into requests, found in answers."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from tidemill.client.accumulator import PartitionQueue
from tidemill.client.batches import Batch
from tidemill.client.cluster import Cluster
from tidemill.client.settings import ProducerSettings
from tidemill.executor import Executor
from tidemill.types import ZERO_TOPIC_ID, TopicPartition
from tidemill.wire.compression import Codec
from tidemill.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

COMPRESS_INLINE_BYTES = 64 * 1024
"""Compressing more than this would hold up the loop, so it goes to the executor."""

_ACKS = {"all": -1, "-1": -1, "0": 0, "1": 1}
_LAST_VERSION_BY_NAME = 12

Sent = list[tuple[PartitionQueue, Batch]]
"""The batches of one request, at most one of each queue."""


class Packed:
    """One request and what its answer has to be matched with."""

    __slots__ = ("_names", "request", "sent")

    def __init__(self, request: ProduceRequest, sent: Sent, names: dict[UUID, str]) -> None:
        self.request = request
        self.sent = sent
        self._names = names

    @property
    def max_version(self) -> int | None:
        """The newest version that can carry it: the last ones know topics by their ids alone."""
        return _LAST_VERSION_BY_NAME if ZERO_TOPIC_ID in self._names else None

    def results(self, answer: ProduceResponse) -> dict[TopicPartition, PartitionProduceResponse]:
        """The answer by partition; newer versions answer without names."""
        return {
            TopicPartition(topic.name or self._names.get(topic.topic_id, ""), entry.index): entry
            for topic in answer.responses
            for entry in topic.partition_responses
        }


class Packer:
    """Makes requests with one producer's settings."""

    def __init__(self, settings: ProducerSettings, cluster: Cluster, executor: Executor) -> None:
        self.acks = _ACKS[settings.acks]
        self._settings = settings
        self._cluster = cluster
        self._executor = executor
        self._idempotent = settings.enable_idempotence
        self._codec = Codec[settings.compression_type.upper()]
        self._level = _level(settings)

    def compressed(
        self, queue: PartitionQueue, batch: Batch, ready: Callable[[PartitionQueue], None]
    ) -> bool:
        """Whether the batch can be built at once; a big one is compressed elsewhere first."""
        builder = batch.builder
        inline = self._codec is Codec.NONE or batch.size_bytes <= COMPRESS_INLINE_BYTES
        if inline or builder is None or batch.attempts or batch.compressed:
            return True
        batch.closed = True
        if queue.open is batch:
            queue.open = None
        queue.preparing = True

        def done(_: object, error: BaseException | None) -> None:
            queue.preparing = False
            batch.compressed = True  # If it failed, building it again reports why.
            ready(queue)

        self._executor.submit(lambda: builder.build(codec=self._codec, level=self._level), done)
        return False

    def pack(self, sent: Sent) -> Packed:
        """One request that carries all of these."""
        topics: dict[str, TopicProduceData] = {}
        names: dict[UUID, str] = {}
        for queue, batch in sent:
            batch.attempts += 1
            name, index = queue.partition
            topic = topics.get(name)
            if topic is None:
                info = self._cluster.view.topics.get(name)
                topic_id = info.topic_id if info is not None else ZERO_TOPIC_ID
                names[topic_id] = name
                topic = topics[name] = TopicProduceData(name=name, topic_id=topic_id)
            records = self._build(queue, batch)
            topic.partition_data.append(PartitionProduceData(index=index, records=records))
        request = ProduceRequest(
            transactional_id=None,
            acks=self.acks,
            timeout_ms=self._settings.request_timeout_ms,
            topic_data=list(topics.values()),
        )
        return Packed(request, sent, names)

    def _build(self, queue: PartitionQueue, batch: Batch) -> bytes:
        assert batch.builder is not None
        if not self._idempotent:
            return batch.builder.build(codec=self._codec, level=self._level)
        return batch.builder.build(
            codec=self._codec,
            level=self._level,
            producer_id=queue.sequences.producer_id,
            producer_epoch=queue.sequences.epoch,
            base_sequence=batch.base_sequence,
        )


def _level(settings: ProducerSettings) -> int | None:
    """The level for the chosen codec; None is the codec's own default."""
    levels = {
        "gzip": None if settings.compression_gzip_level < 0 else settings.compression_gzip_level,
        "lz4": settings.compression_lz4_level,
        "zstd": settings.compression_zstd_level,
    }
    return levels.get(settings.compression_type)
