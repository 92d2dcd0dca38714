"""A byte that changes on the disk of a running broker: found, told, and never served (rule E2)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.broker.harness import Client, connect, fetch, list_offset, produce
from tests.broker.test_live_storage import BROKER, NOW_MS, batch, change, create
from tests.cli.helpers import quick

from tidemill.cli.exits import Exit
from tidemill.errors import ErrorCode
from tidemill.testing.process import BrokerProcess
from tidemill.wire.batch import iter_headers

SEGMENT = "00000000000000000000.log"
OFTEN = {"log.scrub.interval.ms": "100"}
VALUE_BYTES = 10_000


async def fill(client: Client, topic: str, count: int = 130) -> None:
    """More than one segment of batches with one large record each."""
    await create(client, topic, {"segment.bytes": str(1 << 20)})
    for number in range(count):
        value = b"%06d" % number + b"." * VALUE_BYTES
        assert (await produce(client, topic, batch([value]))).error_code == 0


async def until(condition: Callable[[], bool]) -> None:
    """Look again and again: what is waited for happens in another process."""
    for _ in range(600):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it did not happen within 30 seconds")


async def error_at(client: Client, topic: str, offset: int) -> int:
    response = await fetch(client, topic, offset, partition_max_bytes=1)
    code: int = response.responses[0].partitions[0].error_code
    return code


def flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes([byte[0] ^ 0x01]))


def errors_of(broker: BrokerProcess) -> list[str]:
    lines = (json.loads(line) for line in broker.log_path.read_text().splitlines())
    return [line["event"] for line in lines if line["level"] == "error"]


@pytest.mark.parametrize("field", ["base offset", "data"])
async def test_a_flipped_byte_on_a_live_broker(tmp_path: Path, field: str) -> None:
    with BrokerProcess(tmp_path / "data", OFTEN) as broker:
        home = broker.data_dir / "t-0"
        async with connect(broker.port) as client:
            await fill(client, "t")
            await until((home / SEGMENT.replace(".log", ".checksums")).exists)
            positions = [at for at, _ in iter_headers((home / SEGMENT).read_bytes())]
            flip(home / SEGMENT, positions[50] + (7 if field == "base offset" else 5_000))
            await until(lambda: bool(errors_of(broker)))
            (complaint,) = errors_of(broker)
            assert str(home / SEGMENT) in complaint
            assert "t-0" in complaint
            codes = [await error_at(client, "t", offset) for offset in range(130)]
            bad = [offset for offset, code in enumerate(codes) if code]
            assert 50 in bad
            assert len(bad) <= 6, "only what is near is refused"
            assert {codes[offset] for offset in bad} == {ErrorCode.CORRUPT_MESSAGE}
            assert (await produce(client, "t", batch([b"more"]))).base_offset == 130
            assert (await list_offset(client, "t", NOW_MS)).error_code == 0
        found = quick("log", "verify", str(home), "--format", "json")
        assert found.status == Exit.FAILED
        (report,) = json.loads(found.out)
        (problem,) = [p for p in report["problems"] if "not what was written" in p["message"]]
        assert problem["file"] == str(home / SEGMENT)
        assert problem["position"] <= positions[50] + 5_000 < problem["position"] + 2 * 16_384
        assert f"offsets {bad[0]} to" in problem["message"]


async def test_damage_is_found_again_after_a_restart(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", {"log.scrub.interval.ms": "3600000"})
    with broker:
        home = broker.data_dir / "t-0"
        async with connect(broker.port) as client:
            await fill(client, "t")
            await until((home / SEGMENT.replace(".log", ".checksums")).exists)
            positions = [at for at, _ in iter_headers((home / SEGMENT).read_bytes())]
    flip(home / SEGMENT, positions[50] + 12)  # the leader epoch
    with broker:
        async with connect(broker.port) as client:
            assert errors_of(broker) == []
            assert await error_at(client, "t", 50) == 0
            await change(client, BROKER, "", "log.scrub.interval.ms", "100")
            await until(lambda: bool(errors_of(broker)))
            assert await error_at(client, "t", 50) == ErrorCode.CORRUPT_MESSAGE
            assert await error_at(client, "t", 0) == 0
