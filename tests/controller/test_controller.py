"""The controller: durable, fenced, one change at a time, and everybody hears of it."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from random import Random

import pytest
from tests.controller.helpers import ENDPOINT, Cluster, broker_config, create, outcome, topic
from tests.store.helpers import SqliteWorld, until

from tidemill.clock import SystemClock
from tidemill.controller import Controller, tree
from tidemill.controller.loading import load_image
from tidemill.controller.producer_ids import next_block
from tidemill.errors import ApiError, ErrorCode
from tidemill.image import ClusterImage
from tidemill.store.base import StoreUnavailable
from tidemill.store.memory import MemoryStore
from tidemill.wire.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsResource,
)
from tidemill.wire.messages.topics import CreatePartitionsTopic, DeleteTopicState


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


async def test_the_first_broker_makes_the_cluster(cluster: Cluster) -> None:
    controller = await cluster.start(broker_id=3)
    image = controller.image
    assert controller.active
    assert len(image.cluster_id) == 22
    assert (image.controller_id, image.controller_epoch) == (3, 1)
    member = image.broker(3)
    assert member is not None
    assert member.endpoints == (ENDPOINT,)
    assert member.epoch > 0


async def test_every_incarnation_has_higher_epochs_and_the_same_cluster_id(
    cluster: Cluster,
) -> None:
    """Rules A2 and A3: controller epoch and broker epoch grow with every start."""
    store = MemoryStore(cluster.tree)
    first = await cluster.start(store=store)
    before = first.image
    await first.stop()
    await store.close()
    again = await cluster.start()
    assert again.image.cluster_id == before.cluster_id
    assert again.image.controller_epoch == before.controller_epoch + 1
    old, new = before.broker(1), again.image.broker(1)
    assert old is not None
    assert new is not None
    assert new.epoch > old.epoch


async def test_the_tree_is_kafkas(cluster: Cluster) -> None:
    controller = await cluster.start(rack="r1")
    await create(controller, topic("clicks", 2, configs={"retention.ms": "1000"}))
    store = MemoryStore(cluster.tree)
    await store.open(session_timeout_ms=None)

    async def value(path: str) -> object:
        return json.loads((await store.get(path)).value)

    created = controller.image.topics["clicks"]
    assert await value("/brokers/topics/clicks") == {
        "version": 3,
        "topic_id": tree.uuid_text(created.topic_id),
        "partitions": {"0": [1], "1": [1]},
        "adding_replicas": {},
        "removing_replicas": {},
    }
    assert await value("/brokers/topics/clicks/partitions/1/state") == {
        "controller_epoch": 1,
        "leader": 1,
        "version": 1,
        "leader_epoch": 0,
        "isr": [1],
    }
    assert await value("/config/topics/clicks") == {
        "version": 1,
        "config": {"retention.ms": "1000"},
    }
    assert (await store.get("/controller_epoch")).value == b"1"
    assert await value("/cluster/id") == {"version": "1", "id": controller.image.cluster_id}
    office = await value("/controller")
    assert isinstance(office, dict)
    assert office["brokerid"] == 1
    registration = await value("/brokers/ids/1")
    assert isinstance(registration, dict)
    assert registration["endpoints"] == ["PLAINTEXT://127.0.0.1:9092"]
    assert registration["listener_security_protocol_map"] == {"PLAINTEXT": "PLAINTEXT"}
    assert registration["rack"] == "r1"
    member = controller.image.broker(1)
    assert member is not None
    assert (await store.get("/brokers/ids/1")).stat.created == member.epoch


async def test_a_reloaded_image_is_the_published_one(cluster: Cluster) -> None:
    controller = await cluster.start()
    await create(controller, topic("a", 3, configs={"retention.ms": "1"}), topic("b.c"))
    await controller.create_partitions([CreatePartitionsTopic(name="a", count=5, assignments=None)])
    await controller.incremental_alter_configs(
        [
            IncrementalAlterConfigsResource(
                resource_type=4,
                resource_name=name,
                configs=[
                    IncrementalAlterableConfig(
                        name="log.retention.ms", config_operation=0, value="7"
                    )
                ],
            )
            for name in ("", "1")
        ]
    )
    store = MemoryStore(cluster.tree)
    await store.open(session_timeout_ms=None)
    loaded = load_image(await store.tree("/"))
    published = controller.image
    for name in (
        "cluster_id",
        "controller_id",
        "controller_epoch",
        "brokers",
        "topics",
        "topic_names",
        "broker_configs",
        "default_broker_config",
        "partition_count",
    ):
        assert getattr(loaded, name) == getattr(published, name), name


async def test_listeners_hear_every_image_before_the_answer(cluster: Cluster) -> None:
    controller = await cluster.start()
    heard: list[ClusterImage] = []
    failures: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: failures.append(context["message"])
    )

    def broken(image: ClusterImage) -> None:
        raise ValueError("broken")

    controller.subscribe(broken)
    unsubscribe = controller.subscribe(heard.append)
    await create(controller, topic("a"))
    assert [sorted(image.topics) for image in heard] == [["a"]]
    await controller.delete_topics(["a"])
    assert heard[-1].topics == {}
    assert [image.version for image in heard] == sorted({image.version for image in heard})
    assert len(failures) == 2
    unsubscribe()
    await create(controller, topic("b"))
    assert len(heard) == 2


async def test_a_listener_may_take_its_time_and_the_answer_waits(cluster: Cluster) -> None:
    """Making ten thousand logs takes a while, off the loop; a client must find them all."""
    controller = await cluster.start()
    ready: list[str] = []

    async def slowly(image: ClusterImage) -> None:
        await asyncio.sleep(0.01)
        ready.extend(sorted(image.topics))

    controller.subscribe(slowly)
    await asyncio.gather(create(controller, topic("a")), create(controller, topic("b")))
    assert ready == ["a", "a", "b"]


async def test_validate_only_changes_nothing(cluster: Cluster) -> None:
    controller = await cluster.start()
    await create(controller, topic("a"))
    before = controller.image
    [result] = await controller.create_topics([topic("b", 3)], validate_only=True)
    assert (result.error_code, result.num_partitions) == (0, 3)
    [plan] = await controller.create_partitions(
        [CreatePartitionsTopic(name="a", count=5, assignments=None)], validate_only=True
    )
    assert plan.error is None
    assert controller.image is before


async def test_an_old_controller_fails_every_write(cluster: Cluster) -> None:
    """Rule A2: whoever was controller and does not know better changes nothing."""
    old = await cluster.start(broker_id=1)
    store = MemoryStore(cluster.tree)
    await store.open(session_timeout_ms=None)
    await store.put(tree.CONTROLLER_EPOCH, b"9")
    with pytest.raises(ApiError) as caught:
        await create(old, topic("a"))
    assert caught.value.code is ErrorCode.NOT_CONTROLLER
    assert "a" not in old.image.topics
    assert not old.active
    assert await store.exists("/brokers/topics/a") is None
    with pytest.raises(ApiError):
        await old.delete_topics(["a"])


async def test_a_second_broker_does_not_take_the_office(cluster: Cluster) -> None:
    first = await cluster.start(broker_id=1)
    second = await cluster.start(broker_id=2)
    assert first.active
    assert not second.active
    assert second.image.controller_id == 1
    with pytest.raises(ApiError) as caught:
        await create(second, topic("a"))
    assert caught.value.code is ErrorCode.NOT_CONTROLLER


async def test_a_lost_session_is_followed_by_a_new_registration(cluster: Cluster) -> None:
    """Rule A9: no office without a session; back with a new epoch, and nothing forgotten."""
    store = MemoryStore(cluster.tree)
    controller = await cluster.start(store=store)
    await create(controller, topic("a"))
    before = controller.image.broker(1)
    assert before is not None
    cluster.tree.expire(store.session_id)
    store.heartbeat()

    def is_back() -> bool:
        now = controller.image.broker(1)
        return controller.active and now is not None and now.epoch > before.epoch

    await until(is_back)
    assert controller.image.controller_epoch == 2
    assert "a" in controller.image.topics
    assert outcome((await create(controller, topic("b")))[0]) == ("b", "NONE", None)


async def test_a_living_broker_keeps_its_id(cluster: Cluster) -> None:
    """Rule K5: a second broker with the same id waits a session's time, then names the holder."""
    await cluster.start(broker_id=1)
    second = Controller(
        MemoryStore(cluster.tree),
        broker_config(broker_session_timeout_ms="200"),
        SystemClock(),
        Random(2),
        broker_id=1,
    )
    await second.start()
    with pytest.raises(ApiError, match=r"127\.0\.0\.1:9092") as caught:
        await second.register_broker([ENDPOINT])
    assert caught.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION


async def test_a_broker_waits_for_its_own_old_registration_to_go(cluster: Cluster) -> None:
    old_store = MemoryStore(cluster.tree)
    await cluster.start(broker_id=1, store=old_store)
    starting = asyncio.ensure_future(cluster.start(broker_id=1))
    await asyncio.sleep(0.05)
    assert not starting.done()
    cluster.tree.expire(old_store.session_id)
    member = (await starting).image.broker(1)
    assert member is not None


async def test_ids_are_made_for_brokers_without_one(cluster: Cluster) -> None:
    first = await cluster.start(broker_id=-1)
    second = await cluster.start(broker_id=-1)
    assert (first.broker_id, second.broker_id) == (1001, 1002)


async def test_producer_ids_come_in_blocks_that_nobody_else_gets(cluster: Cluster) -> None:
    """Rule G: an id is given out once in the life of a cluster, restarts included."""
    one = await cluster.start(broker_id=1)
    two = await cluster.start(broker_id=2)
    blocks = await asyncio.gather(
        *(controller.allocate_producer_ids() for controller in (one, two) * 5)
    )
    assert sorted(blocks) == [(start, 1000) for start in range(0, 10_000, 1000)]
    store = MemoryStore(cluster.tree)
    await store.open(session_timeout_ms=None)
    block = json.loads((await store.get("/latest_producer_id_block")).value)
    assert (block["block_start"], block["block_end"]) == ("9000", "9999")


async def test_producers_ask_again_while_the_store_cannot_be_read(cluster: Cluster) -> None:
    with pytest.raises(ApiError) as refused:
        await next_block(MemoryStore(cluster.tree), 1)  # It is not open.
    assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


async def test_a_client_that_hangs_up_leaves_store_and_image_agreeing(cluster: Cluster) -> None:
    """Rules 2.L: cancellation must not cut a change in two."""
    controller = await cluster.start()
    for step in range(6):
        task = asyncio.ensure_future(create(controller, topic(f"t{step}")))
        for _ in range(step):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await create(controller, topic("last"))
    store = MemoryStore(cluster.tree)
    await store.open(session_timeout_ms=None)
    assert sorted(controller.image.topics) == await store.children("/brokers/topics")


async def test_a_failed_write_is_reported_and_the_truth_reloaded(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit whose outcome is unknown: the next decision stands on what is really stored."""
    store = MemoryStore(cluster.tree)
    controller = await cluster.start(store=store)
    commit = store.multi

    async def commit_then_fail(ops: object) -> None:
        await commit(ops)  # type: ignore[arg-type]
        raise StoreUnavailable("the disk is gone")

    monkeypatch.setattr(store, "multi", commit_then_fail)
    with pytest.raises(ApiError, match="the disk is gone") as caught:
        await create(controller, topic("a"))
    assert caught.value.retriable
    monkeypatch.setattr(store, "multi", commit)
    [result] = await create(controller, topic("a"))
    assert ErrorCode(result.error_code) is ErrorCode.TOPIC_ALREADY_EXISTS


async def test_delete_by_name_and_by_id(cluster: Cluster) -> None:
    controller = await cluster.start()
    created = await create(controller, topic("a", 3), topic("b"), topic("c"))
    plans = await controller.delete_topics(
        ["a"], [DeleteTopicState(name=None, topic_id=created[1].topic_id)]
    )
    assert {plan.name: plan.error for plan in plans} == {"a": None, "b": None}
    assert list(controller.image.topics) == ["c"]
    store = MemoryStore(cluster.tree)
    await store.open(session_timeout_ms=None)
    assert await store.children("/brokers/topics") == ["c"]
    assert await store.children("/config/topics") == ["c"]
    [again] = await create(controller, topic("a"))
    assert again.topic_id != created[0].topic_id


async def test_the_default_replication_is_what_the_cluster_can_bear(cluster: Cluster) -> None:
    first = await cluster.start(broker_id=1)
    [alone] = await create(first, topic("one", -1, -1))
    assert (alone.num_partitions, alone.replication_factor) == (1, 1)


async def test_ten_thousand_partitions_take_seconds_at_most(tmp_path: Path) -> None:
    world = SqliteWorld(tmp_path)
    store = world._make()
    controller = Controller(store, broker_config(), SystemClock(), Random(1), broker_id=1)
    await controller.start()
    await controller.register_broker([ENDPOINT])
    start = time.process_time()
    [result] = await create(controller, topic("big", 10_000))
    created_s = time.process_time() - start
    assert result.error_code == 0
    await controller.stop()
    await store.close()
    again = Controller(world._make(), broker_config(), SystemClock(), Random(1), broker_id=1)
    start = time.process_time()
    await again.start()
    loaded_s = time.process_time() - start
    assert again.image.partition_count == 10_000
    assert created_s < 5
    assert loaded_s < 2.5
    await again.stop()
    await again._store.close()
    await world.close()
