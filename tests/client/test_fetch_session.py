"""Fetch sessions: only what changed is sent, and any doubt starts over."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from tidemill.client.fetch_session import EPOCH_MAX, FetchSession, Wanted
from tidemill.types import TopicPartition

ID = UUID(int=1)
A, B, C = (TopicPartition("t", index) for index in range(3))


def want(offset: int, topic_id: UUID = ID) -> Wanted:
    return Wanted(topic_id, offset, 0, 1024)


def test_first_full_then_changes_only() -> None:
    session = FetchSession()
    plan = session.plan({A: want(0), B: want(0)})
    assert plan.is_full
    assert set(plan.send) == {A, B}
    session.accept(77)
    plan = session.plan({A: want(5), B: want(0)})
    assert (plan.session_id, plan.epoch) == (77, 1)
    assert dict(plan.send) == {A: want(5)}
    assert not plan.forget
    session.accept(77)
    plan = session.plan({B: want(0), C: want(0)})
    assert (plan.epoch, set(plan.send), set(plan.forget)) == (2, {C}, {A})


def test_a_declined_session_is_asked_for_again() -> None:
    session = FetchSession()
    session.plan({A: want(0)})
    session.accept(0)
    assert session.plan({A: want(0)}).is_full


def test_a_topic_created_anew_starts_over() -> None:
    session = FetchSession()
    session.plan({A: want(0)})
    session.accept(5)
    plan = session.plan({A: want(0, UUID(int=2))})
    assert plan.is_full
    assert plan.session_id == 0


def test_epochs_wrap_to_one() -> None:
    session = FetchSession()
    session.plan({})
    session.accept(5)
    session._epoch = EPOCH_MAX
    session.accept(5)
    assert session.plan({}).epoch == 1


@given(
    st.lists(
        st.one_of(
            st.dictionaries(st.sampled_from([A, B, C]), st.integers(0, 3)), st.sampled_from([None])
        ),
        max_size=20,
    )
)
def test_the_broker_always_knows_exactly_what_is_wanted(
    rounds: list[dict[TopicPartition, int] | None],
) -> None:
    """A model of the broker's side: after each request it holds just what we want."""
    session, next_id = FetchSession(), 1
    known: dict[TopicPartition, Wanted] = {}
    for offsets in rounds:
        if offsets is None:
            session.reset()
            continue
        wanted = {partition: want(offset) for partition, offset in offsets.items()}
        plan = session.plan(wanted)
        if plan.is_full:
            known = {}
            next_id += 1
        known.update(plan.send)
        for partition in plan.forget:
            del known[partition]
        assert known == wanted
        session.accept(next_id)
