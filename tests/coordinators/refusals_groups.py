"""Refusals of what is asked of whole groups, and of the newer protocol."""

from __future__ import annotations

from tests.coordinators.scene import (
    WHEN_FULL,
    B,
    Scene,
    refused,
    wants,
)

from tidemill.errors import ErrorCode
from tidemill.wire.apis import ApiKey

# DescribeGroups and DeleteGroups.


@refused(ApiKey.DESCRIBE_GROUPS, ErrorCode.GROUP_ID_NOT_FOUND)
def describe_no_group(scene: Scene) -> int:
    return scene.describes()


@refused(ApiKey.DESCRIBE_GROUPS, ErrorCode.GROUP_ID_NOT_FOUND)
def describe_a_newer_group_as_classic(scene: Scene) -> int:
    scene.joins_newer()
    return scene.describes()


@refused(ApiKey.DELETE_GROUPS, ErrorCode.GROUP_ID_NOT_FOUND)
def delete_no_group(scene: Scene) -> int:
    return scene.deletes()


@refused(ApiKey.DELETE_GROUPS, ErrorCode.NON_EMPTY_GROUP)
def delete_a_live_group(scene: Scene) -> int:
    scene.member()
    return scene.deletes()


@refused(ApiKey.DELETE_GROUPS, ErrorCode.NON_EMPTY_GROUP)
def delete_a_live_newer_group(scene: Scene) -> int:
    scene.joins_newer()
    return scene.deletes()


# FindCoordinator.


@refused(ApiKey.FIND_COORDINATOR, ErrorCode.INVALID_REQUEST)
def no_such_kind(scene: Scene) -> int:
    return scene.finds(3, 7)


@refused(ApiKey.FIND_COORDINATOR, ErrorCode.INVALID_REQUEST)
def no_such_kind_of_many(scene: Scene) -> int:
    return scene.finds(4, 7)


# ConsumerGroupHeartbeat.

NEWER = ApiKey.CONSUMER_GROUP_HEARTBEAT


@refused(NEWER, ErrorCode.INVALID_REQUEST)
def no_group_id(scene: Scene) -> int:
    return int(scene.joins_newer(group_id="").error_code)


@refused(NEWER, ErrorCode.INVALID_REQUEST)
def no_member_id(scene: Scene) -> int:
    return int(scene.joins_newer(member_id="").error_code)


@refused(NEWER, ErrorCode.INVALID_REQUEST)
def empty_instance_id(scene: Scene) -> int:
    return int(scene.joins_newer(instance_id="").error_code)


@refused(NEWER, ErrorCode.INVALID_REQUEST)
def empty_rack(scene: Scene) -> int:
    return int(scene.joins_newer(rack_id="").error_code)


@refused(NEWER, ErrorCode.INVALID_REQUEST)
def no_rebalance_timeout(scene: Scene) -> int:
    return int(scene.joins_newer(rebalance_timeout_ms=-1).error_code)


@refused(NEWER, ErrorCode.INVALID_REQUEST)
def owns_before_it_joins(scene: Scene) -> int:
    scene.make_topic()
    return int(scene.joins_newer(topic_partitions=scene.owns(0)).error_code)


@refused(NEWER, ErrorCode.INVALID_REQUEST)
def wants_nothing_at_all(scene: Scene) -> int:
    return int(scene.joins_newer(subscribed_topic_names=None).error_code)


@refused(NEWER, ErrorCode.INVALID_REQUEST)
def epoch_that_cannot_be(scene: Scene) -> int:
    return int(scene.heartbeat(-3).error_code)


@refused(NEWER, ErrorCode.INVALID_REQUEST)
def static_leave_without_instance(scene: Scene) -> int:
    return int(scene.heartbeat(-2).error_code)


@refused(NEWER, ErrorCode.UNSUPPORTED_ASSIGNOR)
def assignor_that_nobody_knows(scene: Scene) -> int:
    return int(scene.joins_newer(server_assignor="sideways").error_code)


@refused(NEWER, ErrorCode.INVALID_REGULAR_EXPRESSION)
def bad_pattern(scene: Scene) -> int:
    return int(scene.joins_newer("bad pattern", subscribed_topic_regex="(").error_code)


@refused(NEWER, ErrorCode.GROUP_ID_NOT_FOUND)
def beat_in_no_such_group(scene: Scene) -> int:
    return int(scene.heartbeat(3).error_code)


@refused(NEWER, ErrorCode.GROUP_ID_NOT_FOUND)
def leave_no_such_group(scene: Scene) -> int:
    return int(scene.heartbeat(-1).error_code)


@refused(NEWER, ErrorCode.GROUP_ID_NOT_FOUND)
def beat_in_a_classic_group(scene: Scene) -> int:
    scene.member()
    return int(scene.heartbeat(3).error_code)


@refused(NEWER, ErrorCode.GROUP_ID_NOT_FOUND)
def leave_a_classic_group(scene: Scene) -> int:
    member, _ = scene.member()
    return int(scene.heartbeat(-1, member_id=member).error_code)


@refused(NEWER, ErrorCode.GROUP_ID_NOT_FOUND)
def join_workers_that_are_no_consumers(scene: Scene) -> int:
    scene.member(protocol_type="connect")
    return int(scene.joins_newer().error_code)


@refused(NEWER, ErrorCode.GROUP_ID_NOT_FOUND)
def join_consumers_that_cannot_be_read(scene: Scene) -> int:
    scene.member()
    return int(scene.joins_newer().error_code)


@refused(NEWER, ErrorCode.UNKNOWN_MEMBER_ID)
def beat_of_a_newer_stranger(scene: Scene) -> int:
    epoch = scene.joins_newer().member_epoch
    return int(scene.heartbeat(epoch, member_id=B).error_code)


@refused(NEWER, ErrorCode.FENCED_MEMBER_EPOCH)
def epoch_from_the_future(scene: Scene) -> int:
    """rule J8."""
    epoch = scene.joins_newer().member_epoch
    return int(scene.heartbeat(epoch + 1).error_code)


@refused(NEWER, ErrorCode.FENCED_MEMBER_EPOCH)
def epoch_of_the_past(scene: Scene) -> int:
    """rule J8."""
    epoch = scene.joins_newer().member_epoch
    return int(scene.heartbeat(epoch - 1).error_code)


@refused(NEWER, ErrorCode.UNRELEASED_INSTANCE_ID)
def instance_in_use(scene: Scene) -> int:
    scene.joins_newer(instance_id="one")
    answer = scene.joins_newer("while it is there", member_id=B, instance_id="one")
    return int(answer.error_code)


@refused(NEWER, ErrorCode.FENCED_INSTANCE_ID)
def instance_of_another(scene: Scene) -> int:
    epoch = scene.joins_newer(instance_id="one").member_epoch
    return int(scene.heartbeat(epoch, member_id=B, instance_id="one").error_code)


@refused(NEWER, ErrorCode.UNKNOWN_MEMBER_ID)
def instance_of_nobody(scene: Scene) -> int:
    epoch = scene.joins_newer().member_epoch
    return int(scene.heartbeat(epoch, instance_id="nobody").error_code)


@refused(NEWER, ErrorCode.GROUP_MAX_SIZE_REACHED, WHEN_FULL)
def one_newer_member_too_many(scene: Scene) -> int:
    scene.joins_newer()
    return int(scene.joins_newer("another", member_id=B).error_code)


@refused(ApiKey.JOIN_GROUP, ErrorCode.GROUP_MAX_SIZE_REACHED, WHEN_FULL)
def one_classic_member_too_many_in_a_newer_group(scene: Scene) -> int:
    scene.joins_newer()
    return int(scene.joins(version=2, protocols=wants(scene.topic)).error_code)


# ConsumerGroupDescribe.


@refused(ApiKey.CONSUMER_GROUP_DESCRIBE, ErrorCode.INVALID_GROUP_ID)
def describe_an_empty_id(scene: Scene) -> int:
    return scene.describes_newer("")


@refused(ApiKey.CONSUMER_GROUP_DESCRIBE, ErrorCode.GROUP_ID_NOT_FOUND)
def describe_no_newer_group(scene: Scene) -> int:
    return scene.describes_newer()


@refused(ApiKey.CONSUMER_GROUP_DESCRIBE, ErrorCode.GROUP_ID_NOT_FOUND)
def describe_a_classic_group_as_newer(scene: Scene) -> int:
    scene.member()
    return scene.describes_newer()
