"""Spark's Python daemon, silent about workers that Spark lets go.

With Unix sockets between Spark and its Python workers nothing waits for the network's timers, which
hold up each task on a port for some 40 ms: the JVM sends its last small piece only once the one
before has been acknowledged, and the worker's kernel is in no hurry to. But when Spark closes the
connection of a worker that had nothing to do for a minute, the worker wants to report the end of
its input, and where on a port nobody noticed, here it is a broken pipe, and Spark's daemon prints a
traceback to the user's screen.

`spark.python.daemon.module` names this module for workers of tasks. For those that plan queries
Spark starts its own daemon whatever is set; `end_quietly`, called in such a worker, mends it there.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from typing import Any, Final

SPARKS_OWN: Final = "pyspark.daemon"

Worker = Callable[[socket.socket, bool], int]


class QuietWorker:
    """A worker's work for one task, after which nobody may be left to report to."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def __call__(self, connection: socket.socket, authenticated: bool) -> int:
        """The exit code; other than 0, the worker ends once Spark has closed the connection."""
        try:
            return self._worker(connection, authenticated)
        except BrokenPipeError:
            return 1


def end_quietly() -> None:
    """From the next task on, if this is a worker of Spark's own daemon."""
    main: Any = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name == SPARKS_OWN:
        _hush(main)


def _hush(daemon: Any) -> None:
    if not isinstance(daemon.worker, QuietWorker):
        daemon.worker = QuietWorker(daemon.worker)


def main() -> None:
    """Serve as Spark's daemon does."""
    import pyspark.daemon

    _hush(pyspark.daemon)
    pyspark.daemon.manager()


if __name__ == "__main__":
    main()
