"""A stage for requests to groups that are refused, and where the refusals are gathered.

A refusal is a function of a `Scene`: it brings a group into the state that the error needs, asks
the question that must be refused, and returns the code of the answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

from tests.reference.answers import create, known_id
from tests.reference.group_steps import Line, Stage, joining, leaving
from tests.reference.pair import Peer

from tidemill.errors import ErrorCode
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

Play = Callable[[Scene], int]


def refused(
    api: ApiKey, code: ErrorCode, into: list[Refusal] | None = None
) -> Callable[[Play], Play]:
    def add(play: Play) -> Play:
        (REFUSALS if into is None else into).append(Refusal(api, code, play))
        return play

    return add


def wants(topic: str) -> dict[str, bytes]:
    """The metadata of a consumer that subscribes to one topic, in its first version."""
    name = topic.encode()
    data = b"\0\0\0\0\0\1" + len(name).to_bytes(2, "big") + name + b"\xff\xff\xff\xff"
    return {"range": data}
