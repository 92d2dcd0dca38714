"""A fetch session with one broker: only what changed since the last fetch is sent. No I/O.

The broker remembers the partitions of a session, and where each stands; a consumer of a thousand
quiet partitions then sends and gets next to nothing. `plan` says what to put into the next request,
`accept` or `reset` what came of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from tidemill.client.offsets import ISOLATION_LEVELS
from tidemill.client.settings import ConsumerSettings
from tidemill.errors import ErrorCode
from tidemill.types import TopicPartition
from tidemill.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

NEW_SESSION_EPOCH = 0
CLOSE_EPOCH = -1
EPOCH_MAX = 2**31 - 1

SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)


class Wanted(NamedTuple):
    """What to fetch of one partition."""

    topic_id: UUID
    offset: int
    leader_epoch: int
    max_bytes: int


class Plan(NamedTuple):
    """The session's part of a request."""

    session_id: int
    epoch: int
    send: Mapping[TopicPartition, Wanted]
    forget: Mapping[TopicPartition, UUID]

    @property
    def is_full(self) -> bool:
        return self.epoch == NEW_SESSION_EPOCH


class FetchSession:
    """One per broker connection."""

    __slots__ = ("_epoch", "_id", "_known")

    def __init__(self) -> None:
        self._id = 0
        self._epoch = NEW_SESSION_EPOCH
        self._known: dict[TopicPartition, Wanted] = {}

    @property
    def is_open(self) -> bool:
        return self._id != 0

    @property
    def session_id(self) -> int:
        return self._id

    def plan(self, wanted: Mapping[TopicPartition, Wanted]) -> Plan:
        """What the next request has to say so that the broker fetches exactly `wanted`."""
        for partition, want in wanted.items():
            known = self._known.get(partition)
            if known is not None and known.topic_id != want.topic_id:
                self.reset()  # The topic was created anew: cheaper to start over than to patch.
                break
        if self._epoch == NEW_SESSION_EPOCH:
            self._known = dict(wanted)
            return Plan(self._id, NEW_SESSION_EPOCH, wanted, {})
        send = {p: want for p, want in wanted.items() if self._known.get(p) != want}
        forget = {p: want.topic_id for p, want in self._known.items() if p not in wanted}
        self._known.update(send)
        for partition in forget:
            del self._known[partition]
        return Plan(self._id, self._epoch, send, forget)

    def accept(self, session_id: int) -> None:
        """The request succeeded; the broker may have declined a session (id 0)."""
        if session_id == 0:
            self.reset()
        else:
            self._id = session_id
            self._epoch = 1 if self._epoch >= EPOCH_MAX else self._epoch + 1

    def reset(self) -> None:
        """Start over with a full request."""
        self._id = 0
        self._epoch = NEW_SESSION_EPOCH
        self._known = {}


def fetch_request(plan: Plan, settings: ConsumerSettings, wait_ms: int) -> FetchRequest:
    """A plan in the words of the protocol."""
    topics: dict[str, FetchTopic] = {}
    for (name, index), want in plan.send.items():
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = FetchTopic(topic=name, topic_id=want.topic_id)
        topic.partitions.append(
            FetchPartition(
                partition=index,
                current_leader_epoch=want.leader_epoch,
                fetch_offset=want.offset,
                partition_max_bytes=want.max_bytes,
            )
        )
    forgotten: dict[str, ForgottenTopic] = {}
    for (name, index), topic_id in plan.forget.items():
        gone = forgotten.setdefault(name, ForgottenTopic(topic=name, topic_id=topic_id))
        gone.partitions.append(index)
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=settings.fetch_min_bytes,
        max_bytes=settings.fetch_max_bytes,
        isolation_level=ISOLATION_LEVELS[settings.isolation_level],
        session_id=plan.session_id,
        session_epoch=plan.epoch,
        topics=list(topics.values()),
        forgotten_topics_data=list(forgotten.values()),
        rack_id=settings.client_rack,
    )
