"""Small builders for requests, so that a list of cases reads as a table."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from uuid import UUID

from tests.reference.pair import Peer

from tidemill.wire.compression import Codec
from tidemill.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidemill.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tidemill.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidemill.wire.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from tidemill.wire.records import Record, build_batch

BASE_TIME_MS = int(time.time() * 1000) - 3_600_000
"""Recent enough that retention leaves the records alone."""
NOBODY = UUID(int=0xDEAD)


def batch(
    count: int = 1,
    *,
    key: bytes | None = b"key",
    codec: Codec = Codec.NONE,
    time_ms: int = BASE_TIME_MS,
    producer_id: int = -1,
    producer_epoch: int = -1,
    sequence: int = -1,
) -> bytes:
    """A record batch that is the same on every call."""
    records = [
        Record(number, time_ms + number, key, b"value %d" % number, (("h", b"1"),))
        for number in range(count)
    ]
    return build_batch(
        records,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
    )


def produce(
    topic: str, records: bytes | None, *, partition: int = 0, acks: int = -1, version: int = 9
) -> ProduceRequest | Callable[[Peer], ProduceRequest]:
    def made(topic_id: UUID) -> ProduceRequest:
        data = PartitionProduceData(index=partition, records=records)
        return ProduceRequest(
            acks=acks,
            timeout_ms=5_000,
            topic_data=[TopicProduceData(name=topic, topic_id=topic_id, partition_data=[data])],
        )

    if version < 13:
        return made(UUID(int=0))
    return lambda peer: made(known_id(peer, topic))


def known_id(peer: Peer, topic: str) -> UUID:
    """The topic's id, or an id that nobody has when there is no such topic."""
    found = peer.topic_id(topic)
    return found if found.int else NOBODY


def fetch(
    topic: str,
    offset: int,
    *,
    version: int,
    partition: int = 0,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    current_leader_epoch: int = -1,
    session_id: int = 0,
    session_epoch: int = -1,
    replica_id: int = -1,
    isolation_level: int = 0,
) -> Callable[[Peer], FetchRequest]:
    def made(peer: Peer) -> FetchRequest:
        where = FetchPartition(
            partition=partition,
            fetch_offset=offset,
            partition_max_bytes=partition_max_bytes,
            current_leader_epoch=current_leader_epoch,
        )
        topic_id = known_id(peer, topic) if version >= 13 else UUID(int=0)
        return FetchRequest(
            replica_id=replica_id,
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=isolation_level,
            session_id=session_id,
            session_epoch=session_epoch,
            topics=[FetchTopic(topic=topic, topic_id=topic_id, partitions=[where])],
        )

    return made


def list_offsets(
    topic: str,
    timestamp: int,
    *,
    partition: int = 0,
    current_leader_epoch: int = -1,
    isolation_level: int = 0,
) -> ListOffsetsRequest:
    where = ListOffsetsPartition(
        partition_index=partition,
        timestamp=timestamp,
        current_leader_epoch=current_leader_epoch,
    )
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[ListOffsetsTopic(name=topic, partitions=[where])],
        timeout_ms=5_000,
    )


def create(
    name: str,
    partitions: int = 1,
    replication_factor: int = 1,
    *,
    configs: Mapping[str, str | None] | None = None,
    validate_only: bool = False,
) -> CreateTopicsRequest:
    wanted = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        configs=[
            CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()
        ],
    )
    return CreateTopicsRequest(topics=[wanted], timeout_ms=30_000, validate_only=validate_only)
