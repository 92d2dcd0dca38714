"""One leader's partitions that this broker follows: what to fetch next, and what an answer means.

`FollowerFetcher` is the core of replication on the follower's side, without any I/O. A driver asks
it for the next request, sends that, gives it the answer, and does the steps that come back, in
order and at once, before anything else can happen to those logs: append, cut, ask for the range of
the leader's log. How a step ended is reported, and then the partition is fetched again. There is
one request under way at a time.

    request = fetcher.next_request(now_ms)
    for step in fetcher.take(response, now_ms):
        ...

Each partition is in one of the states of `Status`. Trouble with one never stops the others (rule
D9), and an answer counts only if the partition is still where it was when it was asked (rule D4).
Under flush policy `ack` a partition rests until its log is flushed: what a fetch asks for is also
what it acknowledges (rule E7). `unflushed` names those that wait for that.

A request costs what has changed since the last one. Everything that happens to a partition here
puts it among `_unsure`, and there it stays until it is ready to be fetched again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from tidemill.client.fetch_session import SESSION_ERRORS
from tidemill.errors import ApiError, ErrorCode
from tidemill.invariant import InvariantError, invariant
from tidemill.replication.alignment import (
    Fetch,
    StartOver,
    TruncateTo,
    after_divergence,
    after_range,
    begin,
)
from tidemill.replication.copying import Fetched, ReplicaCopy, whole_batches
from tidemill.replication.session import ReplicaSession, TopicIdPartition, Wanted
from tidemill.storage.disk_errors import DiskError
from tidemill.types import BrokerEpoch, BrokerId, LeaderEpoch
from tidemill.wire.messages.fetch import (
    FetchRequest,
    FetchResponse,
    PartitionData,
    ReplicaState,
)

_DOUBLINGS_MAX = 20


@dataclass(frozen=True, slots=True)
class FollowerSettings:
    """How much a follower asks for, and how long it rests after trouble; `replica.fetch.*`."""

    max_wait_ms: int = 500
    min_bytes: int = 1
    partition_max_bytes: int = 1 << 20
    response_max_bytes: int = 10 << 20
    backoff_ms: int = 1000
    first_backoff_ms: int = 1000
    """The rest after a first error; each further one of the partition doubles it."""


class Status(Enum):
    """What a followed partition is waiting for."""

    FETCHING = auto()
    """Its turn in the next request."""
    TRUNCATING = auto()
    """A step that was handed out: a cut, or the question how far the leader's log reaches."""
    DELAYED = auto()
    """Some time, after trouble that may end by itself."""
    RESTING = auto()
    """Some time, for the throttle's sake."""
    FENCED = auto()
    """Newer metadata: the leader has a newer epoch than we know (rule A6)."""
    FAILED = auto()
    """Somebody to look at it; it is not fetched in this epoch any more."""


_PASSING = frozenset({Status.FETCHING, Status.DELAYED, Status.RESTING})
"""What ends by itself, in time."""


@dataclass(frozen=True, slots=True)
class Append:
    """Append these batches, then follow what the leader says of its own log."""

    key: TopicIdPartition
    fetched: Fetched
    high_watermark: int
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class Advance:
    """No new records, but the leader's high watermark or log start may have moved."""

    key: TopicIdPartition
    high_watermark: int
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class Cut:
    """Cut the log, then call `cut_done`."""

    key: TopicIdPartition
    leader_epoch: LeaderEpoch
    decision: TruncateTo | StartOver


@dataclass(frozen=True, slots=True)
class FindRange:
    """Ask the leader for the first and the next offset of its log, then call `range_found`."""

    key: TopicIdPartition
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class Trouble:
    """A partition cannot go on, for a while or (`status`) for longer; to be logged and counted."""

    key: TopicIdPartition
    status: Status
    error: ApiError | InvariantError


class DefectError(ApiError):
    """An exception that nobody has foreseen: a mistake of ours, in one partition."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(ErrorCode.UNKNOWN_SERVER_ERROR, repr(cause))
        self.__cause__ = cause


Step = Append | Advance | Cut | FindRange | Trouble


class FollowedPartition:
    """One partition in one leader epoch."""

    __slots__ = ("errors", "key", "leader_epoch", "owes_cut", "ready_at_ms", "replica", "status")

    def __init__(
        self, key: TopicIdPartition, replica: ReplicaCopy, leader_epoch: LeaderEpoch
    ) -> None:
        self.key = key
        self.replica = replica
        self.leader_epoch = leader_epoch
        self.status = Status.FETCHING
        self.ready_at_ms = 0
        self.errors = 0
        """How many there were in a row."""
        self.owes_cut = False
        """Whether the cut that comes before the first fetch is still to be made."""

    def is_due(self, now_ms: int) -> bool:
        """Whether it need not wait any more; the end of a delay is noticed here."""
        if self.status in (Status.DELAYED, Status.RESTING) and now_ms >= self.ready_at_ms:
            self.status = Status.FETCHING
        return self.status in (Status.FETCHING, Status.TRUNCATING)

    def is_ready(self, now_ms: int) -> bool:
        """Whether it can be fetched now."""
        is_fetching = self.is_due(now_ms) and self.status is Status.FETCHING
        return is_fetching and self.replica.is_settled and not self.owes_cut

    def wanted(self, max_bytes: int) -> Wanted:
        log = self.replica.log
        return Wanted(
            self.leader_epoch,
            log.log_end_offset,
            log.leader_epochs.latest,
            log.log_start_offset,
            max_bytes,
            self.replica.high_watermark,
        )

    def is_where(self, asked: Wanted) -> bool:
        """Whether nothing has happened to it since this was asked (rule D4)."""
        return (
            self.status is Status.FETCHING
            and self.leader_epoch == asked.leader_epoch
            and self.replica.log.log_end_offset == asked.fetch_offset
        )


class FollowerFetcher:
    """Everything that this broker follows from one leader."""

    def __init__(
        self,
        broker_id: BrokerId,
        broker_epoch: BrokerEpoch,
        settings: FollowerSettings,
        *,
        cluster_id: str | None = None,
    ) -> None:
        self.settings = settings
        self.broker_epoch = broker_epoch
        self._cluster_id = cluster_id
        self._broker_id = broker_id
        self._session = ReplicaSession()
        self._partitions: dict[TopicIdPartition, FollowedPartition] = {}
        self._wanted: dict[TopicIdPartition, Wanted] = {}
        """What is asked for, in that order; it changes only when a request is made."""
        self._unsure: dict[TopicIdPartition, None] = {}
        """Partitions to look at again before the next request."""
        self._unplanned: dict[TopicIdPartition, None] = {}
        """Partitions whose entry in `_wanted` came, went or moved since the last request."""
        self._resting_until_ms = 0
        self.is_asking = False

    def __len__(self) -> int:
        return len(self._partitions)

    def __iter__(self) -> Iterator[FollowedPartition]:
        return iter(self._partitions.values())

    def get(self, key: TopicIdPartition) -> FollowedPartition | None:
        return self._partitions.get(key)

    # Which partitions.

    def follow(
        self, key: TopicIdPartition, replica: ReplicaCopy, leader_epoch: LeaderEpoch
    ) -> list[Step]:
        """Follow a partition in this epoch; what has to be done before its first fetch.

        A new epoch starts all over even under the same leader: the log may have to be cut after
        every election that we did not see (rule A8). Old news is ignored (rule A1).
        """
        known = self._partitions.get(key)
        if known is not None and known.leader_epoch >= leader_epoch:
            return []
        state = self._partitions[key] = FollowedPartition(key, replica, leader_epoch)
        self.touch(key)
        decision = begin(replica.log, replica.high_watermark)
        if isinstance(decision, Fetch):
            return []
        state.owes_cut = True
        return [self._cut(state, decision)]

    def unfollow(self, key: TopicIdPartition) -> None:
        if self._partitions.pop(key, None) is not None:
            self.touch(key)

    def touch(self, key: TopicIdPartition) -> None:
        """Look at the partition again: its settings or its log were changed by somebody else."""
        self._unsure[key] = None

    def rest(self, key: TopicIdPartition, until_ms: int) -> None:
        """Leave the partition alone until then, instead of until another time that was set before.

        For one that has trouble nothing changes.
        """
        state = self._partitions.get(key)
        if state is not None and state.status in (Status.FETCHING, Status.RESTING):
            self.touch(key)
            state.status = Status.RESTING
            state.ready_at_ms = until_ms

    def unflushed(self) -> list[TopicIdPartition]:
        """Partitions that cannot be fetched before their log is flushed (rule E7)."""
        return [
            state.key
            for state in self._unsure_states()
            if state.status is not Status.FAILED and not state.replica.is_settled
        ]

    def _unsure_states(self) -> Iterator[FollowedPartition]:
        for key in self._unsure:
            state = self._partitions.get(key)
            if state is not None:
                yield state

    # Asking.

    def next_request(self, now_ms: int) -> FetchRequest | None:
        """The next fetch, or None while no partition can be fetched; see `ready_at_ms`."""
        invariant(not self.is_asking, "one fetch at a time")
        if now_ms < self._resting_until_ms:
            return None
        for key in list(self._unsure):
            self._look_at(key, now_ms)
        if not self._wanted:
            return None
        self.is_asking = True
        return self._request()

    def _look_at(self, key: TopicIdPartition, now_ms: int) -> None:
        """Put the partition among the wanted if it is ready, at the end: others had less."""
        state = self._partitions.get(key)
        before = self._wanted.pop(key, None)
        is_ready = state is not None and state.is_ready(now_ms)
        if state is not None and is_ready:
            self._wanted[key] = state.wanted(self.settings.partition_max_bytes)
        if state is None or is_ready:
            del self._unsure[key]
        if before != self._wanted.get(key):
            self._unplanned[key] = None

    def ready_at_ms(self, now_ms: int) -> int | None:
        """When a delay ends at the earliest; None if only events can make a partition ready."""
        times = [
            state.ready_at_ms
            for state in self._unsure_states()
            if state.status in _PASSING and state.replica.is_settled
        ]
        if len(self._wanted) > sum(key in self._wanted for key in self._unsure):
            times.append(now_ms)
        return max(now_ms, min(times), self._resting_until_ms) if times else None

    def _request(self) -> FetchRequest:
        settings, session = self.settings, self._session
        topics, forgotten = session.plan(self._wanted, self._unplanned)
        self._unplanned.clear()
        return FetchRequest(
            cluster_id=self._cluster_id,
            replica_state=ReplicaState(replica_id=self._broker_id, replica_epoch=self.broker_epoch),
            max_wait_ms=settings.max_wait_ms,
            min_bytes=settings.min_bytes,
            max_bytes=settings.response_max_bytes,
            session_id=session.session_id,
            session_epoch=session.epoch,
            topics=topics,
            forgotten_topics_data=forgotten,
        )

    # Answers.

    def request_failed(self, now_ms: int) -> None:
        """The round is over without an answer, or without all that it asked for. Rest, and go on.

        Nobody does any more what was handed out: whoever waits for that is fetched again, and told
        again what to do.
        """
        self.is_asking = False
        self._session.reset()
        self._resting_until_ms = now_ms + self.settings.backoff_ms
        for state in self._unsure_states():
            if state.status is Status.TRUNCATING:
                state.status = Status.DELAYED
                state.ready_at_ms = self._resting_until_ms

    def take(self, response: FetchResponse, now_ms: int) -> list[Step]:
        """What the answer to the request under way asks us to do, in this order."""
        invariant(self.is_asking, "an answer needs a question")
        self.is_asking = False
        if response.error_code:
            self._refused(code_of(response.error_code), now_ms)
            return []
        self._session.accept(response.session_id)
        steps: dict[TopicIdPartition, Step] = {}
        for topic in response.responses:
            for data in topic.partitions:
                key = TopicIdPartition(topic.topic_id, data.partition_index)
                state, asked = self._partitions.get(key), self._wanted.get(key)
                if state is None or asked is None or key in steps or not state.is_where(asked):
                    continue
                self.touch(key)
                try:
                    steps[key] = self._take_one(state, data, now_ms)
                except Exception as error:  # noqa: BLE001 - it is reported; others have their steps
                    steps[key] = self._delay(state, DefectError(error), now_ms)
        return list(steps.values())

    def _refused(self, code: ErrorCode, now_ms: int) -> None:
        """The whole request failed. A lost session is opened again at once, but not for ever."""
        was_incremental = self._session.is_incremental
        self._session.reset()
        if code not in SESSION_ERRORS or not was_incremental:
            self._resting_until_ms = now_ms + self.settings.backoff_ms

    def _take_one(self, state: FollowedPartition, data: PartitionData, now_ms: int) -> Step:
        if data.error_code:
            return self._take_error(state, code_of(data.error_code), now_ms)
        if data.diverging_epoch is not None:
            # Whatever else it says is about a log that is not ours yet (rules B4 and D5).
            return self._diverged(
                state, data.diverging_epoch.epoch, data.diverging_epoch.end_offset, now_ms
            )
        try:
            return self._take_records(state, data)
        except ApiError as error:
            return self._delay(state, error, now_ms)
        except InvariantError as error:
            return self._fail(state, error)

    def _take_records(self, state: FollowedPartition, data: PartitionData) -> Step:
        log = state.replica.log
        if data.log_start_offset >= log.log_end_offset > log.log_start_offset:
            # The leader has deleted all that we have, so nobody can tell any more whether it was
            # the same. It must not come back if a crash makes us forget where the log starts.
            return self._cut(state, StartOver(data.log_start_offset))
        if not data.records:
            state.errors = 0
            return Advance(state.key, data.high_watermark, data.log_start_offset)
        fetched = whole_batches(log, memoryview(data.records), state.leader_epoch)
        if fetched is None:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "records of a term yet to come")
        state.errors = 0
        return Append(state.key, fetched, data.high_watermark, data.log_start_offset)

    def _diverged(self, state: FollowedPartition, epoch: int, end_offset: int, now_ms: int) -> Step:
        decision = after_divergence(state.replica.log, epoch, end_offset)
        if decision is None:
            return self._delay(
                state,
                ApiError(
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                    f"the leader says that epoch {epoch} ended at {end_offset}, and so it does",
                ),
                now_ms,
            )
        return self._cut(state, decision)

    def _take_error(self, state: FollowedPartition, code: ErrorCode, now_ms: int) -> Step:
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            state.status = Status.TRUNCATING
            return FindRange(state.key, state.leader_epoch)
        if code is ErrorCode.FENCED_LEADER_EPOCH:
            state.status = Status.FENCED
            return Trouble(state.key, state.status, ApiError(code))
        # A leader that does not know our epoch yet will, and one that leads no more was replaced:
        # both end with news that is on its way (rule A6). The rest may end by itself.
        return self._delay(state, ApiError(code), now_ms)

    # How steps ended.

    def write_failed(self, key: TopicIdPartition, error: Exception, now_ms: int) -> Trouble | None:
        """A step raised. Bad bytes and a full disk may end (D9), a broken log will not.

        Nor may a defect of ours, but it is tried again, as rarely as anything: whoever is not
        fetched any more has no way back before the next election.
        """
        state = self._partitions.get(key)
        if state is None:
            return None
        if isinstance(error, InvariantError) or (isinstance(error, ApiError) and _is_final(error)):
            return self._fail(state, error)
        state.errors = _DOUBLINGS_MAX  # The same bytes again would not help so soon.
        told = error if isinstance(error, ApiError) else DefectError(error)
        return self._delay(state, told, now_ms)

    def cut_done(self, key: TopicIdPartition, leader_epoch: LeaderEpoch) -> None:
        """The cut that was decided in this epoch is made: fetch on."""
        state = self._partitions.get(key)
        if state is None or state.leader_epoch != leader_epoch:
            return
        state.owes_cut = False
        if state.status is Status.TRUNCATING:
            state.status = Status.FETCHING

    def range_found(
        self,
        key: TopicIdPartition,
        leader_epoch: LeaderEpoch,
        leader_start: int,
        leader_end: int,
        now_ms: int,
    ) -> Step | None:
        """The leader's log is [start, end): see whether to cut, to start over or to retry (D7)."""
        state = self._in_truncation(key, leader_epoch)
        if state is None:
            return None
        decision = after_range(state.replica.log, leader_start, leader_end)
        if isinstance(decision, Fetch):
            return self._delay(state, ApiError(ErrorCode.OFFSET_OUT_OF_RANGE), now_ms)
        return self._cut(state, decision)

    def range_not_found(
        self, key: TopicIdPartition, leader_epoch: LeaderEpoch, code: ErrorCode, now_ms: int
    ) -> Step | None:
        """The leader did not say. Nothing is cut on a guess: the fetch is tried again (D7)."""
        state = self._in_truncation(key, leader_epoch)
        if state is None:
            return None
        if code is ErrorCode.FENCED_LEADER_EPOCH:
            state.status = Status.FENCED
            return Trouble(key, state.status, ApiError(code))
        return self._delay(state, ApiError(code), now_ms)

    def _in_truncation(
        self, key: TopicIdPartition, leader_epoch: LeaderEpoch
    ) -> FollowedPartition | None:
        """The partition, if it still waits for that in the same epoch (rule D4)."""
        state = self._partitions.get(key)
        if state is None or state.leader_epoch != leader_epoch:
            return None
        return state if state.status is Status.TRUNCATING else None

    def _cut(self, state: FollowedPartition, decision: TruncateTo | StartOver) -> Cut:
        state.status = Status.TRUNCATING
        return Cut(state.key, state.leader_epoch, decision)

    def _delay(self, state: FollowedPartition, error: ApiError, now_ms: int) -> Trouble:
        self.touch(state.key)
        state.status = Status.DELAYED
        doubled_ms = self.settings.first_backoff_ms << min(state.errors, _DOUBLINGS_MAX)
        state.ready_at_ms = now_ms + min(doubled_ms, self.settings.backoff_ms)
        state.errors += 1
        return Trouble(state.key, state.status, error)

    def _fail(self, state: FollowedPartition, error: ApiError | InvariantError) -> Trouble:
        self.touch(state.key)
        state.status = Status.FAILED
        return Trouble(state.key, state.status, error)


def code_of(number: int) -> ErrorCode:
    """A leader's error code; it may be of a newer release than ours."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def _is_final(error: ApiError) -> bool:
    """Whether the log itself can no longer be written; a full disk or bad bytes may end."""
    if isinstance(error, DiskError):
        return error.takes_dir_offline
    return error.code is not ErrorCode.CORRUPT_MESSAGE
