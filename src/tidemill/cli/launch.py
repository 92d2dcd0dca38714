"""Broker processes of a data directory: start one, wait until it accepts, stop it.

A broker that is started here has no terminal: it writes to a log file and lives in a session of
its own, so that Ctrl-C in a shell reaches only whoever started it.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from tidemill.children import stopping_with_parent
from tidemill.cli.exits import CommandError
from tidemill.cli.fleet import Fleet, Member

READY_TIMEOUT_S = 600.0
"""A start that has to recover large logs takes a while; one that takes this long is stuck."""
STOP_TIMEOUT_S = 120.0
POLL_S = 0.03
LOG_BYTES_MAX = 16 << 20
"""A log file that has grown larger is put aside at the next start; one such is kept."""
LAST_WORDS_BYTES = 4096
LAST_WORDS_LINES = 4


class Launched(NamedTuple):
    """A process that was started, and where in its log file its own words begin."""

    member: Member
    process: subprocess.Popen[bytes]
    log: Path
    log_start: int


def launch(fleet: Fleet, member: Member, *, detached: bool) -> Launched:
    """Start a member's process. One that is not detached stops when its starter is killed."""
    log = fleet.log_of(member)
    log.parent.mkdir(parents=True, exist_ok=True)
    _put_aside(log)
    command = [sys.executable, "-m", "tidemill.cli.member", str(fleet.home), member.directory]
    with open(log, "ab") as output:
        start = output.tell()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=None if detached else stopping_with_parent(),
        )
    return Launched(member, process, log, start)


def _put_aside(log: Path) -> None:
    if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
        log.replace(log.with_suffix(".log.1"))


def is_ready(fleet: Fleet, launched: Launched) -> bool:
    """Whether the process accepts connections; an error with its last words if it has ended."""
    found = fleet.alive(launched.member)
    if found is not None and found.pid == launched.process.pid:
        return True
    if launched.process.poll() is not None:
        raise CommandError(
            f"{launched.member.label} did not start: {last_words(launched)}",
            hint=f"all that it said is in {launched.log}",
        )
    return False


def wait_until_ready(fleet: Fleet, launched: Launched, timeout_s: float = READY_TIMEOUT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_ready(fleet, launched):
        if time.monotonic() > deadline:
            raise CommandError(
                f"{launched.member.label} (pid {launched.process.pid}) is still not ready after "
                f"{timeout_s:g} s; it goes on",
                hint=f"see {launched.log}",
            )
        time.sleep(POLL_S)


def last_words(launched: Launched) -> str:
    """What the process said in the end: its complaint, or else its last lines."""
    with open(launched.log, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(launched.log_start, size - LAST_WORDS_BYTES))
        lines = file.read().decode("utf-8", "replace").strip().splitlines()
    complaints = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    if complaints:
        return complaints[-1]
    return " | ".join(lines[-LAST_WORDS_LINES:]) or f"exit status {launched.process.returncode}"


def ask_to_stop(pid: int) -> None:
    """SIGTERM: leave in good order. One that was stopped has to run on to hear it."""
    try:
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return


def has_ended(pid: int, timeout_s: float) -> bool:
    """Wait for a process, ours or not; whether it is gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    except (AttributeError, OSError):
        return _vanished(pid, timeout_s)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(max(0.0, timeout_s) * 1000))
    finally:
        os.close(descriptor)


def _vanished(pid: int, timeout_s: float) -> bool:
    """The same on systems without process descriptors."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
