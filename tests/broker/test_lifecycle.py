"""A broker's life: restarts, its note about itself, topics and settings that change."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.broker.harness import (
    Client,
    batch,
    connect,
    create_topic,
    fetch,
    list_offset,
    make_server,
    produce,
    running_broker,
)

from tidemill.broker import status
from tidemill.broker.server import BrokerServer
from tidemill.errors import ErrorCode
from tidemill.wire.batch import iter_headers
from tidemill.wire.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsResource,
)

TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4


async def test_everything_survives_a_restart(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as server, connect(server.port) as client:
        topic_id = await create_topic(server, "t", partitions=2)
        await produce(client, "t", batch([b"a", b"b"]), partition=1)
        cluster_id = server.broker.cluster_id
    async with running_broker(tmp_path) as server, connect(server.port) as client:
        assert server.broker.cluster_id == cluster_id
        assert server.broker.image.topics["t"].topic_id == topic_id
        data = (await fetch(client, "t", 0, partition=1)).responses[0].partitions[0]
        assert [header.record_count for _, header in iter_headers(data.records or b"")] == [2]
        assert (await produce(client, "t", batch([b"c"]), partition=1)).base_offset == 2


def open_below(folder: Path) -> list[str]:
    """The files of this process below a folder."""
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    files = [os.readlink(link) for link in links if os.path.lexists(link)]
    return [file for file in files if file.startswith(str(folder))]


async def test_no_file_stays_open(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as server, connect(server.port) as client:
        await create_topic(server, "t", partitions=20)
        for partition in range(20):
            await produce(client, "t", batch([b"a"]), partition=partition)
        assert open_below(tmp_path)
    assert open_below(tmp_path) == []


async def test_an_idempotent_producer_survives_a_restart(tmp_path: Path) -> None:
    """Rule G5: the window of five batches is there again."""

    def numbered(sequence: int) -> bytes:
        return batch([b"a"], producer_id=5, producer_epoch=0, base_sequence=sequence)

    async with running_broker(tmp_path) as server, connect(server.port) as client:
        await create_topic(server, "t")
        await produce(client, "t", numbered(0))
        await produce(client, "t", numbered(1))
    async with running_broker(tmp_path) as server, connect(server.port) as client:
        again = await produce(client, "t", numbered(1))
        assert (again.error_code, again.base_offset) == (0, 1)
        assert (await produce(client, "t", numbered(2))).base_offset == 2


async def test_the_note_tells_of_a_live_broker_only(tmp_path: Path) -> None:
    assert status.read(tmp_path) is None
    async with running_broker(tmp_path) as server:
        note = status.read(tmp_path)
        assert note is not None
        assert (note.port, note.pid, note.host) == (server.port, os.getpid(), "127.0.0.1")
    assert status.read(tmp_path) is None


async def test_a_note_that_a_crash_left_counts_for_nothing(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as server:
        note = server.status()
    status.write(tmp_path, replace(note, pid=1))
    assert status.read(tmp_path) is None


async def test_two_brokers_do_not_share_a_directory(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from tests.broker.harness import make_server\n"
        "async def main():\n"
        "    server = make_server(Path(sys.argv[1]))\n"
        "    try:\n"
        "        await server.start()\n"
        "    finally:\n"
        "        await server.stop()\n"
        "asyncio.run(main())\n"
    )
    async with running_broker(tmp_path) as server:
        second = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", script, str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "PYTHONPATH": "src:."},
        )
        assert second.returncode != 0
        assert str(tmp_path) in second.stderr
        assert status.read(tmp_path) is not None
        async with connect(server.port) as client:
            await create_topic(server, "t")
            assert (await produce(client, "t", batch([b"a"]))).error_code == 0


async def test_an_address_in_use_is_an_error_before_anything_is_touched(
    server: BrokerServer, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    settings = {"listeners": f"PLAINTEXT://127.0.0.1:{server.port}"}
    second = make_server(other, settings)
    with pytest.raises(OSError, match="in use"):
        await second.start()
    await second.stop()
    assert not (other / "store.db").exists()


async def test_a_topic_made_again_is_another_topic(server: BrokerServer, client: Client) -> None:
    """Rule A11: nothing of the first one survives in the second."""
    first = await create_topic(server, "t")
    await produce(client, "t", batch([b"old"] * 3))
    await server.controller.delete_topics(["t"])
    gone = await produce(client, "t", batch([b"x"]))
    assert gone.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    second = await create_topic(server, "t")
    assert first != second
    assert (await list_offset(client, "t", -1)).offset == 0
    assert (await produce(client, "t", batch([b"new"]))).base_offset == 0
    by_old_id = (await fetch(client, first, 0, version=13)).responses[0].partitions[0]
    assert by_old_id.error_code == ErrorCode.UNKNOWN_TOPIC_ID


async def set_config(server: BrokerServer, kind: int, name: str, key: str, value: str) -> None:
    change = IncrementalAlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[IncrementalAlterableConfig(name=key, config_operation=0, value=value)],
    )
    (plan,) = await server.controller.incremental_alter_configs([change])
    assert plan.error is None


async def test_a_topic_setting_counts_from_the_next_append(
    server: BrokerServer, client: Client
) -> None:
    await create_topic(server, "t")
    large = batch([b"x" * 5_000])
    assert (await produce(client, "t", large)).error_code == 0
    await set_config(server, TOPIC_RESOURCE, "t", "max.message.bytes", "1000")
    assert (await produce(client, "t", large)).error_code == ErrorCode.MESSAGE_TOO_LARGE


async def test_a_broker_setting_counts_for_topics_without_their_own(
    server: BrokerServer, client: Client
) -> None:
    await create_topic(server, "t")
    await create_topic(server, "own", configs={"max.message.bytes": "100000"})
    large = batch([b"x" * 5_000])
    await set_config(server, BROKER_RESOURCE, "", "message.max.bytes", "1000")
    assert (await produce(client, "t", large)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert (await produce(client, "own", large)).error_code == 0


async def test_a_thousand_partitions(server: BrokerServer, client: Client) -> None:
    """Logs are made a few at a time, and at once where somebody writes: nobody can tell."""
    await create_topic(server, "wide", partitions=1000)
    for partition in (999, 500, 0):
        result = await produce(client, "wide", batch([b"v"]), partition=partition)
        assert (result.error_code, result.base_offset) == (0, 0)
    for _ in range(500):
        if len(server.broker.replicas) == 1000:
            break
        await asyncio.sleep(0.02)
    assert len(server.broker.replicas) == 1000
    await server.controller.delete_topics(["wide"])
    assert len(server.broker.replicas) == 0
    await create_topic(server, "wide", partitions=500)
    result = await produce(client, "wide", batch([b"v"]), partition=499)
    assert (result.error_code, result.base_offset) == (0, 0)


def test_a_broker_imports_only_what_it_needs() -> None:
    """`tidemill up` accepts in under a second: nothing heavy on the way."""
    script = "import sys, tidemill.broker.server; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONPATH": "src"},
    )
    heavy = {"numba", "numpy", "pyarrow", "pyspark", "rich", "cyclopts", "prometheus_client"}
    assert heavy.isdisjoint(done.stdout.split())
