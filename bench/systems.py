"""The two systems under test, started and stopped alike: `Tidemill` and `Kafka`.

Both run as one broker process on the same disk with the same durability mode: `async` compares
Kafka's defaults with `log.flush.policy=async`; `flushed` compares Kafka at
`log.flush.interval.messages=1` with `log.flush.policy=ack`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.reference.kafka import ApacheKafka

from tidemill.testing.process import BrokerProcess

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class System(Protocol):
    """A broker that a benchmark can drive."""

    name: str

    def start(self) -> None: ...
    def stop(self) -> None: ...

    @property
    def bootstrap(self) -> str: ...

    @property
    def pid(self) -> int: ...


@dataclass
class Tidemill:
    """One Tidemill broker in a process of its own, with a data directory that goes with it."""

    settings: dict[str, str] = field(default_factory=dict)
    name: str = "tidemill"

    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tidemill-bench-"))
        self.process = BrokerProcess(self.folder / "data", self.settings)
        self.process.start()

    def stop(self) -> None:
        self.process.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def bootstrap(self) -> str:
        return self.process.bootstrap

    @property
    def pid(self) -> int:
        return self.process.pid


@dataclass
class Kafka:
    """Apache Kafka 4.3.1 with a 1 GB heap, as one KRaft node."""

    settings: dict[str, str] = field(default_factory=dict)
    name: str = "kafka"

    def start(self) -> None:
        self.node = ApacheKafka(properties=self.settings, heap="1g")
        self.node.__enter__()

    def stop(self) -> None:
        self.node.__exit__(None, None, None)

    @property
    def bootstrap(self) -> str:
        return self.node.bootstrap

    @property
    def pid(self) -> int:
        return self.node.pid


COMMON = {"num.partitions": "1", "group.initial.rebalance.delay.ms": "500"}
MODES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "async": ({"log.flush.policy": "async"}, {}),
    "flushed": ({"log.flush.policy": "ack"}, {"log.flush.interval.messages": "1"}),
}


def both(mode: str) -> list[System]:
    """Fresh instances of both systems in one durability mode."""
    ours, theirs = MODES[mode]
    return [Tidemill(COMMON | ours), Kafka(COMMON | theirs)]


def user_seconds(pid: int) -> float:
    """User CPU time that a process has spent so far."""
    return _user_and_system_seconds(pid)[0]


def cpu_seconds(pid: int) -> float:
    """User and system time that a process has spent so far."""
    return sum(_user_and_system_seconds(pid))


def _user_and_system_seconds(pid: int) -> tuple[float, float]:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) / TICKS_PER_SECOND, int(fields[12]) / TICKS_PER_SECOND


def resident_bytes(pid: int) -> int:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no VmRSS for process {pid}")


def wait_until_quiet(pid: int, *, seconds: float = 0.5, limit_s: float = 30) -> None:
    """Wait until a process has stopped working, so that one load does not pay for another.

    What it has the kernel do counts as work, too: the folders and files of thousands of logs are
    made after their topic has been created.
    """
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        before = cpu_seconds(pid)
        time.sleep(seconds)
        if cpu_seconds(pid) - before < 0.1 * seconds:
            return
