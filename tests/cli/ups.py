"""`tidemill up` as a user runs it: a process with a data directory, watched until it is ready."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.cli.helpers import Ran, environment, quick, tidemill

READY_TIMEOUT_S = 90
STOP_TIMEOUT_S = 60


class Up:
    """`with Up(tmp_path / "data", "--brokers", "3") as up: up.addresses`."""

    def __init__(self, data_dir: Path, *arguments: str, port: int = 0) -> None:
        self.data_dir = data_dir
        self._arguments = arguments
        self._port = port
        self.addresses: list[str] = []
        self._said = data_dir.with_name(data_dir.name + ".stderr")

    def start(self) -> Self:
        words = ["up", "--data-dir", str(self.data_dir), "--port", str(self._port)]
        with open(self._said, "ab") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tidemill.cli", *words, *self._arguments],
                env=environment(), stdout=subprocess.PIPE, stderr=said, text=True,
            )  # fmt: skip
        watchdog = threading.Timer(READY_TIMEOUT_S, self.process.kill)
        watchdog.start()
        try:
            self.addresses = [self._next_ready()]
            self.addresses += [self._next_ready() for _ in self.status()["brokers"][1:]]
        finally:
            watchdog.cancel()
        return self

    def _next_ready(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        match = re.fullmatch(r"ready on (127\.0\.0\.1:\d+)\n", line)
        assert match is not None, f"{line!r}; {self.said}"
        return match[1]

    @property
    def said(self) -> str:
        return self._said.read_text()

    @property
    def bootstrap(self) -> str:
        return ",".join(self.addresses)

    @property
    def ports(self) -> list[int]:
        return [int(address.rpartition(":")[2]) for address in self.addresses]

    def status(self) -> Any:
        ran = quick("status", "--data-dir", str(self.data_dir), "--format", "json")
        assert ran.status == 0, ran.err
        return json.loads(ran.out)

    def pids(self) -> dict[int, int]:
        """Live brokers' process ids by port."""
        return {each["port"]: each["pid"] for each in self.status()["brokers"]}

    def broker(self, verb: str, port: int) -> Ran:
        """`tidemill broker start|stop` for one of them; who it starts must be no child of ours."""
        return tidemill("broker", verb, "--data-dir", str(self.data_dir), "--port", str(port))

    def run(self, *arguments: str, stdin: str | None = None) -> Ran:
        """Any other command, on this cluster."""
        return quick("-b", self.bootstrap, *arguments, stdin=stdin)

    def json(self, *arguments: str) -> Any:
        ran = self.run(*arguments, "--format", "json")
        assert ran.out, ran.err
        return json.loads(ran.out)

    def kill(self, port: int) -> int:
        """SIGKILL one broker; its process id."""
        pid = self.pids()[port]
        os.kill(pid, signal.SIGKILL)
        return pid

    def stop(self) -> int:
        """Ctrl-C, as it were; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_TIMEOUT_S)
        finally:
            if self.process.stdout is not None:
                self.process.stdout.close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave nothing behind, whatever the test came to."""
        try:
            self.stop()
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for pid in self.pids().values():
            os.kill(pid, signal.SIGKILL)
