"""Columns while leaders move, answers are lost and bytes are damaged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import numpy
import pyarrow
import pytest
from tests.client.scripted import Fault, ScriptedBroker

from tidemill.client.columnar import ColumnarProducer, ColumnarReader, OffsetsLost
from tidemill.client.errors import ClientError
from tidemill.errors import ErrorCode
from tidemill.types import TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.batch import write_crc
from tidemill.wire.records import Record, build_batch

TP = TopicPartition("t", 0)
QUICK = {"retry.backoff.ms": "1", "retry.backoff.max.ms": "5", "reconnect.backoff.ms": "1"}


@pytest.fixture
async def brokers() -> AsyncIterator[list[ScriptedBroker]]:
    async with ScriptedBroker({"t": 1}) as first, ScriptedBroker(beside=first) as second:
        yield [first, second]


def fill(broker: ScriptedBroker, batches: int) -> None:
    """Batches of ten records, so that offset and value agree."""
    for _ in range(batches):
        end = broker.partitions[TP].end
        records = [Record(n, 1000, None, b"%d" % (end + n)) for n in range(10)]
        assert broker.partitions[TP].append(build_batch(records))[0] is ErrorCode.NONE


def read(bootstrap: str, start: int, end: int, **settings: str) -> list[int]:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    with ColumnarReader(bootstrap, settings={**QUICK, **named}) as reader:
        return [
            int(v) for piece in reader.read("t", 0, start, end) for v in piece.value.to_pylist()
        ]


async def test_reading_while_leaders_move(brokers: list[ScriptedBroker]) -> None:
    """The range is written while it is read, and the reader has to follow every move."""
    end = 200
    reading = asyncio.create_task(asyncio.to_thread(read, brokers[1].bootstrap, 0, end))
    for number in range(end // 10):
        leader = brokers[number % 2]
        leader.lead(TP)
        fill(leader, 1)
        fetches = len(leader.seen(ApiKey.FETCH))
        while len(leader.seen(ApiKey.FETCH)) == fetches:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
    assert await reading == list(range(end))


async def test_writing_while_leaders_move_and_answers_are_lost(
    brokers: list[ScriptedBroker],
) -> None:
    random = Random(6)
    for broker in brokers:
        broker.fault = lambda key, _request: (
            Fault(drop=True, apply=True)
            if key is ApiKey.PRODUCE and random.random() < 0.2
            else None
        )

    def write() -> dict[TopicPartition, int]:
        settings = {**QUICK, "batch.size": "300"}
        with ColumnarProducer(brokers[0].bootstrap, settings=settings) as producer:
            for first in range(0, 2000, 100):
                values = pyarrow.array([b"%d" % n for n in range(first, first + 100)])
                producer.send("t", numpy.zeros(100, numpy.int32), None, values)
            return producer.flush()

    writing = asyncio.create_task(asyncio.to_thread(write))
    while not writing.done():
        random.choice(brokers).lead(TP)
        await asyncio.wait([writing], timeout=0.01)
    assert await writing == {TP: 1999}
    values = [int(record.value or b"") for record in brokers[0].partitions[TP].records()]
    assert values == list(range(2000))


async def test_fetching_ahead_ends_with_the_range(brokers: list[ScriptedBroker]) -> None:
    """What lies behind the range is somebody else's to read."""
    fill(brokers[0], 10)
    assert await asyncio.to_thread(read, brokers[0].bootstrap, 3, 57) == list(range(3, 57))
    asked = [
        part.fetch_offset
        for request in brokers[0].seen(ApiKey.FETCH)
        for topic in request.topics
        for part in topic.partitions
    ]
    assert asked
    assert max(asked) < 57


async def test_damage_is_read_again_and_then_reported(brokers: list[ScriptedBroker]) -> None:
    fill(brokers[0], 3)
    sound = brokers[0].partitions[TP].batches[1]
    brokers[0].partitions[TP].batches[1] = sound[:-1] + b"!"
    with pytest.raises(ClientError, match="offset 10 is damaged") as damaged:
        await asyncio.to_thread(read, brokers[0].bootstrap, 0, 30, default_api_timeout_ms="100")
    assert damaged.value.code is ErrorCode.CORRUPT_MESSAGE
    reading = asyncio.create_task(asyncio.to_thread(read, brokers[0].bootstrap, 0, 30))
    fetches = len(brokers[0].seen(ApiKey.FETCH))
    while len(brokers[0].seen(ApiKey.FETCH)) < fetches + 3:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    brokers[0].partitions[TP].batches[1] = sound
    assert await reading == list(range(30))


async def test_a_record_that_makes_no_sense_is_reported(brokers: list[ScriptedBroker]) -> None:
    """Its batch has a sound checksum, so reading it again would not help."""
    fill(brokers[0], 1)
    records = [Record(n, 1000, None, b"%d" % n) for n in range(10)]
    batch = bytearray(build_batch(records))
    batch[61] ^= 0x40  # The first record's length.
    write_crc(batch, 0, len(batch))
    brokers[0].partitions[TP].append(bytes(batch))
    with pytest.raises(ClientError, match="record 0 of 10 in the batch at offset 10 is damaged"):
        await asyncio.to_thread(read, brokers[0].bootstrap, 0, 20)


async def test_records_lost_while_they_are_read_are_reported(
    brokers: list[ScriptedBroker],
) -> None:
    broker = brokers[0]
    fill(broker, 2)

    def look() -> Any:
        settings = {**QUICK, "default.api.timeout.ms": "20000"}
        with ColumnarReader(broker.bootstrap, settings=settings) as reader:
            pieces = reader.read("t", 0, 0, 40)
            seen = next(pieces).row_count
            with pytest.raises(OffsetsLost) as lost:
                next(pieces)
            return seen, lost.value

    looking = asyncio.create_task(asyncio.to_thread(look))
    while len(broker.seen(ApiKey.FETCH)) < 2:  # noqa: ASYNC110 - it tells nobody
        await asyncio.sleep(0.01)
    fill(broker, 2)
    broker.partitions[TP].batches[:] = broker.partitions[TP].batches[3:]
    broker.partitions[TP].log_start = 30
    seen, lost = await looking
    assert (seen, lost.start, lost.earliest) == (20, 20, 30)


async def test_a_topic_that_is_not_there_is_waited_for_and_then_named(
    brokers: list[ScriptedBroker],
) -> None:
    def look() -> None:
        settings = {**QUICK, "default.api.timeout.ms": "100"}
        with ColumnarReader(brokers[0].bootstrap, settings=settings) as reader:
            next(reader.read("missing", 0, 0, 1))

    with pytest.raises(ClientError) as missing:
        await asyncio.to_thread(look)
    assert missing.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_range_gets_all_that_is_its_own_when_another_was_left(
    brokers: list[ScriptedBroker],
) -> None:
    """What is taken ahead for the range that was left must not be of the next one."""
    fill(brokers[0], 20)

    def look() -> list[list[int]]:
        found, left = [], []
        with ColumnarReader(brokers[0].bootstrap, settings=QUICK) as reader:
            for start in range(0, 200, 10):
                # Longer than the log: it is being waited for when the next one begins.
                left.append(reader.read("t", 0, start, 1000))
                next(left[-1])
                pieces = reader.read("t", 0, start, start + 10)
                found.append([n for piece in pieces for n in piece.offset.tolist()])
        return found

    found = await asyncio.to_thread(look)
    assert found == [list(range(start, start + 10)) for start in range(0, 200, 10)]
