"""What every engine promises: one suite, run on each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.store.helpers import Heard, MemoryWorld, SqliteWorld, World, ZooKeeperWorld, until
from tests.waiting import LONG_S

from tidemill.store.base import (
    BadArguments,
    BadVersion,
    Check,
    Create,
    Delete,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    Put,
    SessionExpired,
    StoreUnavailable,
)


@pytest.fixture(params=["memory", "sqlite", "zookeeper"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    made: World
    if request.param == "memory":
        made = MemoryWorld()
    elif request.param == "sqlite":
        made = SqliteWorld(tmp_path)
    else:
        # Asked for by name, so that the other engines need no server.
        made = ZooKeeperWorld(*request.getfixturevalue("zookeeper_place"))
    yield made
    await made.close()


async def test_a_node_is_created_read_changed_and_deleted(world: World) -> None:
    store = await world.open()
    created = await store.create("/a", b"one")
    assert created.path == "/a"
    node = await store.get("/a")
    assert node.value == b"one"
    assert node.stat == created.stat
    assert node.stat.version == 0
    stat = await store.put("/a", b"two")
    assert stat.version == 1
    assert stat.created == node.stat.created
    assert stat.changed > node.stat.changed
    assert (await store.get("/a")).value == b"two"
    await store.delete("/a")
    assert await store.exists("/a") is None
    with pytest.raises(NoNode):
        await store.get("/a")


async def test_writes_can_be_conditional_on_the_version(world: World) -> None:
    """Rule K6: compare and set by version."""
    store = await world.open()
    other = await world.open()
    await store.create("/a", b"0")
    await other.put("/a", b"1", version=0)
    with pytest.raises(BadVersion):
        await store.put("/a", b"2", version=0)
    with pytest.raises(BadVersion):
        await store.delete("/a", version=0)
    assert (await store.get("/a")).value == b"1"
    await store.delete("/a", version=1)


async def test_errors_say_what_is_wrong(world: World) -> None:
    store = await world.open()
    await store.create("/a")
    await store.create("/a/b")
    with pytest.raises(NodeExists):
        await store.create("/a")
    with pytest.raises(NoNode):
        await store.create("/x/y")
    with pytest.raises(NoNode):
        await store.put("/x", b"")
    with pytest.raises(NoNode):
        await store.delete("/x")
    with pytest.raises(NotEmpty):
        await store.delete("/a")
    with pytest.raises(NoNode):
        await store.children("/x")
    with pytest.raises(NodeExists):
        await store.create("/")
    with pytest.raises((BadArguments, NotEmpty)):
        await store.delete("/")


@pytest.mark.parametrize("path", ["", "a", "/a/", "//", "/a//b", "/a/../b", "/.", "/a\0", "/" * 9])
async def test_paths_are_checked(world: World, path: str) -> None:
    store = await world.open()
    with pytest.raises(BadArguments):
        await store.create(path)
    with pytest.raises(BadArguments):
        await store.get(path)
    with pytest.raises(BadArguments):
        store.watch(path, lambda event: None)


async def test_sizes_are_bounded(world: World) -> None:
    """Rule 3.4: a limit on everything that is stored for someone else."""
    store = await world.open()
    with pytest.raises(BadArguments):
        await store.create("/a", bytes(2**20 + 1))
    with pytest.raises(BadArguments):
        await store.create("/" + "a" * 2_000)
    await store.create("/a", bytes(world.value_bytes_max))
    assert len((await store.get("/a")).value) == world.value_bytes_max


async def test_children_and_trees(world: World) -> None:
    store = await world.open()
    for path in ("/b", "/b/2", "/b/10", "/b/2/x", "/ba", "/b-c", "/b/2/x/y"):
        await store.create(path, path.encode())
    assert await store.children("/b") == ["10", "2"]
    assert await store.children("/ba") == []
    assert await store.children("/") == ["b", "b-c", "ba"]
    tree = await store.tree("/b")
    assert sorted(tree) == ["/b", "/b/10", "/b/2", "/b/2/x", "/b/2/x/y"]
    order = list(tree)
    assert all(
        order.index(p) < order.index(c) for p in order for c in order if c.startswith(p + "/")
    )
    assert all(node.value == path.encode() for path, node in tree.items())
    assert tree["/b"].stat.child_count == 2
    assert await store.tree("/none") == {}
    assert len(await store.tree("/")) == 8


async def test_sequence_numbers_only_grow(world: World) -> None:
    store = await world.open()
    await store.create("/q")
    first = (await store.create("/q/n-", sequence=True)).path
    second = (await store.create("/q/n-", sequence=True)).path
    await store.delete(second)
    third = (await store.create("/q/n-", sequence=True)).path
    assert first < second < third
    assert all(len(path) == len("/q/n-") + 10 for path in (first, second, third))


async def test_a_transaction_applies_as_a_whole_or_not_at_all(world: World) -> None:
    store = await world.open()
    await store.create("/epoch", b"1")
    done = await store.multi(
        [Check("/epoch", 0), Create("/a"), Create("/a/b", b"x"), Put("/a/b", b"y"), Put("/a", b"z")]
    )
    assert [result.path for result in done] == ["/epoch", "/a", "/a/b", "/a/b", "/a"]
    created = (await store.get("/a")).stat.created
    assert (await store.get("/a/b")).stat.created == created
    assert (await store.get("/a/b")).value == b"y"
    with pytest.raises(NodeExists) as caught:
        await store.multi([Put("/a", b"lost"), Delete("/a/b"), Create("/a")])
    assert caught.value.index == 2
    assert (await store.get("/a")).value == b"z"
    assert (await store.get("/a/b")).value == b"y"


async def test_a_transaction_can_be_fenced_by_a_check(world: World) -> None:
    """Rule A2: a controller of an old epoch fails every write."""
    old = await world.open()
    new = await world.open()
    await old.create("/controller_epoch", b"1")
    await new.put("/controller_epoch", b"2", version=0)
    with pytest.raises(BadVersion) as caught:
        await old.multi([Check("/controller_epoch", 0), Create("/topic")])
    assert caught.value.index == 0
    assert await new.exists("/topic") is None


async def test_operations_of_a_transaction_see_those_before_them(world: World) -> None:
    store = await world.open()
    await store.create("/a", b"old")
    await store.multi([Delete("/a"), Create("/a", b"new"), Create("/a/b"), Delete("/a/b")])
    node = await store.get("/a")
    assert node.value == b"new"
    assert node.stat.version == 0
    assert node.stat.child_count == 0
    assert await store.children("/a") == []
    with pytest.raises(NotEmpty):
        await store.multi([Create("/a/c"), Delete("/a")])
    assert await store.multi([]) == []


async def test_commit_numbers_grow_and_name_incarnations(world: World) -> None:
    """Rule A3: a node that was deleted and made again can be told from the first."""
    store = await world.open()
    first = await store.create("/a")
    await store.delete("/a")
    second = await store.create("/a")
    assert first.stat is not None
    assert second.stat is not None
    assert second.stat.created > first.stat.created


async def test_ephemeral_nodes_go_with_their_session(world: World) -> None:
    store = await world.open()
    owner = await world.open()
    await owner.create("/lives", ephemeral=True)
    await owner.create("/stays")
    assert (await store.get("/lives")).stat.owner == owner.session_id
    with pytest.raises(NoChildrenForEphemerals):
        await store.create("/lives/child")
    await owner.close()
    assert await store.exists("/lives") is None
    assert await store.exists("/stays") is not None


async def test_ephemeral_nodes_need_a_session(world: World) -> None:
    store = await world.open(session_timeout_ms=None)
    await store.create("/a")
    with pytest.raises(SessionExpired):
        await store.create("/b", ephemeral=True)
    assert store.session_id == 0


async def test_an_expired_session_loses_its_nodes_and_cannot_write(world: World) -> None:
    """Rule A9, K5: whoever was declared dead finds out at its next write at the latest."""
    store = await world.open()
    owner = await world.open()
    lost: list[int] = []
    owner.on_session_lost(lambda: lost.append(owner.session_id))
    before = owner.session_id
    await owner.create("/office", ephemeral=True)
    await world.expire(owner)
    await until(lambda: bool(lost))
    assert await store.exists("/office") is None
    with pytest.raises(SessionExpired):
        await owner.create("/office", ephemeral=True)
    with pytest.raises(SessionExpired):
        await owner.put("/", b"")
    assert len(lost) == 1
    await owner.open(session_timeout_ms=10_000)
    assert owner.session_id != before
    await owner.create("/office", ephemeral=True)
    assert (await store.get("/office")).stat.owner == owner.session_id


async def test_watches_tell_of_changes_in_commit_order(world: World) -> None:
    store = await world.open()
    writer = await world.open()
    node, tree = Heard(), Heard()
    await store.create("/before")
    store.watch("/a", node)
    store.watch("/", tree, recursive=True)
    await writer.create("/a", b"1")
    await store.create("/a/b")
    await writer.put("/a", b"2")
    await writer.multi([Delete("/a/b"), Delete("/a")])
    await tree.wait_for(5)
    expected = [
        ("created", "/a"),
        ("created", "/a/b"),
        ("changed", "/a"),
        ("deleted", "/a/b"),
        ("deleted", "/a"),
    ]
    assert tree.told == expected
    assert node.told == [each for each in expected if each[1] == "/a"]
    commits = [event.commit for event in tree.events]
    assert commits == sorted(commits)
    assert commits[3] == commits[4]


async def test_a_watch_of_one_branch_hears_of_no_other(world: World) -> None:
    store = await world.open()
    heard = Heard()
    await store.create("/a")
    await store.create("/ab")
    store.watch("/a", heard, recursive=True)
    await store.create("/ab/x")
    await store.create("/a/x")
    await heard.wait_for(1)
    await asyncio.sleep(0.05)
    assert heard.told == [("created", "/a/x")]


async def test_a_cancelled_watch_is_silent_and_a_failing_one_harms_nobody(world: World) -> None:
    store = await world.open()
    failed: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: failed.append(context["message"])
    )
    heard, silent = Heard(), Heard()

    def broken(event: object) -> None:
        raise ValueError("broken")

    store.watch("/a", broken)
    watch = store.watch("/a", silent)
    store.watch("/a", heard)
    await store.create("/a")
    await heard.wait_for(1)
    watch.cancel()
    watch.cancel()
    await store.put("/a", b"")
    await heard.wait_for(2)
    assert len(silent.events) == 1
    assert failed == ["a watcher of /a failed"] * 2


async def test_the_end_of_a_session_is_an_event(world: World) -> None:
    store = await world.open()
    owner = await world.open()
    await owner.create("/e", ephemeral=True)
    heard = Heard()
    assert (await store.get("/e")).stat.owner == owner.session_id
    store.watch("/e", heard)
    await world.expire(owner)
    await heard.wait_for(1)
    assert heard.told == [("deleted", "/e")]


async def test_a_watcher_may_write(world: World) -> None:
    store = await world.open()
    done = asyncio.Event()
    tasks = []

    async def answer() -> None:
        await store.create("/answer")
        done.set()

    store.watch("/question", lambda event: tasks.append(asyncio.ensure_future(answer())))
    await store.create("/question")
    async with asyncio.timeout(LONG_S):
        await done.wait()
    assert await store.exists("/answer") is not None


async def test_concurrent_increments_all_count(world: World) -> None:
    """Rule K6: linearizable compare and set, under contention."""
    stores = [await world.open() for _ in range(3)]
    await stores[0].create("/n", b"0")

    async def increment(index: int) -> None:
        store = stores[index % 3]
        while True:
            node = await store.get("/n")
            try:
                await store.put("/n", str(int(node.value) + 1).encode(), node.stat.version)
                return
            except BadVersion:
                continue

    await asyncio.gather(*(increment(index) for index in range(30)))
    assert (await stores[0].get("/n")).value == b"30"


async def test_a_closed_store_refuses(world: World) -> None:
    store = await world.open()
    await store.close()
    await store.close()
    with pytest.raises(StoreUnavailable):
        await store.get("/")
    with pytest.raises(StoreUnavailable):
        await store.create("/a")


async def test_a_cancelled_caller_leaves_the_store_usable(world: World) -> None:
    """Rules 2.L: a client that hangs up half way harms nobody else."""
    store = await world.open()
    task = asyncio.ensure_future(store.create("/a"))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await store.create("/b")
    assert await store.exists("/b") is not None
