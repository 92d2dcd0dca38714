"""`kafka-server-start.sh` with a `server.properties` from the days of ZooKeeper, on a real one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from tests.cli.helpers import BIN, environment, script

from tidemill.testing.process import free_port
from tidemill.testing.zookeeper import ZooKeeperServer, unavailable_reason

STOP_TIMEOUT_S = 60
CHROOT = "/streams/production"

# As Kafka 3.9 ships it in config/server.properties, where it is not commented out.
PROPERTIES = """\
broker.id=3
listeners=PLAINTEXT://127.0.0.1:{port}
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs={logs}
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.retention.check.interval.ms=300000
zookeeper.connect={zookeeper}
zookeeper.connection.timeout.ms=18000
group.initial.rebalance.delay.ms=0
"""

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    if reason := unavailable_reason():
        pytest.skip(f"NO ZOOKEEPER: it cannot run here: {reason}")
    with ZooKeeperServer(tmp_path / "zookeeper") as server:
        yield server


@contextmanager
def started(properties: Path) -> Iterator[subprocess.Popen[str]]:
    """A broker that says that it is ready; ended by its own id, however the test ends."""
    errors = properties.with_name("stderr")
    with errors.open("a") as log:
        process = subprocess.Popen(
            [str(BIN / "kafka-server-start.sh"), str(properties)],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment(),
        )
    try:
        assert process.stdout is not None
        assert any(line.startswith("ready on") for line in process.stdout), errors.read_text()
        yield process
    finally:
        process.kill()
        process.communicate(timeout=STOP_TIMEOUT_S)


def names_in(server: ZooKeeperServer, path: str) -> set[str]:
    client = KazooClient(hosts=server.address)
    client.start()
    try:
        return set(client.get_children(path))
    finally:
        client.stop()
        client.close()


def test_a_file_that_names_a_zookeeper_and_a_path_in_it_is_all_that_is_needed(
    tmp_path: Path, zookeeper: ZooKeeperServer
) -> None:
    """Nobody has made the path before; nothing is put beside it, and a restart finds what was."""
    port, properties = free_port(), tmp_path / "server.properties"
    connect = f"{zookeeper.address}{CHROOT}"
    logs = tmp_path / "logs"
    properties.write_text(PROPERTIES.format(port=port, logs=logs, zookeeper=connect))
    to = ("--bootstrap-server", f"127.0.0.1:{port}", "--topic", "clicks")
    with started(properties) as process:
        assert names_in(zookeeper, f"{CHROOT}/brokers/ids") == {"3"}
        assert names_in(zookeeper, "/") == {"streams", "zookeeper"}
        made = script("kafka-topics", *to, "--create", "--partitions", "2")
        assert made.status == 0, made.err
        sent = script("kafka-console-producer", *to, stdin="one\ntwo\n")
        assert sent.status == 0, sent.err
        process.terminate()
        assert process.wait(timeout=STOP_TIMEOUT_S) == 0
    assert names_in(zookeeper, f"{CHROOT}/brokers/ids") == set(), "it has left in good order"
    assert names_in(zookeeper, f"{CHROOT}/brokers/topics") == {"clicks"}
    with started(properties) as process:
        read = script("kafka-console-consumer", *to, "--from-beginning", "--max-messages", "2")
        assert sorted(read.out.split()) == ["one", "two"], read.err
        process.terminate()
        assert process.wait(timeout=STOP_TIMEOUT_S) == 0
    assert not list(tmp_path.rglob("store.db")), "the brokers meet at ZooKeeper, not in a file"
