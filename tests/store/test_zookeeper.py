"""What the ensemble's engine adds to the contract: lost connections, expiry, servers that die."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, UnimplementedError
from tests.store.gate import Gate
from tests.store.helpers import Heard, ZooKeeperWorld, until
from tests.timers.helpers import HandClock
from tests.waiting import LONG_S

from tidemill.clock import SystemClock
from tidemill.executor import InlineExecutor
from tidemill.store import zookeeper as engine
from tidemill.store.base import (
    BadArguments,
    BadVersion,
    Check,
    Create,
    Op,
    SessionExpired,
    StoreUnavailable,
)
from tidemill.store.zookeeper import ZooKeeperStore
from tidemill.testing.process import free_port
from tidemill.testing.zookeeper import ZooKeeperEnsemble, ZooKeeperServer

HOLDER = """
import asyncio, sys
from tidemill.clock import SystemClock
from tidemill.executor import InlineExecutor
from tidemill.store.zookeeper import ZooKeeperStore

async def main():
    hosts, chroot, timeout_ms = sys.argv[1:]
    store = ZooKeeperStore(hosts, SystemClock(), InlineExecutor(), chroot=chroot)
    lost = asyncio.Event()
    store.on_session_lost(lost.set)
    await store.open(session_timeout_ms=int(timeout_ms))
    await store.create("/held", b"by a process", ephemeral=True)
    print("held", flush=True)
    await lost.wait()
    await store.open(session_timeout_ms=int(timeout_ms))
    await store.create("/held", b"again", ephemeral=True)
    print("held again", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.fixture
async def world(zookeeper_place: tuple[str, str]) -> AsyncIterator[ZooKeeperWorld]:
    made = ZooKeeperWorld(*zookeeper_place)
    yield made
    await made.close()


@pytest.fixture
async def gate(zookeeper_server: ZooKeeperServer) -> AsyncIterator[Gate]:
    made = Gate(zookeeper_server.port)
    await made.open()
    yield made
    await made.shut()


@pytest.fixture
async def behind(gate: Gate, world: ZooKeeperWorld) -> AsyncIterator[ZooKeeperStore]:
    """A store that reaches the server through the gate only."""
    store = store_at(gate.address, world)
    await store.open(session_timeout_ms=4_000)
    yield store
    await store.close()


def store_at(hosts: str, world: ZooKeeperWorld) -> ZooKeeperStore:
    return ZooKeeperStore(hosts, SystemClock(), world.executor, chroot=world.chroot)


@contextmanager
def plain_client(hosts: str) -> Iterator[KazooClient]:
    client = KazooClient(hosts)
    client.start(10)
    try:
        yield client
    finally:
        client.stop()
        client.close()


@contextmanager
def holder(world: ZooKeeperWorld, timeout_ms: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds an ephemeral node, and takes it again when it lost its session."""
    command = [sys.executable, "-c", HOLDER, world.hosts, world.chroot, str(timeout_ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
            yield process
        finally:
            process.kill()


# Places


async def test_the_path_is_made_and_nothing_else_is_seen(world: ZooKeeperWorld) -> None:
    store = await world.open()
    await store.create("/a")
    with plain_client(world.hosts) as client:
        assert client.get_children(world.chroot) == ["a"]
    heard = Heard()
    store.watch("/", heard, recursive=True)
    elsewhere = ZooKeeperWorld(world.hosts, world.chroot + "-other")
    other = await elsewhere.open()
    await other.create("/b")
    await store.put("/", b"root")
    await heard.wait_for(1)
    assert heard.told == [("changed", "/")]
    assert list(await store.tree("/")) == ["/", "/a"]
    await elsewhere.close()


async def test_the_true_root_hides_what_is_zookeepers_own(world: ZooKeeperWorld) -> None:
    await world.open()
    whole = ZooKeeperWorld(world.hosts, "")
    store = await whole.open()
    assert "zookeeper" not in await store.children("/")
    tree = await store.tree("/")
    assert world.chroot in tree
    assert not any(path.startswith("/zookeeper") for path in tree)
    with pytest.raises(BadArguments):
        await store.delete("/")
    await whole.close()


# Commits and sizes


async def test_commit_numbers_are_the_ensembles(world: ZooKeeperWorld) -> None:
    """Rule K6: watches tell of versions. An event names the commit that the write returned."""
    store, writer = await world.open(), await world.open()
    heard = Heard()
    store.watch("/a", heard)
    created = await writer.create("/a")
    changed = await writer.put("/a", b"2")
    assert created.stat is not None
    await heard.wait_for(2)
    assert [event.commit for event in heard.events] == [created.stat.created, changed.changed]
    with plain_client(world.hosts) as client:
        stat = client.exists(f"{world.chroot}/a")
    assert (stat.czxid, stat.mzxid) == (created.stat.created, changed.changed)


async def test_a_transaction_that_no_server_would_take_is_refused(world: ZooKeeperWorld) -> None:
    store = await world.open()
    with pytest.raises(BadArguments, match=r"jute\.maxbuffer"):
        await store.multi([Create(f"/n{index}", bytes(100_000)) for index in range(11)])
    assert await store.children("/") == []


async def test_a_large_change_is_cut_into_guarded_portions(world: ZooKeeperWorld) -> None:
    """Rule A2 for every portion: a controller that lost its office half way stops there."""
    store = await world.open()
    assert isinstance(store, ZooKeeperStore)
    await store.create("/epoch", b"1")
    ops: list[Op] = [Create(f"/n{index:03d}", bytes(50_000)) for index in range(50)]
    portions = list(store.portions(Check("/epoch", 0), ops))
    assert [op for portion in portions for op in portion[1:]] == ops
    assert len(portions) == 3
    await store.multi(portions[0])
    await store.multi(portions[1])
    await store.put("/epoch", b"2")
    with pytest.raises(BadVersion):
        await store.multi(portions[2])
    assert len(await store.children("/")) == 41


async def test_a_large_tree_is_read_in_few_requests(world: ZooKeeperWorld) -> None:
    store = await world.open()
    for start in range(0, 2_000, 500):
        await store.multi(
            [
                op
                for index in range(start, start + 500)
                for op in (Create(f"/p{index}"), Create(f"/p{index}/state", b"%d" % index))
            ]
        )
    began = time.perf_counter()
    tree = await store.tree("/")
    assert time.perf_counter() - began < 3
    assert len(tree) == 4_001
    assert all(tree[f"/p{index}/state"].value == b"%d" % index for index in range(2_000))


async def test_reading_a_tree_that_shrinks_meanwhile(world: ZooKeeperWorld) -> None:
    store, writer = await world.open(), await world.open()
    for index in range(50):
        await writer.multi([Create(f"/n{index}"), Create(f"/n{index}/x")])

    async def shrink() -> None:
        for index in range(50):
            await writer.delete(f"/n{index}/x")

    shrinking = asyncio.ensure_future(shrink())
    while not shrinking.done():
        tree = await store.tree("/")
        assert all(path.rpartition("/")[0] in tree for path in tree if path.count("/") > 1)
    await shrinking
    assert len(await store.tree("/")) == 51


# Lost connections


async def test_what_was_missed_is_told_afterwards(
    world: ZooKeeperWorld, gate: Gate, behind: ZooKeeperStore
) -> None:
    """Rule K5: after a gap the watched nodes are read again, and no change goes untold."""
    writer = await world.open()
    for path in ("/ids", "/ids/1", "/ids/2", "/ids/3", "/ids/3/x", "/office", "/other"):
        await writer.create(path)
    ids, office = Heard(), Heard()
    await behind.get("/other")
    behind.watch("/ids", ids, recursive=True)
    behind.watch("/office", office)
    await behind.get("/ids")
    await asyncio.sleep(0.05)
    session_id = behind.session_id
    await gate.shut()
    await until(lambda: not behind.connected)
    await writer.create("/ids/4")
    await writer.put("/ids/2", b"changed")
    await writer.delete("/ids/1")
    await writer.create("/ids/1")
    await writer.delete("/ids/3/x")
    await writer.delete("/ids/3")
    await writer.delete("/office")
    await writer.put("/other", b"")
    await gate.open()
    await ids.wait_for(6)
    await office.wait_for(1)
    assert sorted(ids.told) == [
        ("changed", "/ids/2"),
        ("created", "/ids/1"),
        ("created", "/ids/4"),
        ("deleted", "/ids/1"),
        ("deleted", "/ids/3"),
        ("deleted", "/ids/3/x"),
    ]
    assert ids.told.index(("deleted", "/ids/1")) < ids.told.index(("created", "/ids/1"))
    assert ids.told.index(("deleted", "/ids/3/x")) < ids.told.index(("deleted", "/ids/3"))
    commits = [event.commit for event in ids.events]
    assert commits == sorted(commits)
    assert office.told == [("deleted", "/office")]
    assert behind.session_id == session_id
    await writer.put("/ids/4", b"live again")
    await ids.wait_for(7)
    assert ids.told[-1] == ("changed", "/ids/4")


async def test_a_short_gap_costs_neither_session_nor_requests(
    world: ZooKeeperWorld, gate: Gate, behind: ZooKeeperStore
) -> None:
    lost: list[bool] = []
    behind.on_session_lost(lambda: lost.append(True))
    await behind.create("/mine", ephemeral=True)
    reads = [asyncio.ensure_future(behind.get("/mine")) for _ in range(200)]
    await asyncio.sleep(0)
    await gate.shut()
    await until(lambda: not behind.connected)
    reads += [asyncio.ensure_future(behind.get("/mine")) for _ in range(200)]
    await asyncio.sleep(0.1)
    await gate.open()
    nodes = await asyncio.gather(*reads)
    assert {node.stat.owner for node in nodes} == {behind.session_id}
    await behind.put("/mine", b"again")
    assert not lost


async def test_a_write_without_an_answer_fails_in_time(world: ZooKeeperWorld, gate: Gate) -> None:
    store = store_at(gate.address, world)
    await store.open(session_timeout_ms=3_000)
    writing = [asyncio.ensure_future(store.create(f"/n{index}")) for index in range(100)]
    await asyncio.sleep(0)
    await gate.shut()
    async with asyncio.timeout(LONG_S):
        outcomes = await asyncio.gather(*writing, return_exceptions=True)
    assert any(isinstance(outcome, StoreUnavailable) for outcome in outcomes)
    assert not [o for o in outcomes if isinstance(o, Exception) and type(o) is not StoreUnavailable]
    await store.close()


async def test_a_write_that_was_given_up_does_not_happen_later(
    world: ZooKeeperWorld, gate: Gate, behind: ZooKeeperStore
) -> None:
    await gate.shut()
    await until(lambda: not behind.connected)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await behind.create("/late")
    await gate.open()
    await behind.create("/next")
    assert await behind.children("/") == ["next"]


async def test_a_session_that_expired_unseen_is_lost_at_the_next_contact(
    world: ZooKeeperWorld, gate: Gate
) -> None:
    """Rule A9: the server decides; whoever was away for too long has to begin anew."""
    store, other = store_at(gate.address, world), await world.open()
    lost: list[bool] = []
    store.on_session_lost(lambda: lost.append(True))
    await store.open(session_timeout_ms=4_000)
    await store.create("/office", ephemeral=True)
    heard, gone = Heard(), Heard()
    other.watch("/office", gone)
    store.watch("/topics", heard)
    await gate.shut()
    await until(lambda: ("deleted", "/office") in gone.told)
    assert not lost
    await other.create("/topics")
    await gate.open()
    await until(lambda: bool(lost))
    with pytest.raises(SessionExpired):
        await store.create("/office", ephemeral=True)
    with pytest.raises(SessionExpired):
        await store.get("/")
    await asyncio.sleep(0.2)
    assert store._session is not None
    assert not store._session._client.connected
    await store.open(session_timeout_ms=2_000)
    await store.create("/office", ephemeral=True)
    await heard.wait_for(1)
    assert heard.told[0] == ("created", "/topics")
    assert lost == [True]
    await store.close()


async def test_a_client_without_a_session_outlives_its_servers_memory(
    world: ZooKeeperWorld, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "ANONYMOUS_TIMEOUT_MS", 1_000)
    store, writer = store_at(gate.address, world), await world.open()
    await store.open(session_timeout_ms=None)
    heard = Heard()
    store.watch("/a", heard)
    await gate.shut()
    await asyncio.sleep(1.5)
    await writer.create("/a")
    await gate.open()
    await heard.wait_for(1)
    assert heard.told[0] == ("created", "/a")
    await store.put("/a", b"")
    assert store.session_id == 0
    await store.close()


async def test_an_ensemble_that_is_not_there_is_a_clear_error() -> None:
    address = f"127.0.0.1:{free_port()}"
    store = ZooKeeperStore(address, SystemClock(), InlineExecutor(), connect_timeout_ms=300)
    with pytest.raises(StoreUnavailable, match=f"cannot reach ZooKeeper at {address}"):
        await store.open(session_timeout_ms=1_000)
    with pytest.raises(StoreUnavailable):
        await store.get("/")
    with pytest.raises(BadArguments):
        await store.open(session_timeout_ms=5)
    await store.close()


def test_errors_of_servers_have_words() -> None:
    assert "3.6" in str(engine._translated(UnimplementedError(), "/"))
    assert "denies" in str(engine._translated(NoAuthError(), "/a"))
    assert engine._translated(NoAuthError(), "/a", 3).index == 3


# Processes that die, stop, or hang


async def test_a_stopped_process_loses_its_session_and_comes_back_with_another(
    world: ZooKeeperWorld,
) -> None:
    """Rules A9, K5: expiry is not death; who wakes up holds nothing until it registers anew."""
    store = await world.open()
    heard = Heard()
    store.watch("/held", heard)
    with holder(world, 800) as process:
        await heard.wait_for(1)
        first = (await store.get("/held")).stat
        os.kill(process.pid, signal.SIGSTOP)
        await heard.wait_for(2)
        assert heard.told == [("created", "/held"), ("deleted", "/held")]
        os.kill(process.pid, signal.SIGCONT)
        await heard.wait_for(3)
        again = await store.get("/held")
        assert again.value == b"again"
        assert again.stat.owner != first.owner
        process.kill()
        await heard.wait_for(4)
        assert heard.told[3] == ("deleted", "/held")


async def test_a_loop_that_hangs_loses_its_session_before_it_would_expire(
    world: ZooKeeperWorld,
) -> None:
    """Rule A9: kazoo's thread alone must not keep a stuck broker in office."""
    store = await world.open(session_timeout_ms=8_000)
    lost: list[float] = []
    store.on_session_lost(lambda: lost.append(time.perf_counter()))
    await store.create("/office", ephemeral=True)
    with plain_client(world.hosts) as client:
        assert 3 < hang_while_there(client, f"{world.chroot}/office") < 8
    assert not lost
    with pytest.raises(SessionExpired):
        await store.put("/", b"after the hang")
    await until(lambda: bool(lost))
    await store.open(session_timeout_ms=8_000)
    await store.create("/office", ephemeral=True)


def hang_while_there(client: KazooClient, path: str) -> float:
    """Block the loop until a node has gone; returns for how many seconds."""
    began = time.perf_counter()
    while client.exists(path) is not None and time.perf_counter() - began < LONG_S:
        time.sleep(0.02)
    return time.perf_counter() - began


async def test_a_busy_loop_keeps_its_session(world: ZooKeeperWorld) -> None:
    """For longer than its session; the watchdog's clock is the test's, which a pause of this
    process does not move."""
    clock = HandClock()
    store = ZooKeeperStore(world.hosts, clock, world.executor, chroot=world.chroot)
    await store.open(session_timeout_ms=8_000)
    await store.create("/office", ephemeral=True)
    assert store._session is not None
    watchdog = store._session._watchdog
    assert watchdog is not None
    for _ in range(6):
        clock.at_ms += 2_000
        while watchdog._ticked_ms != clock.at_ms:
            work_hard(0.05)
            await asyncio.sleep(0)
    await store.put("/office", b"still here")
    await store.close()


def work_hard(seconds: float) -> None:
    time.sleep(seconds)


async def test_no_thread_is_left_behind(world: ZooKeeperWorld) -> None:
    before = set(threading.enumerate())
    stores = [ZooKeeperStore(world.hosts, SystemClock(), InlineExecutor()) for _ in range(2)]
    await stores[0].open(session_timeout_ms=2_000)
    await stores[1].open(session_timeout_ms=None)
    assert len(threading.enumerate()) > len(before)
    for store in stores:
        await store.close()
    assert set(threading.enumerate()) <= before


# Servers that die


async def test_a_servers_restart_is_survived(own_server: ZooKeeperServer) -> None:
    world = ZooKeeperWorld(own_server.address, "/a")
    store = await world.open(session_timeout_ms=20_000)
    await store.create("/office", b"mine", ephemeral=True)
    own_server.kill()
    reading = asyncio.ensure_future(store.get("/office"))
    await asyncio.to_thread(own_server.start)
    node = await reading
    assert (node.value, node.stat.owner) == (b"mine", store.session_id)
    await store.put("/office", b"still mine")
    await world.close()


async def test_an_ensemble_serves_while_a_majority_lives(ensemble: ZooKeeperEnsemble) -> None:
    """Rule K6: a quorum of three survives the death of its leader; sessions and order remain."""
    world = ZooKeeperWorld(ensemble.hosts, "/cluster")
    stores = [await world.open(session_timeout_ms=8_000) for _ in range(3)]
    lost: list[bool] = []
    heard = Heard()
    for index, store in enumerate(stores):
        store.on_session_lost(lambda: lost.append(True))
        await store.create(f"/{index}", ephemeral=True)
    await stores[0].get("/2")
    stores[0].watch("/n", heard)
    await stores[1].create("/n", b"0")
    await asyncio.to_thread(ensemble.leader().kill)
    await count_to(stores[1], stores[2], 20)
    assert await stores[0].children("/") == ["0", "1", "2", "n"]
    await until(lambda: heard.told[-1] == ("changed", "/n"))
    commits = [event.commit for event in heard.events]
    assert commits == sorted(commits)
    assert commits[-1] == (await stores[0].get("/n")).stat.changed
    assert not lost
    await world.close()


async def count_to(one: object, other: object, target: int) -> None:
    """Count by turns, each on what the other wrote: a read shows what was written before it."""
    assert isinstance(one, ZooKeeperStore)
    assert isinstance(other, ZooKeeperStore)
    value = 0
    async with asyncio.timeout(30):
        while value < target:
            try:
                node = await one.get("/n")
                assert int(node.value) >= value
                value = int(node.value) + 1
                await one.put("/n", b"%d" % value, node.stat.version)
                one, other = other, one
            except (StoreUnavailable, BadVersion):
                # It may have taken effect: look again.
                value = 0
                await asyncio.sleep(0.05)
