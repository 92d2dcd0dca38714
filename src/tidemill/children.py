"""What is started and has to be stopped again, and processes that do not outlive their parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Self

_PR_SET_PDEATHSIG = 1


def stopping_with_parent() -> Callable[[], None] | None:
    """For `preexec_fn`: the system stops the child cleanly when the thread that started it is gone,
    however it went."""
    if not sys.platform.startswith("linux"):
        return None
    # Loaded before the fork: in the child nothing but the call itself is safe.
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return ask


class Running:
    """Started on entering `with`, stopped on leaving it, even if starting fails half way."""

    def start(self) -> Self:
        raise NotImplementedError

    def stop(self) -> object:
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
