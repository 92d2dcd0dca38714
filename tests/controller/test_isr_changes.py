"""AlterPartition: which proposals of a leader the controller takes, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.controller.partitions import (
    applied,
    broker,
    cluster,
    only,
    partition,
    policy,
    topic_id,
)

from tidemill.controller import changes
from tidemill.controller.isr_changes import judge
from tidemill.errors import ErrorCode
from tidemill.image import BrokerImage, ClusterImage, LeaderRecovery, PartitionImage, with_broker
from tidemill.wire.codec import decode, encode
from tidemill.wire.messages.isr import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    PartitionData,
    PartitionDataResult,
    TopicData,
)

STATE = partition([1, 2, 3], [1, 2], leader=1)
RECOVERING = LeaderRecovery.RECOVERING


def members(*broker_ids: int) -> list[BrokerState]:
    return [BrokerState(broker_id=b, broker_epoch=b * 100) for b in broker_ids]


def proposal(
    isr: Sequence[BrokerState],
    *,
    index: int = 0,
    leader_epoch: int = 4,
    partition_epoch: int = 9,
    recovery: int = 0,
) -> PartitionData:
    return PartitionData(
        partition_index=index,
        leader_epoch=leader_epoch,
        partition_epoch=partition_epoch,
        new_isr_with_epochs=list(isr),
        leader_recovery_state=recovery,
    )


def request(
    *proposals: PartitionData, sender: int = 1, epoch: int | None = None, topic: int = 1
) -> AlterPartitionRequest:
    return AlterPartitionRequest(
        broker_id=sender,
        broker_epoch=sender * 100 if epoch is None else epoch,
        topics=[TopicData(topic_id=topic_id(topic), partitions=list(proposals))],
    )


def image(
    state: PartitionImage = STATE, brokers: Sequence[int | BrokerImage] = (1, 2, 3, 4)
) -> ClusterImage:
    return cluster(brokers, [state])


def answer(response: AlterPartitionResponse) -> PartitionDataResult:
    """The answer for the one partition asked about, through the codec."""
    response = decode(AlterPartitionResponse, 3, encode(response, 3))
    assert response.error_code == ErrorCode.NONE
    ((result,),) = [topic.partitions for topic in response.topics]
    return result


def refusal(
    asked: AlterPartitionRequest, of: ClusterImage | None = None, min_isr: int = 1
) -> ErrorCode:
    """The error of a proposal that is not taken; nothing is written then (rule C5)."""
    response, made = judge(image() if of is None else of, asked, policy(min_isr))
    assert made == []
    return ErrorCode(answer(response).error_code)


def test_a_leader_grows_and_shrinks_its_set() -> None:
    """Rule C5: a compare-and-set; the answer is the state afterwards."""
    response, made = judge(image(), request(proposal(members(1, 2, 3))), policy(2))
    after = only(made)
    assert (after.isr, after.leader_epoch, after.partition_epoch) == ((1, 2, 3), 4, 10)
    result = answer(response)
    assert (result.error_code, result.leader_id, result.leader_epoch) == (0, 1, 4)
    assert (result.isr, result.partition_epoch) == ([1, 2, 3], 10)
    after = only(judge(image(), request(proposal(members(1))), policy(2))[1])
    assert (after.isr, after.elr) == ((1,), (2,))


@pytest.mark.parametrize(
    ("asked", "code"),
    {
        "newer leader epoch": (
            request(proposal(members(1), leader_epoch=5)),
            ErrorCode.NOT_CONTROLLER,
        ),
        "newer partition epoch": (
            request(proposal(members(1), partition_epoch=10)),
            ErrorCode.NOT_CONTROLLER,
        ),
        "older leader epoch": (
            request(proposal(members(1), leader_epoch=3)),
            ErrorCode.FENCED_LEADER_EPOCH,
        ),
        "not the leader": (
            request(proposal(members(1, 2)), sender=2),
            ErrorCode.INVALID_REQUEST,
        ),
        "older partition epoch": (
            request(proposal(members(1), partition_epoch=8)),
            ErrorCode.INVALID_UPDATE_VERSION,
        ),
        "nobody": (request(proposal(members())), ErrorCode.INVALID_REQUEST),
        "without the leader": (request(proposal(members(2, 3))), ErrorCode.INVALID_REQUEST),
        "twice the same": (request(proposal(members(1, 2, 2))), ErrorCode.INVALID_REQUEST),
        "not a replica": (request(proposal(members(1, 4))), ErrorCode.INVALID_REQUEST),
        "recovering again": (
            request(proposal(members(1), recovery=1)),
            ErrorCode.INVALID_REQUEST,
        ),
        "no such recovery": (
            request(proposal(members(1), recovery=7)),
            ErrorCode.INVALID_REQUEST,
        ),
        "another incarnation": (
            request(proposal([*members(1, 2), BrokerState(broker_id=3, broker_epoch=299)])),
            ErrorCode.INELIGIBLE_REPLICA,
        ),
        "no such partition": (
            request(proposal(members(1), index=5)),
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ),
        "no such topic": (
            request(proposal(members(1)), topic=9),
            ErrorCode.UNKNOWN_TOPIC_ID,
        ),
        "no topic": (request(proposal(members(1)), topic=0), ErrorCode.UNKNOWN_TOPIC_ID),
    }.values(),
)
def test_what_is_refused_and_how(asked: AlterPartitionRequest, code: ErrorCode) -> None:
    """Rules A3, C5, C7: the error says whether the leader is behind, ahead, or wrong."""
    assert refusal(asked) is code


def test_a_sender_of_another_incarnation_is_refused_as_a_whole() -> None:
    """Rule A3: whether it is too old, too new, or not registered at all."""
    for sender, epoch in ((1, 99), (1, 101), (8, 800)):
        asked = request(proposal(members(1)), sender=sender, epoch=epoch)
        response, made = judge(image(), asked, policy())
        assert (response.error_code, response.topics, made) == (
            ErrorCode.STALE_BROKER_EPOCH,
            [],
            [],
        )


@pytest.mark.parametrize(
    "third",
    [broker(3, fenced=True), broker(3, stopping=True), None],
    ids=["fenced", "stopping", "gone"],
)
def test_only_live_brokers_join(third: BrokerImage | None) -> None:
    """Rules C3, K1: a broker that shuts down is not taken back into a set."""
    brokers: list[int | BrokerImage] = [1, 2] if third is None else [1, 2, third]
    asked = request(proposal(members(1, 2, 3)))
    assert refusal(asked, image(brokers=brokers)) is ErrorCode.INELIGIBLE_REPLICA


def test_a_proposal_that_has_come_true_is_a_success() -> None:
    """Rule C5: its leader did not hear the answer and proposes the same again."""
    asked = request(proposal(members(2, 1, 3)))
    first, made = judge(image(), asked, policy())
    taken = applied(image(), made)
    second, again = judge(taken, asked, policy())
    assert again == []
    assert answer(second) == answer(first)
    other = request(proposal(members(1)))
    assert refusal(other, taken) is ErrorCode.INVALID_UPDATE_VERSION


def test_the_same_at_the_same_epoch_changes_nothing() -> None:
    """Rule C5."""
    response, made = judge(image(), request(proposal(members(2, 1))), policy())
    assert made == []
    assert (answer(response).error_code, answer(response).partition_epoch) == (0, 9)


def test_version_2_names_members_without_epochs() -> None:
    old = PartitionData(partition_index=0, leader_epoch=4, partition_epoch=9, new_isr=[1, 2, 3])
    asked = decode(AlterPartitionRequest, 2, encode(request(old), 2))
    assert only(judge(image(), asked, policy())[1]).isr == (1, 2, 3)


def test_an_unknown_member_epoch_is_not_compared() -> None:
    asked = request(proposal([*members(1, 2), BrokerState(broker_id=3)]))
    assert only(judge(image(), asked, policy())[1]).isr == (1, 2, 3)


def test_a_recovering_leader_recovers_before_others_join() -> None:
    """Rule A10: the mark of an unclean election goes when the leader says so."""
    lossy = image(partition([1, 2, 3], [1], recovery=RECOVERING))
    both = request(proposal(members(1, 2), recovery=1))
    assert refusal(both, lossy) is ErrorCode.INVALID_REQUEST
    still = request(proposal(members(1), recovery=1))
    assert judge(lossy, still, policy())[1] == []
    after = only(judge(lossy, request(proposal(members(1, 2))), policy())[1])
    assert (after.isr, after.recovery) == ((1, 2), LeaderRecovery.RECOVERED)


MOVING = partition([4, 2, 1], [1, 2], leader=1, adding=[4], removing=[1])


def test_the_last_target_to_join_completes_the_move() -> None:
    """Rule C8: the leader leaves, is told so, and its epoch is over."""
    response, made = judge(image(MOVING), request(proposal(members(1, 2, 4))), policy())
    assert answer(response).error_code == ErrorCode.NEW_LEADER_ELECTED
    after = only(made)
    assert (after.replicas, after.adding, after.removing) == ((4, 2), (), ())
    assert (set(after.isr), after.leader, after.leader_epoch) == ({2, 4}, 4, 5)


def test_a_leader_that_stays_leads_on_in_a_new_epoch() -> None:
    """Rule C8: so that the replica which left is fenced."""
    state = replace(MOVING, leader=STATE.isr[1])
    asked = request(proposal(members(1, 2, 4)), sender=2)
    response, made = judge(image(state), asked, policy())
    result = answer(response)
    assert (result.error_code, result.leader_id, result.leader_epoch) == (0, 2, 5)
    assert set(result.isr) == {2, 4}
    assert only(made).leader_epoch == 5


def test_a_move_waits_for_all_of_its_targets() -> None:
    """Rule C8: 4 has caught up, but 2, which stays, is not in sync."""
    after = only(judge(image(MOVING), request(proposal(members(1, 4))), policy())[1])
    assert (after.replicas, after.removing, after.leader) == ((4, 2, 1), (1,), 1)


def test_a_round_changes_a_partition_once_and_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    both = request(proposal(members(1, 2, 3)), proposal(members(1)))
    response, made = judge(image(), both, policy())
    codes = [p.error_code for t in response.topics for p in t.partitions]
    assert codes == [ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED]
    assert only(made).isr == (1, 2, 3)
    monkeypatch.setattr(changes, "CHANGES_PER_ROUND_MAX", 0)
    assert refusal(request(proposal(members(1)))) is ErrorCode.OPERATION_NOT_ATTEMPTED


def test_who_was_eligible_and_joins_is_in_sync_and_no_longer_eligible() -> None:
    """Rule F2."""
    state = partition([1, 2, 3], [1], elr=[2])
    after = only(judge(image(state), request(proposal(members(1, 2))), policy(3))[1])
    assert (after.isr, after.elr) == ((1, 2), ())
    restarted = with_broker(image(state), broker(2, epoch=201))
    asked = request(proposal(members(1, 2)))
    assert refusal(asked, restarted) is ErrorCode.INELIGIBLE_REPLICA
