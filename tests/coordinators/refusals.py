"""Requests to groups that are refused, each with the code that Apache Kafka 4.3.1 refuses it with.

A refusal is a function of a `Scene`: it brings a group into the state that the error needs, asks
the question that must be refused, and returns the code of the answer. `test_error_codes.py` plays
them on a live broker, `tests/reference/test_group_error_codes.py` beside Apache Kafka, where every
answer on the way is compared, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

from tests.reference.answers import NOBODY, create, known_id
from tests.reference.group_steps import Line, Stage, joining, leaving
from tests.reference.pair import Peer

from tidemill.client.consumer_protocol import encode_assignment
from tidemill.errors import ErrorCode
from tidemill.types import TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest
from tidemill.wire.messages.group_admin import DeleteGroupsRequest, DescribeGroupsRequest
from tidemill.wire.messages.groups import (
    HeartbeatRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from tidemill.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)

A = "7d444840-9dc0-11d1-b245-5ffdce74fad2"
B = "7d444840-9dc0-11d1-b245-5ffdce74fad3"
NO_ID = UUID(int=0)


class Scene(Stage):
    """One system, and a group and a topic that belong to this refusal alone."""

    def __init__(self, peer: Peer, name: str) -> None:
        super().__init__(peer)
        self.group = name
        self.topic = name

    # The classic protocol.

    def joins(self, step: str = "join", version: int = 5, **fields: Any) -> Any:
        fields.setdefault("group", self.group)
        return self.ask(step, ApiKey.JOIN_GROUP, version, joining(**fields))

    def member(self, **fields: Any) -> tuple[str, int]:
        return self.stable_member(self.group, **fields)

    def syncs(self, member: str, generation: int, version: int = 3, **fields: Any) -> int:
        given = self._given(member, generation) | fields
        answer = self.ask("sync", ApiKey.SYNC_GROUP, version, SyncGroupRequest(**given))
        return int(answer.error_code)

    def beats(self, member: str, generation: int, **fields: Any) -> int:
        given = self._given(member, generation) | fields
        return int(self.ask("beat", ApiKey.HEARTBEAT, 4, HeartbeatRequest(**given)).error_code)

    def _given(self, member: str, generation: int) -> dict[str, Any]:
        return {"group_id": self.group, "member_id": member, "generation_id": generation}

    def leaves(self, member: str, instance: str | None = None, group: str | None = None) -> int:
        """The error of the member, or that of the whole request."""
        identity = MemberIdentity(member_id=member, group_instance_id=instance)
        request = leaving(self.group if group is None else group, identity)
        answer = self.ask("leave", ApiKey.LEAVE_GROUP, 4, request)
        return int(answer.error_code or answer.members[0].error_code)

    def waiting_join(self, **fields: Any) -> tuple[Line, str]:
        """A second member whose join waits for the first: its line and its id."""
        line = self.line()
        line.send(ApiKey.JOIN_GROUP, 5, joining(self.group, **fields))
        member = line.receive().member_id
        line.send(ApiKey.JOIN_GROUP, 5, joining(self.group, member_id=member, **fields))
        assert not line.has_answer(0.3)
        return line, member

    # Offsets.

    def make_topic(self) -> None:
        answer = self.peer.ask(ApiKey.CREATE_TOPICS, 7, create(self.topic, 2))
        assert answer.topics[0].error_code in (0, ErrorCode.TOPIC_ALREADY_EXISTS)
        self.peer.wait_for_leaders(self.topic)
        if self.peer.name == "kafka" and answer.topics[0].error_code == 0:
            time.sleep(0.1)  # Its coordinator hears of a topic a little after its clients do.

    def commits(
        self,
        version: int = 8,
        *,
        member: str = "",
        generation: int = -1,
        topic: str | None = None,
        topic_id: UUID | None = None,
        partition: int = 0,
        note: str = "",
        instance: str | None = None,
        group: str | None = None,
        make_topic: bool = True,
    ) -> int:
        if make_topic:
            self.make_topic()
        wanted = OffsetCommitRequestTopic(
            name=self.topic if topic is None else topic,
            topic_id=self._id(version) if topic_id is None else topic_id,
            partitions=[
                OffsetCommitRequestPartition(
                    partition_index=partition, committed_offset=1, committed_metadata=note
                )
            ],
        )
        request = OffsetCommitRequest(
            group_id=self.group if group is None else group,
            generation_id_or_member_epoch=generation,
            member_id=member,
            group_instance_id=instance,
            topics=[wanted],
        )
        answer = self.ask("commit", ApiKey.OFFSET_COMMIT, version, request)
        return int(answer.topics[0].partitions[0].error_code)

    def _id(self, version: int) -> UUID:
        return known_id(self.peer, self.topic) if version >= 10 else NO_ID

    def fetches(self, version: int = 9, *, topic_id: UUID | None = None, **fields: Any) -> int:
        """The error of the group, or that of the partition."""
        topic = OffsetFetchRequestTopics(
            name=self.topic, topic_id=topic_id or NO_ID, partition_indexes=[0]
        )
        group = OffsetFetchRequestGroup(**{"group_id": self.group, "topics": [topic]} | fields)
        answer = self.ask(
            "fetch", ApiKey.OFFSET_FETCH, version, OffsetFetchRequest(groups=[group])
        ).groups[0]
        return int(answer.error_code or answer.topics[0].partitions[0].error_code)

    def deletes_offset(self, *, group: str | None = None, topic: str | None = None) -> int:
        self.make_topic()
        wanted = OffsetDeleteRequestTopic(
            name=self.topic if topic is None else topic,
            partitions=[OffsetDeleteRequestPartition(partition_index=0)],
        )
        request = OffsetDeleteRequest(
            group_id=self.group if group is None else group, topics=[wanted]
        )
        answer = self.ask("delete the offset", ApiKey.OFFSET_DELETE, 0, request)
        return int(answer.error_code or answer.topics[0].partitions[0].error_code)

    # Groups as a whole.

    def describes(self, version: int = 6, group: str | None = None) -> int:
        request = DescribeGroupsRequest(groups=[self.group if group is None else group])
        answer = self.ask("describe", ApiKey.DESCRIBE_GROUPS, version, request)
        return int(answer.groups[0].error_code)

    def deletes(self, group: str | None = None) -> int:
        request = DeleteGroupsRequest(groups_names=[self.group if group is None else group])
        answer = self.ask("delete", ApiKey.DELETE_GROUPS, 2, request)
        return int(answer.results[0].error_code)

    def finds(self, version: int, key_type: int) -> int:
        if version >= 4:
            request = FindCoordinatorRequest(coordinator_keys=[self.group], key_type=key_type)
            answer = self.ask("unknown type", ApiKey.FIND_COORDINATOR, version, request)
            return int(answer.coordinators[0].error_code)
        request = FindCoordinatorRequest(key=self.group, key_type=key_type)
        return int(self.ask("unknown type", ApiKey.FIND_COORDINATOR, version, request).error_code)

    # The newer protocol.

    def heartbeat(
        self, epoch: int, step: str = "heartbeat", version: int = 1, **fields: Any
    ) -> Any:
        given: dict[str, Any] = {"group_id": self.group, "member_id": A, "member_epoch": epoch}
        request = ConsumerGroupHeartbeatRequest(**given | fields)
        return self.ask(step, ApiKey.CONSUMER_GROUP_HEARTBEAT, version, request)

    def joins_newer(self, step: str = "join", **fields: Any) -> Any:
        self.make_topic()
        first: dict[str, Any] = {
            "rebalance_timeout_ms": 20_000,
            "subscribed_topic_names": [self.topic],
            "topic_partitions": [],
        }
        return self.heartbeat(0, step, **(first | fields))

    def owns(self, *partitions: int) -> list[TopicPartitions]:
        topic_id = known_id(self.peer, self.topic)
        return [TopicPartitions(topic_id=topic_id, partitions=list(partitions))]

    def describes_newer(self, group: str | None = None) -> int:
        request = ConsumerGroupDescribeRequest(group_ids=[self.group if group is None else group])
        answer = self.ask("describe", ApiKey.CONSUMER_GROUP_DESCRIBE, 1, request)
        return int(answer.groups[0].error_code)


class Refusal(NamedTuple):
    """A function that is refused, by which API and with which code."""

    api: ApiKey
    code: ErrorCode
    play: Callable[[Scene], int]

    @property
    def name(self) -> str:
        return f"{self.api.name}-{self.code.name}-{self.play.__name__}"


REFUSALS: list[Refusal] = []
WHEN_FULL: list[Refusal] = []
"""Those that need a broker whose groups have room for one member."""
NOT_IN_KAFKA: list[Refusal] = []
"""Requests that Kafka leaves without an answer."""
BEFORE_THE_TOPIC: list[Refusal] = []
"""Those that need a broker that has never been asked for a coordinator."""

_Play = Callable[[Scene], int]


def _refused(
    api: ApiKey, code: ErrorCode, into: list[Refusal] | None = None
) -> Callable[[_Play], _Play]:
    def add(play: _Play) -> _Play:
        (REFUSALS if into is None else into).append(Refusal(api, code, play))
        return play

    return add


def _wants(topic: str) -> dict[str, bytes]:
    """The metadata of a consumer that subscribes to one topic, in its first version."""
    name = topic.encode()
    data = b"\0\0\0\0\0\1" + len(name).to_bytes(2, "big") + name + b"\xff\xff\xff\xff"
    return {"range": data}


# JoinGroup.

JOIN = ApiKey.JOIN_GROUP


@_refused(JOIN, ErrorCode.INVALID_GROUP_ID)
def empty_id(scene: Scene) -> int:
    return int(scene.joins(group="").error_code)


@_refused(JOIN, ErrorCode.INVALID_SESSION_TIMEOUT)
def session_too_short(scene: Scene) -> int:
    return int(scene.joins(session_ms=5_999).error_code)


@_refused(JOIN, ErrorCode.INVALID_SESSION_TIMEOUT)
def session_too_long(scene: Scene) -> int:
    return int(scene.joins(session_ms=1_800_001).error_code)


@_refused(JOIN, ErrorCode.INVALID_SESSION_TIMEOUT)
def session_negative(scene: Scene) -> int:
    return int(scene.joins(session_ms=-1).error_code)


@_refused(JOIN, ErrorCode.MEMBER_ID_REQUIRED)
def first_join(scene: Scene) -> int:
    return int(scene.joins(version=4).error_code)


@_refused(JOIN, ErrorCode.UNKNOWN_MEMBER_ID)
def stranger_in_no_group(scene: Scene) -> int:
    return int(scene.joins(member_id="stranger").error_code)


@_refused(JOIN, ErrorCode.UNKNOWN_MEMBER_ID)
def stranger_in_a_group(scene: Scene) -> int:
    scene.member()
    return int(scene.joins(member_id="stranger").error_code)


@_refused(JOIN, ErrorCode.UNKNOWN_MEMBER_ID)
def instance_that_nobody_has(scene: Scene) -> int:
    member, _ = scene.member()
    return int(scene.joins(member_id=member, instance_id="nobody").error_code)


@_refused(JOIN, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
def no_protocols(scene: Scene) -> int:
    return int(scene.joins(protocols={}).error_code)


@_refused(JOIN, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
def no_protocol_type(scene: Scene) -> int:
    return int(scene.joins(protocol_type="").error_code)


@_refused(JOIN, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
def no_protocol_in_common(scene: Scene) -> int:
    scene.member()
    return int(scene.joins(protocols={"elsewhere": b""}).error_code)


@_refused(JOIN, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
def another_protocol_type(scene: Scene) -> int:
    scene.member()
    return int(scene.joins(protocol_type="connect").error_code)


@_refused(JOIN, ErrorCode.FENCED_INSTANCE_ID)
def former_self_joins(scene: Scene) -> int:
    member, _ = scene.member(instance_id="one")
    scene.joins("the new self", instance_id="one")
    return int(scene.joins(member_id=member, instance_id="one").error_code)


@_refused(JOIN, ErrorCode.REBALANCE_IN_PROGRESS)
def join_that_waits_while_the_group_moves_to_the_newer_protocol(scene: Scene) -> int:
    wants = _wants(scene.topic)
    joined = scene.join("join", 5, joining(scene.group, protocols=wants))
    mine = SyncGroupRequestAssignment(
        member_id=joined.member_id, assignment=encode_assignment([TopicPartition(scene.topic, 0)])
    )
    scene.syncs(joined.member_id, joined.generation_id, assignments=[mine])
    line, _ = scene.waiting_join(protocols=wants)
    scene.joins_newer("a newer member")
    answer = line.receive()
    scene.note("the one that waits", JOIN, 5, answer)
    return int(answer.error_code)


@_refused(JOIN, ErrorCode.REBALANCE_IN_PROGRESS, NOT_IN_KAFKA)
def join_that_is_repeated(scene: Scene) -> int:
    """The first of two equal requests is told that the second stands in its place."""
    scene.member()
    first, member = scene.waiting_join()
    scene.line().send(JOIN, 5, joining(scene.group, member_id=member))
    return int(first.receive().error_code)


@_refused(JOIN, ErrorCode.GROUP_MAX_SIZE_REACHED, WHEN_FULL)
def one_too_many(scene: Scene) -> int:
    scene.member()
    return int(scene.joins().error_code)


# SyncGroup.

SYNC = ApiKey.SYNC_GROUP


@_refused(SYNC, ErrorCode.INVALID_GROUP_ID)
def sync_without_group(scene: Scene) -> int:
    return scene.syncs("m", 1, group_id="")


@_refused(SYNC, ErrorCode.UNKNOWN_MEMBER_ID)
def sync_in_no_group(scene: Scene) -> int:
    return scene.syncs("m", 1)


@_refused(SYNC, ErrorCode.UNKNOWN_MEMBER_ID)
def sync_of_a_stranger(scene: Scene) -> int:
    _, generation = scene.member()
    return scene.syncs("stranger", generation)


@_refused(SYNC, ErrorCode.ILLEGAL_GENERATION)
def sync_of_another_generation(scene: Scene) -> int:
    member, generation = scene.member()
    return scene.syncs(member, generation + 1)


@_refused(SYNC, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
def sync_of_another_protocol(scene: Scene) -> int:
    member, generation = scene.member()
    words = {"protocol_type": "consumer", "protocol_name": "elsewhere"}
    return scene.syncs(member, generation, 5, **words)


@_refused(SYNC, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
def sync_without_protocol(scene: Scene) -> int:
    member, generation = scene.member()
    return scene.syncs(member, generation, 5, protocol_type=None, protocol_name=None)


@_refused(SYNC, ErrorCode.REBALANCE_IN_PROGRESS)
def sync_while_members_join(scene: Scene) -> int:
    member, generation = scene.member()
    scene.waiting_join()
    return scene.syncs(member, generation)


@_refused(SYNC, ErrorCode.FENCED_INSTANCE_ID)
def former_self_syncs(scene: Scene) -> int:
    member, generation = scene.member(instance_id="one")
    scene.joins("the new self", instance_id="one")
    return scene.syncs(member, generation, group_instance_id="one")


@_refused(SYNC, ErrorCode.UNKNOWN_SERVER_ERROR)
def assignment_that_no_record_can_hold(scene: Scene) -> int:
    """One and a half megabytes, where a record of the internal topic has at most one."""
    joined = scene.join("join", 5, joining(scene.group))
    large = SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"x" * 1_500_000)
    return scene.syncs(joined.member_id, joined.generation_id, assignments=[large])


# Heartbeat.

BEAT = ApiKey.HEARTBEAT


@_refused(BEAT, ErrorCode.INVALID_GROUP_ID)
def beat_without_group(scene: Scene) -> int:
    return scene.beats("m", 1, group_id="")


@_refused(BEAT, ErrorCode.UNKNOWN_MEMBER_ID)
def beat_in_no_group(scene: Scene) -> int:
    return scene.beats("m", 1)


@_refused(BEAT, ErrorCode.UNKNOWN_MEMBER_ID)
def beat_of_a_stranger(scene: Scene) -> int:
    _, generation = scene.member()
    return scene.beats("stranger", generation)


@_refused(BEAT, ErrorCode.ILLEGAL_GENERATION)
def beat_of_another_generation(scene: Scene) -> int:
    member, generation = scene.member()
    return scene.beats(member, generation - 1)


@_refused(BEAT, ErrorCode.REBALANCE_IN_PROGRESS)
def beat_while_members_join(scene: Scene) -> int:
    member, generation = scene.member()
    scene.waiting_join()
    return scene.beats(member, generation)


@_refused(BEAT, ErrorCode.FENCED_INSTANCE_ID)
def former_self_beats(scene: Scene) -> int:
    member, generation = scene.member(instance_id="one")
    scene.joins("the new self", instance_id="one")
    return scene.beats(member, generation, group_instance_id="one")


# LeaveGroup.

LEAVE = ApiKey.LEAVE_GROUP


@_refused(LEAVE, ErrorCode.INVALID_GROUP_ID)
def leave_without_group(scene: Scene) -> int:
    return scene.leaves("m", group="")


@_refused(LEAVE, ErrorCode.UNKNOWN_MEMBER_ID)
def leave_no_group(scene: Scene) -> int:
    return scene.leaves("m")


@_refused(LEAVE, ErrorCode.UNKNOWN_MEMBER_ID)
def leave_of_a_stranger(scene: Scene) -> int:
    scene.member()
    return scene.leaves("stranger")


@_refused(LEAVE, ErrorCode.UNKNOWN_MEMBER_ID)
def leave_of_an_instance_that_nobody_has(scene: Scene) -> int:
    scene.member()
    return scene.leaves("", "nobody")


@_refused(LEAVE, ErrorCode.FENCED_INSTANCE_ID)
def former_self_leaves(scene: Scene) -> int:
    member, _ = scene.member(instance_id="one")
    scene.joins("the new self", instance_id="one")
    return scene.leaves(member, "one")


# OffsetCommit.

COMMIT = ApiKey.OFFSET_COMMIT


@_refused(COMMIT, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
def commit_for_no_such_topic(scene: Scene) -> int:
    return scene.commits(topic="no-such-topic")


@_refused(COMMIT, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
def commit_for_no_such_partition(scene: Scene) -> int:
    return scene.commits(partition=7)


@_refused(COMMIT, ErrorCode.UNKNOWN_TOPIC_ID)
def commit_for_no_such_id(scene: Scene) -> int:
    return scene.commits(10, topic_id=NOBODY)


@_refused(COMMIT, ErrorCode.OFFSET_METADATA_TOO_LARGE)
def note_too_long(scene: Scene) -> int:
    """rule J6: 4,096 and no more."""
    return scene.commits(note="x" * 4_097)


@_refused(COMMIT, ErrorCode.UNKNOWN_MEMBER_ID)
def commit_of_a_stranger(scene: Scene) -> int:
    """rule J2."""
    _, generation = scene.member()
    return scene.commits(member="stranger", generation=generation)


@_refused(COMMIT, ErrorCode.UNKNOWN_MEMBER_ID)
def commit_from_outside_a_live_group(scene: Scene) -> int:
    """rule J2: without a generation only where nobody is."""
    scene.member()
    return scene.commits()


@_refused(COMMIT, ErrorCode.ILLEGAL_GENERATION)
def commit_of_another_generation(scene: Scene) -> int:
    """rule J2."""
    member, generation = scene.member()
    return scene.commits(member=member, generation=generation + 1)


@_refused(COMMIT, ErrorCode.ILLEGAL_GENERATION)
def commit_of_a_generation_in_no_group(scene: Scene) -> int:
    return scene.commits(8, member="m", generation=1)


@_refused(COMMIT, ErrorCode.GROUP_ID_NOT_FOUND)
def commit_of_an_epoch_in_no_group(scene: Scene) -> int:
    return scene.commits(9, member="m", generation=1)


@_refused(COMMIT, ErrorCode.REBALANCE_IN_PROGRESS)
def commit_before_the_assignment(scene: Scene) -> int:
    """rule J2."""
    joined = scene.join("join", 5, joining(scene.group))
    return scene.commits(member=joined.member_id, generation=joined.generation_id)


@_refused(COMMIT, ErrorCode.FENCED_INSTANCE_ID)
def former_self_commits(scene: Scene) -> int:
    """rule J2."""
    member, generation = scene.member(instance_id="one")
    scene.joins("the new self", instance_id="one")
    return scene.commits(member=member, generation=generation, instance="one")


@_refused(COMMIT, ErrorCode.STALE_MEMBER_EPOCH)
def commit_of_another_epoch(scene: Scene) -> int:
    """rule J8."""
    epoch = scene.joins_newer().member_epoch
    return scene.commits(10, member=A, generation=epoch + 1)


@_refused(COMMIT, ErrorCode.UNSUPPORTED_VERSION)
def commit_in_a_version_without_epochs(scene: Scene) -> int:
    epoch = scene.joins_newer().member_epoch
    return scene.commits(8, member=A, generation=epoch)


@_refused(COMMIT, ErrorCode.UNKNOWN_MEMBER_ID)
def commit_of_a_stranger_to_a_newer_group(scene: Scene) -> int:
    epoch = scene.joins_newer().member_epoch
    return scene.commits(9, member=B, generation=epoch)


# OffsetFetch.

FETCH = ApiKey.OFFSET_FETCH


@_refused(FETCH, ErrorCode.UNKNOWN_TOPIC_ID)
def fetch_for_no_such_id(scene: Scene) -> int:
    return scene.fetches(10, topic_id=NOBODY)


@_refused(FETCH, ErrorCode.UNKNOWN_MEMBER_ID)
def fetch_of_a_stranger(scene: Scene) -> int:
    scene.joins_newer()
    return scene.fetches(member_id=B, member_epoch=1)


@_refused(FETCH, ErrorCode.STALE_MEMBER_EPOCH)
def fetch_of_another_epoch(scene: Scene) -> int:
    epoch = scene.joins_newer().member_epoch
    return scene.fetches(member_id=A, member_epoch=epoch - 1)


# OffsetDelete.

OFFSET_DELETE = ApiKey.OFFSET_DELETE


@_refused(OFFSET_DELETE, ErrorCode.INVALID_GROUP_ID)
def offset_of_an_empty_id(scene: Scene) -> int:
    return scene.deletes_offset(group="")


@_refused(OFFSET_DELETE, ErrorCode.GROUP_ID_NOT_FOUND)
def offset_of_no_group(scene: Scene) -> int:
    return scene.deletes_offset()


@_refused(OFFSET_DELETE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
def offset_of_no_such_topic(scene: Scene) -> int:
    scene.commits()
    return scene.deletes_offset(topic="no-such-topic")


@_refused(OFFSET_DELETE, ErrorCode.NON_EMPTY_GROUP)
def offset_of_live_workers(scene: Scene) -> int:
    scene.member(protocol_type="connect")
    return scene.deletes_offset()


@_refused(OFFSET_DELETE, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
def offset_of_a_topic_that_is_read(scene: Scene) -> int:
    scene.member(protocols=_wants(scene.topic))
    return scene.deletes_offset()


@_refused(OFFSET_DELETE, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
def offset_of_a_topic_that_a_newer_group_reads(scene: Scene) -> int:
    scene.joins_newer()
    return scene.deletes_offset()


# DescribeGroups and DeleteGroups.


@_refused(ApiKey.DESCRIBE_GROUPS, ErrorCode.GROUP_ID_NOT_FOUND)
def describe_no_group(scene: Scene) -> int:
    return scene.describes()


@_refused(ApiKey.DESCRIBE_GROUPS, ErrorCode.GROUP_ID_NOT_FOUND)
def describe_a_newer_group_as_classic(scene: Scene) -> int:
    scene.joins_newer()
    return scene.describes()


@_refused(ApiKey.DELETE_GROUPS, ErrorCode.GROUP_ID_NOT_FOUND)
def delete_no_group(scene: Scene) -> int:
    return scene.deletes()


@_refused(ApiKey.DELETE_GROUPS, ErrorCode.NON_EMPTY_GROUP)
def delete_a_live_group(scene: Scene) -> int:
    scene.member()
    return scene.deletes()


@_refused(ApiKey.DELETE_GROUPS, ErrorCode.NON_EMPTY_GROUP)
def delete_a_live_newer_group(scene: Scene) -> int:
    scene.joins_newer()
    return scene.deletes()


# FindCoordinator.


@_refused(ApiKey.FIND_COORDINATOR, ErrorCode.INVALID_REQUEST)
def no_such_kind(scene: Scene) -> int:
    return scene.finds(3, 7)


@_refused(ApiKey.FIND_COORDINATOR, ErrorCode.INVALID_REQUEST)
def no_such_kind_of_many(scene: Scene) -> int:
    return scene.finds(4, 7)


# ConsumerGroupHeartbeat.

NEWER = ApiKey.CONSUMER_GROUP_HEARTBEAT


@_refused(NEWER, ErrorCode.INVALID_REQUEST)
def no_group_id(scene: Scene) -> int:
    return int(scene.joins_newer(group_id="").error_code)


@_refused(NEWER, ErrorCode.INVALID_REQUEST)
def no_member_id(scene: Scene) -> int:
    return int(scene.joins_newer(member_id="").error_code)


@_refused(NEWER, ErrorCode.INVALID_REQUEST)
def empty_instance_id(scene: Scene) -> int:
    return int(scene.joins_newer(instance_id="").error_code)


@_refused(NEWER, ErrorCode.INVALID_REQUEST)
def empty_rack(scene: Scene) -> int:
    return int(scene.joins_newer(rack_id="").error_code)


@_refused(NEWER, ErrorCode.INVALID_REQUEST)
def no_rebalance_timeout(scene: Scene) -> int:
    return int(scene.joins_newer(rebalance_timeout_ms=-1).error_code)


@_refused(NEWER, ErrorCode.INVALID_REQUEST)
def owns_before_it_joins(scene: Scene) -> int:
    scene.make_topic()
    return int(scene.joins_newer(topic_partitions=scene.owns(0)).error_code)


@_refused(NEWER, ErrorCode.INVALID_REQUEST)
def wants_nothing_at_all(scene: Scene) -> int:
    return int(scene.joins_newer(subscribed_topic_names=None).error_code)


@_refused(NEWER, ErrorCode.INVALID_REQUEST)
def epoch_that_cannot_be(scene: Scene) -> int:
    return int(scene.heartbeat(-3).error_code)


@_refused(NEWER, ErrorCode.INVALID_REQUEST)
def static_leave_without_instance(scene: Scene) -> int:
    return int(scene.heartbeat(-2).error_code)


@_refused(NEWER, ErrorCode.UNSUPPORTED_ASSIGNOR)
def assignor_that_nobody_knows(scene: Scene) -> int:
    return int(scene.joins_newer(server_assignor="sideways").error_code)


@_refused(NEWER, ErrorCode.INVALID_REGULAR_EXPRESSION)
def bad_pattern(scene: Scene) -> int:
    return int(scene.joins_newer("bad pattern", subscribed_topic_regex="(").error_code)


@_refused(NEWER, ErrorCode.GROUP_ID_NOT_FOUND)
def beat_in_no_such_group(scene: Scene) -> int:
    return int(scene.heartbeat(3).error_code)


@_refused(NEWER, ErrorCode.GROUP_ID_NOT_FOUND)
def leave_no_such_group(scene: Scene) -> int:
    return int(scene.heartbeat(-1).error_code)


@_refused(NEWER, ErrorCode.GROUP_ID_NOT_FOUND)
def beat_in_a_classic_group(scene: Scene) -> int:
    scene.member()
    return int(scene.heartbeat(3).error_code)


@_refused(NEWER, ErrorCode.GROUP_ID_NOT_FOUND)
def leave_a_classic_group(scene: Scene) -> int:
    member, _ = scene.member()
    return int(scene.heartbeat(-1, member_id=member).error_code)


@_refused(NEWER, ErrorCode.GROUP_ID_NOT_FOUND)
def join_workers_that_are_no_consumers(scene: Scene) -> int:
    scene.member(protocol_type="connect")
    return int(scene.joins_newer().error_code)


@_refused(NEWER, ErrorCode.GROUP_ID_NOT_FOUND)
def join_consumers_that_cannot_be_read(scene: Scene) -> int:
    scene.member()
    return int(scene.joins_newer().error_code)


@_refused(NEWER, ErrorCode.UNKNOWN_MEMBER_ID)
def beat_of_a_newer_stranger(scene: Scene) -> int:
    epoch = scene.joins_newer().member_epoch
    return int(scene.heartbeat(epoch, member_id=B).error_code)


@_refused(NEWER, ErrorCode.FENCED_MEMBER_EPOCH)
def epoch_from_the_future(scene: Scene) -> int:
    """rule J8."""
    epoch = scene.joins_newer().member_epoch
    return int(scene.heartbeat(epoch + 1).error_code)


@_refused(NEWER, ErrorCode.FENCED_MEMBER_EPOCH)
def epoch_of_the_past(scene: Scene) -> int:
    """rule J8."""
    epoch = scene.joins_newer().member_epoch
    return int(scene.heartbeat(epoch - 1).error_code)


@_refused(NEWER, ErrorCode.UNRELEASED_INSTANCE_ID)
def instance_in_use(scene: Scene) -> int:
    scene.joins_newer(instance_id="one")
    answer = scene.joins_newer("while it is there", member_id=B, instance_id="one")
    return int(answer.error_code)


@_refused(NEWER, ErrorCode.FENCED_INSTANCE_ID)
def instance_of_another(scene: Scene) -> int:
    epoch = scene.joins_newer(instance_id="one").member_epoch
    return int(scene.heartbeat(epoch, member_id=B, instance_id="one").error_code)


@_refused(NEWER, ErrorCode.UNKNOWN_MEMBER_ID)
def instance_of_nobody(scene: Scene) -> int:
    epoch = scene.joins_newer().member_epoch
    return int(scene.heartbeat(epoch, instance_id="nobody").error_code)


@_refused(NEWER, ErrorCode.GROUP_MAX_SIZE_REACHED, WHEN_FULL)
def one_newer_member_too_many(scene: Scene) -> int:
    scene.joins_newer()
    return int(scene.joins_newer("another", member_id=B).error_code)


@_refused(JOIN, ErrorCode.GROUP_MAX_SIZE_REACHED, WHEN_FULL)
def one_classic_member_too_many_in_a_newer_group(scene: Scene) -> int:
    scene.joins_newer()
    return int(scene.joins(version=2, protocols=_wants(scene.topic)).error_code)


# ConsumerGroupDescribe.


@_refused(ApiKey.CONSUMER_GROUP_DESCRIBE, ErrorCode.INVALID_GROUP_ID)
def describe_an_empty_id(scene: Scene) -> int:
    return scene.describes_newer("")


@_refused(ApiKey.CONSUMER_GROUP_DESCRIBE, ErrorCode.GROUP_ID_NOT_FOUND)
def describe_no_newer_group(scene: Scene) -> int:
    return scene.describes_newer()


@_refused(ApiKey.CONSUMER_GROUP_DESCRIBE, ErrorCode.GROUP_ID_NOT_FOUND)
def describe_a_classic_group_as_newer(scene: Scene) -> int:
    scene.member()
    return scene.describes_newer()


# Before there is a coordinator.


def _before(api: ApiKey) -> Callable[[_Play], _Play]:
    return _refused(api, ErrorCode.NOT_COORDINATOR, BEFORE_THE_TOPIC)


@_before(JOIN)
def early_join(scene: Scene) -> int:
    return int(scene.joins().error_code)


@_before(SYNC)
def early_sync(scene: Scene) -> int:
    return scene.syncs("m", 1)


@_before(BEAT)
def early_beat(scene: Scene) -> int:
    return scene.beats("m", 1)


@_before(LEAVE)
def early_leave(scene: Scene) -> int:
    return scene.leaves("m")


@_before(COMMIT)
def early_commit(scene: Scene) -> int:
    return scene.commits()


@_before(FETCH)
def early_fetch(scene: Scene) -> int:
    return scene.fetches()


@_before(OFFSET_DELETE)
def early_offset_delete(scene: Scene) -> int:
    return scene.deletes_offset()


@_before(ApiKey.DESCRIBE_GROUPS)
def early_describe(scene: Scene) -> int:
    return scene.describes()


@_before(ApiKey.DELETE_GROUPS)
def early_delete(scene: Scene) -> int:
    return scene.deletes()


@_before(NEWER)
def early_newer_join(scene: Scene) -> int:
    return int(scene.joins_newer().error_code)


@_before(ApiKey.CONSUMER_GROUP_DESCRIBE)
def early_newer_describe(scene: Scene) -> int:
    return scene.describes_newer()


@_refused(NEWER, ErrorCode.INVALID_REQUEST, BEFORE_THE_TOPIC)
def early_and_wrong(scene: Scene) -> int:
    """What no group could answer is refused before the coordinator is looked for."""
    return int(scene.heartbeat(-3).error_code)
