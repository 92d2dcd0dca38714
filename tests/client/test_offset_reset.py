"""`auto.offset.reset`: its forms, and beginning with the records of the last while."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.broker.harness import batch, connect, create_topic, produce, running_broker

from tidemill.client import Consumer, Producer
from tidemill.client.admin_types import OffsetSpec
from tidemill.client.errors import SettingsError
from tidemill.client.offset_reset import duration_ms, spec_of


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("P1D", 86_400_000),
        ("PT1H30M", 5_400_000),
        ("P2DT0.5S", 2 * 86_400_000 + 500),
        ("pt10s", 10_000),
        ("PT0S", 0),
    ],
)
def test_durations(text: str, expected_ms: int) -> None:
    assert duration_ms(text) == expected_ms


@pytest.mark.parametrize("text", ["", "P", "PT", "1h", "P-1D", "P1Y", "PT1M1H", "P1DT"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(SettingsError):
        Consumer("127.0.0.1:1", auto_offset_reset=f"by_duration:{text}")


def test_what_is_asked_for() -> None:
    assert spec_of("earliest", 5) == OffsetSpec.EARLIEST
    assert spec_of("latest", 5) == OffsetSpec.LATEST
    assert spec_of("none", 5) is None
    assert spec_of("by_duration:PT1S", 5_000) == 4_000
    assert spec_of("by_duration:P1D", 5_000) == 0


async def test_the_records_of_the_last_hour(tmp_path: Path) -> None:
    """Where none is as young, what comes from now on."""
    async with running_broker(tmp_path) as server:
        await create_topic(server, "t", 2)
        async with connect(server.port) as writer:
            for partition in (0, 1):
                await produce(writer, "t", batch([b"old"] * 3), partition=partition)
        bootstrap = f"127.0.0.1:{server.port}"
        async with (
            Producer(bootstrap) as producer,
            Consumer(bootstrap, auto_offset_reset="by_duration:PT1H") as consumer,
        ):
            await producer.send("t", b"young", partition=0)
            consumer.assign([("t", 0), ("t", 1)])
            for assigned in consumer.assignment():
                assert await consumer.position(assigned) == 3
            await producer.send("t", b"later", partition=1)
            values: set[bytes | None] = set()
            async with asyncio.timeout(20):
                while len(values) < 2:
                    values |= {record.value for record in await consumer.poll(timeout_ms=500)}
            assert values == {b"later", b"young"}
