"""The in-sync set as a state machine: one change at a time, and safe whatever became of it."""

from __future__ import annotations

import pytest
from tests.replication.helpers import partition_image

from tidemill.errors import ErrorCode
from tidemill.image import PartitionImage
from tidemill.invariant import InvariantError
from tidemill.replication.isr import IsrAnswer, IsrMember, IsrProposal, IsrState, Settled
from tidemill.types import BrokerEpoch, BrokerId, LeaderEpoch, PartitionEpoch

LEADER_EPOCH = 4


def image_of(*isr: int, partition_epoch: int) -> PartitionImage:
    return partition_image(
        replicas=(0, 1, 2), isr=isr, leader_epoch=LEADER_EPOCH, partition_epoch=partition_epoch
    )


def state_of(*isr: int, partition_epoch: int = 7) -> IsrState:
    return IsrState(image_of(*isr, partition_epoch=partition_epoch))


def members(*isr: int) -> tuple[IsrMember, ...]:
    return tuple(IsrMember(BrokerId(one), BrokerEpoch(10 + one)) for one in isr)


def done(*isr: int, partition_epoch: int = 8, leader_epoch: int = LEADER_EPOCH) -> IsrAnswer:
    return IsrAnswer(
        ErrorCode.NONE,
        LeaderEpoch(leader_epoch),
        PartitionEpoch(partition_epoch),
        tuple(map(BrokerId, isr)),
    )


def expanding() -> tuple[IsrState, IsrProposal]:
    state = state_of(0, 1)
    return state, state.propose(members(0, 1, 2))


def shrinking() -> tuple[IsrState, IsrProposal]:
    state = state_of(0, 1, 2)
    return state, state.propose(members(0, 1))


def test_a_proposal_names_its_condition_and_the_incarnations() -> None:
    """Rule C5: it is conditional on both epochs; rule A3: each member by its broker epoch."""
    _, proposal = expanding()
    assert (proposal.leader_epoch, proposal.partition_epoch) == (LEADER_EPOCH, 7)
    assert proposal.members == members(0, 1, 2)
    assert proposal.isr == (0, 1, 2)


def test_who_is_being_added_counts_at_once() -> None:
    """Rule C4."""
    state, _ = expanding()
    assert state.committed == {0, 1}
    assert state.maximal == {0, 1, 2}


def test_who_is_being_removed_counts_until_that_is_confirmed() -> None:
    """Rule C4."""
    state, proposal = shrinking()
    assert state.maximal == {0, 1, 2}
    assert state.settle(proposal, done(0, 1)) is Settled.WAIT
    assert state.maximal == state.committed == {0, 1, 2}, "the image may say more than the answer"
    assert state.follow_image(image_of(0, 1, partition_epoch=8))
    assert state.maximal == state.committed == {0, 1}
    assert (state.partition_epoch, state.pending) == (8, None)


def test_a_change_that_adds_and_removes_counts_both() -> None:
    """Rule C4."""
    state = state_of(0, 1)
    state.propose(members(0, 2))
    assert state.maximal == {0, 1, 2}


def test_only_one_change_is_under_way() -> None:
    """Rule C4."""
    state, _ = expanding()
    with pytest.raises(InvariantError, match="one ISR change"):
        state.propose(members(0))


def test_an_isr_is_never_proposed_empty() -> None:
    """Rule C7."""
    with pytest.raises(InvariantError, match="never empty"):
        state_of(0).propose(())


@pytest.mark.parametrize("code", [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA])
def test_a_definite_refusal_rolls_back(code: ErrorCode) -> None:
    """Rule C5."""
    state, proposal = expanding()
    assert state.settle(proposal, IsrAnswer(code)) is Settled.DONE
    assert state.maximal == {0, 1}
    assert state.pending is None


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.INVALID_REQUEST,
    ],
)
def test_a_stale_proposal_counts_until_the_news_arrives(code: ErrorCode) -> None:
    """Rule C5."""
    state, proposal = expanding()
    assert state.settle(proposal, IsrAnswer(code)) is Settled.WAIT
    assert state.maximal == {0, 1, 2}
    image = partition_image(isr=(0,), leader_epoch=LEADER_EPOCH, partition_epoch=9)
    assert state.follow_image(image)
    assert state.maximal == {0}
    assert (state.pending, state.partition_epoch) == (None, 9)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.STALE_BROKER_EPOCH,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_an_unknown_outcome_is_proposed_again(code: ErrorCode) -> None:
    """Rule C5: the very same proposal, and the larger set goes on counting."""
    state, proposal = expanding()
    assert state.settle(proposal, IsrAnswer(code)) is Settled.RETRY
    assert state.pending is proposal
    assert state.maximal == {0, 1, 2}
    assert state.settle(proposal, done(0, 1, 2)) is Settled.DONE
    assert state.committed == {0, 1, 2}


def test_not_attempted_proves_nothing_about_a_copy_that_was_lost() -> None:
    """Rule C5: the first copy may still arrive, and then the new member is in the ISR."""
    state, proposal = expanding()
    assert state.lost(proposal) is Settled.RETRY
    refusal = IsrAnswer(ErrorCode.OPERATION_NOT_ATTEMPTED)
    assert state.settle(proposal, refusal) is Settled.RETRY
    assert state.maximal == {0, 1, 2}
    # An incarnation that is ineligible stays so: that holds for every copy.
    refusal = IsrAnswer(ErrorCode.INELIGIBLE_REPLICA)
    assert state.settle(proposal, refusal) is Settled.DONE
    assert state.maximal == {0, 1}


def test_an_answer_that_equals_what_is_known_confirms() -> None:
    """Rule C5: the controller had done it already and its epoch is ours."""
    state, proposal = expanding()
    assert state.settle(proposal, done(0, 1, 2, partition_epoch=7)) is Settled.DONE
    assert state.committed == {0, 1, 2}


@pytest.mark.parametrize(
    "answer", [done(0, 1, 2, leader_epoch=LEADER_EPOCH + 1), done(0, 1, 2, partition_epoch=6)]
)
def test_a_success_of_another_time_is_not_believed(answer: IsrAnswer) -> None:
    """Rules A1 and C5."""
    state, proposal = expanding()
    assert state.settle(proposal, answer) is Settled.WAIT
    assert state.committed == {0, 1}
    assert state.pending is proposal


def test_an_equal_image_leaves_the_change_under_way() -> None:
    """Rules A1 and C4: the proposal rests on that very state and may yet be applied."""
    state, proposal = expanding()
    assert not state.follow_image(partition_image(isr=(0, 1), partition_epoch=7))
    assert not state.follow_image(partition_image(isr=(0,), partition_epoch=6))
    assert state.pending is proposal


def test_an_answer_after_a_newer_image_changes_nothing() -> None:
    """Rule C5, the race of answer and metadata."""
    state, proposal = shrinking()
    state.follow_image(partition_image(isr=(0, 2), leader_epoch=LEADER_EPOCH, partition_epoch=9))
    assert state.settle(proposal, done(0, 1)) is Settled.DONE
    assert state.lost(proposal) is Settled.DONE
    assert state.committed == {0, 2}
