"""Keeps the cores of a virtual machine from going to sleep while something short is timed.

A core that has nothing to do leaves the virtual machine, and how long it takes to come back is up
to the host: some tens of microseconds, more than a broker takes for a request, and it jumps with
how often the host has seen the core wake. A process of the lowest class on each core keeps it
running and costs the others nothing: whatever else wants the core gets it at once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_SPIN = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
print("awake", flush=True)
parent, end = os.getppid(), time.monotonic() + float(sys.argv[2])
while os.getppid() == parent and time.monotonic() < end:
    for _ in range(100_000):
        pass
"""


@contextmanager
def cores_awake(limit_s: float) -> Iterator[None]:
    """For as long as the block takes, and no longer than the limit, no core is idle."""
    spinning = []
    try:
        for core in sorted(os.sched_getaffinity(0)):
            command = [sys.executable, "-c", _SPIN, str(core), str(limit_s)]
            spinning.append(subprocess.Popen(command, stdout=subprocess.PIPE))
        for each in spinning:
            assert each.stdout is not None
            if not each.stdout.readline():
                raise RuntimeError(f"a core could not be kept awake: {each.wait()}")
        yield
    finally:
        for each in spinning:
            each.kill()
            each.communicate()
