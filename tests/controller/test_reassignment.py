"""Reassignments: what may be asked for, the steps of a move, and the way back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from tests.controller.partitions import applied, broker, cluster, ids, only, partition, policy

from tidemill.controller import changes
from tidemill.controller.changes import PartitionChange
from tidemill.controller.election import ElectionPolicy, next_state
from tidemill.controller.reassignment import alter_reassignments, begin, list_reassignments
from tidemill.errors import ErrorCode
from tidemill.image import BrokerImage, ClusterImage, LeaderRecovery, PartitionImage
from tidemill.types import NO_BROKER
from tidemill.wire.codec import decode, encode
from tidemill.wire.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
)

BROKERS = (1, 2, 3, 4, 5)
Replicas = Sequence[int] | None


def ask(
    image: ClusterImage,
    targets: Mapping[tuple[str, int], Replicas],
    *,
    may_resize: bool = True,
    unclean: bool = False,
) -> tuple[list[tuple[str, str | None]], list[PartitionChange]]:
    """The error and its message for each partition, and what is to be written."""
    request = AlterPartitionReassignmentsRequest(
        allow_replication_factor_change=may_resize,
        topics=[
            ReassignableTopic(
                name=name,
                partitions=[
                    ReassignablePartition(
                        partition_index=index, replicas=None if target is None else list(target)
                    )
                ],
            )
            for (name, index), target in targets.items()
        ],
    )
    response, made = alter_reassignments(image, request, policy(2, unclean=unclean))
    response = decode(AlterPartitionReassignmentsResponse, 1, encode(response, 1))
    assert response.error_code == ErrorCode.NONE
    answers = [
        (ErrorCode(partition.error_code).name, partition.error_message)
        for topic in response.responses
        for partition in topic.partitions
    ]
    return answers, made


def move(
    state: PartitionImage, target: Replicas, brokers: Sequence[int | BrokerImage] = BROKERS
) -> PartitionImage:
    answers, made = ask(cluster(brokers, [state]), {("t", 0): target})
    assert answers == [("NONE", None)]
    return only(made)


def refused(state: PartitionImage, target: Replicas, **options: bool) -> tuple[str, str | None]:
    (answer,), made = ask(cluster(BROKERS, [state]), {("t", 0): target}, **options)
    assert made == []
    return answer


def shape(state: PartitionImage) -> tuple[tuple[int, ...], ...]:
    return state.replicas, state.adding, state.removing


def join(state: PartitionImage, *isr: int) -> PartitionImage:
    """The leader takes these into its set."""
    wanted = replace(state, isr=ids(isr))
    after = next_state(state, wanted, frozenset(BROKERS).__contains__, ElectionPolicy(2))
    assert after is not None
    return after


def test_a_move_grows_catches_up_and_shrinks() -> None:
    """Rule C8: nobody leaves before all targets are in sync."""
    growing = move(partition([1, 2, 3]), [4, 5, 3])
    assert shape(growing) == ((4, 5, 3, 1, 2), (4, 5), (1, 2))
    assert (growing.leader, growing.leader_epoch, growing.partition_epoch) == (1, 4, 10)
    half = join(growing, 1, 2, 3, 4)
    assert shape(half) == shape(growing)
    done = join(half, 1, 2, 3, 4, 5)
    assert shape(done) == ((4, 5, 3), (), ())
    assert (done.isr, done.leader, done.leader_epoch) == ((3, 4, 5), 4, 5)


def test_fewer_replicas_are_reached_at_once_if_those_are_in_sync() -> None:
    """Rule C8: the epoch is bumped though the leader stays."""
    done = move(partition([1, 2, 3]), [1, 2])
    assert (shape(done), done.isr) == (((1, 2), (), ()), (1, 2))
    assert (done.leader, done.leader_epoch) == (1, 5)
    waiting = move(partition([1, 2, 3], [1, 3]), [1, 2])
    assert shape(waiting) == ((1, 2, 3), (), (3,))


def test_another_order_is_only_another_preferred_leader() -> None:
    done = move(partition([1, 2, 3]), [3, 2, 1])
    assert (shape(done), done.leader, done.leader_epoch) == (((3, 2, 1), (), ()), 1, 4)
    answers, made = ask(cluster(BROKERS, [partition([1, 2])]), {("t", 0): [1, 2]})
    assert (answers, made) == ([("NONE", None)], [])


def test_cancelling_goes_back() -> None:
    """Rule C8: new replicas leave at once, whatever they have caught up with."""
    growing = join(move(partition([1, 2, 3]), [1, 2, 4]), 1, 3, 4)
    back = move(growing, None)
    assert (shape(back), back.isr, back.elr) == (((1, 2, 3), (), ()), (1, 3), ())
    assert (back.leader, back.leader_epoch) == (1, 5)


def test_a_cancelled_move_takes_the_leadership_from_the_newcomer() -> None:
    state = partition([4, 2, 1], [4, 2], leader=4, adding=[4], removing=[1])
    back = move(state, None)
    assert (shape(back), back.isr, back.leader, back.leader_epoch) == (
        ((2, 1), (), ()),
        (2,),
        2,
        5,
    )


def test_cancelling_falls_back_on_the_eligible_but_never_on_the_incomplete() -> None:
    """Rules A10, F2: only newcomers are in sync."""
    state = partition([4, 2, 1], [4], leader=4, adding=[4], removing=[1], elr=[2])
    back = move(state, None)
    assert (back.leader, back.isr, back.recovery) == (2, (2,), LeaderRecovery.RECOVERED)
    lossy = partition([4, 2, 1], [4], leader=4, adding=[4], removing=[1])
    problem = (
        "Unable to revert partition assignment for t:0 because it would require an "
        "unclean leader election."
    )
    assert refused(lossy, None) == ("INVALID_REPLICA_ASSIGNMENT", problem)
    _, made = ask(cluster(BROKERS, [lossy]), {("t", 0): None}, unclean=True)
    after = only(made)
    assert (after.leader, after.isr, after.recovery) == (2, (2,), LeaderRecovery.RECOVERING)


def test_a_move_of_an_offline_partition_can_be_cancelled() -> None:
    state = partition([4, 1], [], adding=[4], elr=[1, 4], last_known=[4])
    back = move(state, None, brokers=[2])
    assert (shape(back), back.elr, back.leader) == (((1,), (), ()), (1,), NO_BROKER)
    assert back.last_known_elr == ()


def test_a_second_move_replaces_the_first_and_cancelling_undoes_both() -> None:
    """Rule C8: what only the first move wanted leaves with either end of the second."""
    first = move(partition([1, 2, 3]), [1, 2, 4])
    second = move(first, [1, 2, 5])
    assert shape(second) == ((1, 2, 5, 3, 4), (4, 5), (3, 4))
    assert shape(join(second, 1, 2, 3, 4, 5)) == ((1, 2, 5), (), ())
    assert shape(move(second, None)) == ((1, 2, 3), (), ())
    assert shape(move(second, [1, 2, 3])) == ((1, 2, 3), (), ())
    third = move(second, [1, 2, 4])
    assert shape(third) == ((1, 2, 4, 3, 5), (4, 5), (3, 5))


def test_what_is_not_a_valid_assignment() -> None:
    state = partition([1, 2, 3])
    code = "INVALID_REPLICA_ASSIGNMENT"
    start = "The manual partition assignment includes"
    assert refused(state, []) == (code, f"{start} an empty replica list.")
    assert refused(state, [1, 1]) == (code, f"{start} the broker 1 more than once.")
    unknown = f"{start} broker 9, but no such broker is registered."
    assert refused(state, [1, 9]) == (code, unknown)
    negative = f"{start} broker -1, but no such broker is registered."
    assert refused(state, [-1]) == (code, negative)


def test_a_replica_that_is_down_may_stay_and_a_fenced_broker_may_join() -> None:
    state = partition([1, 2, 9], [1, 2])
    assert shape(move(state, [9, 1, 2]))[0] == (9, 1, 2)
    joining = move(partition([1]), [1, 3], brokers=[1, broker(3, fenced=True)])
    assert joining.adding == (3,)


def test_the_replication_factor_can_be_held() -> None:
    state = partition([1, 2, 3])
    assert refused(state, [1, 2], may_resize=False) == (
        "INVALID_REPLICATION_FACTOR",
        "The replication factor is changed from 3 to 2",
    )
    moving = move(state, [1, 2, 4])
    answers, _ = ask(cluster(BROKERS, [moving]), {("t", 0): [1, 4, 5]}, may_resize=False)
    assert answers == [("NONE", None)]


def test_what_cannot_be_found_or_is_not_moving() -> None:
    image = cluster(BROKERS, [partition([1, 2])])
    answers, made = ask(image, {("no", 0): [1], ("t", 7): [1], ("t", 0): None})
    assert made == []
    assert answers == [
        ("UNKNOWN_TOPIC_OR_PARTITION", "Unable to find a topic named no."),
        ("UNKNOWN_TOPIC_OR_PARTITION", "Unable to find partition t:7."),
        ("NO_REASSIGNMENT_IN_PROGRESS", None),
    ]


def test_a_request_is_done_in_part_and_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "CHANGES_PER_ROUND_MAX", 1)
    image = cluster(BROKERS, [partition([1]), partition([1], index=1)])
    answers, made = ask(image, {("t", 0): [2], ("t", 1): [2]})
    assert [code for code, _ in answers] == ["NONE", "OPERATION_NOT_ATTEMPTED"]
    assert only(made).index == 0


def listed(
    image: ClusterImage, topics: Mapping[str, list[int]] | None = None
) -> list[tuple[str, list[tuple[int, list[int], list[int], list[int]]]]]:
    request = ListPartitionReassignmentsRequest(
        topics=None
        if topics is None
        else [
            ListPartitionReassignmentsTopics(name=name, partition_indexes=indexes)
            for name, indexes in topics.items()
        ]
    )
    response = list_reassignments(image, request)
    response = decode(ListPartitionReassignmentsResponse, 0, encode(response, 0))
    return [
        (
            topic.name,
            [
                (p.partition_index, p.replicas, p.adding_replicas, p.removing_replicas)
                for p in topic.partitions
            ],
        )
        for topic in response.topics
    ]


def test_only_what_moves_is_listed() -> None:
    image = cluster(
        BROKERS, {"a": [partition([1]), partition([1], index=1)], "b": [partition([2])]}
    )
    assert listed(image) == []
    _, made = ask(image, {("a", 1): [3], ("b", 0): [2, 4]})
    image = applied(image, made)
    everything = [("a", [(1, [3, 1], [3], [1])]), ("b", [(0, [2, 4], [4], [])])]
    assert listed(image) == everything
    assert listed(image, {"a": [0, 1, 9], "none": [0]}) == everything[:1]
    assert listed(image, {}) == []


def test_the_targets_come_first_so_that_the_preferred_leader_is_theirs() -> None:
    state = begin(partition([1, 2]), ids([4, 2]))
    assert shape(state) == ((4, 2, 1), (4,), (1,))
