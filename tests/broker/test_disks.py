"""Disks and file handles that fail: one clear error per request, never a dead broker."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.broker.harness import Client, batch, connect, create_topic, fetch, list_offset, produce
from tests.waiting import eventually_async

from tidemill.broker.server import BrokerServer
from tidemill.config import load_broker_config
from tidemill.errors import ErrorCode
from tidemill.storage.disk_errors import disk_error
from tidemill.storage.files import Buffer, OsFiles
from tidemill.store.base import StoreUnavailable
from tidemill.wire.messages.log_dirs import DescribeLogDirsRequest
from tidemill.wire.messages.metadata import MetadataRequest
from tidemill.wire.messages.topics import DeleteTopicsRequest, DeleteTopicState


class FailingFiles(OsFiles):
    """The machine's files, until a test says what goes wrong with paths below a directory."""

    def __init__(self) -> None:
        super().__init__()
        self.write_errno: int | None = None
        self.sync_errno: int | None = None
        self.below = ""

    def write_at(self, path: str, position: int, parts: Sequence[Buffer]) -> None:
        self._maybe_fail(self.write_errno, path)
        super().write_at(path, position, parts)

    def fdatasync(self, path: str) -> None:
        self._maybe_fail(self.sync_errno, path)
        super().fdatasync(path)

    def _maybe_fail(self, number: int | None, path: str) -> None:
        if number is not None and path.startswith(self.below) and path.endswith(".log"):
            raise disk_error(OSError(number, "injected"), "using", path)


@asynccontextmanager
async def broker_on(files: FailingFiles, *directories: Path) -> AsyncIterator[BrokerServer]:
    """A broker with these log directories, while the block runs."""
    overrides = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": ",".join(map(str, directories)),
    }
    config, _ = load_broker_config(environ={}, overrides=overrides)
    server = BrokerServer(config, files=files)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def client_of(files: FailingFiles, *directories: Path) -> AsyncIterator[Client]:
    """A client of a broker that has the topic `t`."""
    async with broker_on(files, *directories) as server:
        await create_topic(server, "t")
        async with connect(server.port) as client:
            yield client


async def test_a_full_disk_refuses_writes_and_heals(tmp_path: Path) -> None:
    """Rule E8: reads go on, and so do writes once there is room again."""
    files = FailingFiles()
    async with client_of(files, tmp_path) as client:
        assert (await produce(client, "t", batch([b"a"]))).error_code == 0
        files.write_errno = errno.ENOSPC
        refused = await produce(client, "t", batch([b"b"]))
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        data = (await fetch(client, "t", 0)).responses[0].partitions[0]
        assert (data.error_code, data.high_watermark) == (0, 1)
        files.write_errno = None
        healed = await produce(client, "t", batch([b"c"]))
        assert (healed.error_code, healed.base_offset) == (0, 1)


async def test_no_file_handles_is_an_error_per_request(tmp_path: Path) -> None:
    files = FailingFiles()
    async with client_of(files, tmp_path) as client:
        files.write_errno = errno.EMFILE
        refused = await produce(client, "t", batch([b"a"]))
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        files.write_errno = None
        assert (await produce(client, "t", batch([b"a"]))).error_code == 0


async def test_a_failed_directory_takes_only_its_partitions_offline(tmp_path: Path) -> None:
    """Rule E1: no further appends there, and the others are served as before."""
    files = FailingFiles()
    first, second = tmp_path / "one", tmp_path / "two"
    async with broker_on(files, first, second) as server:
        await create_topic(server, "t", partitions=2)
        async with connect(server.port) as client:
            for partition in (0, 1):
                result = await produce(client, "t", batch([b"a"]), partition=partition)
                assert result.error_code == 0
            files.below, files.sync_errno = str(second), errno.EIO
            lost = 0 if (second / "t-0").exists() else 1
            failed = await produce(client, "t", batch([b"b"]), partition=lost)
            assert failed.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            files.sync_errno = None
            again = await produce(client, "t", batch([b"b"]), partition=lost)
            assert again.error_code == ErrorCode.KAFKA_STORAGE_ERROR, "a flush is never retried"
            data = (await fetch(client, "t", 0, partition=lost)).responses[0].partitions[0]
            assert data.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            other = await produce(client, "t", batch([b"b"]), partition=1 - lost)
            assert other.error_code == 0
            described = await client.ask(DescribeLogDirsRequest(topics=None), 5)
            codes = {result.log_dir: result.error_code for result in described.results}
            assert codes == {str(first): 0, str(second): ErrorCode.KAFKA_STORAGE_ERROR}


async def test_a_directory_that_is_missing_at_a_start_costs_no_records(tmp_path: Path) -> None:
    """Rule E1: its partitions are not made anew elsewhere, and are there again when it is."""
    first, second, away = tmp_path / "one", tmp_path / "two", tmp_path / "away"
    async with broker_on(FailingFiles(), first, second) as server:
        await create_topic(server, "t", partitions=2)
        lost = 0 if (second / "t-0").exists() else 1
        async with connect(server.port) as client:
            for partition in (0, 1):
                result = await produce(client, "t", batch([b"a"]), partition=partition)
                assert result.error_code == 0
    second.rename(away)
    second.write_bytes(b"what is left of a mount")
    async with broker_on(FailingFiles(), first, second) as server, connect(server.port) as client:
        refused = await produce(client, "t", batch([b"b"]), partition=lost)
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await produce(client, "t", batch([b"b"]), partition=1 - lost)).error_code == 0
        await create_topic(server, "new", partitions=2)
        assert (await produce(client, "new", batch([b"c"]), partition=1)).error_code == 0
    second.unlink()
    away.rename(second)
    async with broker_on(FailingFiles(), first, second) as server, connect(server.port) as client:
        data = (await fetch(client, "t", 0, partition=lost)).responses[0].partitions[0]
        assert (data.error_code, data.high_watermark) == (0, 1)


async def test_a_flush_that_is_under_way_holds_back_what_consumers_see(tmp_path: Path) -> None:
    """Rules B1 and E6: under `ack` the high watermark counts what is on the disk."""
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()

    class SlowFiles(FailingFiles):
        def fdatasync(self, path: str) -> None:
            if path.endswith(".log"):
                asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(20)
            super().fdatasync(path)

    async with client_of(SlowFiles(), tmp_path) as client:
        try:
            acked = await produce(client, "t", batch([b"a"]), acks=1)
            assert acked.error_code == 0
            assert (await list_offset(client, "t", -1)).offset == 0
            # Nor is it found by its time (rule B8), whether that is said or it is the largest.
            assert (await list_offset(client, "t", 1)).offset == -1
            assert (await list_offset(client, "t", -3)).offset == -1
            timed_out = await produce(client, "t", batch([b"b"]), acks=-1, timeout_ms=100)
            assert timed_out.error_code == ErrorCode.REQUEST_TIMED_OUT
            gate.set()
            data = (await fetch(client, "t", 0, max_wait_ms=5000)).responses[0].partitions[0]
            assert data.high_watermark >= 1
            assert (await list_offset(client, "t", 1)).offset == 0
            assert (await client.ask(MetadataRequest(topics=None), 12)).topics[0].error_code == 0
        finally:
            gate.set()


async def test_a_flush_without_handles_is_answered_at_once_and_heals(tmp_path: Path) -> None:
    """A producer need not wait for its time limit to learn that the broker is out of files."""
    files = FailingFiles()
    async with client_of(files, tmp_path) as client:
        files.sync_errno = errno.EMFILE
        asked = produce(client, "t", batch([b"a"]), timeout_ms=60_000)
        refused = await asyncio.wait_for(asked, 10)
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        files.sync_errno = None
        data = (await fetch(client, "t", 0, max_wait_ms=10_000)).responses[0].partitions[0]
        assert data.high_watermark == 1, "it is flushed without another append"
        assert (await produce(client, "t", batch([b"b"]))).error_code == 0


async def test_a_partition_without_a_log_says_so_and_gets_one(tmp_path: Path) -> None:
    files = FailingFiles()
    async with broker_on(files, tmp_path) as server:
        files.write_errno = errno.ENOSPC
        topic_id = await create_topic(server, "t")
        async with connect(server.port) as client:
            for topic, version in (("t", 9), (topic_id, 13)):
                refused = await produce(client, topic, batch([b"a"]), version=version)
                assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
                answer = await fetch(client, topic, 0, version=version + 3)
                code = answer.responses[0].partitions[0].error_code
                assert code == ErrorCode.KAFKA_STORAGE_ERROR
            offset = await list_offset(client, "t", -1)
            assert offset.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            files.write_errno = None

            async def is_healed() -> bool:
                return not (await produce(client, "t", batch([b"a"]))).error_code

            await eventually_async(is_healed)


async def test_a_deleted_topic_frees_its_space_after_its_own_delay(tmp_path: Path) -> None:
    async with broker_on(FailingFiles(), tmp_path) as server:
        await create_topic(server, "t", configs={"file.delete.delay.ms": "10"})
        await server.controller.delete_topics(["t"], [])

        async def is_gone() -> bool:
            return not any("t-0" in name for name in server.logs.files.listdir(str(tmp_path)))

        await eventually_async(is_gone)


async def test_a_store_without_room_says_why_it_deletes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_on(FailingFiles(), tmp_path) as server:
        await create_topic(server, "t")

        async def full(ops: object) -> None:
            raise StoreUnavailable("store.db: database or disk is full")

        monkeypatch.setattr(server.store, "multi", full)
        async with connect(server.port) as client:
            request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1000)
            (result,) = (await client.ask(request, 6)).responses
            assert result.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert "disk is full" in result.error_message
        monkeypatch.undo()
