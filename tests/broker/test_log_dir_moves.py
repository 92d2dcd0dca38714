"""AlterReplicaLogDirs: replicas move between the log directories of a broker while they serve."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
from tests.broker.cluster import until
from tests.broker.harness import Client, batch, connect, create_topic, fetch, make_server, produce
from tests.storage.helpers import TOPIC_ID, TP, manager_on, read_all
from tests.storage.helpers import batch as stored_batch

from tidemill.broker.server import BrokerServer
from tidemill.errors import ErrorCode
from tidemill.storage.log import Log
from tidemill.storage.log_config import LogConfig
from tidemill.testing.disk import CrashDisk, PowerCut
from tidemill.types import TopicPartition
from tidemill.wire.messages.log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    DescribeLogDirsRequest,
)

DIRS = ("/one", "/two")


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
        future = manager.begin_move(log, next(path for path in DIRS if path != log.dir.path))
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
