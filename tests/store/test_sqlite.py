"""What the embedded engine adds to the contract: processes that die, stop, and share one file."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.store.helpers import Heard, SqliteWorld, until
from tests.timers.helpers import HandClock

from tidemill.clock import SystemClock
from tidemill.executor import InlineExecutor
from tidemill.store import sqlite as engine
from tidemill.store import sqlite_session
from tidemill.store.base import (
    BadArguments,
    Create,
    SessionExpired,
    StoreFormatError,
    StoreUnavailable,
)
from tidemill.store.sql import StoreFile
from tidemill.store.sqlite import SqliteStore, live_nodes

HOLDER = """
import asyncio, sys
from tidemill.clock import SystemClock
from tidemill.executor import InlineExecutor
from tidemill.store.sqlite import SqliteStore

async def main():
    store = SqliteStore(sys.argv[1], SystemClock(), InlineExecutor())
    await store.open(session_timeout_ms=int(sys.argv[2]))
    await store.create("/held", b"by a process", ephemeral=True)
    print("held", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[SqliteWorld]:
    made = SqliteWorld(tmp_path)
    yield made
    await made.close()


@contextmanager
def holder(path: Path, timeout_ms: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds an ephemeral node until it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), str(timeout_ms)], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


async def test_a_killed_process_is_noticed_at_once(world: SqliteWorld) -> None:
    """Rule K6: sessions with expiry by others; death needs no timeout."""
    store = await world.open()
    heard = Heard()
    with holder(world.path, timeout_ms=600_000) as process:
        store.watch("/held", heard)
        assert await store.exists("/held") is not None
        process.kill()
        process.wait()
        await heard.wait_for(1)
    assert heard.told == [("deleted", "/held")]
    assert await store.exists("/held") is None


async def test_a_stopped_process_is_expired_after_its_timeout(world: SqliteWorld) -> None:
    """Rules 2.L: a pause looks like death, and the paused one must find out."""
    store = await world.open()
    heard = Heard()
    with holder(world.path, timeout_ms=600) as process:
        store.watch("/held", heard)
        os.kill(process.pid, signal.SIGSTOP)
        await heard.wait_for(1)
        os.kill(process.pid, signal.SIGCONT)
    assert heard.told == [("deleted", "/held")]


async def test_who_renews_its_session_keeps_it_however_often_its_timeout_passes(
    tmp_path: Path,
) -> None:
    clock = HandClock(1_000_000)
    world = SqliteWorld(tmp_path, clock)
    store = await world.open(session_timeout_ms=1_000)
    other = await world.open(session_timeout_ms=100_000)
    await store.create("/mine", ephemeral=True)
    heard = Heard()
    other.watch("/mine", heard)
    file = StoreFile(str(world.path))
    for _ in range(10):
        clock.at_ms += 400
        lease_ms = clock.at_ms + 1_000
        await until(lambda: lease_ms in {row.deadline_ms for row in file.sessions()})  # noqa: B023
    file.close()
    await store.put("/mine", b"still here")
    await heard.wait_for(1)
    assert heard.told == [("changed", "/mine")]
    await world.close()


async def test_the_dead_are_swept_before_a_new_session_opens(world: SqliteWorld) -> None:
    """Rule K5: what a crashed broker left is gone when it comes back, without waiting."""
    with holder(world.path, timeout_ms=60_000) as process:
        process.kill()
        process.wait()
        assert list(live_nodes(world.path, "/held", SystemClock())) == []
        store = await world.open()
        assert await store.exists("/held") is None


async def test_live_nodes_tells_the_truth_without_joining(world: SqliteWorld) -> None:
    assert live_nodes(world.path, "/", SystemClock()) == {}
    store = await world.open()
    await store.create("/brokers")
    await store.create("/brokers/1", b"x", ephemeral=True)
    assert list(live_nodes(world.path, "/brokers", SystemClock())) == ["/brokers", "/brokers/1"]
    await store.close()
    assert list(live_nodes(world.path, "/brokers", SystemClock())) == ["/brokers"]


async def test_everything_survives_a_restart(world: SqliteWorld) -> None:
    store = await world.open()
    await store.create("/a", b"1")
    await store.put("/a", b"2")
    before = await store.get("/a")
    await store.close()
    again = await world.open()
    assert await again.get("/a") == before
    created = await again.create("/b")
    assert created.stat is not None
    assert created.stat.created > before.stat.changed


async def test_commits_are_durable_and_the_log_is_ahead(world: SqliteWorld) -> None:
    """Rule K6: fsync before ack."""
    await world.open()
    with sqlite3.connect(world.path) as probe:
        assert probe.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    probe.close()
    file = StoreFile(str(world.path))
    assert file._db.execute("PRAGMA synchronous").fetchone() == (2,)
    file.close()


async def test_only_the_owner_may_read_the_file(world: SqliteWorld) -> None:
    await world.open()
    assert stat.S_IMODE(world.path.stat().st_mode) == 0o600


async def test_a_newer_format_is_refused_with_advice(world: SqliteWorld) -> None:
    store = await world.open()
    await store.close()
    with sqlite3.connect(world.path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StoreFormatError, match="has format 99"):
        await world.open()


async def test_files_that_are_not_ours_are_left_alone(world: SqliteWorld) -> None:
    with sqlite3.connect(world.path) as db:
        db.execute("CREATE TABLE theirs (x)")
    db.close()
    with pytest.raises(StoreFormatError):
        await world.open()
    world.path.write_bytes(b"not a database at all, but a text of some length" * 100)
    with pytest.raises(StoreUnavailable):
        await world.open()


async def test_a_folder_that_does_not_exist_is_a_clear_error(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "none" / "store.db", SystemClock(), InlineExecutor())
    with pytest.raises((StoreUnavailable, OSError)):
        await store.open(session_timeout_ms=None)
    await store.close()


async def test_a_session_that_nobody_could_keep_alive_is_refused(world: SqliteWorld) -> None:
    with pytest.raises(BadArguments):
        await world.open(session_timeout_ms=5)


async def test_news_of_another_process_travels_by_poke(world: SqliteWorld) -> None:
    """Well below the poll interval at the median; a lost poke costs one interval."""
    store, writer = await world.open(), await world.open()
    await asyncio.sleep(2 * engine.SWEEP_MS / 1000)
    assert isinstance(writer, SqliteStore)
    assert isinstance(store, SqliteStore)
    heard = Heard()
    store.watch("/", heard, recursive=True)
    for timer in ("poll", "sweep"):
        store._timers.pop(timer).cancel()
    for index in range(5):
        await writer.create(f"/n{index}")
    await heard.wait_for(5)


async def test_without_pokes_polling_brings_the_news(
    world: SqliteWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqliteStore, "_poke", lambda self: None)
    store, writer = await world.open(), await world.open()
    heard = Heard()
    store.watch("/n", heard)
    await writer.create("/n")
    await heard.wait_for(1)


async def test_who_is_alone_looks_seldom_and_hears_of_a_passer_by(
    world: SqliteWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look wakes up an idle core; a program that writes without a session pokes nobody."""
    store = await world.open()
    assert isinstance(store, SqliteStore)
    heard = Heard()
    store.watch("/n", heard)
    looks = 0
    look = StoreFile.data_version

    def counted(file: StoreFile) -> int:
        nonlocal looks
        looks += 1
        return look(file)

    monkeypatch.setattr(StoreFile, "data_version", counted)
    begin = time.monotonic()
    await asyncio.sleep(1)
    assert 0 < looks <= 1 + (time.monotonic() - begin) * 1000 / engine.SWEEP_MS
    passer_by = world._make()
    await passer_by.open(session_timeout_ms=None)
    await passer_by.create("/n")
    await passer_by.close()
    await heard.wait_for(1)


async def test_a_stuck_loop_does_not_renew_its_session(tmp_path: Path) -> None:
    """Rule A9: the lease is renewed by the loop itself, so a loop that hangs loses it."""
    clock = HandClock(1_000_000)
    world = SqliteWorld(tmp_path, clock)
    store = await world.open(session_timeout_ms=1_000)
    other = await world.open(session_timeout_ms=100_000)
    await store.create("/mine", ephemeral=True)
    assert isinstance(store, SqliteStore)
    for timer in store._timers.values():
        timer.cancel()
    clock.at_ms += 2_000
    heard = Heard()
    other.watch("/mine", heard)
    await heard.wait_for(1)
    with pytest.raises(SessionExpired):
        await store.put("/", b"")
    await world.close()


async def test_a_late_but_living_session_that_nobody_expired_goes_on(tmp_path: Path) -> None:
    """One broker alone on its machine survives a pause of any length."""
    clock = HandClock(1_000_000)
    world = SqliteWorld(tmp_path, clock)
    store = await world.open(session_timeout_ms=1_000)
    await store.create("/mine", ephemeral=True)
    clock.at_ms += 60_000
    await asyncio.sleep(0.4)
    await store.put("/mine", b"still here")
    await world.close()


async def test_sessions_of_before_a_reboot_are_over(
    world: SqliteWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await world.open()
    await store.create("/old", ephemeral=True)
    monkeypatch.setattr(sqlite_session, "boot_id", lambda: "another")
    assert list(live_nodes(world.path, "/old", SystemClock())) == []


async def test_changes_that_all_have_heard_are_dropped(world: SqliteWorld) -> None:
    """The table of changes is bounded by what the slowest session has not heard."""
    store = await world.open(session_timeout_ms=300)
    for index in range(20):
        await store.create(f"/n{index}")
    file = StoreFile(str(world.path))
    await until(lambda: len(file.events_after(0)) <= 1)
    file.close()


async def test_many_events_arrive_whole_and_in_order(
    world: SqliteWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.store.sql._EVENTS_PER_READ_MAX", 3)
    store, writer = await world.open(), await world.open()
    heard = Heard()
    store.watch("/", heard, recursive=True)
    await writer.multi([Create(f"/a{index}") for index in range(5)])
    await writer.multi([Create(f"/b{index}") for index in range(5)])
    await heard.wait_for(10)
    expected = [f"/a{index}" for index in range(5)] + [f"/b{index}" for index in range(5)]
    assert [event.path for event in heard.events] == expected


def test_several_may_make_the_file_at_the_same_moment(tmp_path: Path) -> None:
    """As the brokers of one machine do, each a process of its own, that start together."""
    script = (
        "import sys; from tidemill.store.sql import StoreFile\n"
        "for line in sys.stdin: StoreFile(line.strip()).close(); print('made', flush=True)"
    )
    makers = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        for _ in range(4)
    ]
    for number in range(100):
        path = tmp_path / f"{number}.db"
        for maker in makers:
            assert maker.stdin is not None
            maker.stdin.write(f"{path}\n")
        assert [maker.stdout.readline() for maker in makers if maker.stdout] == ["made\n"] * 4
    for maker in makers:
        maker.communicate(timeout=30)
    file = StoreFile(str(path))
    assert list(file.tree("/")) == ["/"]
    file.close()


async def test_nothing_is_left_behind(world: SqliteWorld) -> None:
    store = await world.open()
    await store.create("/a", ephemeral=True)
    await store.close()
    left = sorted(path.name for path in world.path.parent.rglob("*") if path.is_file())
    assert left == ["store.db"]


async def test_opening_is_quick(tmp_path: Path) -> None:
    """A broker that starts in under a second cannot wait for its store: the best of five counts,
    because what a busy machine adds is no waiting of ours."""
    took_s = []
    for number in range(5):
        folder = tmp_path / str(number)
        folder.mkdir()
        world = SqliteWorld(folder)
        start = time.perf_counter()
        store = await world.open()
        await store.create("/brokers", ephemeral=True)
        took_s.append(time.perf_counter() - start)
        await world.close()
    assert min(took_s) < 0.5


def test_a_full_disk_says_what_to_do(tmp_path: Path) -> None:
    file = StoreFile(str(tmp_path / "store.db"))
    full = sqlite3.OperationalError("database or disk is full")
    full.sqlite_errorcode = sqlite3.SQLITE_FULL
    with pytest.raises(StoreUnavailable, match="Free some disk space"), file._translated():
        raise full
