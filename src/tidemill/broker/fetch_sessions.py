"""Incremental fetch sessions (KIP-227): a client names its partitions once, then only what changed.

The broker remembers per session what the client wants from each partition and what it was last
told, and answers only for partitions with something new. `FetchSessions.open` turns a request into
a `FetchContext`: the partitions to read, and how to shape the answer. The number of sessions is
bounded (`max.incremental.fetch.session.cache.slots`), and so is that of the partitions in them,
which need not exist; without a free slot a client simply gets no session and sends full requests,
and one whose session has grown too large loses it. No client takes a follower's slot.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sized
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING
from uuid import UUID

from tidemill.clock import Clock
from tidemill.errors import ErrorCode
from tidemill.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    PartitionData,
)

if TYPE_CHECKING:
    from tidemill.replication.partition import Partition

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
EPOCH_MAX = 2**31 - 1
EVICTABLE_AFTER_MS = 120_000
PARTITIONS_PER_SESSION_MAX = 100_000
PARTITIONS_MAX = 500_000
"""What all clients together may have remembered: some 250 MB."""
SESSION_ID_MAX = 2**31 - 1
TOPIC_IDS_FROM_VERSION = 13

PartitionKey = tuple[str | UUID, int]
"""A topic, by name before version 13 and by id from then on, and a partition's index."""


@dataclass(slots=True)
class Wanted:
    """What a client wants from one partition, and what it was last told about it."""

    key: PartitionKey
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    """Of a follower, where its own log starts."""
    agreed_epoch: int = -1
    """Our leader epoch in which its log was found to agree with ours up to this offset."""
    known_high_watermark: int = 2**63 - 1
    """Of a follower, the high watermark that it knows; it may have missed what it was told."""
    told_high_watermark: int = -1
    told_log_start: int = -1
    partition: Partition | None = None
    """Where it was found last."""

    @staticmethod
    def of(topic: str | UUID, asked: FetchPartition) -> Wanted:
        return Wanted(
            (topic, asked.partition),
            asked.fetch_offset,
            asked.partition_max_bytes,
            asked.current_leader_epoch,
            asked.last_fetched_epoch,
            asked.log_start_offset,
            known_high_watermark=asked.high_watermark,
        )

    def update(self, asked: Wanted) -> None:
        """Take over a newer request for the same partition; what was told stays told."""
        self.fetch_offset = asked.fetch_offset
        self.max_bytes = asked.max_bytes
        self.current_leader_epoch = asked.current_leader_epoch
        self.last_fetched_epoch = asked.last_fetched_epoch
        self.log_start_offset = asked.log_start_offset
        self.agreed_epoch = -1
        self.told_high_watermark = min(self.told_high_watermark, asked.known_high_watermark)

    def has_nothing_new(self, partition: Partition) -> bool:
        """Whether a session's answer would leave the partition out, seen without reading it.

        A consumer of ten thousand partitions asks this ten thousand times per fetch, mostly in
        vain: it has to be cheap. `partition` is where it was found last; one that was deleted
        leads no more.
        """
        end = partition.high_watermark
        return (
            self.fetch_offset == end
            and self.told_high_watermark == end
            and partition.is_leader
            and self.told_log_start == partition.log.log_start_offset
            and self.current_leader_epoch in (-1, partition.leader_epoch)
            and self.last_fetched_epoch < 0
        )

    def has_nothing_new_to_copy(self, partition: Partition) -> bool:
        """The same for a follower, which reads to the log's end."""
        log = partition.log
        return (
            self.fetch_offset == log.log_end_offset
            and self.told_high_watermark == partition.high_watermark
            and partition.is_leader
            and self.agreed_epoch == self.current_leader_epoch == partition.leader_epoch
            and self.told_log_start == log.log_start_offset
        )

    def knows_bounds_of(self, partition: Partition) -> bool:
        """Whether the client was told what is committed, and where the log starts."""
        return (
            self.told_high_watermark == partition.high_watermark
            and self.told_log_start == partition.log.log_start_offset
        )

    def is_news(self, data: PartitionData) -> bool:
        """Whether the client does not know this yet; remembers that it does from now on."""
        news = (
            data.error_code != 0
            or bool(data.records)
            or data.high_watermark != self.told_high_watermark
            or data.log_start_offset != self.told_log_start
            or data.diverging_epoch is not None
            or data.preferred_read_replica != -1
        )
        self.told_high_watermark = data.high_watermark if data.error_code == 0 else -1
        self.told_log_start = data.log_start_offset
        return news


class FetchSession:
    """The partitions of one client, in the order in which they are read."""

    __slots__ = (
        "by_topic_id",
        "created_ms",
        "epoch",
        "is_replica",
        "session_id",
        "used_ms",
        "wanted",
    )

    def __init__(
        self, session_id: int, by_topic_id: bool, now_ms: int, *, is_replica: bool = False
    ) -> None:
        self.session_id = session_id
        self.by_topic_id = by_topic_id
        self.is_replica = is_replica
        self.epoch = next_epoch(INITIAL_EPOCH)
        self.created_ms = now_ms
        self.used_ms = now_ms
        self.wanted: OrderedDict[PartitionKey, Wanted] = OrderedDict()

    def update(self, asked: Iterable[Wanted], forgotten: Iterable[PartitionKey]) -> None:
        for want in asked:
            known = self.wanted.get(want.key)
            if known is None:
                self.wanted[want.key] = want
            else:
                known.update(want)
        for key in forgotten:
            self.wanted.pop(key, None)


@dataclass(slots=True)
class FetchContext:
    """One fetch request, as far as sessions matter to it.

    `session` is None for a request without one, and for the first request of a session that the
    answer will open (`opens`).
    """

    wanted: list[Wanted]
    session: FetchSession | None = None
    opens: bool = False
    is_replica: bool = False
    error: ErrorCode = ErrorCode.NONE

    @property
    def is_incremental(self) -> bool:
        return self.session is not None


class FetchSessions:
    """All sessions of a broker, least recently used first."""

    def __init__(self, slots: int, clock: Clock, random: Random) -> None:
        self._slots = slots
        self._clock = clock
        self._random = random
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def open(
        self, request: FetchRequest, version: int, *, is_replica: bool = False
    ) -> FetchContext:
        """The context of a request: sessionless, opening a session, or within one."""
        by_topic_id = version >= TOPIC_IDS_FROM_VERSION
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._sessions.pop(request.session_id, None)
            opens = request.session_epoch == INITIAL_EPOCH
            return FetchContext(_asked(request, by_topic_id), opens=opens, is_replica=is_replica)
        session = self._sessions.get(request.session_id)
        if session is None or session.is_replica != is_replica:
            return FetchContext([], error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            return FetchContext([], error=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.by_topic_id != by_topic_id:
            return FetchContext([], error=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        return self._continue(session, request, by_topic_id)

    def _continue(
        self, session: FetchSession, request: FetchRequest, by_topic_id: bool
    ) -> FetchContext:
        partitions = len(session.wanted)
        session.update(_asked(request, by_topic_id), _forgotten(request, by_topic_id))
        if not session.wanted:
            del self._sessions[session.session_id]
            return FetchContext([])
        if len(session.wanted) > partitions and not self._may_hold(session.wanted, session):
            # The client begins anew, and is served without a session.
            self._sessions.pop(session.session_id, None)
            return FetchContext([], error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        session.epoch = next_epoch(session.epoch)
        session.used_ms = self._clock.monotonic_ms()
        self._sessions.move_to_end(session.session_id)
        return FetchContext(list(session.wanted.values()), session)

    def answer(
        self, context: FetchContext, data: list[tuple[Wanted, PartitionData]], version: int
    ) -> tuple[int, list[tuple[Wanted, PartitionData]]]:
        """The session id to answer with, and the partitions that belong in the answer."""
        if context.opens:
            return self._begin(context, data, version), data
        session = context.session
        if session is None:
            return NO_SESSION, data
        news = [(want, answer) for want, answer in data if want.is_news(answer)]
        for want, answer in news:
            # What had data goes to the back, so that under a tight limit all get their turn.
            if answer.records and want.key in session.wanted:
                session.wanted.move_to_end(want.key)
        return session.session_id, news

    def _begin(
        self, context: FetchContext, data: list[tuple[Wanted, PartitionData]], version: int
    ) -> int:
        if not self._may_hold(context.wanted, context):
            return NO_SESSION
        if not self._free_slot(len(context.wanted), context.is_replica):
            return NO_SESSION
        now_ms = self._clock.monotonic_ms()
        session = FetchSession(
            self._new_id(),
            version >= TOPIC_IDS_FROM_VERSION,
            now_ms,
            is_replica=context.is_replica,
        )
        session.update(context.wanted, ())
        for want, answer in data:
            want.is_news(answer)
        self._sessions[session.session_id] = session
        return session.session_id

    def _may_hold(self, wanted: Sized, whose: FetchSession | FetchContext) -> bool:
        """Whether so many partitions may be remembered, at the cost of sessions that are stale."""
        if whose.is_replica:
            return True
        if len(wanted) > PARTITIONS_PER_SESSION_MAX:
            return False
        others = [each for each in self._sessions.values() if each is not whose]
        clients = [each for each in others if not each.is_replica]
        excess = sum(len(each.wanted) for each in clients) + len(wanted) - PARTITIONS_MAX
        now_ms = self._clock.monotonic_ms()
        for session in clients:
            if excess <= 0 or now_ms - session.used_ms <= EVICTABLE_AFTER_MS:
                break
            del self._sessions[session.session_id]
            excess -= len(session.wanted)
        return excess <= 0

    def _free_slot(self, partitions: int, is_replica: bool) -> bool:
        """Make room for a session with that many partitions, at the cost of one that is stale, or
        old and smaller; for a follower's at the cost of any client's."""
        if len(self._sessions) < self._slots:
            return True
        now_ms = self._clock.monotonic_ms()
        clients = [
            session
            for session in self._sessions.values()
            if not session.is_replica or now_ms - session.used_ms > EVICTABLE_AFTER_MS
        ]
        doomed = next(iter(clients), None)
        if doomed is None:
            return False
        if not is_replica and now_ms - doomed.used_ms <= EVICTABLE_AFTER_MS:
            smaller = [
                session
                for session in clients
                if now_ms - session.created_ms > EVICTABLE_AFTER_MS
                and len(session.wanted) < partitions
            ]
            doomed = min(smaller, key=lambda session: len(session.wanted), default=None)
        if doomed is None:
            return False
        del self._sessions[doomed.session_id]
        return True

    def _new_id(self) -> int:
        while True:
            session_id = self._random.randint(1, SESSION_ID_MAX)
            if session_id not in self._sessions:
                return session_id


def next_epoch(epoch: int) -> int:
    """The epoch after `epoch`; it wraps round to 1, since 0 opens a session."""
    return 1 if epoch == EPOCH_MAX else epoch + 1


def _asked(request: FetchRequest, by_topic_id: bool) -> list[Wanted]:
    """The partitions that the request names; of one named twice, the last word counts."""
    wanted: dict[PartitionKey, Wanted] = {}
    for topic in request.topics:
        name = topic.topic_id if by_topic_id else topic.topic
        for partition in topic.partitions:
            want = Wanted.of(name, partition)
            wanted[want.key] = want
    return list(wanted.values())


def _forgotten(request: FetchRequest, by_topic_id: bool) -> list[PartitionKey]:
    return [
        (topic.topic_id if by_topic_id else topic.topic, partition)
        for topic in request.forgotten_topics_data
        for partition in topic.partitions
    ]
