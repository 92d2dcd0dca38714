"""Keeps Python's garbage collector away from what stays for good.

Spark's Python workers collect garbage after every task, and look at all there is. With Arrow, numpy
and compiled kernels loaded that takes a tenth of a second, as long as reading 64 MB of records.
What a process has loaded once it has done its work is there to stay, so it is set aside.
"""

from __future__ import annotations

import gc
import os
from typing import Final

PIECES_OF_WORK: Final = 2
"""The first loads nearly everything, the second the rest; what comes later is ordinary garbage."""

_done: dict[int, int] = {}
"""How much work each process has settled after: a worker is forked from one that may have, too."""


def settle() -> None:
    """To be called after each piece of work that Spark gave to this process."""
    done = _done.get(os.getpid(), 0)
    if done < PIECES_OF_WORK:
        _done.clear()
        _done[os.getpid()] = done + 1
        gc.freeze()
