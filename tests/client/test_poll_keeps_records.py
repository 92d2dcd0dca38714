"""A poll that fails or is cancelled loses nothing: what it had taken comes with the next one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.broker.harness import batch, connect, create_topic, produce, running_broker

from tidemill.client import Consumer, ConsumerRecord
from tidemill.types import TopicPartition

QUICK = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1"}
TP = TopicPartition("t", 0)

pytestmark = pytest.mark.timeout(60)


@asynccontextmanager
async def reading(
    directory: Path, partitions: list[list[list[bytes]]], **settings: Any
) -> AsyncIterator[Consumer]:
    """A member of a group that has been assigned partitions with these batches."""
    async with running_broker(directory, QUICK) as server:
        await create_topic(server, "t", len(partitions))
        async with connect(server.port) as client:
            for index, batches in enumerate(partitions):
                for values in batches:
                    await produce(client, "t", batch(values), partition=index)
        given: dict[str, Any] = {"group_id": "g", "auto_offset_reset": "earliest"}
        consumer = Consumer(f"127.0.0.1:{server.port}", **given | settings)
        await consumer.start()
        try:
            consumer.subscribe(["t"])
            yield consumer
        finally:
            await consumer._close(commit=False)


async def stocked(consumer: Consumer, *, batches: int) -> None:
    """Wait until so much is fetched that one poll could take all of it."""
    while not consumer.assignment():
        assert await consumer.poll(timeout_ms=0) == []
        await asyncio.sleep(0.01)
    states = consumer._running().states.values()
    while sum(len(state.batches) for state in states) < batches:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def picky(topic: str, data: bytes) -> bytes:
    if data == b"bad":
        raise ValueError("cannot read this")
    return data


async def committed(consumer: Consumer) -> int | None:
    found = (await consumer.committed(TP))[TP]
    return None if found is None else found.offset


async def test_what_came_before_a_bad_record_is_handed_out_first(tmp_path: Path) -> None:
    layout = [[[b"a", b"b"], [b"c"], [b"bad"]]]
    settings = {"value_deserializer": picky, "auto_commit_interval_ms": 0}
    async with reading(tmp_path, layout, **settings) as consumer:
        await stocked(consumer, batches=3)
        got = await consumer.poll(timeout_ms=1000)
        assert [record.value for record in got] == [b"a", b"b", b"c"]
        for _ in range(3):
            with pytest.raises(ValueError, match="cannot read this"):
                await consumer.poll(timeout_ms=1000)
            await consumer._grouped().drain(30_000)
        assert await consumer.position(TP) == 3
        assert await committed(consumer) == 3
        consumer.seek(TP, 4)
        assert await consumer.poll(timeout_ms=100) == []


async def test_an_error_is_raised_though_other_partitions_have_records(tmp_path: Path) -> None:
    layout = [[[b"%d" % n] for n in range(30)], [[b"bad"]]]
    settings = {"value_deserializer": picky, "max_poll_records": 5}
    async with reading(tmp_path, layout, **settings) as consumer:
        await stocked(consumer, batches=31)
        seen: list[bytes] = []
        errors = 0
        while len(seen) < 30:
            try:
                seen += [record.value for record in await consumer.poll(timeout_ms=1000)]
            except ValueError:
                errors += 1
        assert seen == [b"%d" % n for n in range(30)]
        assert errors > 0


async def test_batches_before_a_damaged_one_are_handed_out_first(tmp_path: Path) -> None:
    async with reading(tmp_path, [[[b"a"], [b"b"], [b"c"]]]) as consumer:
        await stocked(consumer, batches=3)
        state = consumer._running().states[TP]
        broken = bytearray(state.batches[1].data)
        broken[-1] ^= 1
        state.batches[1] = state.batches[1]._replace(data=memoryview(broken))
        assert [b.start_offset for b in await consumer.poll_batches(timeout_ms=1000)] == [0]
        with pytest.raises(Exception, match="checksum"):
            await consumer.poll_batches(timeout_ms=1000)
        got: list[int] = []
        while len(got) < 2:
            got += [b.start_offset for b in await consumer.poll_batches(timeout_ms=1000)]
        assert got == [1, 2]


async def test_a_cancelled_poll_takes_nothing(tmp_path: Path) -> None:
    layout = [[[b"x"] * 5 for _ in range(20)]]
    async with reading(tmp_path, layout, max_poll_records=7) as consumer:
        await stocked(consumer, batches=20)
        expected = 0
        buffered = consumer._running().buffered_bytes
        for _ in range(5):
            await cancel_after_taking(consumer)
            assert await consumer.position(TP) == expected
            await consumer.commit()
            assert await committed(consumer) == expected
            assert consumer._running().buffered_bytes == buffered
            got = await consumer.poll(timeout_ms=1000)
            assert [r.offset for r in got] == list(range(expected, expected + 7))
            expected += 7
            buffered = consumer._running().buffered_bytes


async def cancel_after_taking(consumer: Consumer) -> None:
    before = await consumer.position(TP)
    poll = asyncio.create_task(consumer.poll(timeout_ms=1000))
    while consumer._running().states[TP].position == before:  # noqa: ASYNC110 - the very turn
        await asyncio.sleep(0)
    poll.cancel()
    with pytest.raises(asyncio.CancelledError):
        await poll


class Breaks:
    """An interceptor that raises as often as it is told to."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)

    def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        if records and self.errors:
            raise self.errors.pop()
        return records


async def test_an_interceptor_that_raises_costs_no_records(tmp_path: Path) -> None:
    interceptor = Breaks(asyncio.CancelledError(), ValueError("only logged"))
    async with reading(tmp_path, [[[b"a", b"b"]]], interceptors=[interceptor]) as consumer:
        await stocked(consumer, batches=1)
        first = await consumer.poll(1, timeout_ms=1000)
        assert [record.offset for record in first] == [0]
        with pytest.raises(asyncio.CancelledError):
            await consumer.poll(timeout_ms=1000)
        assert await consumer.position(TP) == 1
        assert [record.offset for record in await consumer.poll(timeout_ms=1000)] == [1]
