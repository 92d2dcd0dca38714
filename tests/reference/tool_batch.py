"""Many of Kafka's own commands in one JVM: `ToolBatch(...)` in a `with` block, then `run`.

A command takes a tenth of a second, the start of its JVM takes two. Only for commands that keep
nothing between two runs in static fields: the groups command does not, the console consumer does.
"""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.reference.kafka import TOOLS, java_command

SOURCE = Path(__file__).with_name("ToolBatch.java")
STOP_TIMEOUT_S = 20


class ToolBatch:
    """One JVM that runs commands one after the other."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        command = java_command(str(SOURCE))
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            bufsize=1,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        process, self._process = self._process, None
        if process is None or process.stdin is None or process.stdout is None:
            return
        process.stdin.close()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def run(self, tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command by script name or class name, and wait for it."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        words = [TOOLS.get(tool, tool), *arguments]
        process.stdin.write("\t".join(map(_coded, words)) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline().rstrip("\n")
        assert answer, f"the JVM ended while it ran {tool} {arguments}"
        status, out, err = answer.split("\t")
        return subprocess.CompletedProcess(words, int(status), _plain(out), _plain(err))


def _coded(word: str) -> str:
    return "=" + base64.b64encode(word.encode()).decode()


def _plain(word: str) -> str:
    return base64.b64decode(word[1:]).decode()
