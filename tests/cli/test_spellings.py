"""The command lines that we promise, old spellings included, word for word, on a live broker."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.helpers import BIN, environment, install, quick, run, shell, tidemill

from tidemill.testing.process import BrokerProcess, free_port

DEFAULT_PORT = 9092
PORT_WAIT_S = 60


@pytest.fixture
def default_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker on localhost:9092 with a topic T, for lines that say so or name no address. Test
    runs on one machine take turns, a test at a time."""
    with open(Path(tempfile.gettempdir()) / f"tidemill-test-{DEFAULT_PORT}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        deadline = time.monotonic() + PORT_WAIT_S
        while not _is_free(DEFAULT_PORT):
            if time.monotonic() > deadline:
                pytest.skip(f"NOT RUN: port {DEFAULT_PORT} is taken by somebody else")
            time.sleep(0.5)
        with BrokerProcess(tmp_path / "data", port=DEFAULT_PORT) as broker:
            quick("topic", "create", "T", "-p", "1", "-b", broker.bootstrap)
            yield broker


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("place")
    install(here / "bin")
    (here / "offsets.json").write_text(
        '{"partitions":[{"topic":"T","partition":0,"offset":1}],"version":1}'
    )
    return here


def setting(name: str, key: str) -> str | None:
    ran = quick("config", "get", f"topic/{name}", "--format", "json", "-b", "localhost:9092")
    found = {row["key"]: row["value"] for row in json.loads(ran.out)}
    value: str | None = found.get(key)
    return value


@pytest.mark.usefixtures("default_broker")
class TestOldSpellings:
    """Lines of runbooks that Kafka dropped."""

    def test_zookeeper_names_the_cluster_of_the_profile_and_says_so(self, place: Path) -> None:
        ran = shell(
            "kafka-topics.sh --zookeeper HOST:2181/CHROOT --list", path=place / "bin", cwd=place
        )
        assert ran.status == 0
        assert "T" in ran.out.split()
        assert ran.err.splitlines() == [
            "--zookeeper HOST:2181/CHROOT: the cluster keeps its own store; "
            "using localhost:9092 from the default"
        ]

    def test_zookeeper_with_a_profile(self, place: Path, tmp_path: Path) -> None:
        (tmp_path / "profiles.toml").write_text(
            'current = "mine"\n[profiles.mine]\nbootstrap = "127.0.0.1:9092"\n'
        )
        ran = shell(
            "kafka-topics.sh --zookeeper HOST:2181/CHROOT --list",
            path=place / "bin",
            variables={"TIDEMILL_CONFIG_DIR": str(tmp_path)},
        )
        assert ran.status == 0
        assert ran.err.endswith("using 127.0.0.1:9092 from profile 'mine'\n")

    @pytest.mark.parametrize(
        ("alter", "delete"),
        [
            (
                "kafka-topics.sh --alter --topic T --config flush.messages=1",
                "kafka-topics.sh --alter --topic T --delete-config flush.messages",
            ),
            (
                "kafka-topics.sh --alter --topic T --config flush.messages=1",
                "kafka-topics.sh --alter --topic T --delete-config flush.messages=1",
            ),
            (
                "kafka-topics.sh --zookeeper HOST:2181/CHROOT --alter --topic T "
                "--config flush.messages=1",
                "kafka-topics.sh --broker-list localhost:9092 --alter --topic T "
                "--delete-config flush.messages=1",
            ),
        ],
    )
    def test_settings_are_altered_and_deleted_by_kafka_topics(
        self, alter: str, delete: str, place: Path
    ) -> None:
        ran = shell(alter, path=place / "bin", cwd=place)
        assert (ran.status, ran.out) == (0, "Updated config for topic T.\n"), ran.err
        assert setting("T", "flush.messages") == "1"
        ran = shell(delete, path=place / "bin", cwd=place)
        assert (ran.status, ran.out) == (0, "Updated config for topic T.\n"), ran.err
        assert setting("T", "flush.messages") != "1"

    def test_consumer_perf_test_with_broker_list(self, place: Path) -> None:
        quick("produce", "T", "-b", "localhost:9092", stdin="a\nb\n")
        ran = shell(
            "kafka-consumer-perf-test.sh --messages 1000000 --broker-list localhost:9092",
            path=place / "bin",
        )
        assert ran.status == 0, ran.err
        heading, last = ran.out.splitlines()[1], ran.out.splitlines()[-1]
        assert heading.startswith("start.time, end.time, data.consumed.in.MB, MB.sec, ")
        assert len(last.split(", ")) == len(heading.split(", "))

    def test_producer_and_consumer_with_broker_list(self, place: Path) -> None:
        ran = shell(
            "echo hello | kafka-console-producer.sh --broker-list localhost:9092 --topic T",
            path=place / "bin",
        )
        assert ran.status == 0, ran.err
        ran = shell(
            "kafka-console-consumer.sh --zookeeper HOST:2181/CHROOT --topic T --from-beginning "
            "--max-messages 1",
            path=place / "bin",
        )
        assert (ran.status, ran.out) == (0, "hello\n")
        assert ran.err.endswith("Processed a total of 1 messages\n")


SCRIPT_LINES = [
    "kafka-topics.sh --bootstrap-server B --describe --topic T",
    "kafka-configs.sh --bootstrap-server B --describe --topic T",
    "kafka-configs.sh --bootstrap-server B --alter --topic T --add-config retention.ms=100000",
    "kafka-configs.sh --bootstrap-server B --alter --entity-type brokers "
    "--entity-default --add-config log.retention.ms=100000000",
    "echo a:b | kafka-console-producer.sh --bootstrap-server B --topic T "
    "--property parse.key=true --property key.separator=:",
    "kafka-console-consumer.sh --bootstrap-server B --topic T --partition 0 "
    "--offset earliest --timeout-ms 500",
    "kafka-producer-perf-test.sh --topic T --num-records 100 --record-size 10 --throughput -1 "
    "--producer-props bootstrap.servers=B",
    "kafka-consumer-perf-test.sh --bootstrap-server B --topic T --messages 10",
    "kafka-get-offsets.sh --bootstrap-server B --topic T",
    "kafka-delete-records.sh --bootstrap-server B --offset-json-file offsets.json",
    "kafka-log-dirs.sh --bootstrap-server B --describe --topic-list T",
    "kafka-broker-api-versions.sh --bootstrap-server B",
    "kafka-storage.sh random-uuid",
]


@pytest.mark.parametrize("line", SCRIPT_LINES)
def test_script(line: str, bootstrap: str, place: Path) -> None:
    """Each script with today's flags; B stands for the broker's address."""
    quick("topic", "create", "T", "-p", "1", "--if-not-exists", "-b", bootstrap)
    quick("produce", "T", "-b", bootstrap, stdin="".join(f"{i}\n" for i in range(10)))
    ran = shell(re.sub(r"\bB\b", bootstrap, line), path=place / "bin", cwd=place)
    assert ran.status == 0, ran.err
    assert "Traceback" not in ran.err


def test_dump_log_of_a_broker_that_runs(place: Path, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        quick("topic", "create", "dumped", "-p", "1", "-b", broker.bootstrap)
        quick("produce", "dumped", "-K:", "-b", broker.bootstrap, stdin="k:v\n")
        file = broker.data_dir / "dumped-0" / "00000000000000000000.log"
        ran = shell(f"kafka-dump-log.sh --files {file} --print-data-log", path=place / "bin")
    assert ran.status == 0, ran.err
    assert " key: k payload: v" in ran.out


def wait_ready(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert re.fullmatch(r"ready on 127\.0\.0\.1:\d+\n", line)
    return line.split()[-1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_up_is_the_broker_and_stops_cleanly(number: signal.Signals, tmp_path: Path) -> None:
    """`tidemill up --port P --data-dir D --set k=v`; files it does not know are left alone."""
    here, data = install(tmp_path / "bin"), tmp_path / "data"
    data.mkdir()
    (data / "notes.txt").write_text("mine")
    (data / "folder").mkdir()
    port = free_port()
    line = f"exec tidemill up --port {port} --data-dir {data} --set num.partitions=3"
    process = subprocess.Popen(
        ["/bin/sh", "-c", line],
        env=environment({"PATH": f"{here}{os.pathsep}/usr/bin:/bin"}),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        address = wait_ready(process)
        assert address == f"127.0.0.1:{port}"
        found = json.loads(quick("status", "--data-dir", str(data), "--format", "json").out)[
            "brokers"
        ]
        assert [(b["host"], b["port"], b["pid"]) for b in found] == [
            ("127.0.0.1", port, process.pid)
        ]
        assert quick("topic", "create", "t", "-b", address).status == 0
        [row] = json.loads(quick("topic", "list", "-b", address, "--format", "json").out)
        assert row["partitions"] == 3
    finally:
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert (data / "notes.txt").read_text() == "mine"
    assert (data / "folder").is_dir()
    status = quick("status", "--data-dir", str(data), "--format", "json")
    assert json.loads(status.out) == {"brokers": []}


def test_status_after_a_crash_shows_no_broker_and_after_a_restart_one(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data")
    with broker:
        broker.kill()
        arguments = ("status", "--data-dir", str(tmp_path / "data"), "--format", "json")
        assert json.loads(quick(*arguments).out) == {"brokers": []}
        broker.start()
        [found] = json.loads(quick(*arguments).out)["brokers"]
        assert (found["port"], found["pid"]) == (broker.port, broker.pid)
        assert {"id", "host", "version", "cluster_id"} <= set(found)


def test_up_says_which_address_is_taken(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "one") as broker:
        arguments = ("up", "--port", str(broker.port), "--data-dir", str(tmp_path / "two"))
        ran = tidemill(*arguments)
    assert ran.status == 1
    assert str(broker.port) in ran.err
    assert "Traceback" not in ran.err


def test_a_formatted_directory_keeps_its_cluster_id(tmp_path: Path) -> None:
    """`kafka-storage.sh format`, then `kafka-server-start.sh`: Kafka's own quick start."""
    path = tmp_path / "server.properties"
    path.write_text(f"node.id=5\nlisteners=PLAINTEXT://127.0.0.1:0\nlog.dirs={tmp_path}/data\n")
    wanted = "MkU3OEVBNTcwNTJENDM2Qg"
    formatted = run([str(BIN / "kafka-storage.sh"), "format", "-t", wanted, "-c", str(path)])
    assert formatted.status == 0
    process = subprocess.Popen(
        [str(BIN / "kafka-server-start.sh"), str(path)],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        wait_ready(process)
        status = quick("status", "--data-dir", str(tmp_path / "data"), "--format", "json")
        [found] = json.loads(status.out)["brokers"]
        assert (found["id"], found["cluster_id"]) == (5, wanted)
    finally:
        process.terminate()
        _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err


NODE_ID = 77_341


def test_server_start_and_stop(tmp_path: Path) -> None:
    """`kafka-server-start.sh [-daemon] server.properties --override k=v`, then the stop script,
    told to stop this test's node only."""
    port = free_port()
    path = tmp_path / "server.properties"
    path.write_text(
        f"node.id={NODE_ID}\nlisteners=PLAINTEXT://127.0.0.1:1\nlog.dirs={tmp_path}/data\n"
    )
    override = f"listeners=PLAINTEXT://127.0.0.1:{port}"
    started = run(
        [str(BIN / "kafka-server-start.sh"), "-daemon", str(path), "--override", override],
        variables={"LOG_DIR": str(tmp_path / "logs")},
    )
    assert started.status == 0
    output = tmp_path / "logs" / "kafkaServer.out"
    try:
        deadline = time.monotonic() + 30
        while f"ready on 127.0.0.1:{port}" not in output.read_text():
            assert time.monotonic() < deadline, output.read_text()
            time.sleep(0.05)
        # Asking the stop script how it works must not stop anything.
        for question in ("--help", "--version", "--no-such-option"):
            run([str(BIN / "kafka-server-stop.sh"), question])
        assert quick("topic", "list", "-b", f"127.0.0.1:{port}").status == 0
    finally:
        stopped = run([str(BIN / "kafka-server-stop.sh"), "--node-id", str(NODE_ID)])
    assert stopped.status == 0
    deadline = time.monotonic() + 30
    while (
        again := run([str(BIN / "kafka-server-stop.sh"), "--node-id", str(NODE_ID)])
    ).status == 0:
        assert time.monotonic() < deadline
    assert (again.status, again.out) == (1, "No kafka server to stop\n")
    assert _is_free(port)
