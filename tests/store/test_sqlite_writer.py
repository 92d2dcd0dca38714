"""A process that was stopped in the middle of a write, and those who wait for it."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from tests.store.helpers import SqliteWorld
from tests.store.stuck import TIMEOUT_MS, stuck_writer

from tidemill.clock import SystemClock
from tidemill.store.base import Store, StoreUnavailable
from tidemill.store.sql import StoreFile
from tidemill.store.sqlite_writer import WriteLockWatch

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux says who holds a lock"
)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[SqliteWorld]:
    made = SqliteWorld(tmp_path)
    yield made
    await made.close()


async def write_when_possible(store: Store, path: str) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                await store.create(path)
                return
            except StoreUnavailable:
                continue


def last_lease_ms(path: Path) -> int:
    """Until when the session lasts that was opened last."""
    file = StoreFile(str(path))
    try:
        return file.sessions()[-1].deadline_ms
    finally:
        file.close()


async def test_the_others_go_on_when_the_stopped_writer_is_killed(world: SqliteWorld) -> None:
    """Rule K6: one stopped process may not stop the store; the others keep their sessions."""
    stores = [await world.open(session_timeout_ms=TIMEOUT_MS) for _ in range(2)]
    lost: list[int] = []
    for number, store in enumerate(stores):
        store.on_session_lost(partial(lost.append, number))
        await store.create(f"/broker-{number}", ephemeral=True)
    watch = WriteLockWatch(world.path, SystemClock())
    with stuck_writer(world.path) as process:
        began = time.monotonic()
        while (found := await asyncio.to_thread(watch.look)) is None:
            assert time.monotonic() - began < 20
            await asyncio.sleep(0.05)
        assert found == process.pid
        assert SystemClock().monotonic_ms() >= last_lease_ms(world.path), "its session's time"
        assert time.monotonic() - began >= TIMEOUT_MS / 1000 / 2, "seen all along"
        process.kill()
        for number, store in enumerate(stores):
            await write_when_possible(store, f"/after-{number}")
    await asyncio.sleep(2 * TIMEOUT_MS / 1000)
    assert lost == []
    assert await stores[0].exists("/broker-1") is not None
    assert await stores[0].exists("/held") is None


async def test_a_writer_that_keeps_its_session_is_left_alone(world: SqliteWorld) -> None:
    """Whoever writes much is no suspect, and neither is one whose lease has time left."""
    store = await world.open(session_timeout_ms=TIMEOUT_MS)
    watch = WriteLockWatch(world.path, SystemClock())
    for number in range(200):
        await store.create(f"/n{number}")
        assert await asyncio.to_thread(watch.look) is None
    with stuck_writer(world.path, timeout_ms=60_000):
        for _ in range(20):
            assert await asyncio.to_thread(watch.look) is None
            await asyncio.sleep(0.02)


async def test_a_lock_that_was_let_go_of_names_nobody(world: SqliteWorld) -> None:
    store = await world.open(session_timeout_ms=TIMEOUT_MS)
    watch = WriteLockWatch(world.path, SystemClock())
    with stuck_writer(world.path, timeout_ms=500) as process:
        process.kill()
        await write_when_possible(store, "/free")
    assert [watch.look() for _ in range(3)] == [None] * 3
