"""The follower's fetcher: what it asks for, and what it makes of answers."""

from __future__ import annotations

from uuid import UUID

import pytest
from tests.storage.helpers import batch, new_log

from tidemill.errors import ApiError, ErrorCode
from tidemill.invariant import InvariantError
from tidemill.replication.alignment import StartOver, TruncateTo
from tidemill.replication.copying import ReplicaCopy
from tidemill.replication.follower import (
    Advance,
    Append,
    Cut,
    FindRange,
    FollowerFetcher,
    FollowerSettings,
    Status,
    Step,
    Trouble,
)
from tidemill.replication.session import TopicIdPartition
from tidemill.storage.disk_errors import DiskFailedError, DiskFullError
from tidemill.storage.log_config import FlushPolicy, LogConfig
from tidemill.types import BrokerEpoch, BrokerId, LeaderEpoch
from tidemill.wire import codec
from tidemill.wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

EPOCH = LeaderEpoch(5)
BACKOFF_MS = 1_000
A, B = TopicIdPartition(UUID(int=1), 0), TopicIdPartition(UUID(int=1), 1)


def at(offset: int, *contents: bytes, epoch: int = 0) -> bytes:
    return bytes(batch(*contents, base_offset=offset, leader_epoch=epoch))


def copy_of(*records: bytes, policy: FlushPolicy = "async") -> ReplicaCopy:
    log = new_log(LogConfig(flush_policy=policy))
    for one in records:
        log.append_as_follower(one)
    return ReplicaCopy(log, 0)


class Fetching:
    """A fetcher of partitions A and B, in conversation with a leader that the test plays."""

    def __init__(self, **copies: ReplicaCopy) -> None:
        self.now_ms = 0
        self.copies = {A: copies.get("a") or copy_of(), B: copies.get("b") or copy_of()}
        self.fetcher = FollowerFetcher(
            BrokerId(2), BrokerEpoch(77), FollowerSettings(backoff_ms=BACKOFF_MS), cluster_id="c"
        )
        for key, copy in self.copies.items():
            assert self.fetcher.follow(key, copy, EPOCH) == []

    def ask(self) -> FetchRequest | None:
        return self.fetcher.next_request(self.now_ms)

    def asked(self) -> dict[int, FetchPartition]:
        """The partitions that the next request names, by index."""
        request = self.ask()
        assert request is not None
        return {one.partition: one for topic in request.topics for one in topic.partitions}

    def answer(self, *partitions: PartitionData, session_id: int = 9, code: int = 0) -> list[Step]:
        topic = FetchableTopicResponse(topic_id=A.topic_id, partitions=list(partitions))
        response = FetchResponse(session_id=session_id, error_code=code, responses=[topic])
        return self.fetcher.take(response, self.now_ms)

    def exchange(self, *partitions: PartitionData) -> list[Step]:
        assert self.ask() is not None
        return self.answer(*partitions)

    def status(self, key: TopicIdPartition = A) -> Status:
        state = self.fetcher.get(key)
        assert state is not None
        return state.status


def data(
    key: TopicIdPartition = A,
    records: bytes = b"",
    *,
    code: ErrorCode = ErrorCode.NONE,
    high_watermark: int = 0,
    log_start_offset: int = 0,
    diverging: tuple[int, int] | None = None,
) -> PartitionData:
    ends = (
        None if diverging is None else EpochEndOffset(epoch=diverging[0], end_offset=diverging[1])
    )
    return PartitionData(
        partition_index=key.partition,
        error_code=int(code),
        high_watermark=high_watermark,
        log_start_offset=log_start_offset,
        diverging_epoch=ends,
        records=records,
    )


# Requests.


def test_a_fetch_says_who_and_where_we_are() -> None:
    """Rules A3, A4, D5 and E7, in the form that goes over the wire."""
    fetching = Fetching(a=copy_of(at(0, b"x", b"y", epoch=3)))
    request = fetching.ask()
    assert request is not None
    sent = codec.decode(FetchRequest, 17, codec.encode(request, 17))
    assert sent.replica_state is not None
    assert (sent.replica_state.replica_id, sent.replica_state.replica_epoch) == (2, 77)
    assert (sent.cluster_id, sent.session_id, sent.session_epoch) == ("c", 0, 0)
    first = sent.topics[0].partitions[0]
    assert (first.fetch_offset, first.current_leader_epoch, first.last_fetched_epoch) == (2, 5, 3)
    assert sent.max_bytes == 10 << 20
    assert first.partition_max_bytes == 1 << 20


def test_there_is_one_fetch_at_a_time() -> None:
    fetching = Fetching()
    fetching.ask()
    with pytest.raises(InvariantError, match="one fetch"):
        fetching.ask()


def test_an_answer_needs_a_question() -> None:
    with pytest.raises(InvariantError, match="question"):
        Fetching().answer()


def test_within_a_session_only_what_moved_is_asked() -> None:
    fetching = Fetching()
    fetching.exchange(data(A, at(0, b"x")))
    fetching.copies[A].log.append_as_follower(at(0, b"x"))
    request = fetching.ask()
    assert request is not None
    assert (request.session_id, request.session_epoch) == (9, 1)
    assert [one.partition for topic in request.topics for one in topic.partitions] == [0]


def test_who_got_records_goes_to_the_back() -> None:
    """A leader that fills its answer in our order must not serve the same partition for ever."""
    fetching = Fetching()
    assert list(fetching.asked()) == [0, 1]
    fetching.answer(data(A, at(0, b"x")), session_id=0)
    assert list(fetching.asked()) == [1, 0]


def test_an_unflushed_log_is_not_fetched() -> None:
    """Rule E7: the offset that a fetch asks for is also what it acknowledges."""
    fetching = Fetching(a=copy_of(policy="ack"))
    steps = fetching.exchange(data(A, at(0, b"x")))
    assert isinstance(steps[0], Append)
    fetching.copies[A].append(steps[0].fetched)
    assert fetching.fetcher.unflushed() == [A]
    request = fetching.ask()
    assert request is not None
    assert [topic.partitions for topic in request.forgotten_topics_data] == [[0]]
    fetching.answer()
    fetching.copies[A].log.flush()
    assert fetching.fetcher.unflushed() == []
    assert fetching.asked()[0].fetch_offset == 1


def test_a_partition_that_changed_outside_is_looked_at_again() -> None:
    """Rule E7: its topic has just come under flush policy `ack`."""
    fetching = Fetching(a=copy_of(at(0, b"x")))
    fetching.exchange()
    fetching.copies[A].log.reconfigure(LogConfig(flush_policy="ack"))
    fetching.fetcher.touch(A)
    assert fetching.fetcher.unflushed() == [A]
    request = fetching.ask()
    assert request is not None
    assert [topic.partitions for topic in request.forgotten_topics_data] == [[0]]


def test_a_partition_that_left_in_a_pause_is_forgotten_by_the_leader() -> None:
    """No request was due when it left: the next one must say so all the same."""
    fetching = Fetching()
    fetching.exchange(
        data(A, code=ErrorCode.CORRUPT_MESSAGE), data(B, code=ErrorCode.CORRUPT_MESSAGE)
    )
    fetching.fetcher.unfollow(B)
    assert fetching.ask() is None
    fetching.now_ms += BACKOFF_MS
    request = fetching.ask()
    assert request is not None
    assert [topic.partitions for topic in request.forgotten_topics_data] == [[1]]


# Answers.


def test_records_are_appended_and_the_high_watermark_follows() -> None:
    """Rule B4."""
    fetching = Fetching()
    steps = fetching.exchange(data(A, at(0, b"x"), high_watermark=7), data(B, high_watermark=3))
    assert [type(step) for step in steps] == [Append, Advance]
    append = steps[0]
    assert isinstance(append, Append)
    assert (append.key, append.high_watermark, bytes(append.fetched.records)) == (A, 7, at(0, b"x"))
    assert steps[1] == Advance(B, 3, 0)


def test_a_diverging_log_is_cut_first() -> None:
    """Rules B4 and D5: what the answer says of the high watermark is not about our log."""
    fetching = Fetching(a=copy_of(at(0, b"x"), at(1, b"y")))
    steps = fetching.exchange(data(A, high_watermark=9, diverging=(0, 1)))
    assert steps == [Cut(A, EPOCH, TruncateTo(1))]
    assert fetching.status() is Status.TRUNCATING
    assert 0 not in fetching.asked()
    fetching.answer()
    fetching.copies[A].cut(TruncateTo(1))
    fetching.fetcher.cut_done(A, EPOCH)
    assert fetching.asked()[0].fetch_offset == 1


def test_a_divergence_that_changes_nothing_is_not_asked_for_ever() -> None:
    """Rule D5."""
    fetching = Fetching(a=copy_of(at(0, b"x")))
    (step,) = fetching.exchange(data(A, diverging=(0, 9)))
    assert isinstance(step, Trouble)
    assert step.status is Status.DELAYED


def test_no_records_leave_the_last_epoch_as_it_is() -> None:
    """Rule D5."""
    fetching = Fetching(a=copy_of(at(0, b"x", epoch=3)))
    fetching.exchange(data(A))
    fetching.fetcher.request_failed(fetching.now_ms - BACKOFF_MS)
    assert fetching.asked()[0].last_fetched_epoch == 3


def test_an_answer_from_before_an_election_is_discarded() -> None:
    """Rules D4 and A8: the leader is the same, but its epoch is not."""
    fetching = Fetching()
    fetching.ask()
    fetching.fetcher.follow(A, fetching.copies[A], LeaderEpoch(EPOCH + 1))
    fetching.fetcher.unfollow(B)
    assert fetching.answer(data(A, at(0, b"x")), data(B, at(0, b"x"))) == []
    assert fetching.asked()[0].current_leader_epoch == EPOCH + 1


def test_an_answer_for_another_place_is_discarded() -> None:
    """Rule D4."""
    fetching = Fetching()
    fetching.ask()
    fetching.copies[A].log.append_as_follower(at(0, b"x"))
    assert fetching.answer(data(A, at(0, b"x"))) == []


def test_a_partition_answered_twice_counts_once() -> None:
    fetching = Fetching()
    assert len(fetching.exchange(data(A, at(0, b"x")), data(A, at(0, b"x")))) == 1


def test_partitions_that_nobody_asked_for_are_ignored() -> None:
    fetching = Fetching()
    assert fetching.exchange(data(TopicIdPartition(A.topic_id, 8), at(0, b"x"))) == []


def test_old_news_does_not_restart_a_fetch() -> None:
    """Rule A1."""
    fetching = Fetching()
    fetching.exchange(data(A, code=ErrorCode.FENCED_LEADER_EPOCH))
    for epoch in (EPOCH, EPOCH - 1):
        fetching.fetcher.follow(A, fetching.copies[A], LeaderEpoch(epoch))
        assert fetching.status() is Status.FENCED


def test_a_deleted_log_is_not_kept_under_a_forgotten_start() -> None:
    """Rule D7: nobody can tell any more whether those records were the leader's."""
    fetching = Fetching(a=copy_of(at(0, b"x", b"y")))
    steps = fetching.exchange(data(A, at(2, b"z"), log_start_offset=2, high_watermark=3))
    assert steps == [Cut(A, EPOCH, StartOver(2))]


def test_a_log_without_epochs_is_cut_before_its_first_fetch() -> None:
    """Rule D3."""
    copy = copy_of(at(0, b"x"), at(1, b"y"))
    copy.advance(1, 0)
    copy.log.leader_epochs.clear()
    fetching = Fetching()
    steps = fetching.fetcher.follow(A, copy, LeaderEpoch(EPOCH + 1))
    assert steps == [Cut(A, LeaderEpoch(EPOCH + 1), TruncateTo(1))]


# Errors.


def test_a_fenced_follower_waits_for_news() -> None:
    """Rule A6."""
    fetching = Fetching()
    (step,) = fetching.exchange(data(A, code=ErrorCode.FENCED_LEADER_EPOCH))
    assert isinstance(step, Trouble)
    fetching.now_ms += 100 * BACKOFF_MS
    assert 0 not in fetching.asked()
    fetching.answer()
    fetching.fetcher.follow(A, fetching.copies[A], LeaderEpoch(EPOCH + 1))
    assert 0 in fetching.asked()


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_other_trouble_is_tried_again_after_a_rest(code: ErrorCode) -> None:
    """Rules A6 and D9: the other partitions go on."""
    fetching = Fetching()
    steps = fetching.exchange(data(A, code=code), data(B, at(0, b"x")))
    assert [type(step) for step in steps] == [Trouble, Append]
    fetching.copies[B].log.append_as_follower(at(0, b"x"))
    assert list(fetching.asked()) == [1]
    fetching.answer()
    fetching.now_ms += BACKOFF_MS
    assert list(fetching.asked()) == [0]


def test_an_error_code_of_the_future_is_only_trouble() -> None:
    fetching = Fetching()
    fetching.ask()
    wanted = PartitionData(partition_index=0, error_code=9999)
    (step,) = fetching.answer(wanted)
    assert isinstance(step, Trouble)


def test_a_corrupt_answer_fails_one_partition_only_and_is_tried_again() -> None:
    """Rule D9."""
    fetching = Fetching()
    steps = fetching.exchange(data(A, b"\xff" * 80), data(B, at(0, b"x")))
    assert [type(step) for step in steps] == [Trouble, Append]
    assert fetching.status() is Status.DELAYED


def test_records_of_another_place_fail_the_partition() -> None:
    """Rule D6."""
    fetching = Fetching()
    (step,) = fetching.exchange(data(A, at(0, b"x", b"y") + at(1, b"z")))
    assert isinstance(step, Trouble)
    assert fetching.status() is Status.FAILED
    fetching.now_ms += 100 * BACKOFF_MS
    assert 0 not in fetching.asked()


def test_records_of_a_term_to_come_are_waited_for() -> None:
    """Rule D4."""
    fetching = Fetching()
    (step,) = fetching.exchange(data(A, at(0, b"x", epoch=EPOCH + 1)))
    assert isinstance(step, Trouble)
    assert fetching.status() is Status.DELAYED


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ApiError(ErrorCode.CORRUPT_MESSAGE), Status.DELAYED),
        (DiskFullError("full"), Status.DELAYED),
        (DiskFailedError("broken"), Status.FAILED),
        (InvariantError("no"), Status.FAILED),
        (ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER), Status.FAILED),
    ],
)
def test_an_append_that_failed(error: ApiError | InvariantError, status: Status) -> None:
    """Rules D9, E1 and E8."""
    fetching = Fetching()
    fetching.exchange(data(A, at(0, b"x")))
    assert fetching.fetcher.write_failed(A, error, fetching.now_ms) == Trouble(A, status, error)
    assert fetching.status() is status


def test_reports_about_partitions_that_left_are_ignored() -> None:
    """Rule D4."""
    fetching = Fetching()
    fetching.fetcher.unfollow(A)
    error = DiskFailedError("broken")
    assert fetching.fetcher.write_failed(A, error, 0) is None
    assert fetching.fetcher.range_found(A, EPOCH, 0, 0, 0) is None


def test_a_cut_that_failed_fails_the_partition() -> None:
    """Rule E1."""
    fetching = Fetching()
    assert fetching.fetcher.write_failed(A, DiskFailedError("broken"), 0) is not None
    assert fetching.status() is Status.FAILED


def test_a_cut_without_room_is_tried_again() -> None:
    """Rule E8."""
    fetching = Fetching()
    full = DiskFullError("full")
    assert fetching.fetcher.write_failed(A, full, 0) == Trouble(A, Status.DELAYED, full)


# Out of range.


def out_of_range(copy: ReplicaCopy) -> Fetching:
    fetching = Fetching(a=copy)
    (step,) = fetching.exchange(data(A, code=ErrorCode.OFFSET_OUT_OF_RANGE))
    assert step == FindRange(A, EPOCH)
    return fetching


@pytest.mark.parametrize(
    ("start", "end", "decision"), [(0, 1, TruncateTo(1)), (5, 9, StartOver(5))]
)
def test_out_of_range_asks_for_the_range(
    start: int, end: int, decision: TruncateTo | StartOver
) -> None:
    """Rule D7."""
    fetching = out_of_range(copy_of(at(0, b"x"), at(1, b"y")))
    assert fetching.fetcher.range_found(A, EPOCH, start, end, 0) == Cut(A, EPOCH, decision)


def test_a_fetch_that_is_in_range_after_all_is_tried_again() -> None:
    """Rule D7: nothing is reset on a transient error."""
    fetching = out_of_range(copy_of(at(0, b"x")))
    assert isinstance(fetching.fetcher.range_found(A, EPOCH, 0, 5, 0), Trouble)
    assert fetching.status() is Status.DELAYED
    fetching.now_ms += BACKOFF_MS
    assert fetching.ask() is not None
    assert fetching.status() is Status.FETCHING
    assert fetching.copies[A].log.log_end_offset == 1


def test_a_range_from_before_an_election_is_discarded() -> None:
    """Rule D4."""
    fetching = out_of_range(copy_of(at(0, b"x")))
    assert fetching.fetcher.range_found(A, LeaderEpoch(EPOCH - 1), 0, 0, 0) is None
    fetching.fetcher.follow(A, fetching.copies[A], LeaderEpoch(EPOCH + 1))
    assert fetching.fetcher.range_found(A, EPOCH, 0, 0, 0) is None
    assert fetching.status() is Status.FETCHING


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ErrorCode.REQUEST_TIMED_OUT, Status.DELAYED),
        (ErrorCode.FENCED_LEADER_EPOCH, Status.FENCED),
    ],
)
def test_a_range_that_nobody_tells_cuts_nothing(code: ErrorCode, status: Status) -> None:
    """Rules A6 and D7."""
    fetching = out_of_range(copy_of(at(0, b"x")))
    assert isinstance(fetching.fetcher.range_not_found(A, EPOCH, code, 0), Trouble)
    assert fetching.status() is status


# The whole request.


def test_a_lost_session_is_opened_again_at_once() -> None:
    fetching = Fetching()
    fetching.exchange(data(A))
    fetching.ask()
    assert fetching.answer(code=int(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)) == []
    request = fetching.ask()
    assert request is not None
    assert (request.session_id, request.session_epoch) == (9, 0)
    assert len(request.topics[0].partitions) == 2


@pytest.mark.parametrize(
    "code", [ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.FETCH_SESSION_ID_NOT_FOUND]
)
def test_a_refused_first_request_is_not_repeated_at_once(code: ErrorCode) -> None:
    fetching = Fetching()
    fetching.ask()
    fetching.answer(code=int(code))
    assert fetching.ask() is None
    assert fetching.fetcher.ready_at_ms(fetching.now_ms) == BACKOFF_MS
    fetching.now_ms += BACKOFF_MS
    assert fetching.ask() is not None


def test_a_lost_connection_rests_and_starts_a_new_session() -> None:
    fetching = Fetching()
    fetching.exchange(data(A))
    fetching.ask()
    fetching.fetcher.request_failed(fetching.now_ms)
    assert not fetching.fetcher.is_asking
    assert fetching.ask() is None
    fetching.now_ms += BACKOFF_MS
    request = fetching.ask()
    assert request is not None
    assert request.session_epoch == 0


def test_when_only_events_can_help_there_is_no_time_to_wait_for() -> None:
    fetching = Fetching()
    fetching.exchange(
        data(A, code=ErrorCode.FENCED_LEADER_EPOCH), data(B, code=ErrorCode.CORRUPT_MESSAGE)
    )
    assert fetching.fetcher.ready_at_ms(10) == BACKOFF_MS
    fetching.fetcher.unfollow(B)
    assert fetching.fetcher.ready_at_ms(10) is None
    assert fetching.ask() is None
    assert len(fetching.fetcher) == 1
    assert [state.key for state in fetching.fetcher] == [A]
