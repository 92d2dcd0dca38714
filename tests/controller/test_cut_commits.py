"""A store that cuts large commits: what a controller leaves half done, the next one puts right."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from tests.controller.cutting_store import OPS_PER_COMMIT, PLENTY, CuttingStore
from tests.controller.helpers import ENDPOINT, broker_config, create, topic

from tidemill.clock import SystemClock
from tidemill.controller import Controller
from tidemill.errors import ApiError, ErrorCode
from tidemill.store.base import Check, CutsCommits, Op, OpResult
from tidemill.store.memory import MemoryTree
from tidemill.wire.messages.topics import CreatePartitionsTopic


async def start(tree: MemoryTree) -> tuple[Controller, CuttingStore]:
    store = CuttingStore(tree)
    assert isinstance(store, CutsCommits)
    controller = Controller(store, broker_config(), SystemClock(), Random(1), broker_id=1)
    await controller.start()
    await controller.register_broker([ENDPOINT], flush_policy="ack")
    assert controller.active
    return controller, store


async def end(controller: Controller, store: CuttingStore) -> None:
    store.commits_left = PLENTY
    await controller.stop()
    await store.close()


async def test_topics_are_made_grown_and_deleted_in_pieces() -> None:
    tree = MemoryTree(SystemClock())
    controller, store = await start(tree)
    results = await create(controller, topic("a", 7, configs={"retention.ms": "1"}), topic("b", 3))
    assert [each.error_code for each in results] == [0, 0]
    grown = CreatePartitionsTopic(name="b", count=9, assignments=None)
    assert (await controller.create_partitions([grown]))[0].error is None
    published = controller.image.topics
    await end(controller, store)
    again, store = await start(tree)
    assert again.image.topics == published
    assert [plan.error for plan in await again.delete_topics(["a", "b"])] == [None, None]
    assert await store.children("/brokers/topics") == []
    assert await store.children("/config/topics") == []
    await end(again, store)


async def test_a_controller_that_was_deposed_half_way_writes_no_further_piece() -> None:
    """Rule A2: every piece of a commit is conditional on the controller's epoch, not the first."""
    tree = MemoryTree(SystemClock())
    controller, store = await start(tree)
    writes = store.multi

    async def deposed_after_the_first(ops: Sequence[Op]) -> list[OpResult]:
        results = await writes(ops)
        if isinstance(ops[0], Check):
            store.multi = writes  # type: ignore[method-assign]
            await store.put("/controller_epoch", b"99")
        return results

    store.multi = deposed_after_the_first  # type: ignore[method-assign]
    with pytest.raises(ApiError) as caught:
        await create(controller, topic("a", 20))
    assert caught.value.code is ErrorCode.NOT_CONTROLLER
    assert not controller.active
    partitions = await store.tree("/brokers/topics")
    assert len(partitions) <= 1 + OPS_PER_COMMIT, sorted(partitions)
    await end(controller, store)


@pytest.mark.parametrize("commits", range(6))
async def test_a_creation_cut_short_leaves_no_topic(commits: int) -> None:
    """Whatever of it was written, the next controller removes, and the name is free."""
    tree = MemoryTree(SystemClock())
    controller, store = await start(tree)
    store.commits_left = commits
    with pytest.raises(ApiError, match="gone"):
        await create(controller, topic("t", 10))
    await end(controller, store)
    again, store = await start(tree)
    assert "t" not in again.image.topics
    assert await store.children("/brokers/topics") == []
    assert await store.children("/config/topics") == []
    assert [each.error_code for each in await create(again, topic("t", 10))] == [0]
    await end(again, store)


@pytest.mark.parametrize("commits", range(6))
async def test_a_deletion_cut_short_is_finished(commits: int) -> None:
    tree = MemoryTree(SystemClock())
    controller, store = await start(tree)
    await create(controller, topic("t", 10))
    store.commits_left = commits
    with pytest.raises(ApiError, match="gone"):
        await controller.delete_topics(["t"])
    await end(controller, store)
    again, store = await start(tree)
    if commits == 0:
        assert len(again.image.topics["t"].partitions) == 10
    else:
        assert "t" not in again.image.topics
        assert await store.children("/brokers/topics") == []
        assert await store.children("/config/topics") == []
    await end(again, store)


@pytest.mark.parametrize("commits", range(5))
async def test_a_growth_cut_short_is_not_there(commits: int) -> None:
    tree = MemoryTree(SystemClock())
    controller, store = await start(tree)
    await create(controller, topic("t", 2))
    store.commits_left = commits
    grown = CreatePartitionsTopic(name="t", count=10, assignments=None)
    with pytest.raises(ApiError, match="gone"):
        await controller.create_partitions([grown])
    await end(controller, store)
    again, store = await start(tree)
    assert len(again.image.topics["t"].partitions) == 2
    assert (await again.create_partitions([grown]))[0].error is None
    assert len(again.image.topics["t"].partitions) == 10
    await end(again, store)
