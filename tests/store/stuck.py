"""A process that is stopped in the middle of a write to an embedded store."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TIMEOUT_MS = 1_000

STUCK = """
import asyncio, os, signal, sys
from tidemill.clock import SystemClock
from tidemill.executor import InlineExecutor
from tidemill.store.sqlite import SqliteStore

async def main():
    store = SqliteStore(sys.argv[1], SystemClock(), InlineExecutor())
    await store.open(session_timeout_ms=int(sys.argv[2]))
    await store.create("/held", ephemeral=True)
    with store._open_writer()._writing():
        print("stops", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        await asyncio.sleep(60)

asyncio.run(main())
"""


@contextmanager
def stuck_writer(path: Path, timeout_ms: int = TIMEOUT_MS) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is stopped while it holds the write lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK, str(path), str(timeout_ms)], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"stops\n"
        os.waitpid(process.pid, os.WUNTRACED)
        yield process
    finally:
        process.kill()
        process.communicate()
