"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords and DescribeProducers, version by version."""

from __future__ import annotations

from typing import Any

import pytest
from tests.reference.answers import BASE_TIME_MS, batch, create, list_offsets, produce
from tests.reference.pair import Case, Pair

from tidemill.wire.apis import APIS, ApiKey
from tidemill.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tidemill.wire.messages.leader_epochs import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tidemill.wire.messages.producers import DescribeProducersRequest, TopicRequest


@pytest.mark.parametrize("version", range(1, APIS[ApiKey.LIST_OFFSETS].max_version + 1))
def test_list_offsets(pair: Pair, name: str, version: int) -> None:
    pair.create(create(name, 2))
    for number in range(3):
        records = batch(10, time_ms=BASE_TIME_MS + 1000 * number)
        pair.both(ApiKey.PRODUCE, 9, produce(name, records))

    def case(title: str, timestamp: int, topic: str = name, **more: Any) -> Case:
        return Case(title, list_offsets(topic, timestamp, **more))

    cases = [
        case("earliest", -2),
        case("latest", -1),
        case("by time, first", BASE_TIME_MS),
        case("by time, inside a batch", BASE_TIME_MS + 1005),
        case("by time, between batches", BASE_TIME_MS + 500),
        case("by time, before all", 1),
        case("by time, after all", BASE_TIME_MS + 10**9),
        case("earliest of an empty partition", -2, partition=1),
        case("latest of an empty partition", -1, partition=1),
        case("by time in an empty partition", 5, partition=1),
        case("no such partition", -1, partition=7),
        case("no such topic", -1, topic=f"{name}-missing"),
        case("max timestamp", -3),
        case("max timestamp of an empty partition", -3, partition=1),
        case("earliest local", -4),
        case("latest tiered", -5),
        case("earliest pending upload", -6),
        case("unknown special", -7),
    ]
    if version >= 2:
        cases.append(case("latest, read committed", -1, isolation_level=1))
    if version >= 4:
        cases += [
            case("right epoch", -1, current_leader_epoch=0),
            case("epoch from the future", -1, current_leader_epoch=5),
        ]
    pair.compare(ApiKey.LIST_OFFSETS, version, cases)


@pytest.mark.parametrize("version", range(2, APIS[ApiKey.OFFSET_FOR_LEADER_EPOCH].max_version + 1))
def test_offset_for_leader_epoch(pair: Pair, name: str, version: int) -> None:
    pair.create(create(name))
    pair.both(ApiKey.PRODUCE, 9, produce(name, batch(10)))

    def case(
        title: str, epoch: int, *, topic: str = name, partition: int = 0, current: int = -1
    ) -> Case:
        where = OffsetForLeaderPartition(
            partition=partition, current_leader_epoch=current, leader_epoch=epoch
        )
        topics = [OffsetForLeaderTopic(topic=topic, partitions=[where])]
        return Case(title, OffsetForLeaderEpochRequest(replica_id=-1, topics=topics))

    pair.compare(
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        version,
        [
            case("the current one", 0),
            case("a future one", 5),
            case("undefined", -1),
            case("we know a newer leader", 0, current=3),
            case("no such partition", 0, partition=4),
            case("no such topic", 0, topic=f"{name}-missing"),
        ],
    )


@pytest.mark.parametrize("version", range(APIS[ApiKey.DELETE_RECORDS].max_version + 1))
def test_delete_records(pair: Pair, name: str, version: int) -> None:
    pair.create(create(name))
    pair.create(create(f"{name}-c", configs={"cleanup.policy": "compact"}))
    for _ in range(3):
        pair.both(ApiKey.PRODUCE, 9, produce(name, batch(10)))

    def case(title: str, offset: int, *, topic: str = name, partition: int = 0) -> Case:
        where = DeleteRecordsPartition(partition_index=partition, offset=offset)
        topics = [DeleteRecordsTopic(name=topic, partitions=[where])]
        return Case(title, DeleteRecordsRequest(topics=topics, timeout_ms=5000))

    pair.compare(
        ApiKey.DELETE_RECORDS,
        version,
        [
            case("middle of a batch", 5),
            case("before the start", 2),
            case("past the end", 31),
            case("negative", -3),
            case("all", -1),
            case("compacted topic", 0, topic=f"{name}-c"),
            case("no such partition", 0, partition=6),
            case("no such topic", 0, topic=f"{name}-missing"),
        ],
    )
    pair.compare(ApiKey.LIST_OFFSETS, 7, [Case("earliest afterwards", list_offsets(name, -2))])


def test_describe_producers(pair: Pair, name: str) -> None:
    pair.create(create(name))
    records = batch(3, producer_id=8_000_000, producer_epoch=2, sequence=0)
    pair.both(ApiKey.PRODUCE, 9, produce(name, records))

    def case(title: str, topic: str, *partitions: int) -> Case:
        wanted = TopicRequest(name=topic, partition_indexes=list(partitions))
        return Case(title, DescribeProducersRequest(topics=[wanted]))

    pair.compare(
        ApiKey.DESCRIBE_PRODUCERS,
        0,
        [
            case("one producer", name, 0),
            case("the same partition twice", name, 0, 0),
            case("no such partition", name, 5),
            case("no such topic", f"{name}-missing", 0),
            case("bad name", "a/b", 0),
        ],
    )
