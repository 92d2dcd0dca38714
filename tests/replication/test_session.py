"""A follower's fetch session, against the session table that a broker keeps."""

from __future__ import annotations

from random import Random
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.broker.fetch_sessions import FetchSessions
from tidemill.client.fetch_session import EPOCH_MAX
from tidemill.errors import ErrorCode
from tidemill.replication.session import ReplicaSession, TopicIdPartition, Wanted
from tidemill.testing.clock import ManualClock
from tidemill.wire.messages.fetch import FetchRequest

VERSION = 17
A, B = TopicIdPartition(UUID(int=1), 0), TopicIdPartition(UUID(int=2), 3)
C, A_AGAIN = TopicIdPartition(UUID(int=2), 4), TopicIdPartition(UUID(int=9), 0)
ALL = (A, B, C, A_AGAIN)


def want(offset: int = 0, epoch: int = 1) -> Wanted:
    return Wanted(epoch, offset, 0, 0, 1 << 20, 0)


def request(session: ReplicaSession, wanted: dict[TopicIdPartition, Wanted]) -> FetchRequest:
    topics, forgotten = session.plan(wanted, ALL)
    return FetchRequest(
        session_id=session.session_id,
        session_epoch=session.epoch,
        topics=topics,
        forgotten_topics_data=forgotten,
    )


def test_only_what_changed_is_named() -> None:
    session = ReplicaSession()
    first = request(session, {A: want(), B: want()})
    assert (first.session_id, first.session_epoch, len(first.topics)) == (0, 0, 2)
    session.accept(77)
    second = request(session, {A: want(5), B: want()})
    assert (second.session_id, second.session_epoch) == (77, 1)
    assert [(t.topic_id, t.partitions[0].fetch_offset) for t in second.topics] == [(A.topic_id, 5)]
    session.accept(77)
    third = request(session, {B: want()})
    assert third.topics == []
    assert [(t.topic_id, t.partitions) for t in third.forgotten_topics_data] == [(A.topic_id, [0])]


def test_a_topic_made_again_is_another_partition() -> None:
    """Rule A11."""
    session = ReplicaSession()
    request(session, {A: want()})
    session.accept(5)
    renewed = request(session, {A_AGAIN: want()})
    assert [topic.topic_id for topic in renewed.topics] == [A_AGAIN.topic_id]
    assert [topic.topic_id for topic in renewed.forgotten_topics_data] == [A.topic_id]


def test_without_a_session_every_request_is_full() -> None:
    session = ReplicaSession()
    request(session, {A: want()})
    session.accept(0)
    assert len(request(session, {A: want()}).topics) == 1
    assert not session.is_incremental


def test_a_reset_tells_the_leader_which_session_to_drop() -> None:
    session = ReplicaSession()
    request(session, {A: want()})
    session.accept(5)
    session.reset()
    renewed = request(session, {A: want()})
    assert (renewed.session_id, renewed.session_epoch, len(renewed.topics)) == (5, 0, 1)


def test_the_epoch_wraps_round_to_one() -> None:
    session = ReplicaSession()
    session.accept(5)
    session._epoch = EPOCH_MAX
    session.accept(5)
    assert session.epoch == 1


Moves = st.lists(
    st.tuples(
        st.dictionaries(
            st.sampled_from([A, B, C]),
            st.builds(want, st.integers(0, 3), st.integers(0, 2)),
            min_size=1,
        ),
        st.sampled_from(["answered", "answered", "answered", "lost", "evicted"]),
    ),
    max_size=12,
)


@settings(max_examples=60)
@given(Moves)
def test_the_leader_reads_exactly_what_is_wanted(
    moves: list[tuple[dict[TopicIdPartition, Wanted], str]],
) -> None:
    """Whatever was lost before, an accepted request makes the leader see what we want."""
    session, broker = ReplicaSession(), FetchSessions(4, ManualClock(), Random(1))
    for wanted, fate in moves:
        context = broker.open(request(session, wanted), VERSION)
        if fate == "lost":
            session.reset()
            continue
        if context.error is not ErrorCode.NONE:
            session.reset()
            continue
        seen = {
            key: (one.fetch_offset, one.current_leader_epoch)
            for one in context.wanted
            for key in [one.key]
        }
        assert seen == {
            tuple(key): (want.fetch_offset, want.leader_epoch) for key, want in wanted.items()
        }
        session_id, _ = broker.answer(context, [], VERSION)
        session.accept(session_id)
        if fate == "evicted":
            broker = FetchSessions(4, ManualClock(), Random(1))
