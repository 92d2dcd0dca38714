"""Refusals of JoinGroup, SyncGroup, Heartbeat and LeaveGroup."""

from __future__ import annotations

from tests.coordinators.scene import (
    NOT_IN_KAFKA,
    WHEN_FULL,
    Scene,
    refused,
    wants,
)
from tests.reference.group_steps import joining

from tidemill.client.consumer_protocol import encode_assignment
from tidemill.errors import ErrorCode
from tidemill.types import TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.groups import SyncGroupRequestAssignment

# JoinGroup.

JOIN = ApiKey.JOIN_GROUP


@refused(JOIN, ErrorCode.INVALID_GROUP_ID)
def empty_id(scene: Scene) -> int:
    return int(scene.joins(group="").error_code)


@refused(JOIN, ErrorCode.INVALID_SESSION_TIMEOUT)
def session_too_short(scene: Scene) -> int:
    return int(scene.joins(session_ms=5_999).error_code)


@refused(JOIN, ErrorCode.INVALID_SESSION_TIMEOUT)
def session_too_long(scene: Scene) -> int:
    return int(scene.joins(session_ms=1_800_001).error_code)


@refused(JOIN, ErrorCode.INVALID_SESSION_TIMEOUT)
def session_negative(scene: Scene) -> int:
    return int(scene.joins(session_ms=-1).error_code)


@refused(JOIN, ErrorCode.MEMBER_ID_REQUIRED)
def first_join(scene: Scene) -> int:
    return int(scene.joins(version=4).error_code)


@refused(JOIN, ErrorCode.UNKNOWN_MEMBER_ID)
def stranger_in_no_group(scene: Scene) -> int:
    return int(scene.joins(member_id="stranger").error_code)


@refused(JOIN, ErrorCode.UNKNOWN_MEMBER_ID)
def stranger_in_a_group(scene: Scene) -> int:
    scene.member()
    return int(scene.joins(member_id="stranger").error_code)


@refused(JOIN, ErrorCode.UNKNOWN_MEMBER_ID)
def instance_that_nobody_has(scene: Scene) -> int:
    member, _ = scene.member()
    return int(scene.joins(member_id=member, instance_id="nobody").error_code)


@refused(JOIN, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
def no_protocols(scene: Scene) -> int:
    return int(scene.joins(protocols={}).error_code)


@refused(JOIN, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
def no_protocol_type(scene: Scene) -> int:
    return int(scene.joins(protocol_type="").error_code)


@refused(JOIN, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
def no_protocol_in_common(scene: Scene) -> int:
    scene.member()
    return int(scene.joins(protocols={"elsewhere": b""}).error_code)


@refused(JOIN, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
def another_protocol_type(scene: Scene) -> int:
    scene.member()
    return int(scene.joins(protocol_type="connect").error_code)


@refused(JOIN, ErrorCode.FENCED_INSTANCE_ID)
def former_self_joins(scene: Scene) -> int:
    member, _ = scene.member(instance_id="one")
    scene.joins("the new self", instance_id="one")
    return int(scene.joins(member_id=member, instance_id="one").error_code)


@refused(JOIN, ErrorCode.REBALANCE_IN_PROGRESS)
def join_that_waits_while_the_group_moves_to_the_newer_protocol(scene: Scene) -> int:
    offered = wants(scene.topic)
    joined = scene.join("join", 5, joining(scene.group, protocols=offered))
    # Both partitions, so that none is free: who would get it depends on the members' random ids.
    both = [TopicPartition(scene.topic, index) for index in (0, 1)]
    mine = SyncGroupRequestAssignment(
        member_id=joined.member_id, assignment=encode_assignment(both)
    )
    scene.syncs(joined.member_id, joined.generation_id, assignments=[mine])
    line, _ = scene.waiting_join(protocols=offered)
    scene.joins_newer("a newer member")
    answer = line.receive()
    scene.note("the one that waits", JOIN, 5, answer)
    return int(answer.error_code)


@refused(JOIN, ErrorCode.REBALANCE_IN_PROGRESS, NOT_IN_KAFKA)
def join_that_is_repeated(scene: Scene) -> int:
    """The first of two equal requests is told that the second stands in its place."""
    scene.member()
    first, member = scene.waiting_join()
    scene.line().send(JOIN, 5, joining(scene.group, member_id=member))
    return int(first.receive().error_code)


@refused(JOIN, ErrorCode.GROUP_MAX_SIZE_REACHED, WHEN_FULL)
def one_too_many(scene: Scene) -> int:
    scene.member()
    return int(scene.joins().error_code)


# SyncGroup.

SYNC = ApiKey.SYNC_GROUP


@refused(SYNC, ErrorCode.INVALID_GROUP_ID)
def sync_without_group(scene: Scene) -> int:
    return scene.syncs("m", 1, group_id="")


@refused(SYNC, ErrorCode.UNKNOWN_MEMBER_ID)
def sync_in_no_group(scene: Scene) -> int:
    return scene.syncs("m", 1)


@refused(SYNC, ErrorCode.UNKNOWN_MEMBER_ID)
def sync_of_a_stranger(scene: Scene) -> int:
    _, generation = scene.member()
    return scene.syncs("stranger", generation)


@refused(SYNC, ErrorCode.ILLEGAL_GENERATION)
def sync_of_another_generation(scene: Scene) -> int:
    member, generation = scene.member()
    return scene.syncs(member, generation + 1)


@refused(SYNC, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
def sync_of_another_protocol(scene: Scene) -> int:
    member, generation = scene.member()
    words = {"protocol_type": "consumer", "protocol_name": "elsewhere"}
    return scene.syncs(member, generation, 5, **words)


@refused(SYNC, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
def sync_without_protocol(scene: Scene) -> int:
    member, generation = scene.member()
    return scene.syncs(member, generation, 5, protocol_type=None, protocol_name=None)


@refused(SYNC, ErrorCode.REBALANCE_IN_PROGRESS)
def sync_while_members_join(scene: Scene) -> int:
    member, generation = scene.member()
    scene.waiting_join()
    return scene.syncs(member, generation)


@refused(SYNC, ErrorCode.FENCED_INSTANCE_ID)
def former_self_syncs(scene: Scene) -> int:
    member, generation = scene.member(instance_id="one")
    scene.joins("the new self", instance_id="one")
    return scene.syncs(member, generation, group_instance_id="one")


@refused(SYNC, ErrorCode.UNKNOWN_SERVER_ERROR)
def assignment_that_no_record_can_hold(scene: Scene) -> int:
    """One and a half megabytes, where a record of the internal topic has at most one."""
    joined = scene.join("join", 5, joining(scene.group))
    large = SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"x" * 1_500_000)
    return scene.syncs(joined.member_id, joined.generation_id, assignments=[large])


# Heartbeat.

BEAT = ApiKey.HEARTBEAT


@refused(BEAT, ErrorCode.INVALID_GROUP_ID)
def beat_without_group(scene: Scene) -> int:
    return scene.beats("m", 1, group_id="")


@refused(BEAT, ErrorCode.UNKNOWN_MEMBER_ID)
def beat_in_no_group(scene: Scene) -> int:
    return scene.beats("m", 1)


@refused(BEAT, ErrorCode.UNKNOWN_MEMBER_ID)
def beat_of_a_stranger(scene: Scene) -> int:
    _, generation = scene.member()
    return scene.beats("stranger", generation)


@refused(BEAT, ErrorCode.ILLEGAL_GENERATION)
def beat_of_another_generation(scene: Scene) -> int:
    member, generation = scene.member()
    return scene.beats(member, generation - 1)


@refused(BEAT, ErrorCode.REBALANCE_IN_PROGRESS)
def beat_while_members_join(scene: Scene) -> int:
    member, generation = scene.member()
    scene.waiting_join()
    return scene.beats(member, generation)


@refused(BEAT, ErrorCode.FENCED_INSTANCE_ID)
def former_self_beats(scene: Scene) -> int:
    member, generation = scene.member(instance_id="one")
    scene.joins("the new self", instance_id="one")
    return scene.beats(member, generation, group_instance_id="one")


# LeaveGroup.

LEAVE = ApiKey.LEAVE_GROUP


@refused(LEAVE, ErrorCode.INVALID_GROUP_ID)
def leave_without_group(scene: Scene) -> int:
    return scene.leaves("m", group="")


@refused(LEAVE, ErrorCode.UNKNOWN_MEMBER_ID)
def leave_no_group(scene: Scene) -> int:
    return scene.leaves("m")


@refused(LEAVE, ErrorCode.UNKNOWN_MEMBER_ID)
def leave_of_a_stranger(scene: Scene) -> int:
    scene.member()
    return scene.leaves("stranger")


@refused(LEAVE, ErrorCode.UNKNOWN_MEMBER_ID)
def leave_of_an_instance_that_nobody_has(scene: Scene) -> int:
    scene.member()
    return scene.leaves("", "nobody")


@refused(LEAVE, ErrorCode.FENCED_INSTANCE_ID)
def former_self_leaves(scene: Scene) -> int:
    member, _ = scene.member(instance_id="one")
    scene.joins("the new self", instance_id="one")
    return scene.leaves(member, "one")
