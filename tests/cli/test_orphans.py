"""Processes of processes: who they are, and that they have ended."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tidemill.cli.orphans import descendants, see_ended

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")

FOREVER = "import time; time.sleep(600)"
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {FOREVER!r}])
print(child.pid, flush=True)
child.wait()
"""


def test_a_grandchild_is_known_outlives_its_parent_and_is_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as it:
        assert it.stdout is not None
        grandchild = int(it.stdout.readline())
        assert descendants(it.pid) == {grandchild}
        assert {it.pid, grandchild} <= descendants(os.getpid())
        it.kill()
        it.wait()
        assert see_ended({grandchild}, limit_s=0.2), "it is killed once its time is up"
    assert descendants(it.pid) == frozenset()


def test_those_that_have_ended_are_not_waited_for() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as it:
        # Ended and not buried is ended, too: whoever inherits a process may never look.
        assert see_ended({it.pid}, limit_s=60)
    assert see_ended({it.pid}, limit_s=0)
    assert see_ended((), limit_s=60)
