"""AlterReplicaLogDirs: replicas move between the log directories of a broker while they serve."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
from tests.broker.harness import Client, batch, connect, create_topic, fetch, make_server, produce
from tests.storage.helpers import TOPIC_ID, TP, manager_on, read_all
from tests.storage.helpers import batch as stored_batch

from tidemill.broker.server import BrokerServer
from tidemill.client import Admin
from tidemill.client.admin_types import (
    AlterOp,
    ConfigResource,
    NewTopic,
)
from tidemill.errors import ErrorCode
from tidemill.storage.log import Log
from tidemill.storage.log_config import LogConfig
from tidemill.testing.disk import CrashDisk, PowerCut
from tidemill.testing.in_process import until
from tidemill.testing.process import BrokerProcess
from tidemill.types import TopicPartition
from tidemill.wire.batch import iter_headers
from tidemill.wire.messages.log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    DescribeLogDirsRequest,
)
from tidemill.wire.records import iter_records

DIRS = ("/one", "/two")
RATE = "replica.alter.log.dirs.io.max.bytes.per.second"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[BrokerServer]:
    paths = f"{tmp_path / 'one'},{tmp_path / 'two'}"
    server = make_server(tmp_path, {"log.dirs": paths})
    try:
        await server.start()
        yield server
    finally:
        await server.stop()


def request(path: str, topic: str = "t", index: int = 0) -> AlterReplicaLogDirsRequest:
    wanted = AlterReplicaLogDirTopic(name=topic, partitions=[index])
    return AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=[wanted])])


async def move(client: Client, path: str, topic: str = "t", index: int = 0) -> int:
    answer = await client.ask(request(path, topic, index), 2)
    code: int = answer.results[0].partitions[0].error_code
    return code


def log_of(server: BrokerServer, topic: str = "t") -> Log:
    found = server.broker.replicas.get(topic, 0)
    assert found is not None
    return found.log


async def fill(client: Client, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        result = await produce(client, "t", batch([b"%06d" % number + b"." * 20_000]))
        assert (result.error_code, result.base_offset) == (0, number)


async def test_a_replica_moves_and_goes_on(server: BrokerServer) -> None:
    await create_topic(server, "t", configs={"segment.bytes": str(1 << 20)})
    async with connect(server.port) as client:
        await fill(client, 120)
        home = Path(log_of(server).dir.path)
        other = next(str(each.path) for each in server.logs.dirs if each.path != str(home))
        assert await move(client, other) == 0
        await until(lambda: log_of(server).dir.path == other)
        await fill(client, 30, first=120)
        found = [record.offset for record in read_all(log_of(server))]
        assert found == list(range(150))
        response = await fetch(client, "t", 0)
        assert response.responses[0].partitions[0].high_watermark == 150
        described = await client.ask(DescribeLogDirsRequest(topics=None), 4)
        where = {each.log_dir: each.topics for each in described.results}
        assert [topic.name for topic in where[other]] == ["t"]
        assert where[str(home)] == []
    assert (Path(other) / "t-0").is_dir()
    assert not (home / "t-0").exists()


async def test_a_replica_moves_while_it_is_written_to(server: BrokerServer) -> None:
    """Nothing is lost or reordered, back and forth."""
    await create_topic(server, "t", configs={"segment.bytes": str(1 << 20)})
    paths = [each.path for each in server.logs.dirs]
    moved: list[str] = []

    async def shove() -> None:
        async with connect(server.port) as client:
            for _ in range(6):
                target = next(path for path in paths if path != log_of(server).dir.path)
                assert await move(client, target) == 0
                await until(lambda target=target: log_of(server).dir.path == target)  # type: ignore[misc]
                moved.append(target)
                await asyncio.sleep(0.02)

    async with connect(server.port) as client:
        shoving = asyncio.create_task(shove())
        number = 0
        while not shoving.done():
            await fill(client, 1, first=number)
            number += 1
        await shoving
        await fill(client, 5, first=number)
    assert len(moved) == 6
    values = [record.value for record in read_all(log_of(server))]
    assert [int(value[:6]) for value in values if value] == list(range(number + 5))


async def test_what_cannot_be_moved(server: BrokerServer) -> None:
    await create_topic(server, "t")
    async with connect(server.port) as client:
        assert await move(client, "/nowhere") == ErrorCode.LOG_DIR_NOT_FOUND
        here = log_of(server).dir.path
        assert await move(client, here) == 0, "it is there already"
        assert await move(client, here, "u") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await move(client, here, "t", 7) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def files_of(folder: Path, name: str = "t-0") -> list[Path]:
    """The copy of the partition under way in a log directory, its segments in order."""
    return sorted(folder.glob(f"{name}.*-future/*.log"))


async def throttle(admin: Admin, change: AlterOp) -> None:
    (await admin.alter_configs({ConfigResource.broker(): [change]})).raise_first()


@pytest.mark.parametrize("way", ["stop", "kill"])
async def test_a_move_goes_on_after_a_restart(tmp_path: Path, way: str) -> None:
    """Neither SIGTERM nor SIGKILL in the middle ends a move, nor begins it from the start."""
    dirs = [tmp_path / "data" / "one", tmp_path / "data" / "two"]
    settings = {"log.dirs": ",".join(map(str, dirs))}
    with BrokerProcess(tmp_path / "data", settings) as broker:
        async with Admin(broker.bootstrap) as admin, connect(broker.port) as client:
            topic = NewTopic("t", 1, configs={"segment.bytes": str(1 << 20)})
            (await admin.create_topics([topic])).raise_first()
            await throttle(admin, AlterOp.set(RATE, "100000"))
            await fill(client, 200)
            home = next(folder for folder in dirs if (folder / "t-0").is_dir())
            other = next(folder for folder in dirs if folder != home)
            assert await move(client, str(other)) == 0
            await until(lambda: any(file.stat().st_size > 500_000 for file in files_of(other)))
        copied = files_of(other)[0]
        inode = copied.stat().st_ino
        broker.stop() if way == "stop" else broker.kill()
        assert files_of(other), "the copy waits for the next start"
        broker.start()
        async with Admin(broker.bootstrap) as admin:
            await throttle(admin, AlterOp.delete(RATE))
        await until(lambda: (other / "t-0").is_dir() and not files_of(other))
        assert (other / "t-0" / copied.name).stat().st_ino == inode
        async with connect(broker.port) as client:
            await fill(client, 5, first=200)
            seen: list[bytes] = []
            while len(seen) < 205:
                answer = await fetch(client, "t", len(seen))
                data = answer.responses[0].partitions[0].records or b""
                for position, header in iter_headers(data):
                    records = iter_records(data, position, header, limit_bytes=1 << 24)
                    seen += [record.value[:6] for record in records if record.value]
        assert seen == [b"%06d" % number for number in range(205)]


async def test_a_move_that_waits_is_known_after_a_restart_and_one_taken_back_is_not(
    tmp_path: Path,
) -> None:
    """A move is on disk from the moment on in which it was accepted."""
    dirs = {"log.dirs": f"{tmp_path / 'one'},{tmp_path / 'two'}"}
    server = make_server(tmp_path, dirs)
    await server.start()
    await create_topic(server, "t", configs={"segment.bytes": str(1 << 20)})
    await create_topic(server, "u")
    await create_topic(server, "v")
    paths = [each.path for each in server.logs.dirs]
    homes = {name: log_of(server, name).dir.path for name in "tuv"}
    targets = {name: next(path for path in paths if path != homes[name]) for name in "tuv"}
    server.broker.config.apply_dynamic({}, {RATE: "1"})
    async with connect(server.port) as client:
        await fill(client, 120)
        for name in "tuv":
            assert await move(client, targets[name], name) == 0
        assert await move(client, homes["v"], "v") == 0
        assert len(server.broker.replicas.moves.under_way) == 2
    await server.stop()
    again = make_server(tmp_path, dirs)
    await again.start()
    await until(lambda: log_of(again, "t").dir.path == targets["t"])
    await until(lambda: log_of(again, "u").dir.path == targets["u"])
    assert log_of(again, "v").dir.path == homes["v"]
    await again.stop()
    assert not files_of(tmp_path / "one", "*") + files_of(tmp_path / "two", "*")


@pytest.mark.parametrize("seed", range(5))
def test_a_power_cut_leaves_one_of_the_two(seed: int) -> None:
    """Rule E5: whatever step of the switch is the last, the log is there, whole, and once."""
    steps = 0
    while True:
        disk = CrashDisk(Random(seed * 1_000 + steps))
        manager = manager_on(disk, dirs=DIRS)
        log = manager.create(TP, TOPIC_ID, LogConfig())
        for number in range(10):
            log.append_as_leader(stored_batch(b"%d" % number), leader_epoch=number // 4)
        log.flush()
        manager.write_checkpoints({TP: 10})
        target = next(path for path in DIRS if path != log.dir.path)
        future = manager.open_move(log, target, manager.begin_move(log, target))
        data = log.read(0, max_bytes=1 << 20, upper_offset=10).read_blocking()
        future.append_as_follower(data)
        disk.cut_after(steps)
        try:
            manager.finish_move(log, future)
        except PowerCut:
            is_over = False
        else:
            is_over = True
        disk.cut_after(None)
        disk.power_on()
        again = manager_on(disk, dirs=DIRS)
        found = again.get(TopicPartition(*TP))
        assert found is not None, f"lost at step {steps}"
        assert [record.value for record in read_all(found)] == [b"%d" % n for n in range(10)]
        if is_over:
            return
        steps += 1
