"""A real broker in a process of its own, for tests that kill brokers and for benchmarks.

with BrokerProcess(data_dir) as broker:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    broker.kill()        # SIGKILL, as a crash would
    broker.start()       # the same data directory and port again
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from tidemill.children import stopping_with_parent
from tidemill.testing.running import OwnProcess

# Below the range from which systems take ports for outgoing connections: a client that keeps
# trying to reach a broker that was killed must not get the broker's own port for its end.
_PORTS = range(20_000, 32_000)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on right now."""
    chance = random.SystemRandom()
    for _ in range(1_000):
        port = chance.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"no free port in {_PORTS}")


KEEPS_ALL: Final = {"log.retention.ms": "-1"}
"""For records that say they are years old, and would be gone at the next look at their age."""


class BrokerProcess(OwnProcess):
    """`tidemill up` on a free port of 127.0.0.1; ended by its own id, its data left in place."""

    def __init__(
        self,
        data_dir: Path | str,
        settings: Mapping[str, str] | None = None,
        *,
        port: int | None = None,
        environment: Mapping[str, str | None] | None = None,
        stops_with_parent: bool = False,
    ) -> None:
        """`environment` comes on top of ours; None takes a variable away. A broker that stops with
        its parent hears no Ctrl-C, and has to be started by a thread that lives as long."""
        self.data_dir = Path(data_dir)
        self.settings = dict(settings or {})
        self.port = port if port is not None else free_port()
        variables = {**os.environ, **(environment or {})}
        self._environment = {key: text for key, text in variables.items() if text is not None}
        self._stops_with_parent = stops_with_parent

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def log_path(self) -> Path:
        """Where the broker's stderr goes: beside the data directory, not inside it."""
        return self.data_dir.with_name(self.data_dir.name + ".stderr")

    def start(self) -> Self:
        """Start the process and return once it says that it accepts connections."""
        self.spawn()
        return self.wait_until_ready()

    def spawn(self) -> None:
        """Start the process and return at once."""
        command = [sys.executable, "-m", "tidemill.cli.main", "up"]
        command += ["--port", str(self.port)]
        if "log.dirs" not in self.settings:
            command += ["--data-dir", str(self.data_dir)]
        for key, value in self.settings.items():
            command += ["--set", f"{key}={value}"]
        with self.log_path.open("a") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._environment,
                start_new_session=self._stops_with_parent,
                preexec_fn=stopping_with_parent() if self._stops_with_parent else None,
            )

    def wait_until_ready(self) -> Self:
        """Wait until the process that was spawned says that it accepts connections."""
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("ready on"):
                return self
        code = self._process.wait()
        raise RuntimeError(
            f"the broker ended with {code} before it was ready: {self.log_path.read_text()[-2000:]}"
        )
