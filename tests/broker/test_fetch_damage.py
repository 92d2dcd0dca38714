"""A partition that cannot be read is answered with an error of its own; the others get theirs."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from tests.broker.harness import Client, batch, create_topic, fetch_request, produce

from tidemill.broker.server import BrokerServer
from tidemill.errors import ErrorCode
from tidemill.storage.files import OsFiles
from tidemill.storage.slice import LogSlice
from tidemill.wire.batch import MAGIC_POS, iter_headers
from tidemill.wire.messages.fetch import FetchPartition


@pytest.fixture(params=["warm", "cold"])
def read_from(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether the page cache has the bytes, or a thread has to wait for the disk."""
    kind: str = request.param
    if kind == "cold":
        monkeypatch.setattr(OsFiles, "pread_now", lambda *_: None)
    return kind


async def fill(server: BrokerServer, client: Client) -> None:
    """Two partitions of five batches each, of which an answer has room for two."""
    await create_topic(server, "t", partitions=2)
    for partition in (0, 1):
        for number in range(5):
            await produce(client, "t", batch([b"value %d" % number]), partition=partition)


def spoil(path: Path, batch_number: int) -> None:
    """Change a byte of a header that no checksum of the batch covers."""
    data = bytearray(path.read_bytes())
    positions = [position for position, _ in iter_headers(data)]
    data[positions[batch_number] + MAGIC_POS] = 7
    path.write_bytes(data)


async def ask_both(
    client: Client, offset: int, *, max_wait_ms: int = 0
) -> list[tuple[ErrorCode, list[int]]]:
    limit = 2 * len(batch([b"value 0"])) + 1  # To find the end, headers have to be read.
    request = fetch_request("t", offset, max_wait_ms=max_wait_ms, partition_max_bytes=limit)
    second = FetchPartition(partition=1, fetch_offset=offset, partition_max_bytes=limit)
    request.topics[0].partitions.append(second)
    response = await client.ask(request, 12)
    assert response.error_code == 0
    return [
        (
            ErrorCode(data.error_code),
            [header.base_offset for _, header in iter_headers(data.records or b"")],
        )
        for data in response.responses[0].partitions
    ]


async def test_a_bad_byte_fails_its_own_partition_only(
    server: BrokerServer, client: Client, tmp_path: Path, read_from: str
) -> None:
    """Rule E2: what is on the disk is no batch, and the client is told so."""
    await fill(server, client)
    spoil(tmp_path / "t-0" / "00000000000000000000.log", 3)
    for max_wait_ms in (0, 5_000):
        assert await ask_both(client, 2, max_wait_ms=max_wait_ms) == [
            (ErrorCode.CORRUPT_MESSAGE, []),
            (ErrorCode.NONE, [2, 3]),
        ]


async def test_whatever_goes_wrong_with_one_partition_the_others_are_answered(
    server: BrokerServer,
    client: Client,
    read_from: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await fill(server, client)
    method = "read_now" if read_from == "warm" else "read_blocking"
    real = getattr(LogSlice, method)

    def fails(stored: LogSlice) -> bytes:
        if "/t-0/" in stored._segment.log_path:
            raise ValueError("nobody thought of this")
        found: bytes = real(stored)
        return found

    monkeypatch.setattr(LogSlice, method, fails)
    with caplog.at_level(logging.ERROR):
        answers = await ask_both(client, 2)
    assert answers == [(ErrorCode.KAFKA_STORAGE_ERROR, []), (ErrorCode.NONE, [2, 3])]
    assert "nobody thought of this" in caplog.text
