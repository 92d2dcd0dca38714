"""Child processes that do not outlive whoever started them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

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
