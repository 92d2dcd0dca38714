"""`tidemill ship` as a process, for tests that rotate its files and kill it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Self

from tests.cli.helpers import environment

from tidemill.testing.running import OwnProcess


class Ship(OwnProcess):
    """`tidemill ship PATTERN --topic TOPIC` until it is told to end."""

    def __init__(self, bootstrap: str, topic: str, pattern: Path, state: Path) -> None:
        self._command = [
            sys.executable, "-m", "tidemill.cli", "ship", str(pattern), "--topic", topic,
            "--state", str(state), "--host", "web-1", "-b", bootstrap,
        ]  # fmt: skip
        self._said = state.with_suffix(".stderr")

    def start(self) -> Self:
        with self._said.open("a") as said:
            self._process = subprocess.Popen(
                self._command, env=environment(), stdout=subprocess.DEVNULL, stderr=said
            )
        return self

    @property
    def said(self) -> str:
        return self._said.read_text()
