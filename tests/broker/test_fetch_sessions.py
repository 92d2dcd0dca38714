"""Incremental fetch sessions (KIP-227)."""

from __future__ import annotations

from random import Random

import pytest

from tidemill.broker import fetch_sessions
from tidemill.broker.fetch_sessions import (
    EPOCH_MAX,
    EVICTABLE_AFTER_MS,
    FetchSessions,
    next_epoch,
)
from tidemill.errors import ErrorCode
from tidemill.testing.clock import ManualClock
from tidemill.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)


def request(
    session_id: int, epoch: int, partitions: list[int], forgotten: list[int] | None = None
) -> FetchRequest:
    topics = [FetchTopic(topic="t", partitions=[FetchPartition(partition=p) for p in partitions])]
    gone = [ForgottenTopic(topic="t", partitions=forgotten)] if forgotten else []
    return FetchRequest(
        session_id=session_id,
        session_epoch=epoch,
        topics=topics if partitions else [],
        forgotten_topics_data=gone,
    )


class Broker:
    def __init__(self, slots: int = 10) -> None:
        self.clock = ManualClock()
        self.sessions = FetchSessions(slots, self.clock, Random(1))

    def fetch(
        self, sent: FetchRequest, version: int = 12, high_watermark: int = 0, error_code: int = 0
    ) -> tuple[int, list[int], ErrorCode]:
        context = self.sessions.open(sent, version)
        answers = [
            (
                want,
                PartitionData(
                    partition_index=want.key[1],
                    records=b"",
                    high_watermark=high_watermark,
                    error_code=error_code,
                ),
            )
            for want in context.wanted
        ]
        session_id, news = self.sessions.answer(context, answers, version)
        return session_id, [want.key[1] for want, _ in news], context.error


def test_a_session_answers_with_news_only() -> None:
    broker = Broker()
    session_id, partitions, _ = broker.fetch(request(0, 0, [0, 1]), high_watermark=5)
    assert session_id != 0
    assert partitions == [0, 1]
    assert broker.fetch(request(session_id, 1, []), high_watermark=5)[1] == []
    assert broker.fetch(request(session_id, 2, []), high_watermark=6)[1] == [0, 1]


def test_added_and_forgotten_partitions() -> None:
    broker = Broker()
    session_id, _, _ = broker.fetch(request(0, 0, [0]))
    assert broker.fetch(request(session_id, 1, [1]))[1] == [1]
    assert broker.fetch(request(session_id, 2, [], [0]), high_watermark=9)[1] == [1]


def test_errors_are_always_news() -> None:
    broker = Broker()
    session_id, _, _ = broker.fetch(request(0, 0, [0]), error_code=3)
    assert broker.fetch(request(session_id, 1, []), error_code=3)[1] == [0]


def test_a_wrong_epoch_and_an_unknown_session_are_refused() -> None:
    broker = Broker()
    session_id, _, _ = broker.fetch(request(0, 0, [0]))
    assert broker.fetch(request(session_id, 5, []))[2] is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert broker.fetch(request(session_id + 1, 1, []))[2] is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_by_name_cannot_go_on_by_id() -> None:
    broker = Broker()
    session_id, _, _ = broker.fetch(request(0, 0, [0]), version=12)
    error = broker.fetch(request(session_id, 1, []), version=13)[2]
    assert error is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_the_final_epoch_closes_a_session() -> None:
    broker = Broker()
    session_id, _, _ = broker.fetch(request(0, 0, [0]))
    assert broker.fetch(request(session_id, -1, [0]))[0] == 0
    assert len(broker.sessions) == 0


def test_a_session_that_forgets_everything_ends() -> None:
    broker = Broker()
    session_id, _, _ = broker.fetch(request(0, 0, [0]))
    broker.fetch(request(session_id, 1, [], [0]))
    assert len(broker.sessions) == 0


def test_slots_are_bounded_and_stale_sessions_make_room() -> None:
    broker = Broker(slots=2)
    assert broker.fetch(request(0, 0, [0]))[0] != 0
    assert broker.fetch(request(0, 0, [0]))[0] != 0
    assert broker.fetch(request(0, 0, [0]))[0] == 0, "no slot: the client goes without"
    broker.clock.advance(EVICTABLE_AFTER_MS + 1)
    assert broker.fetch(request(0, 0, [0]))[0] != 0
    assert len(broker.sessions) == 2


def test_no_slots_means_no_sessions() -> None:
    broker = Broker(slots=0)
    assert broker.fetch(request(0, 0, [0]))[:2] == (0, [0])


def test_the_epoch_wraps_to_one() -> None:
    assert next_epoch(EPOCH_MAX) == 1


def test_no_client_takes_a_followers_slot() -> None:
    """Replication must not fall back to full requests because of many consumers."""
    sessions = FetchSessions(2, ManualClock(), Random(1))

    def opened(*, is_replica: bool) -> int:
        request = FetchRequest(session_epoch=0, topics=[FetchTopic(topic="t")])
        context = sessions.open(request, 12, is_replica=is_replica)
        session_id, _ = sessions.answer(context, [], 12)
        return session_id

    assert opened(is_replica=False)
    assert opened(is_replica=True)
    assert opened(is_replica=True), "a client's session makes room for it"
    assert opened(is_replica=True) == 0
    assert opened(is_replica=False) == 0
    assert len(sessions) == 2


def test_a_session_that_grows_too_large_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of its partitions need exist. The client goes on without a session."""
    monkeypatch.setattr(fetch_sessions, "PARTITIONS_PER_SESSION_MAX", 10)
    broker = Broker()
    session_id, _, _ = broker.fetch(request(0, 0, list(range(8))))
    assert broker.fetch(request(session_id, 1, [8, 9]))[2] is ErrorCode.NONE
    assert broker.fetch(request(session_id, 2, [1, 2]))[2] is ErrorCode.NONE
    grown = broker.fetch(request(session_id, 3, [10]))
    assert grown[2] is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert broker.fetch(request(0, 0, list(range(11)))) == (0, list(range(11)), ErrorCode.NONE)
    assert len(broker.sessions) == 0


def test_the_sessions_of_all_clients_have_so_many_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that nobody uses any more make room; those of followers do not count."""
    monkeypatch.setattr(fetch_sessions, "PARTITIONS_MAX", 10)
    broker = Broker()
    follower = broker.sessions.open(request(0, 0, list(range(20))), 12, is_replica=True)
    broker.sessions.answer(follower, [], 12)
    old, _, _ = broker.fetch(request(0, 0, [1, 2, 3, 4, 5, 6]))
    broker.clock.advance(EVICTABLE_AFTER_MS)
    fresh, _, _ = broker.fetch(request(0, 0, [1, 2, 3, 4]))
    assert broker.fetch(request(0, 0, [1]))[0] == 0
    broker.clock.advance(1)
    assert broker.fetch(request(0, 0, [1]))[0] != 0
    assert broker.fetch(request(old, 1, []))[2] is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert broker.fetch(request(fresh, 1, [5, 6, 7, 8, 9]))[2] is ErrorCode.NONE
    too_many = broker.fetch(request(fresh, 2, [10]))
    assert too_many[2] is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(broker.sessions) == 2
