"""When committed offsets go: with their topic, with their group, or with time (rule J5)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.broker.harness import create_topic, running_broker
from tests.coordinators.shard_world import ShardWorld

from tidemill.client import Admin, OffsetAndMetadata
from tidemill.coordinators import group_offsets
from tidemill.coordinators.consumer_group import ConsumerGroupConfig
from tidemill.coordinators.group_offsets import GroupOffsets
from tidemill.coordinators.offsets import Place
from tidemill.coordinators.shard import ShardSettings
from tidemill.image import TopicImage
from tidemill.types import TopicPartition
from tidemill.wire.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from tidemill.wire.messages.groups import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    MemberIdentity,
)
from tidemill.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

DAY_MS = 24 * 3600 * 1000
PATIENT = ShardSettings(consumer=ConsumerGroupConfig(session_timeout_ms=100 * DAY_MS))


def beat(world: ShardWorld, epoch: int, **fields: Any) -> Any:
    request = ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="m", member_epoch=epoch, **fields
    )
    info = world.info(version=1)
    (answer,) = world.run(lambda shard: shard.consumer_heartbeat(request, info))
    assert answer.error_code == 0, answer
    return answer


def commit_request(topic: TopicImage, group: str = "g", **fields: Any) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=5)
    wanted = OffsetCommitRequestTopic(
        name=topic.name, topic_id=topic.topic_id, partitions=[partition]
    )
    return OffsetCommitRequest(group_id=group, topics=[wanted], **fields)


def commit(world: ShardWorld, topic: TopicImage, group: str = "g", **fields: Any) -> None:
    request, info = commit_request(topic, group, **fields), world.info(version=10)
    (answer,) = world.run(lambda shard: shard.commit(request, info), gather=True)
    assert answer.topics[0].partitions[0].error_code == 0


def expire(world: ShardWorld) -> None:
    world.runtime.steps(0, lambda shard: shard.expire())
    world.pump()


def has_offset(world: ShardWorld, topic: str = "t", group: str = "g") -> bool:
    return world.shard.offsets.get(Place(group, topic, 0)) is not None


def test_offsets_of_a_newer_group_count_from_its_last_member_s_departure() -> None:
    """rule J5: not from the commit, or a quiet topic's offset would go with the last member."""
    world = ShardWorld(PATIENT)
    topic = world.topic("t", 1)
    joined = beat(
        world, 0, rebalance_timeout_ms=1_000, subscribed_topic_names=["t"], topic_partitions=[]
    )
    commit(world, topic, member_id="m", generation_id_or_member_epoch=joined.member_epoch)
    world.wait(8 * DAY_MS)
    expire(world)
    assert has_offset(world), "somebody reads the topic"
    beat(world, -1)
    expire(world)
    assert has_offset(world), "the last member has just left"
    world.wait(7 * DAY_MS - 1)
    expire(world)
    world.restart()
    expire(world)
    assert has_offset(world), "the moment survives a restart"
    world.wait(1)
    expire(world)
    assert not has_offset(world)
    assert "g" not in world.shard.groups


def test_a_topic_s_deletion_takes_its_offsets_from_every_group() -> None:
    world = ShardWorld()
    gone, kept = world.topic("t", 1), world.topic("u", 2)
    groups = [f"g{number}" for number in range(20)]
    for group in groups:
        commit(world, gone, group)
        commit(world, kept, group)
    world.drop_topic("t")
    assert not any(has_offset(world, "t", group) for group in groups)
    assert all(has_offset(world, "u", group) for group in groups)
    world.restart()
    assert len(world.shard.offsets) == len(groups)


def test_a_commit_under_way_goes_with_its_topic() -> None:
    """Gathered and not yet written when the topic is deleted: it is written, and then removed."""
    world = ShardWorld()
    topic = world.topic("t", 1)
    request, info = commit_request(topic), world.info(version=10)
    world.runtime.run(
        0, lambda shard: shard.commit(request, info), lambda _: None, lambda *_: None, gather=True
    )
    assert not has_offset(world)
    world.drop_topic("t")
    assert not has_offset(world)
    world.topic("t", 2)
    assert not has_offset(world)


def test_an_offset_that_was_left_behind_goes_with_the_next_clean_up() -> None:
    world = ShardWorld()
    topic = world.topic("t", 1)
    world.topic("t", 2)
    commit(world, topic)
    assert has_offset(world)
    expire(world)
    assert not has_offset(world)


def test_a_commit_to_a_group_that_is_long_empty_lives_as_long_as_any() -> None:
    """rule J5: somebody uses the name without joining; what he commits is not old at once."""
    world = ShardWorld(ShardSettings(offsets_retention_ms=7 * DAY_MS))
    topic = world.topic("t", 1)
    joined: list[Any] = []
    request = JoinGroupRequest(
        group_id="g", session_timeout_ms=30_000, rebalance_timeout_ms=30_000,
        protocol_type="consumer", protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )  # fmt: skip
    world.run(lambda shard: shard.join(request, world.info(version=3), joined.append))
    world.wait(3_100)
    leaving = [MemberIdentity(member_id=joined[0].member_id)]
    world.run(lambda shard: shard.leave("g", leaving))
    world.wait(8 * DAY_MS)
    commit(world, topic)
    world.wait(60_000)
    expire(world)
    assert has_offset(world)
    world.wait(7 * DAY_MS)
    expire(world)
    assert not has_offset(world)
    assert "g" not in world.shard.groups


def test_clean_ups_look_at_a_bounded_part_of_the_groups_at_a_time() -> None:
    world = ShardWorld()
    topic = world.topic("t", 1, 2)
    groups = {f"g{number}" for number in range(700)}
    for group in groups:
        commit(world, topic, group)
    portions = list(world.shard.group_ids_in_steps())
    assert sorted(map(len, portions)) == [200, 500]
    assert {group for portion in portions for group in portion} == groups
    world.wait(8 * DAY_MS)
    for portion in portions:
        world.runtime.steps(0, lambda shard, portion=portion: shard.expire(portion))  # type: ignore[misc]
    world.pump()
    assert (len(world.shard.offsets), len(world.shard.groups)) == (0, 0)


def test_a_topic_that_goes_is_not_searched_for() -> None:
    """Only groups that have committed for it are looked at."""
    world = ShardWorld()
    kept, gone = world.topic("t", 1), world.topic("u", 2)
    for number in range(50):
        commit(world, kept, f"g{number}")
    commit(world, gone, "g7")
    offsets = world.shard.offsets
    assert offsets._groups_of["u"] == {"g7"}
    world.drop_topic("u")
    assert set(offsets._groups_of) == {"t"}
    assert len(offsets) == 50


def commit_all(world: ShardWorld, topic: TopicImage, group: str = "g") -> None:
    """Commit every partition of a topic, in portions that fit a batch."""
    count = len(topic.partitions)
    for start in range(0, count, 2_000):
        request = commit_request(topic, group)
        request.topics[0].partitions = [
            OffsetCommitRequestPartition(partition_index=index, committed_offset=5)
            for index in range(start, min(start + 2_000, count))
        ]
        info = world.info(version=10)
        world.run(partial(GroupOffsets.commit, request=request, info=info))


def test_a_group_stays_as_long_as_an_offset_of_it_could_not_be_removed() -> None:
    """rule J5: what is left of it would belong to no group, and never expire."""
    world = ShardWorld(ShardSettings(offsets_retention_ms=DAY_MS))
    commit_all(world, world.topic("t", 1, 700))
    world.wait(2 * DAY_MS)
    world.refuse_appends()
    world.runtime.steps(0, lambda shard: shard.expire())
    world.refuse_appends(refuse=False)
    world.pump()
    assert 0 < len(world.shard.offsets) < 700
    assert "g" in world.shard.groups
    expire(world)
    assert (len(world.shard.offsets), len(world.shard.groups)) == (0, 0)


async def test_a_deletion_makes_the_group_small_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_offsets, "TOMBSTONES_PER_STEP", 2)
    left = []
    delete = GroupOffsets.delete

    def deletes(shard: GroupOffsets, group_id: str) -> Any:
        left.append(shard.offsets.count_of(group_id))
        return delete(shard, group_id)

    monkeypatch.setattr(GroupOffsets, "delete", deletes)
    async with running_broker(tmp_path, {"offsets.topic.num.partitions": "1"}) as server:
        await create_topic(server, "t", 5)
        async with Admin(f"127.0.0.1:{server.port}") as admin:
            offsets = {TopicPartition("t", index): OffsetAndMetadata(1) for index in range(5)}
            await admin.alter_group_offsets("g", offsets)
            await admin.delete_groups(["g"])
    assert left == [1]


def test_a_group_with_more_offsets_than_fit_a_batch_can_be_deleted() -> None:
    world = ShardWorld()
    commit_all(world, world.topic("t" * 200, 1, 6_000), "g" * 200)
    world.runtime.steps(0, lambda shard: shard.shrink("g" * 200))
    assert world.run(lambda shard: shard.delete("g" * 200)) == [None]
    assert (len(world.shard.offsets), len(world.shard.groups)) == (0, 0)
    world.restart()
    assert (len(world.shard.offsets), len(world.shard.groups)) == (0, 0)
