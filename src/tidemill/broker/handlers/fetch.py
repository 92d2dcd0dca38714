"""Fetch: v4-18.

Behaviour: consumers read below the high watermark, with isolation level 1 below the last stable
offset. Whole stored batches come back, from the one that holds the wanted offset on; the first one
comes even if it is larger than every limit, so a consumer always gets on. A fetch that finds less
than `min_bytes` waits up to `max_wait_ms` for more. Sessions (KIP-227) answer with news only.

Followers fetch by the same API, on a connection that has proved the cluster's secret; anybody else
who fetches in the name of a replica is refused (CVE-2018-1288). They read to the log's end, and
what they ask for says what they have.

Version notes: v7 sessions; v9 leader epoch fencing (KIP-320); v11 rack: a consumer may read from a
follower, and is sent to one near it (KIP-392); v12 diverging epoch (KIP-595); v13 topic ids
(KIP-516); v15 the follower's broker epoch (KIP-903); v16 current leader (KIP-951).

Deviations: one partition's share of an answer is at most `SLICE_BYTES_MAX`, whatever the request
allows, so that a slow reader seldom outlives the files that it is sent; the rest comes with the
next fetch, and no answer waits for it. A new leader that does not know yet what is committed
answers OFFSET_NOT_AVAILABLE to a consumer that is ahead of it.
"""

from __future__ import annotations

import logging
from uuid import UUID

from tidemill.broker.context import Broker
from tidemill.broker.deferred import Deferred
from tidemill.broker.dispatch import RequestContext, handles
from tidemill.broker.fetch_sessions import FetchContext, Wanted
from tidemill.broker.handlers.fetch_reads import (
    NEWS_WAIT_MS,
    ConsumerReads,
    Reads,
    ReplicaReads,
)
from tidemill.broker.handlers.leader_hints import node_of, partition_image
from tidemill.broker.purgatory import Wait
from tidemill.errors import ApiError, ErrorCode, WireError
from tidemill.replication.alignment import diverging
from tidemill.replication.partition import READ_COMMITTED, Partition
from tidemill.storage.slice import SOUGHT_BYTES_MAX, LogSlice
from tidemill.wire.apis import ApiKey
from tidemill.wire.encoder import UNCOPIED_BYTES_MIN
from tidemill.wire.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ReplicaState,
)

_log = logging.getLogger(__name__)

SLICE_BYTES_MAX = 8 * 1024 * 1024
EAGER_BYTES_MAX = 64 * 1024
"""Records up to this size are read while the answer is built; larger ones while it is sent."""
EAGER_BYTES_TOTAL_MAX = 512 * 1024
"""And so are those of all partitions beyond this sum: an answer waits in memory for its reader."""
COLD_BYTES_MAX = SOUGHT_BYTES_MAX
"""What has to be looked for on the disk is read up to this sum before the answer is built: a disk
that fails is worth an error code then, and not only the end of the connection."""

_PARTITION_BYTES = 512
"""What one partition of a fetch that waits takes."""

_LEADER_HINT_FROM_VERSION = 16

Answers = list[tuple[Wanted, PartitionData]]


class StoredRecords:
    """The records of one partition in an answer: where they are, until they are sent."""

    __slots__ = ("_size_bytes", "pieces")

    def __init__(self, stored: LogSlice) -> None:
        self._size_bytes = stored.size_bytes
        self.pieces = stored.pieces

    def __len__(self) -> int:
        return self._size_bytes


Found = bytes | StoredRecords | Exception
"""What came of looking for cold records."""


@handles(ApiKey.FETCH, 4, 18)
def fetch(
    broker: Broker, context: RequestContext, request: FetchRequest
) -> FetchResponse | Deferred[FetchResponse]:
    replica = request.replica_state or ReplicaState(replica_id=request.replica_id)
    reads: Reads
    if replica.replica_id < 0:
        reads = ConsumerReads(broker, context, request)
    elif replica.replica_id == context.peer_id:
        reads = ReplicaReads(broker, replica.replica_id, replica.replica_epoch)
    else:
        return _refuse_replica(request)
    session = broker.fetch_sessions.open(request, context.version, is_replica=reads.is_replica)
    if session.error is not ErrorCode.NONE:
        return FetchResponse(error_code=int(session.error))
    return FetchJob(broker, context, request, session, reads).start()


def _refuse_replica(request: FetchRequest) -> FetchResponse:
    code = int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    topics = [
        FetchableTopicResponse(
            topic=topic.topic,
            topic_id=topic.topic_id,
            partitions=[_failed(asked.partition, code) for asked in topic.partitions],
        )
        for topic in request.topics
    ]
    return FetchResponse(error_code=code, responses=topics)


def _failed(index: int, code: int) -> PartitionData:
    return PartitionData(
        partition_index=index,
        error_code=code,
        high_watermark=-1,
        aborted_transactions=[],
        records=b"",
    )


class FetchJob:
    """One fetch request from the first look at the log to its answer."""

    def __init__(
        self,
        broker: Broker,
        context: RequestContext,
        request: FetchRequest,
        session: FetchContext,
        reads: Reads,
    ) -> None:
        self._broker = broker
        self._reads = reads
        self._version = context.version
        self._listener = context.listener
        self._session = session
        self._isolation_level = request.isolation_level
        self._max_wait_ms = request.max_wait_ms
        limit_bytes = broker.config.int("fetch.max.bytes")
        self._max_bytes = min(request.max_bytes, limit_bytes)
        self._min_bytes = min(request.min_bytes, limit_bytes)
        self._targets: list[tuple[Wanted, Partition | ErrorCode]] = []
        self._watched: dict[Partition, Wanted] = {}
        self._readable_bytes: dict[Partition, int] = {}
        self._has_answer = False
        """Whether something must be told that does not get better by waiting."""
        self._has_news = False
        self._is_last_look = request.max_wait_ms <= 0
        self._eager_left_bytes = 0
        self._cold: list[tuple[PartitionData, LogSlice]] = []
        self._named_leaders: set[int] = set()
        self._deferred: Deferred[FetchResponse] | None = None
        self._wait: Wait | None = None

    def _find_targets(self) -> None:
        """Find the partitions that the answer may have to speak of, and those to watch."""
        self._targets = targets = []
        self._watched = watched = {}
        is_incremental = self._session.is_incremental
        for want in self._session.wanted:
            known = want.partition
            if is_incremental and known is not None and self._reads.is_quiet(want, known):
                watched[known] = want
                continue
            target = self._resolve(want)
            targets.append((want, target))
            if isinstance(target, ErrorCode):
                want.partition = None
            else:
                want.partition = target
                watched[target] = want

    def _resolve(self, want: Wanted) -> Partition | ErrorCode:
        topic, index = want.key
        replicas = self._broker.replicas
        if isinstance(topic, UUID):
            partition = replicas.get_by_id(topic, index)
            if partition is None and topic not in self._broker.image.topic_names:
                return ErrorCode.UNKNOWN_TOPIC_ID
        else:
            partition = replicas.get(topic, index)
        return replicas.why_missing(topic, index) if partition is None else partition

    def start(self) -> FetchResponse | Deferred[FetchResponse]:
        """Answer at once if there is enough to say, else wait for more."""
        answers = self._read_all()
        if self._must_answer_now():
            if not self._cold:
                return self._response(answers)
            self._deferred = Deferred(held_bytes=self._held_bytes())
            self._read_cold(answers)
            return self._deferred
        self._deferred = Deferred(on_abandoned=self._abandon, held_bytes=self._held_bytes())
        self._wait = self._broker.purgatory.watch(
            self,
            self._watched,
            self._reads.wait_ms(self._max_wait_ms, self._has_news),
            is_replica=self._reads.is_replica,
        )
        return self._deferred

    def _held_bytes(self) -> int:
        cold_bytes = COLD_BYTES_MAX if self._cold else 0
        return _PARTITION_BYTES * len(self._session.wanted) + cold_bytes

    def _must_answer_now(self) -> bool:
        return (
            self._max_wait_ms <= 0
            or self._has_answer
            or sum(self._readable_bytes.values()) >= self._min_bytes
            or not self._watched
        )

    # Waiting (`purgatory.Waiter`).

    def moved(self, partition: Partition) -> bool:
        """Whether what the partition gained is enough to answer, counting all partitions."""
        want = self._watched[partition]
        try:
            self._reads.check(want, partition)
            if self._reads.readable_end(partition) <= want.fetch_offset:
                self._hurry(want, partition)
                return False
            if self._min_bytes <= 1:
                return True
            max_bytes = min(want.max_bytes, SLICE_BYTES_MAX)
            found = self._reads.read(want, partition, max_bytes, at_least_one=True)
            if found.falls_short_of(want.max_bytes):
                return True
        except Exception:  # noqa: BLE001 - whatever is wrong with it is worth an answer now
            return True
        self._readable_bytes[partition] = found.size_bytes
        return sum(self._readable_bytes.values()) >= self._min_bytes

    def _hurry(self, want: Wanted, partition: Partition) -> None:
        """A follower is told soon what is committed, and what was deleted, but not without the
        records that may come."""
        is_news = self._reads.is_replica and not want.knows_bounds_of(partition)
        if is_news and not self._has_news and self._wait is not None:
            self._has_news = True
            self._broker.timers.schedule(NEWS_WAIT_MS, self._wait.end)

    def finish(self) -> None:
        assert self._deferred is not None
        self._is_last_look = True
        answers = self._read_all()
        if self._cold:
            self._read_cold(answers)
        else:
            self._deferred.complete(self._response(answers))

    def fail(self, error: Exception) -> None:
        assert self._deferred is not None
        self._deferred.fail(error)

    def _abandon(self) -> None:
        if self._wait is not None:
            self._wait.cancel()

    # Reading.

    def _read_all(self) -> Answers:
        """Read every wanted partition within the request's limits, in the client's order."""
        self._find_targets()
        self._cold = []
        self._readable_bytes = {}
        self._has_answer = self._has_news = False
        self._eager_left_bytes = EAGER_BYTES_TOTAL_MAX
        left_bytes = self._max_bytes
        is_first = True
        answers: Answers = []
        for want, target in self._targets:
            if isinstance(target, ErrorCode):
                # A follower is about to hear of more than we know: it should ask again soon.
                self._has_answer |= self._reads.is_replica
                answers.append((want, self._missing(want, target)))
                continue
            data, size_bytes = self._read_one(want, target, left_bytes, is_first)
            if size_bytes:
                is_first = False
                left_bytes = max(0, left_bytes - size_bytes)
                self._readable_bytes[target] = size_bytes
            answers.append((want, data))
        return answers

    def _read_one(
        self, want: Wanted, partition: Partition, left_bytes: int, is_first: bool
    ) -> tuple[PartitionData, int]:
        try:
            self._reads.check(want, partition)
            apart = diverging(partition.log, want.fetch_offset, want.last_fetched_epoch)
            if apart is not None:
                self._has_answer = True
                ends = EpochEndOffset(epoch=apart[0], end_offset=apart[1])
                return self._data(want, partition, ends), 0
            wanted_bytes = max(0, min(want.max_bytes, left_bytes))
            max_bytes = min(wanted_bytes, SLICE_BYTES_MAX)
            stored = self._reads.read(want, partition, max_bytes, is_first)
            self._has_answer |= stored.falls_short_of(wanted_bytes)
            better = self._reads.better_replica(want, partition)
            data = self._data(want, partition, None)
            if better >= 0:
                self._has_answer = True
                data.preferred_read_replica = better
                return data, 0
            if stored.is_empty and self._is_last_look:
                self._reads.check_last(want, partition)
            self._has_news |= not want.knows_bounds_of(partition)
            self._attach(data, stored)
            return data, stored.size_bytes
        except Exception as error:  # noqa: BLE001 - the other partitions are answered all the same
            return self._failure(want, partition, _code_of(error, partition.topic_partition)), 0

    def _attach(self, data: PartitionData, stored: LogSlice) -> None:
        """Put the records into the answer: as bytes if few, else as a reference."""
        if not stored.is_resolved:
            self._cold.append((data, stored))
        elif stored.size_bytes > self._eager_bytes_max():
            data.records = StoredRecords(stored)  # type: ignore[assignment]
        elif stored.size_bytes > 0:
            records = stored.read_now()
            if records is None:
                self._cold.append((data, stored))
            else:
                data.records = records
                self._eager_left_bytes -= len(records)

    def _eager_bytes_max(self) -> int:
        # What the encoder would copy has to be bytes, not a promise of them.
        return max(UNCOPIED_BYTES_MIN, min(EAGER_BYTES_MAX, self._eager_left_bytes))

    def _data(
        self, want: Wanted, partition: Partition, apart: EpochEndOffset | None
    ) -> PartitionData:
        reads_committed = self._isolation_level == READ_COMMITTED
        return PartitionData(
            partition_index=want.key[1],
            high_watermark=partition.high_watermark,
            last_stable_offset=partition.last_stable_offset,
            log_start_offset=partition.log.log_start_offset,
            diverging_epoch=apart,
            aborted_transactions=_aborted(partition, want) if reads_committed else None,
            records=b"",
        )

    def _failure(self, want: Wanted, partition: Partition, code: ErrorCode) -> PartitionData:
        self._has_answer = True
        data = PartitionData(
            partition_index=want.key[1],
            error_code=int(code),
            high_watermark=-1,
            aborted_transactions=None,
            records=b"",
        )
        if code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
            self._hint_leader(data, partition.leader, partition.leader_epoch)
        return data

    def _missing(self, want: Wanted, code: ErrorCode) -> PartitionData:
        """There is no replica here, and perhaps no such partition."""
        data = _failed(want.key[1], int(code))
        image = partition_image(self._broker, *want.key)
        if code is ErrorCode.NOT_LEADER_OR_FOLLOWER and image is not None:
            self._hint_leader(data, image.leader, image.leader_epoch)
        return data

    def _hint_leader(self, data: PartitionData, leader: int, epoch: int) -> None:
        if self._version >= _LEADER_HINT_FROM_VERSION:
            data.current_leader = LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)
            self._named_leaders.add(leader)

    def _read_cold(self, answers: Answers) -> None:
        """Have the executor look for what the page cache did not have, then answer."""
        cold, self._cold = self._cold, []
        assert self._deferred is not None
        deferred = self._deferred

        def work() -> list[Found]:
            return _read_or_refer([stored for _, stored in cold])

        def then(results: list[Found] | None, error: BaseException | None) -> None:
            for place, (data, _) in enumerate(cold):
                _put_cold(data, error or (results or [])[place])
            deferred.complete(self._response(answers))

        self._broker.executor.submit(work, then)

    # Answering.

    def _response(self, answers: Answers) -> FetchResponse:
        session_id, told = self._broker.fetch_sessions.answer(self._session, answers, self._version)
        topics: dict[str | UUID, FetchableTopicResponse] = {}
        for want, data in told:
            topic = want.key[0]
            entry = topics.get(topic)
            if entry is None:
                entry = topics[topic] = FetchableTopicResponse()
                if isinstance(topic, UUID):
                    entry.topic_id = topic
                else:
                    entry.topic = topic
            entry.partitions.append(data)
        nodes = [node_of(self._broker, leader, self._listener) for leader in self._named_leaders]
        return FetchResponse(
            session_id=session_id,
            responses=list(topics.values()),
            node_endpoints=[NodeEndpoint(**node._asdict()) for node in nodes if node is not None],
        )


def _aborted(partition: Partition, want: Wanted) -> list[AbortedTransaction]:
    """The aborted transactions that a reader of these offsets must skip (rule H10)."""
    found = partition.log.aborted_transactions(want.fetch_offset, partition.last_stable_offset)
    return [
        AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset)
        for each in found
    ]


def _code_of(error: BaseException, what: object) -> ErrorCode:
    """What a client is told when one partition could not be read."""
    if isinstance(error, ApiError):
        return error.code
    if isinstance(error, WireError):
        return ErrorCode.CORRUPT_MESSAGE  # The disk gave back bytes that are no batch (rule E2).
    _log.error("%s could not be read", what, exc_info=error)
    return ErrorCode.KAFKA_STORAGE_ERROR


def _read_or_refer(cold: list[LogSlice]) -> list[Found]:
    """Read what there is room for; the rest is found now, and read while it is sent."""
    results: list[Found] = []
    left_bytes = COLD_BYTES_MAX
    for stored in cold:
        try:
            stored.resolve_blocking()
            if stored.size_bytes > max(UNCOPIED_BYTES_MIN, left_bytes):
                results.append(StoredRecords(stored))
                continue
            data = stored.read_blocking()
        except Exception as error:  # noqa: BLE001 - the other partitions are answered all the same
            results.append(error)
        else:
            results.append(data)
            left_bytes -= len(data)
    return results


def _put_cold(data: PartitionData, found: Found | BaseException) -> None:
    if isinstance(found, BaseException):
        data.error_code = int(_code_of(found, "a partition"))
    else:
        data.records = found  # type: ignore[assignment]
