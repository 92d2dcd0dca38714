"""A simulated cluster's store: requests that get lost, sessions that end, events that are late."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from random import Random
from typing import Any, TypeVar

import pytest

from tidemill.store.base import Check, Create, Event, SessionExpired, StoreUnavailable
from tidemill.testing.ensemble import HOST, Ensemble
from tidemill.testing.far_store import CuttingStore, FarStore
from tidemill.testing.loop import SimLoop
from tidemill.testing.network import SimNetwork

T = TypeVar("T")
TIMEOUT_MS = 900


class World:
    """Two clients of one ensemble, each on a host of its own."""

    def __init__(self) -> None:
        self.loop = SimLoop()
        self.network = SimNetwork(self.loop, Random(1))
        self.ensemble = Ensemble(self.network.host(HOST))
        self.stores = {name: self._client(name) for name in ("one", "two")}

    def _client(self, name: str) -> FarStore:
        host = self.network.host(name)
        store = FarStore(self.ensemble.post, host.connect, host.clock)
        self.run(name, store.open(session_timeout_ms=TIMEOUT_MS))
        return store

    def run(self, name: str, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(self.network.host(name).run(work))


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.loop.close()
    assert made.loop.unhandled == []


def test_what_one_wrote_the_other_reads_and_hears_of(world: World) -> None:
    one, two = world.stores["one"], world.stores["two"]
    heard: list[Event] = []
    two.watch("/a", heard.append, recursive=True)
    world.run("one", one.create("/a", b"1"))
    world.run("one", one.create("/a/b", b"2"))
    assert world.run("two", two.get("/a/b")).value == b"2"
    assert list(world.run("two", two.tree("/a"))) == ["/a", "/a/b"]
    assert [event.path for event in heard] == ["/a", "/a/b"]


def test_a_write_whose_answer_is_lost_may_have_been_done(world: World) -> None:
    one, two = world.stores["one"], world.stores["two"]
    world.network.block(HOST, "one")
    with pytest.raises(StoreUnavailable):
        world.run("one", one.create("/a"))
    assert world.run("two", two.exists("/a")) is not None


def test_a_session_that_is_not_heard_of_ends_and_its_owner_learns_of_it_late(world: World) -> None:
    """Rule A9: its nodes are gone before it knows."""
    one, two = world.stores["one"], world.stores["two"]
    lost: list[bool] = []
    one.on_session_lost(lambda: lost.append(True))
    world.run("one", one.create("/mine", ephemeral=True))
    world.network.isolate("one")
    world.loop.run_for(2 * TIMEOUT_MS / 1000)
    assert world.run("two", two.exists("/mine")) is None
    assert not one.connected
    assert not lost
    world.network.heal()
    world.loop.run_for(5)
    assert lost
    with pytest.raises(SessionExpired):
        world.run("one", one.create("/again", ephemeral=True))
    world.run("one", one.open(session_timeout_ms=TIMEOUT_MS))
    world.run("one", one.create("/again", ephemeral=True))


def test_a_short_break_costs_neither_session_nor_events(world: World) -> None:
    one, two = world.stores["one"], world.stores["two"]
    session_id, heard = one.session_id, list[Event]()
    one.watch("/a", heard.append)
    world.network.reset_connections("one", HOST)
    world.run("two", two.create("/a"))
    world.run("two", asyncio.sleep(TIMEOUT_MS / 2000))
    assert one.session_id == session_id
    assert [event.path for event in heard] == ["/a"]
    world.run("one", one.put("/a", b"1"))


def test_a_long_commit_is_cut_and_tells_when_its_connection_breaks_in_between(
    world: World,
) -> None:
    host = world.network.host("three")
    store = CuttingStore(world.ensemble.post, host.connect, host.clock, ops_max=2)
    cuts: list[bool] = []
    store.on_cut = lambda: cuts.append(True)
    world.run("three", store.open(session_timeout_ms=TIMEOUT_MS))
    world.run("three", store.create("/guard"))
    guard = Check("/guard", 0)
    ops = [Create(f"/{number}") for number in range(5)]

    async def commit(breaks_before: int = -1) -> None:
        for number, portion in enumerate(store.portions(guard, ops)):
            assert len(portion) <= 3
            assert portion[0] is guard
            if number == breaks_before:
                world.network.reset_connections("three", HOST)
            await store.multi(portion)

    with pytest.raises(StoreUnavailable):
        world.run("three", commit(breaks_before=0))
    assert not cuts, "nothing of it was written"
    with pytest.raises(StoreUnavailable):
        world.run("three", commit(breaks_before=2))
    assert cuts
    assert world.run("three", store.children("/")) == ["0", "1", "2", "3", "guard"]
