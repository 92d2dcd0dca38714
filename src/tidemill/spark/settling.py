"""Keeps Python's garbage collector away from what stays for good.

Spark's Python workers collect garbage after every task, and look at all there is. With Arrow, numpy
and compiled kernels loaded that is 80 ms of work, several times in each query.
What a process has loaded once it has done its work is there to stay, so it is set aside.
"""

from __future__ import annotations

import gc
import itertools
from typing import Final

PIECES_OF_WORK: Final = 2
"""The first loads nearly everything, the second the rest; what comes later is ordinary garbage."""

_done = itertools.count(1)
"""The pieces of work of this process; Spark forks its workers before they load any of this."""


def settle() -> None:
    """To be called after each piece of work that Spark gave to this process."""
    if next(_done) <= PIECES_OF_WORK:
        gc.freeze()
