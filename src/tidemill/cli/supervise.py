"""`tidemill up --brokers N`: several broker processes, watched.

It starts them, says `ready on HOST:PORT` for each once all have found each other, reports whoever
goes, and stops them all in the end. A broker that died stays dead until somebody brings it back
(`tidemill broker start`): to restart it silently would hide what killed it. Whoever was started
that way belongs to the watch, too, and stops with it.

A broker that was stopped while it wrote to the store they share keeps all others from writing. When
it has been silent for longer than a session lasts, it is killed, so that the others go on.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from tidemill.broker.status import FILE_NAME as STATUS_NAME
from tidemill.broker.status import BrokerStatus
from tidemill.cli import fleet as fleets
from tidemill.cli import launch
from tidemill.cli.exits import CommandError, Exit
from tidemill.cli.fleet import Fleet, Member
from tidemill.cli.launch import Launched
from tidemill.cli.render import plural
from tidemill.cli.signals import how_it_ended, stop_signals
from tidemill.clock import SystemClock
from tidemill.store.sqlite_writer import WriteLockWatch
from tidemill.store.url import SqliteUrl, parse_store_url

LOCK_NAME = "up.lock"
WATCH_S = 0.1
LOOK_AROUND_S = 0.5
"""How often the brokers that others started are looked for."""
JOIN_TIMEOUT_S = 120.0


class Supervisor:
    """The brokers of one `up`."""

    def __init__(self, fleet: Fleet, count: int, fmt: str) -> None:
        self._fleet = fleet
        self._wanted = fleet.members[:count]
        self._fmt = fmt
        self._children: dict[str, Launched] = {}
        self._others: dict[str, BrokerStatus] = {}
        self._write_lock = _write_lock(fleet)
        self._is_up = False
        self._told_to_stop = False
        self._failures = 0

    def run(self) -> int:
        """Until the last broker is gone, or until SIGTERM or SIGINT; the exit status."""
        with _sole_supervisor(self._fleet), stop_signals(self._stop):
            with fleets.changing(self._fleet.home):
                fleets.save(self._fleet)
            try:
                if self._come_up():
                    self._announce()
                    self._is_up = True
                    self._watch()
            finally:
                self._stop_all()
        return Exit.FAILED if self._failures and not self._told_to_stop else Exit.OK

    # Coming up.

    def _come_up(self) -> bool:
        """Start who is not running; True once all of them have joined."""
        self._look_around()
        missing = [member for member in self._wanted if member.directory not in self._others]
        if not missing:
            raise CommandError(
                f"all brokers of {self._fleet.home} run already",
                hint="`tidemill status` lists them, `tidemill broker stop` stops one",
            )
        for member in missing:
            self._children[member.directory] = launch.launch(self._fleet, member, detached=False)
        deadline = time.monotonic() + launch.READY_TIMEOUT_S
        while not self._told_to_stop:
            if all(launch.is_ready(self._fleet, each) for each in self._children.values()):
                return self._join()
            if time.monotonic() > deadline:
                raise CommandError(f"not ready after {launch.READY_TIMEOUT_S:g} s", Exit.FAILED)
            time.sleep(launch.POLL_S)
        return False

    def _join(self) -> bool:
        """Whether every broker knows every other, as a client would be told."""
        notes = self._live_notes()
        if len(notes) == 1:
            return True
        deadline = time.monotonic() + JOIN_TIMEOUT_S
        while not self._told_to_stop:
            if asyncio.run(_all_know_each_other(notes)):
                return True
            if time.monotonic() > deadline:
                raise CommandError(
                    f"the brokers run but did not find each other within {JOIN_TIMEOUT_S:g} s",
                    hint=f"see the files in {self._fleet.home / fleets.LOGS_NAME}",
                )
            for each in self._children.values():
                launch.is_ready(self._fleet, each)
            time.sleep(launch.POLL_S)
        return False

    def _live_notes(self) -> list[BrokerStatus]:
        found = (self._fleet.alive(member) for member in self._wanted)
        return [note for note in found if note is not None]

    def _announce(self) -> None:
        """Tell whoever waits, person or script, that clients are served from now on."""
        for note in self._live_notes():
            address = f"{note.host}:{note.port}"
            if self._fmt == "json":
                line = json.dumps({"ready": address, "pid": note.pid, "id": note.id})
            else:
                line = f"ready on {address}"
            sys.stdout.write(line + "\n")
        sys.stdout.flush()
        self._say(f"the brokers write to {self._fleet.home / fleets.LOGS_NAME}")
        left_out = len(self._fleet.members) - len(self._wanted)
        if left_out:
            self._say(f"not started: {left_out} more that live here; see `tidemill broker start`")

    # Staying up.

    def _watch(self) -> None:
        looked = time.monotonic()
        while not self._told_to_stop and (self._children or self._others):
            self._reap()
            if time.monotonic() - looked >= LOOK_AROUND_S or not self._children:
                self._look_around()
                self._free_the_store()
                looked = time.monotonic()
            time.sleep(WATCH_S)
        if not self._told_to_stop:
            self._say("no broker is left")

    def _reap(self) -> None:
        for directory, child in list(self._children.items()):
            status = child.process.poll()
            if status is not None:
                del self._children[directory]
                self._report(
                    child.member, child.process.pid, how_it_ended(status), died=status != 0
                )

    def _look_around(self) -> None:
        """Notice the brokers that others started, and those of them that are gone."""
        self._fleet = fleets.load(self._fleet.home) or self._fleet
        for member in self._fleet.members:
            if member.directory in self._children:
                continue
            note, known = self._fleet.alive(member), self._others.pop(member.directory, None)
            if note is not None:
                self._others[member.directory] = note
            is_new = note is not None and (known is None or note.pid != known.pid)
            if known is not None and (note is None or is_new):
                # A broker that stops in good order takes its note away.
                died = note is None and (self._fleet.path_of(member) / STATUS_NAME).exists()
                self._report(member, known.pid, "died" if died else "stopped", died=died)
            if is_new and note is not None and self._is_up and not self._told_to_stop:
                self._say(f"broker {note.id} (port {note.port}, pid {note.pid}) runs now")

    def _free_the_store(self) -> None:
        """Kill a broker that was stopped while it wrote, for nobody else can write until then."""
        pid = None if self._write_lock is None else self._write_lock.look()
        ours = [child.process.pid for child in self._children.values()]
        if pid is not None and pid in (*ours, *(note.pid for note in self._others.values())):
            self._say(f"pid {pid} hangs in the middle of a write to the store and is killed")
            os.kill(pid, signal.SIGKILL)

    def _report(self, member: Member, pid: int, how: str, *, died: bool) -> None:
        self._failures += died
        back = f"tidemill broker start --data-dir {self._fleet.home} --port {member.port}"
        self._say(f"{member.label} (port {member.port}, pid {pid}) {how}; to bring it back: {back}")

    # Going down.

    def _stop_all(self) -> None:
        """Ask all of them at once, and wait for them together."""
        pids = {each.process.pid: each.member for each in self._children.values()}
        if self._told_to_stop:
            self._look_around()
            pids |= {
                note.pid: member
                for member in self._fleet.members
                if (note := self._others.get(member.directory)) is not None
            }
        if pids and self._told_to_stop:
            self._say(f"stopping {plural(len(pids), 'broker')}")
        for pid in pids:
            launch.ask_to_stop(pid)
        deadline = time.monotonic() + launch.STOP_TIMEOUT_S
        for pid, member in pids.items():
            if not launch.has_ended(pid, deadline - time.monotonic()):
                self._failures += 1
                self._say(f"{member.label} (pid {pid}) did not stop in time and is killed")
                os.kill(pid, signal.SIGKILL)
        for child in self._children.values():
            child.process.wait()

    # Talking and listening.

    def _say(self, text: str) -> None:
        sys.stderr.write((json.dumps({"event": text}) if self._fmt == "json" else text) + "\n")
        sys.stderr.flush()

    def _stop(self) -> None:
        self._told_to_stop = True


def _write_lock(fleet: Fleet) -> WriteLockWatch | None:
    """The lock that the brokers share, if they share a file."""
    store = fleet.settings_of(fleet.members[0]).get(fleets.STORE_KEY)
    url = None if store is None else parse_store_url(store)
    return WriteLockWatch(url.path, SystemClock()) if isinstance(url, SqliteUrl) else None


@contextmanager
def _sole_supervisor(fleet: Fleet) -> Iterator[None]:
    """Two of them would start each other's brokers."""
    fleet.home.mkdir(parents=True, exist_ok=True)
    with open(fleet.home / LOCK_NAME, "a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandError(
                f"`tidemill up` runs already for {fleet.home} (pid {_holder(lock)})",
                hint="stop it, or name another --data-dir",
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def _holder(lock: TextIO) -> str:
    lock.seek(0)
    return lock.read(20).strip() or "unknown"


async def _all_know_each_other(notes: list[BrokerStatus]) -> bool:
    """Whether each broker lists all of them as live."""
    ids = {note.id for note in notes}
    answers = await asyncio.gather(*(_known_to(note) for note in notes))
    return all(ids <= answer for answer in answers)


async def _known_to(note: BrokerStatus) -> set[int]:
    from tidemill.client import Admin, ClientError

    try:
        async with Admin(f"{note.host}:{note.port}", default_api_timeout_ms=5_000) as admin:
            cluster = await admin.describe_cluster()
    except ClientError:
        return set()
    return {broker.broker_id for broker in cluster.brokers if not broker.is_fenced}


def stop_others(fleet: Fleet) -> None:
    """Stop whoever joined a broker that ran alone and is going now."""
    notes = [fleet.alive(member) for member in fleet.members if not member.is_flat]
    alive = [note for note in notes if note is not None]
    for note in alive:
        launch.ask_to_stop(note.pid)
    deadline = time.monotonic() + launch.STOP_TIMEOUT_S
    for note in alive:
        launch.has_ended(note.pid, deadline - time.monotonic())
