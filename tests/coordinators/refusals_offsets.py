"""Refusals of OffsetCommit, OffsetFetch and OffsetDelete."""

from __future__ import annotations

from tests.coordinators.scene import (
    A,
    B,
    Scene,
    refused,
    wants,
)
from tests.reference.answers import NOBODY
from tests.reference.group_steps import joining

from tidemill.errors import ErrorCode
from tidemill.wire.apis import ApiKey

# OffsetCommit.

COMMIT = ApiKey.OFFSET_COMMIT


@refused(COMMIT, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
def commit_for_no_such_topic(scene: Scene) -> int:
    return scene.commits(topic="no-such-topic")


@refused(COMMIT, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
def commit_for_no_such_partition(scene: Scene) -> int:
    return scene.commits(partition=7)


@refused(COMMIT, ErrorCode.UNKNOWN_TOPIC_ID)
def commit_for_no_such_id(scene: Scene) -> int:
    return scene.commits(10, topic_id=NOBODY)


@refused(COMMIT, ErrorCode.OFFSET_METADATA_TOO_LARGE)
def note_too_long(scene: Scene) -> int:
    """rule J6: 4,096 and no more."""
    return scene.commits(note="x" * 4_097)


@refused(COMMIT, ErrorCode.UNKNOWN_MEMBER_ID)
def commit_of_a_stranger(scene: Scene) -> int:
    """rule J2."""
    _, generation = scene.member()
    return scene.commits(member="stranger", generation=generation)


@refused(COMMIT, ErrorCode.UNKNOWN_MEMBER_ID)
def commit_from_outside_a_live_group(scene: Scene) -> int:
    """rule J2: without a generation only where nobody is."""
    scene.member()
    return scene.commits()


@refused(COMMIT, ErrorCode.ILLEGAL_GENERATION)
def commit_of_another_generation(scene: Scene) -> int:
    """rule J2."""
    member, generation = scene.member()
    return scene.commits(member=member, generation=generation + 1)


@refused(COMMIT, ErrorCode.ILLEGAL_GENERATION)
def commit_of_a_generation_in_no_group(scene: Scene) -> int:
    return scene.commits(8, member="m", generation=1)


@refused(COMMIT, ErrorCode.GROUP_ID_NOT_FOUND)
def commit_of_an_epoch_in_no_group(scene: Scene) -> int:
    return scene.commits(9, member="m", generation=1)


@refused(COMMIT, ErrorCode.REBALANCE_IN_PROGRESS)
def commit_before_the_assignment(scene: Scene) -> int:
    """rule J2."""
    joined = scene.join("join", 5, joining(scene.group))
    return scene.commits(member=joined.member_id, generation=joined.generation_id)


@refused(COMMIT, ErrorCode.FENCED_INSTANCE_ID)
def former_self_commits(scene: Scene) -> int:
    """rule J2."""
    member, generation = scene.member(instance_id="one")
    scene.joins("the new self", instance_id="one")
    return scene.commits(member=member, generation=generation, instance="one")


@refused(COMMIT, ErrorCode.STALE_MEMBER_EPOCH)
def commit_of_another_epoch(scene: Scene) -> int:
    """rule J8."""
    epoch = scene.joins_newer().member_epoch
    return scene.commits(10, member=A, generation=epoch + 1)


@refused(COMMIT, ErrorCode.UNSUPPORTED_VERSION)
def commit_in_a_version_without_epochs(scene: Scene) -> int:
    epoch = scene.joins_newer().member_epoch
    return scene.commits(8, member=A, generation=epoch)


@refused(COMMIT, ErrorCode.UNKNOWN_MEMBER_ID)
def commit_of_a_stranger_to_a_newer_group(scene: Scene) -> int:
    epoch = scene.joins_newer().member_epoch
    return scene.commits(9, member=B, generation=epoch)


# OffsetFetch.

FETCH = ApiKey.OFFSET_FETCH


@refused(FETCH, ErrorCode.UNKNOWN_TOPIC_ID)
def fetch_for_no_such_id(scene: Scene) -> int:
    return scene.fetches(10, topic_id=NOBODY)


@refused(FETCH, ErrorCode.UNKNOWN_MEMBER_ID)
def fetch_of_a_stranger(scene: Scene) -> int:
    scene.joins_newer()
    return scene.fetches(member_id=B, member_epoch=1)


@refused(FETCH, ErrorCode.STALE_MEMBER_EPOCH)
def fetch_of_another_epoch(scene: Scene) -> int:
    epoch = scene.joins_newer().member_epoch
    return scene.fetches(member_id=A, member_epoch=epoch - 1)


# OffsetDelete.

OFFSET_DELETE = ApiKey.OFFSET_DELETE


@refused(OFFSET_DELETE, ErrorCode.INVALID_GROUP_ID)
def offset_of_an_empty_id(scene: Scene) -> int:
    return scene.deletes_offset(group="")


@refused(OFFSET_DELETE, ErrorCode.GROUP_ID_NOT_FOUND)
def offset_of_no_group(scene: Scene) -> int:
    return scene.deletes_offset()


@refused(OFFSET_DELETE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
def offset_of_no_such_topic(scene: Scene) -> int:
    scene.commits()
    return scene.deletes_offset(topic="no-such-topic")


@refused(OFFSET_DELETE, ErrorCode.NON_EMPTY_GROUP)
def offset_of_live_workers(scene: Scene) -> int:
    scene.member(protocol_type="connect")
    return scene.deletes_offset()


@refused(OFFSET_DELETE, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
def offset_of_a_topic_that_is_read(scene: Scene) -> int:
    scene.member(protocols=wants(scene.topic))
    return scene.deletes_offset()


@refused(OFFSET_DELETE, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
def offset_of_a_topic_that_a_newer_group_reads(scene: Scene) -> int:
    scene.joins_newer()
    return scene.deletes_offset()
