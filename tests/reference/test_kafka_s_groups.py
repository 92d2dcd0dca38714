"""A `__consumer_offsets` that Apache Kafka wrote loads here: the same groups (rule J1)."""

from __future__ import annotations

from typing import Any

from tests.coordinators.shard_world import ShardWorld
from tests.reference.answers import create, known_id
from tests.reference.group_steps import Stage, leaving, wait_for_coordinator
from tests.reference.kafka import SharedKafka
from tests.reference.pair import Peer
from tests.reference.test_consumer_groups import A, B, Members
from tests.reference.test_group_migration import Classic
from tests.replication.helpers import topic_image

from tidemill.client import Consumer
from tidemill.coordinators.classic_group import ClassicGroup
from tidemill.coordinators.mixed_group import MixedGroup
from tidemill.coordinators.records import decode_record, encode_record
from tidemill.coordinators.shard import GroupShard
from tidemill.image import with_topic
from tidemill.types import TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from tidemill.wire.messages.group_admin import DeleteGroupsRequest, DescribeGroupsRequest
from tidemill.wire.messages.groups import MemberIdentity
from tidemill.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

TOPIC = "__consumer_offsets"


def commit(stage: Stage, group: str, topic: str, offset: int) -> None:
    part = OffsetCommitRequestPartition(
        partition_index=1, committed_offset=offset, committed_metadata="a note"
    )
    request = OffsetCommitRequest(
        group_id=group, topics=[OffsetCommitRequestTopic(name=topic, partitions=[part])]
    )
    answer = stage.ask("commit", ApiKey.OFFSET_COMMIT, 8, request)
    assert answer.topics[0].partitions[0].error_code == 0


async def stored(bootstrap: str) -> list[Any]:
    """All records that are in Kafka's log of groups, decoded; we would write the same bytes."""
    found = []
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        count = len(await consumer.partitions_for(TOPIC))
        consumer.assign([TopicPartition(TOPIC, index) for index in range(count)])
        ends = await consumer.end_offsets(consumer.assignment())
        waiting = {partition for partition, end in ends.items() if end}
        while waiting:
            for record in await consumer.poll(timeout_ms=1_000):
                typed = decode_record(bytes(record.key), record.value)
                if typed is not None:
                    assert encode_record(typed) == (record.key, record.value), typed
                    found.append((typed, record.timestamp_ms))
            for partition in list(waiting):
                if await consumer.position(partition) >= ends[partition]:
                    waiting.discard(partition)
    return found


async def test_groups_of_every_kind(apache_kafka: SharedKafka, name: str) -> None:
    peer = Peer("kafka", apache_kafka.port)
    peer.ask(ApiKey.CREATE_TOPICS, 7, create(name, 2))
    peer.wait_for_leaders(name)
    wait_for_coordinator(peer)
    stage = Stage(peer)
    simple, gone, classic_id, newer_id, mixed_id, left_id = (
        f"{name}-{kind}" for kind in ("simple", "gone", "classic", "newer", "mixed", "left")
    )
    commit(stage, simple, name, 7)
    commit(stage, gone, name, 8)
    stage.ask("delete", ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest(groups_names=[gone]))
    classic = Classic(stage, classic_id, name, "one")
    classic.settle()
    leaver = Classic(stage, left_id, name)
    leaver.settle()
    away = MemberIdentity(member_id=leaver.member)
    stage.ask("leave", ApiKey.LEAVE_GROUP, 4, leaving(left_id, away))
    newer = Members(stage, newer_id, name)
    newer.join("joins", member_id=A)
    newer.join("joins and leaves", member_id=B)
    newer.beat("leaves", member_id=B, member_epoch=-1)
    mixed = Classic(stage, mixed_id, name)
    mixed.settle()
    Members(stage, mixed_id, name).join("newer joins", member_id=A)
    request = DescribeGroupsRequest(groups=[classic_id, left_id])
    told = {each.group_id: each for each in peer.ask(ApiKey.DESCRIBE_GROUPS, 5, request).groups}

    world = ShardWorld()
    image = topic_image(name, 1, 2)
    world.around.image = with_topic(
        world.around.image, image.__class__(name, known_id(peer, name), image.partitions)
    )
    shard = GroupShard(world.around, world.runtime._hosts[0]._timers)
    for record, written_ms in await stored(f"127.0.0.1:{apache_kafka.port}"):
        shard.replay(record, written_ms)
    groups = shard.groups
    stage.close()
    peer.close()

    assert gone not in groups
    loaded = groups[classic_id]
    assert isinstance(loaded, ClassicGroup)
    assert [loaded.state, loaded.protocol_type, loaded.protocol] == [
        getattr(told[classic_id], field)
        for field in ("group_state", "protocol_type", "protocol_data")
    ]
    (member,) = told[classic_id].members
    assert loaded.static_ids == {"one": member.member_id}
    assert loaded.members[member.member_id].assignment == member.member_assignment
    assert groups[left_id].state == told[left_id].group_state == "Empty"
    kept = {place.topic: at for place, at in shard.offsets.of_group(simple)}
    assert (kept[name].offset, kept[name].metadata) == (7, "a note")
    modern = groups[newer_id]
    assert isinstance(modern, MixedGroup)
    assert set(modern.members) == {A}
    assert modern.members[A].topic_names == {name}
    assert {p for _, p in modern.members[A].holds()} == {0, 1}
    both = groups[mixed_id]
    assert isinstance(both, MixedGroup)
    assert {m.classic is None for m in both.members.values()} == {True, False}
    for _ in shard.on_loaded():
        pass
    beat = ConsumerGroupHeartbeatRequest(
        group_id=newer_id, member_id=A, member_epoch=modern.members[A].member_epoch
    )
    answer = shard.consumer_heartbeat(beat, world.info(version=1)).response
    assert answer is not None
    assert answer.error_code == 0
