"""Runs Apache Kafka 4.3.1 beside Tidemill: the reference that tests and benchmarks compare with.

Start reading at `ApacheKafka` (one KRaft node as a context manager) and `run_kafka_tool` (Kafka's
own Java commands). Both stand on `kafka_jars`, which finds Kafka's jars (`jars.py`): where they
cannot be had it is `None`, and `unavailable_reason` says why.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.reference.jars import JarSet, JarsUnavailableError, locked

from tidemill.testing.process import free_port

KAFKA_VERSION: Final = "4.3.1"
READY_TIMEOUT_S: Final = 90
STOP_TIMEOUT_S: Final = 20
TOOL_TIMEOUT_S: Final = 90

# The Java commands by the name of their shell script, so that tests read like runbooks.
TOOLS: Final[Mapping[str, str]] = {
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-storage": "kafka.tools.StorageTool",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
}

_JARS: Final = JarSet(
    name="kafka",
    version=KAFKA_VERSION,
    variable="TIDEMILL_KAFKA_JARS",
    first_jar=f"kafka_2.13-{KAFKA_VERSION}.jar",
    artifacts=(
        f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
        f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}",
        "org.slf4j:slf4j-simple:1.7.36",
    ),
    transitive=True,
)


# --- the jars -------------------------------------------------------------------------------------


def kafka_jars() -> Path | None:
    """The folder that holds Kafka's jars, or None; `unavailable_reason` then says why."""
    found = _find_jars()
    return found if isinstance(found, Path) else None


def unavailable_reason() -> str:
    """Why `kafka_jars` has no answer; empty when it has one."""
    found = _find_jars()
    return found if isinstance(found, str) else ""


@functools.cache
def _find_jars() -> Path | str:
    """Asked once per process."""
    return _JARS.find()


# --- Kafka's own commands -------------------------------------------------------------------------


# Commands live for a second: start quickly. The server gets what Kafka's own start script gives it.
_TOOL_OPTIONS: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_SERVER_OPTIONS: Final = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
_NO_WORD_OF_IT: Final = ("-Xlog:disable", "-Xlog:all=error:stderr")
_class_options: list[str] = []
"""Where commands find Kafka's classes ready to use: it halves the time that they take. Made anew by
each run that has a node to run a command on; a JVM that cannot use it goes on without."""
_QUIET: Final = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dlog4j2.level=WARN")


def java_command(
    main_class: str, *args: str, java_options: Sequence[str] = _TOOL_OPTIONS
) -> list[str]:
    """The command line that runs one of Kafka's classes."""
    jars = kafka_jars()
    if jars is None:
        raise JarsUnavailableError(unavailable_reason())
    return ["java", *java_options, *_QUIET, "-cp", f"{jars}/*", main_class, *args]


def run_kafka_tool(
    tool: str,
    *args: str,
    input: str | bytes | None = None,  # noqa: A002 - the name that subprocess.run gives it
    timeout_s: float = TOOL_TIMEOUT_S,
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a Java command by script name (`kafka-topics`) or class name; output as text.

    With `check`, a failing command raises with everything it printed in the message.
    """
    done = subprocess.run(
        java_command(TOOLS.get(tool, tool), *args, java_options=(*_TOOL_OPTIONS, *_class_options)),
        input=input.decode() if isinstance(input, bytes) else input,
        stdin=subprocess.DEVNULL if input is None else None,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    if check and done.returncode != 0:
        raise RuntimeError(f"{tool} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done


# --- one node -------------------------------------------------------------------------------------


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on at this moment."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return list(ports)


class ApacheKafka:
    """One Apache Kafka node (broker and controller in one) on free ports of 127.0.0.1.

    `with ApacheKafka() as kafka:` formats a fresh directory, starts the node, and hands it over
    when it answers; leaving the block stops it and removes what it wrote. `properties` are added
    to, or replace, the settings of `server.properties`; everything else is Kafka's default except
    for the replication factors of internal topics, which one node cannot meet.
    """

    def __init__(
        self,
        *,
        properties: Mapping[str, str] | None = None,
        heap: str = "512m",
        java_options: Sequence[str] = (),
        directory: Path | None = None,
    ) -> None:
        self._own_directory = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix="apache-kafka-"))
        self.data_dir = self.directory / "data"
        self.port, self.controller_port = free_ports(2)
        self.bootstrap = f"127.0.0.1:{self.port}"
        self.cluster_id = "tidemill-reference-cl0"
        self.properties = dict(properties or {})
        self._heap = heap
        self._java_options = tuple(java_options)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def log_file(self) -> Path:
        """What the process printed: the first place to look when it does not start."""
        return self.directory / "kafka.out"

    def __enter__(self) -> Self:
        try:
            self.format()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def format(self) -> None:
        """Write the settings and make the data directory ready for its first start."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._settings_file.write_text(
            "".join(f"{key}={value}\n" for key, value in self._settings().items())
        )
        run_kafka_tool(
            "kafka-storage",
            *("format", "--cluster-id", self.cluster_id, "--config", str(self._settings_file)),
            check=True,
        )

    def start(self, *, wait: bool = True) -> None:
        """Start the process; with `wait`, return when it answers clients."""
        options = (f"-Xmx{self._heap}", f"-Xms{self._heap}", *_SERVER_OPTIONS, *self._java_options)
        command = java_command("kafka.Kafka", str(self._settings_file), java_options=options)
        with open(self.log_file, "ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Return when the broker lists itself in its metadata; raise with its output otherwise."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self._process is not None and self._process.poll() is not None:
                break
            if _lists_a_broker(self.port):
                return
            time.sleep(0.05)
        raise RuntimeError(f"Apache Kafka did not become ready:\n{self._last_output()}")

    def stop(self, *, signal_number: int = signal.SIGTERM) -> None:
        """End the process and wait for it; what it stored stays for the next `start`."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal_number)
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None

    def detach(self) -> subprocess.Popen[bytes]:
        """Hand the running process over: from now on the caller stops it."""
        process, self._process = self._process, None
        assert process is not None, "not started"
        return process

    def close(self) -> None:
        """Stop the process and remove the directory, if this object made it."""
        self.stop()
        if self._own_directory:
            shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def _settings_file(self) -> Path:
        return self.directory / "server.properties"

    def _settings(self) -> dict[str, str]:
        client = f"PLAINTEXT://127.0.0.1:{self.port}"
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self.controller_port}",
            "listeners": f"{client},CONTROLLER://127.0.0.1:{self.controller_port}",
            "advertised.listeners": client,
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.data_dir),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            **self.properties,
        }

    def _last_output(self) -> str:
        if not self.log_file.exists():
            return "(no output)"
        return self.log_file.read_text(errors="replace")[-4000:]


def _lists_a_broker(port: int) -> bool:
    """Ask for metadata v1 of no topics by hand, so that readiness needs no client under test."""
    request = struct.pack(">hhih", 3, 1, 7, -1) + struct.pack(">i", 0)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            answer = b""
            while len(answer) < 12:  # size, correlation id, number of brokers
                chunk = connection.recv(4096)
                if not chunk:
                    return False
                answer += chunk
    except OSError:
        return False
    brokers: int = struct.unpack_from(">i", answer, 8)[0]
    return brokers > 0


# --- one node for a whole test run ----------------------------------------------------------------

QUICK_GROUPS: Final = {
    "group.initial.rebalance.delay.ms": "0",
    # Members of the newer protocol share within three heartbeats: a group may ask for short ones.
    "group.consumer.min.heartbeat.interval.ms": "100",
}
"""What the node has that is not Kafka's default; a broker beside it should have the same."""


class SharedKafka:
    """The node that all workers of one test run share: what a test needs to know about it."""

    def __init__(self, bootstrap: str, pid: int, data_dir: Path) -> None:
        self.bootstrap = bootstrap
        self.pid = pid
        self.data_dir = data_dir
        host, _, port = bootstrap.rpartition(":")
        self.host = host
        self.port = int(port)


@contextmanager
def shared_kafka(run_dir: Path) -> Iterator[SharedKafka]:
    """The one node of a test run: the first user starts it, the last one stops it.

    `run_dir` is common to all workers of the run. The state file counts the users; it changes only
    under the lock.
    """
    lock, state = run_dir / "apache-kafka.lock", run_dir / "apache-kafka.json"
    with locked(lock):
        facts = json.loads(state.read_text()) if state.exists() else _start_shared(run_dir)
        facts["users"] += 1
        state.write_text(json.dumps(facts))
    _class_options[:] = facts["class_options"]
    try:
        yield SharedKafka(facts["bootstrap"], facts["pid"], Path(facts["data_dir"]))
    finally:
        _class_options.clear()
        with locked(lock):
            facts = json.loads(state.read_text())
            facts["users"] -= 1
            state.write_text(json.dumps(facts))
            if facts["users"] == 0:
                state.unlink()
                _stop_process(facts["pid"])
                shutil.rmtree(facts["directory"], ignore_errors=True)


def _start_shared(run_dir: Path) -> dict[str, Any]:
    directory = Path(tempfile.mkdtemp(prefix="apache-kafka-", dir=run_dir))
    kafka = ApacheKafka(directory=directory, properties=QUICK_GROUPS)
    try:
        kafka.format()
        kafka.start()
    except BaseException:
        kafka.stop()
        raise
    process = kafka.detach()
    _stop_when_run_dies(process.pid)
    _reap_when_done(process)
    return {
        "bootstrap": kafka.bootstrap,
        "pid": process.pid,
        "data_dir": str(kafka.data_dir),
        "directory": str(directory),
        "class_options": _make_classes_ready(directory / "classes.jsa", kafka.bootstrap),
        "users": 0,
    }


def _make_classes_ready(archive: Path, bootstrap: str) -> list[str]:
    """Have a command leave its classes behind; the options that let others find them."""
    options = (*_TOOL_OPTIONS, f"-XX:ArchiveClassesAtExit={archive}", *_NO_WORD_OF_IT)
    words = ("--bootstrap-server", bootstrap, "--list")
    subprocess.run(
        java_command(TOOLS["kafka-topics"], *words, java_options=options),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=TOOL_TIMEOUT_S,
    )
    return [f"-XX:SharedArchiveFile={archive}", *_NO_WORD_OF_IT] if archive.exists() else []


def _stop_when_run_dies(kafka_pid: int) -> None:
    """A killed test run cannot clean up, so a small watcher ends the node when the run is gone."""
    in_worker = "PYTEST_XDIST_WORKER" in os.environ
    run_pid = os.getppid() if in_worker else os.getpid()
    script = (
        f"while kill -0 {run_pid} && kill -0 {kafka_pid}; do sleep 2; done 2>/dev/null;"
        f" kill {kafka_pid} 2>/dev/null"
    )
    _reap_when_done(subprocess.Popen(["sh", "-c", script], start_new_session=True))


def _reap_when_done(process: subprocess.Popen[bytes]) -> None:
    """Collect the exit status in the background, so that a finished child is gone for everyone."""
    threading.Thread(target=process.wait, daemon=True).start()


def _stop_process(pid: int) -> None:
    """End a process that this run started, though perhaps by another worker."""
    try:
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while time.monotonic() < deadline:
            os.kill(pid, 0)
            time.sleep(0.05)
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
