"""The handle of a Spark driver that tests start, watch and kill: `stream_program.py` as a process.

with Driver(master, bootstrap, topic, tables, folder) as driver:
    driver.wait_for_batches(1)
    driver.kill()
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import psutil

from tidemill.children import stopping_with_parent
from tidemill.testing.running import OwnProcess

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 900
LAST_WORDS_BYTES = 6_000


class Driver(OwnProcess):
    """One run of the program; its checkpoints and its words are in `folder`."""

    def __init__(
        self,
        master: str,
        bootstrap: str,
        topic: str,
        tables: Mapping[str, str],
        folder: Path,
        *,
        batch_records: int = 2_000,
        until_caught_up: bool = False,
        conf: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._command = [sys.executable, "-m", "tests.spark.stream_program"]
        self._command += ["--master", master, "--bootstrap", bootstrap, "--topic", topic]
        self._command += [f"--table={name}={table}" for name, table in tables.items()]
        self._command += [f"--checkpoints={folder}/checkpoints", f"--batch-records={batch_records}"]
        self._command += [f"--conf={key}={value}" for key, value in (conf or {}).items()]
        self._command += ["--until-caught-up"] if until_caught_up else []
        # Killed, it clears nothing away.
        self._environment = {"TMPDIR": str(folder), **(environment or {})}
        self._said = folder / "driver.stderr"
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.tables = list(tables)
        self.batches: Counter[str] = Counter()
        self.rows: Counter[str] = Counter()

    def start(self) -> Self:
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
        with self._said.open("ab") as said:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said,
                text=True, env={**os.environ, "PYTHONPATH": path, **self._environment},
                start_new_session=True, preexec_fn=stopping_with_parent(),
            )  # fmt: skip
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def _listen(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    # What it does.

    def wait_for_batches(self, count: int) -> None:
        """Until every table has got so many batches since this driver started."""
        self._hear_until(lambda: all(self.batches[name] >= count for name in self.tables))

    def hear_for(self, seconds: float) -> None:
        """Listen for a while, however far it gets."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                self._hear(timeout_s=left)
            except queue.Empty:
                return

    def wait_until_done(self) -> None:
        """Until it ends by itself, which it does in good order."""
        assert self._process is not None
        self._process.wait(WAIT_S)
        assert self._process.returncode == 0, self.last_words()

    def _hear_until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not holds():
            try:
                self._hear(timeout_s=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no progress: {self.last_words()}") from None

    def _hear(self, timeout_s: float) -> None:
        line = self._lines.get(timeout=timeout_s)
        assert line is not None, f"the driver ended: {self.last_words()}"
        fact: dict[str, Any] = json.loads(line)
        self.batches[fact["table"]] += 1
        self.rows[fact["table"]] += fact["rows"]

    def last_words(self) -> str:
        return self._said.read_text(errors="replace")[-LAST_WORDS_BYTES:]

    # How it ends.

    def kill(self) -> int:
        """SIGKILL to all that is the driver: its Python, its JVM, and the Python of its source."""
        everyone = self._family()
        for process in everyone:
            process.send_signal(signal.SIGKILL)
        psutil.wait_procs(everyone, timeout=WAIT_S)
        return super().kill()

    def _family(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def stop(self) -> int:
        return self.kill() if self._process is not None else 0
