"""A follower's fetch session with one leader: partitions are named once, then only what changed.

It is the follower's side of KIP-227, without I/O. Partitions are known by their topic's id, so one
of a topic that was deleted and created again is another partition (rule A11). `plan` says what to
put into the next request; `accept` or `reset` what came of it.

A plan costs what has changed, not what is followed: of the thousands of partitions that a broker
may follow, few move between two fetches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tidemill.client.fetch_session import EPOCH_MAX, NEW_SESSION_EPOCH
from tidemill.types import TopicId
from tidemill.wire.messages.fetch import FetchPartition, FetchTopic, ForgottenTopic


class TopicIdPartition(NamedTuple):
    """A partition by its topic's id."""

    topic_id: TopicId
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id}-{self.partition}"


class Wanted(NamedTuple):
    """What a follower asks for, and says of itself, for one partition."""

    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int
    high_watermark: int


class ReplicaSession:
    """What the leader remembers of us."""

    __slots__ = ("_epoch", "_id", "_known")

    def __init__(self) -> None:
        self._id = 0
        self._epoch = NEW_SESSION_EPOCH
        self._known: dict[TopicIdPartition, Wanted] = {}

    @property
    def session_id(self) -> int:
        return self._id

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def is_incremental(self) -> bool:
        return self._epoch != NEW_SESSION_EPOCH

    def plan(
        self, wanted: Mapping[TopicIdPartition, Wanted], changed: Iterable[TopicIdPartition]
    ) -> tuple[list[FetchTopic], list[ForgottenTopic]]:
        """What the next request must name so that the leader reads exactly `wanted`.

        `changed` holds every partition that came, went or moved since the last plan.
        """
        if not self.is_incremental:
            self._known = dict(wanted)
            return _topics(wanted.items()), []
        send: list[tuple[TopicIdPartition, Wanted]] = []
        forget: list[TopicIdPartition] = []
        for key in changed:
            want, known = wanted.get(key), self._known.get(key)
            if want is not None and want != known:
                self._known[key] = want
                send.append((key, want))
            elif want is None and known is not None:
                del self._known[key]
                forget.append(key)
        return _topics(send), _forgotten(forget)

    def accept(self, session_id: int) -> None:
        """The request succeeded; the leader may have declined a session (id 0)."""
        self._id = session_id
        if session_id == 0:
            self.reset()
        else:
            self._epoch = 1 if self._epoch >= EPOCH_MAX else self._epoch + 1

    def reset(self) -> None:
        """Start over with a full request. Its id lets the leader drop the session it has."""
        self._epoch = NEW_SESSION_EPOCH
        self._known = {}


def _topics(wanted: Iterable[tuple[TopicIdPartition, Wanted]]) -> list[FetchTopic]:
    topics: dict[TopicId, FetchTopic] = {}
    for (topic_id, index), want in wanted:
        topic = topics.get(topic_id)
        if topic is None:
            topic = topics[topic_id] = FetchTopic(topic_id=topic_id)
        topic.partitions.append(
            FetchPartition(
                partition=index,
                current_leader_epoch=want.leader_epoch,
                fetch_offset=want.fetch_offset,
                last_fetched_epoch=want.last_fetched_epoch,
                log_start_offset=want.log_start_offset,
                partition_max_bytes=want.max_bytes,
                high_watermark=want.high_watermark,
            )
        )
    return list(topics.values())


def _forgotten(keys: Iterable[TopicIdPartition]) -> list[ForgottenTopic]:
    topics: dict[TopicId, ForgottenTopic] = {}
    for topic_id, index in keys:
        topic = topics.get(topic_id)
        if topic is None:
            topic = topics[topic_id] = ForgottenTopic(topic_id=topic_id)
        topic.partitions.append(index)
    return list(topics.values())
