"""A consumer under faults: lost sessions, moved leaders, cut logs, damaged bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest
from tests.client.scripted import Fault, ScriptedBroker
from tests.waiting import LONG_S

from tidemill.client.consumer import Consumer
from tidemill.client.consumer_types import ConsumerRecord
from tidemill.client.errors import (
    ClientError,
    ClosedError,
    LogTruncatedError,
    OffsetResetError,
)
from tidemill.errors import ErrorCode
from tidemill.types import TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.records import Record, build_batch, iter_records

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
QUICK: dict[str, Any] = {
    "retry_backoff_ms": 1,
    "retry_backoff_max_ms": 5,
    "reconnect_backoff_ms": 1,
    "fetch_max_wait_ms": 20,
    "auto_offset_reset": "earliest",
}


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker({"t": 2}) as running:
        yield running


def consuming(broker: ScriptedBroker, **settings: object) -> Consumer:
    return Consumer(broker.bootstrap, random=Random(5), **{**QUICK, **settings})


def write(broker: ScriptedBroker, count: int, partition: TopicPartition = T0) -> None:
    state = broker.partitions[partition]
    base = state.end
    records = [Record(n, 1000 + n, b"k", b"%d" % (base + n)) for n in range(count)]
    state.append(build_batch(records, leader_epoch=state.leader_epoch))


async def read(consumer: Consumer, count: int, **options: int) -> list[ConsumerRecord]:
    """Poll until `count` records came; give up after a second without any."""
    records: list[ConsumerRecord] = []
    while len(records) < count:
        some = await consumer.poll(timeout_ms=1000, **options)
        if not some:
            break
        records += some
    return records


def offsets(records: list[ConsumerRecord]) -> list[int]:
    return [record.offset for record in records]


async def test_records_come_in_order_and_in_portions(broker: ScriptedBroker) -> None:
    for _ in range(10):
        write(broker, 7)
    async with consuming(broker) as consumer:
        consumer.assign([T0])
        portion = await consumer.poll(10, timeout_ms=1000)
        assert offsets(portion) == list(range(10))
        assert await consumer.position(T0) == 10
        rest = await read(consumer, 60, max_records=9)
        assert offsets(rest) == list(range(10, 70))
        assert [record.value for record in rest[:2]] == [b"10", b"11"]
        assert consumer.high_watermark(T0) == 70
        assert consumer.lag(T0) == 0
        assert await consumer.poll() == []


async def test_whole_batches_and_the_middle_of_one(broker: ScriptedBroker) -> None:
    write(broker, 10)
    write(broker, 10)
    async with consuming(broker) as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 4)
        batches = await consumer.poll_batches(timeout_ms=1000)
        assert [(b.start_offset, b.header.base_offset) for b in batches] == [(4, 0), (10, 10)]
        records = list(iter_records(batches[0].data, 0, batches[0].header, limit_bytes=1 << 20))
        assert len(records) == 10
        assert await consumer.position(T0) == 20
        consumer.seek(T0, 4)
        assert offsets(await read(consumer, 16)) == list(range(4, 20))


async def test_both_ways_of_reading_can_be_mixed(broker: ScriptedBroker) -> None:
    write(broker, 10)
    write(broker, 10)
    async with consuming(broker) as consumer:
        consumer.assign([T0])
        assert offsets(await consumer.poll(3, timeout_ms=1000)) == [0, 1, 2]
        first, second = await consumer.poll_batches(timeout_ms=1000)
        assert (first.start_offset, second.start_offset) == (3, 10)


async def test_partitions_take_turns_and_can_pause(broker: ScriptedBroker) -> None:
    for _ in range(20):
        write(broker, 10, T0)
        write(broker, 10, T1)
    async with consuming(broker) as consumer:
        consumer.assign([T0, T1])
        records = await read(consumer, 100, max_records=10)
        assert {record.partition for record in records} == {0, 1}
        consumer.pause(T0)
        assert consumer.paused() == {T0}
        later = await read(consumer, 150)
        assert {record.partition for record in later} == {1}
        consumer.resume()
        assert len(later) + len(records) + len(await read(consumer, 400)) == 400


@pytest.mark.parametrize(
    "fault",
    [
        Fault(drop=True),
        Fault(error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        Fault(error=ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        Fault(error=ErrorCode.NOT_LEADER_OR_FOLLOWER),
        Fault(error=ErrorCode.FENCED_LEADER_EPOCH),
        Fault(error=ErrorCode.UNKNOWN_LEADER_EPOCH),
        Fault(error=ErrorCode.OFFSET_NOT_AVAILABLE),
        Fault(error=ErrorCode.UNKNOWN_TOPIC_ID),
    ],
    ids=str,
)
async def test_what_passes_is_survived(broker: ScriptedBroker, fault: Fault) -> None:
    countdown = [3, 2, 1]

    def every_other(key: ApiKey, _: object) -> Fault | None:
        if key is ApiKey.FETCH and countdown:
            return fault if countdown.pop() % 2 else None
        return None

    broker.fault = every_other
    async with consuming(broker) as consumer:
        consumer.assign([T0])
        for number in range(10):
            write(broker, 1)
            assert offsets(await read(consumer, 1)) == [number]
    assert not countdown


async def test_sessions_are_incremental(broker: ScriptedBroker) -> None:
    async with consuming(broker) as consumer:
        consumer.assign([T0, T1])
        for number in range(5):
            write(broker, 1, T0)
            assert offsets(await read(consumer, 1)) == [number]
    fetches = broker.seen(ApiKey.FETCH)
    assert [request.session_epoch for request in fetches[:3]] == [0, 1, 2]
    later = [p for request in fetches[1:] for topic in request.topics for p in topic.partitions]
    assert {part.partition for part in later} <= {0}


async def test_an_offset_outside_the_log_is_reset(broker: ScriptedBroker) -> None:
    write(broker, 5)
    broker.partitions[T0].log_start = 0
    async with consuming(broker) as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 1000)
        assert offsets(await read(consumer, 5)) == list(range(5))


async def test_what_was_fetched_is_handed_out_before_a_reset(broker: ScriptedBroker) -> None:
    """Retention passes us while we read: what is at hand already is not skipped."""
    write(broker, 5)
    fault: list[Fault] = []
    broker.fault = lambda api, _: fault[0] if fault and api is ApiKey.FETCH else None
    async with consuming(broker) as consumer:
        consumer.assign([T0])
        assert offsets(await consumer.poll(2, timeout_ms=1000)) == [0, 1]
        fault.append(Fault(error=ErrorCode.OFFSET_OUT_OF_RANGE))
        state = consumer._running().states[T0]
        async with asyncio.timeout(LONG_S):
            while not state.stalled and state.batches:
                consumer._running().wake()
                await asyncio.sleep(0.01)
        assert offsets(await consumer.poll(3, timeout_ms=1000)) == [2, 3, 4]


async def test_an_offset_outside_the_log_is_reported_if_so_wished(broker: ScriptedBroker) -> None:
    write(broker, 5)
    async with consuming(broker, auto_offset_reset="error") as consumer:
        consumer.assign([T0])
        with pytest.raises(OffsetResetError, match="seek before the first poll"):
            await consumer.poll(timeout_ms=1000)
        consumer.seek(T0, 1000)
        with pytest.raises(OffsetResetError, match="t-0 has no offset 1000"):
            await consumer.poll(timeout_ms=1000)
        consumer.seek(T0, 3)
        assert offsets(await read(consumer, 2)) == [3, 4]


async def test_latest_sees_what_comes_later_only(broker: ScriptedBroker) -> None:
    write(broker, 5)
    async with consuming(broker, auto_offset_reset="latest") as consumer:
        consumer.assign([T0])
        assert await consumer.position(T0) == 5
        write(broker, 1)
        assert offsets(await read(consumer, 1)) == [5]
        consumer.seek_to_beginning()
        assert offsets(await read(consumer, 6)) == list(range(6))
        consumer.seek_to_end(T0)
        assert await consumer.position(T0) == 6


async def cut(broker: ScriptedBroker, consumer: Consumer, end: int) -> None:
    """A new leader that never had the records from `end` on."""
    state = broker.partitions[T0]
    state.batches = state.batches[: end // 5]
    state.epoch_ends[0] = end
    state.leader_epoch = 1
    await consumer._cluster.refresh()
    while consumer._running().states[T0].validating:  # noqa: ASYNC110 - it tells nobody
        await asyncio.sleep(0.005)


async def test_a_cut_log_is_noticed_and_read_again_from_there(broker: ScriptedBroker) -> None:
    """An unclean election lost records that we had read: their offsets hold others now."""
    for _ in range(4):
        write(broker, 5)
    async with consuming(broker) as consumer:
        consumer.assign([T0])
        assert len(await read(consumer, 20)) == 20
        await cut(broker, consumer, 10)
        write(broker, 5)
        records = await read(consumer, 5)
        assert offsets(records) == list(range(10, 15))
        assert records[0].leader_epoch == 1


async def test_a_cut_log_is_reported_if_so_wished(broker: ScriptedBroker) -> None:
    for _ in range(4):
        write(broker, 5)
    async with consuming(broker, auto_offset_reset="error") as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 0)
        assert len(await read(consumer, 20)) == 20
        await cut(broker, consumer, 10)
        with pytest.raises(LogTruncatedError, match="cut at offset 10, we had read to 20"):
            await consumer.poll(timeout_ms=1000)


async def test_what_was_fetched_ahead_of_a_cut_is_thrown_away(broker: ScriptedBroker) -> None:
    for _ in range(4):
        write(broker, 5)
    async with consuming(broker, auto_offset_reset="error") as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 0)
        assert offsets(await consumer.poll(5, timeout_ms=1000)) == list(range(5))
        await cut(broker, consumer, 10)
        write(broker, 5)
        records = await read(consumer, 10)
        assert offsets(records) == list(range(5, 15))
        assert [record.leader_epoch for record in records] == [0] * 5 + [1] * 5


async def test_damaged_bytes_are_reported_and_read_again(broker: ScriptedBroker) -> None:
    write(broker, 5)
    write(broker, 5)
    state = broker.partitions[T0]
    good = state.batches[1]
    damaged = bytearray(good)
    damaged[-2] ^= 0xFF
    state.batches[1] = bytes(damaged)
    async with consuming(broker) as consumer:
        consumer.assign([T0])
        assert len(await consumer.poll(5, timeout_ms=1000)) == 5
        with pytest.raises(ClientError, match="at offset 5 is damaged"):
            await consumer.poll(timeout_ms=1000)
        state.batches[1] = good
        assert offsets(await read(consumer, 5)) == list(range(5, 10))


async def test_prefetching_stops_at_its_bound(broker: ScriptedBroker) -> None:
    async with consuming(
        broker, prefetch_max_bytes=2000, max_partition_fetch_bytes=1000
    ) as consumer:
        consumer.assign([T0, T1])
        for partition in (T0, T1):
            for _ in range(4):
                write(broker, 50, partition)
        await asyncio.sleep(0.2)
        fetched = len(broker.seen(ApiKey.FETCH))
        await asyncio.sleep(0.2)
        assert len(broker.seen(ApiKey.FETCH)) == fetched
        assert len(await read(consumer, 400)) == 400


async def test_seeking_voids_what_is_under_way(broker: ScriptedBroker) -> None:
    for _ in range(10):
        write(broker, 10)
    async with consuming(broker) as consumer:
        consumer.assign([T0])
        for target in (50, 3, 99, 0, 77):
            consumer.seek(T0, target)
            await asyncio.sleep(0)
            records = await consumer.poll(1, timeout_ms=1000)
            assert offsets(records) == [target]


async def test_assigning_anew_keeps_positions(broker: ScriptedBroker) -> None:
    write(broker, 10, T0)
    write(broker, 10, T1)
    async with consuming(broker) as consumer:
        consumer.assign([T0])
        await consumer.poll(4, timeout_ms=1000)
        consumer.assign([T0, T1])
        assert consumer.assignment() == {T0, T1}
        assert await consumer.position(T0) == 4
        consumer.assign([T1])
        records = await read(consumer, 10)
        assert {record.partition for record in records} == {1}
        with pytest.raises(ValueError, match="t-0 is not assigned"):
            consumer.seek(T0, 0)
        with pytest.raises(ValueError, match="not negative"):
            consumer.seek(T1, -1)


async def test_iteration_ends_with_the_consumer(broker: ScriptedBroker) -> None:
    write(broker, 3)
    seen = []
    async with consuming(broker) as consumer:
        consumer.assign([T0])
        async for record in consumer:
            seen.append(record.offset)
            if record.offset == 2:
                break
    assert seen == [0, 1, 2]
    with pytest.raises(ClosedError, match="async with"):
        await consumer.poll()


async def test_interceptors_and_deserializers(broker: ScriptedBroker) -> None:
    class Even:
        def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
            return [record for record in records if record.value % 2 == 0]

    write(broker, 4)
    async with consuming(
        broker, value_deserializer=lambda _topic, value: int(value or b"0"), interceptors=[Even()]
    ) as consumer:
        consumer.assign([T0])
        assert [r.value for r in await consumer.poll(timeout_ms=1000)] == [0, 2]


async def test_an_unknown_topic_is_reported(broker: ScriptedBroker) -> None:
    async with consuming(broker) as consumer:
        consumer.assign([TopicPartition("nosuch", 0)])
        with pytest.raises(ClientError) as caught:
            await consumer.poll(timeout_ms=2000)
        assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        with pytest.raises(ClientError):
            await consumer.partitions_for("nosuch")
        assert await consumer.partitions_for("t") == [0, 1]
        broker.create("nosuch", 1)
        write(broker, 1, TopicPartition("nosuch", 0))
        assert offsets(await read(consumer, 1)) == [0]
