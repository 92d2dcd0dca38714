"""Data directories that somebody prepared, that belong to another, or that cannot be used."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from random import Random

import pytest
from tests.broker.harness import batch, connect, create_topic, make_server, produce, running_broker

from tidemill.broker.directories import make_directories
from tidemill.storage.manager import DirInUseError
from tidemill.testing.disk import CrashDisk

CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
OTHER_CLUSTER = "AAAAEVBNTcwNTJENDM2Qgg"


def prepare(directory: Path, cluster_id: str = CLUSTER, node_id: int = 0) -> Path:
    """A directory as `kafka-storage.sh format` leaves it."""
    directory.mkdir()
    text = f"version=1\nnode.id={node_id}\ncluster.id={cluster_id}\n"
    (directory / "meta.properties").write_text(text)
    return directory


@pytest.mark.parametrize("made_by_others", ["", "/data", "/data/broker-1"])
@pytest.mark.parametrize("seed", range(5))
def test_a_new_data_directory_survives_a_power_cut(seed: int, made_by_others: str) -> None:
    """Rule E5: what is flushed in a directory is worth nothing if the directory's name is lost."""
    disk = CrashDisk(Random(seed))
    if made_by_others == "/data/broker-1":
        disk.mkdir("/data")
        disk.fsync_dir("/")
    if made_by_others:
        disk.mkdir(made_by_others)
    make_directories(disk, ["/data/broker-1", "/second"])
    disk.power_on()
    assert disk.is_dir("/data/broker-1")
    assert disk.is_dir("/second")


def dirs(*paths: Path) -> dict[str, str]:
    return {"log.dirs": ",".join(str(path) for path in paths)}


async def test_a_new_store_joins_the_cluster_that_the_directory_belongs_to(tmp_path: Path) -> None:
    settings = dirs(prepare(tmp_path / "a"), tmp_path / "b")
    for _ in range(2):
        async with running_broker(tmp_path, settings) as server:
            assert server.broker.cluster_id == CLUSTER


async def test_any_of_the_directories_may_say_which_cluster(tmp_path: Path) -> None:
    settings = dirs(tmp_path / "a", prepare(tmp_path / "b"))
    async with running_broker(tmp_path, settings) as server:
        assert server.broker.cluster_id == CLUSTER


@pytest.mark.parametrize(
    ("cluster_id", "node_id", "words"),
    [
        (CLUSTER, 7, r"belongs to node 7.*set node\.id=7"),
        (OTHER_CLUSTER, 0, f"cluster {CLUSTER} and .* to {OTHER_CLUSTER}"),
    ],
)
async def test_somebody_elses_directory_is_refused_untouched(
    cluster_id: str, node_id: int, words: str, tmp_path: Path
) -> None:
    first = prepare(tmp_path / "a")
    second = prepare(tmp_path / "b", cluster_id, node_id)
    (first / ".kafka_cleanshutdown").write_text("")
    server = make_server(tmp_path, dirs(first, second))
    with pytest.raises(DirInUseError, match=words):
        await server.start()
    await server.stop()
    assert {path.name for path in first.iterdir()} == {"meta.properties", ".kafka_cleanshutdown"}
    assert {path.name for path in second.iterdir()} == {"meta.properties"}


async def test_a_partition_of_another_cluster_is_left_alone_and_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_broker(tmp_path / "a") as server, connect(server.port) as client:
        await create_topic(server, "t")
        await produce(client, "t", batch([b"v"]))
    shutil.copytree(tmp_path / "a" / "t-0", tmp_path / "b" / "t-0")
    held = (tmp_path / "b" / "t-0" / f"{0:020d}.log").read_bytes()
    with caplog.at_level(logging.WARNING):
        async with running_broker(tmp_path / "b") as server:
            assert server.broker.image.topic("t") is None
    (line,) = [r.getMessage() for r in caplog.records if "left alone" in r.getMessage()]
    assert str(tmp_path / "b" / "t-0") in line
    assert (tmp_path / "b" / "t-0" / f"{0:020d}.log").read_bytes() == held


async def test_a_directory_that_cannot_be_used_is_offline_and_the_log_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "b").write_text("no directory")
    settings = dirs(tmp_path / "a", tmp_path / "b")
    with caplog.at_level(logging.ERROR):
        async with running_broker(tmp_path, settings) as server, connect(server.port) as client:
            await create_topic(server, "t")
            assert (await produce(client, "t", batch([b"v"]))).error_code == 0
    (line,) = [r.getMessage() for r in caplog.records if "log directory" in r.getMessage()]
    assert f"{tmp_path}/b failed, 0 partitions are offline" in line
    assert "Not a directory" in line
