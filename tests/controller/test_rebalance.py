"""Plans for moving replicas: even, over racks, with as few bytes on the move as can be."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.controller.test_placement import brokers as broker_images

from tidemill.controller.placement import place
from tidemill.controller.rebalance import Plan, plan_rebalance
from tidemill.errors import ApiError, ErrorCode
from tidemill.types import TopicPartition

Assignment = dict[TopicPartition, tuple[int, ...]]


def placed(
    topics: dict[str, int], factor: int, racks: list[str | None], seed: int = 1
) -> Assignment:
    """Topics as they would be created on brokers 0, 1, ... of these racks."""
    random = Random(seed)
    assignment: Assignment = {}
    for name, count in topics.items():
        for index, replicas in enumerate(place(broker_images(racks), count, factor, random)):
            assignment[TopicPartition(name, index)] = tuple(replicas)
    return assignment


def loads(plan: Plan, brokers: range) -> list[int]:
    counts = Counter(b for replicas in plan.assignment.values() for b in replicas)
    return [counts[broker] for broker in brokers]


def leaders(plan: Plan, brokers: range) -> list[int]:
    counts = Counter(replicas[0] for replicas in plan.assignment.values())
    return [counts[broker] for broker in brokers]


def spread(counts: list[int]) -> int:
    return max(counts) - min(counts)


@settings(max_examples=60, deadline=None)
@given(
    partitions=st.integers(1, 30),
    old=st.integers(1, 5),
    new=st.integers(1, 6),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_replicas_and_leaders_are_even_and_no_replica_moves_for_nothing(
    partitions: int, old: int, new: int, seed: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, min(old, new)))
    before = placed({"a": partitions, "b": partitions // 2}, factor, [None] * old, seed)
    allowed = range(new)
    plan = plan_rebalance(before, dict.fromkeys(allowed))
    assert spread(loads(plan, allowed)) <= 1
    assert set(plan.assignment) == set(before)
    for replicas in plan.assignment.values():
        assert len(replicas) == len(set(replicas)) == factor
        assert set(replicas) <= set(allowed)
    # What no plan could avoid: whatever is on brokers that go, or above an even share.
    held = Counter(b for replicas in before.values() for b in replicas)
    share, above = divmod(sum(held.values()), new)
    fullest = sorted((held[b] for b in allowed), reverse=True)
    surplus = sum(max(0, n - share - (i < above)) for i, n in enumerate(fullest))
    gone = sum(count for broker, count in held.items() if broker not in allowed)
    assert plan.replicas_to_move == surplus + gone
    again = plan_rebalance(plan.assignment, dict.fromkeys(allowed))
    assert again.moves == ()


@settings(max_examples=60, deadline=None)
@given(
    racks=st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=6),
    partitions=st.integers(1, 25),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_replicas_are_on_as_many_racks_as_can_be(
    racks: list[str | None], partitions: int, seed: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, len(racks)))
    careless = placed({"t": partitions}, factor, [None] * len(racks), seed)
    where = dict(enumerate(racks))
    plan = plan_rebalance(careless, where)
    for replicas in plan.assignment.values():
        used = {where[broker] or "" for broker in replicas}
        assert len(used) == min(factor, len({rack or "" for rack in racks}))
    assert plan_rebalance(plan.assignment, where).moves == ()


@settings(max_examples=60, deadline=None)
@given(
    partitions=st.integers(1, 40),
    count=st.integers(1, 6),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_leaders_are_as_even_as_the_assignment_lets_them(
    partitions: int, count: int, seed: int, data: st.DataObject
) -> None:
    """With all replicas led by their lowest broker, the order alone makes leaders even."""
    factor = data.draw(st.integers(2, count)) if count > 1 else 1
    before = placed({"t": partitions}, factor, [None] * count, seed)
    skewed = {tp: tuple(sorted(replicas)) for tp, replicas in before.items()}
    plan = plan_rebalance(skewed, dict.fromkeys(range(count)))
    if factor == count:
        assert spread(leaders(plan, range(count))) <= 1
    assert spread(leaders(plan, range(count))) <= 2


def test_a_fourth_broker_gets_its_share_and_nothing_else_moves() -> None:
    before = placed({"clicks": 24, "views": 12}, 3, [None] * 3)
    sizes = {tp: 1_000 + tp.partition for tp in before}
    plan = plan_rebalance(before, dict.fromkeys(range(4)), sizes_bytes=sizes)
    assert loads(plan, range(4)) == [27, 27, 27, 27]
    assert leaders(plan, range(4)) == [9, 9, 9, 9]
    assert plan.replicas_to_move == 27
    arrivals = [move for move in plan.moves if 3 in move.after]
    assert plan.bytes_to_move == sum(sizes[move.partition] for move in arrivals)
    # Both topics give to the newcomer in proportion.
    assert Counter(move.partition.topic for move in arrivals) == {"clicks": 18, "views": 9}
    for move in plan.moves:
        assert set(move.after) - set(move.before) <= {3}


def test_the_smallest_replicas_move() -> None:
    before: Assignment = {TopicPartition("t", index): (0,) for index in range(4)}
    sizes = {tp: 100 - tp.partition for tp in before}
    plan = plan_rebalance(before, {0: None, 1: None}, sizes_bytes=sizes)
    assert [move.partition.partition for move in plan.moves] == [2, 3]
    assert plan.bytes_to_move == 98 + 97


def test_a_broker_can_be_emptied() -> None:
    before = placed({"t": 12}, 2, [None] * 4)
    plan = plan_rebalance(before, dict.fromkeys(range(3)))
    assert spread(loads(plan, range(3))) <= 1
    assert spread(leaders(plan, range(3))) <= 1
    assert all((3 in move.before) or move.bytes_to_move == 0 for move in plan.moves)


def test_racks_are_repaired_unless_they_are_to_be_ignored() -> None:
    before: Assignment = {TopicPartition("t", 0): (0, 1), TopicPartition("t", 1): (2, 3)}
    racks: dict[int, str | None] = {0: "a", 1: "a", 2: "b", 3: "b"}
    plan = plan_rebalance(before, racks)
    for replicas in plan.assignment.values():
        assert {racks[b] for b in replicas} == {"a", "b"}
    assert plan.replicas_to_move == 2
    assert plan_rebalance(before, racks, rack_aware=False).moves == ()


def test_a_move_goes_through_a_third_broker_where_racks_forbid_the_direct_way() -> None:
    """What 0 holds has its other replica where 4 is: 5 takes one of those and gives another."""
    racks: dict[int, str | None] = {0: "a", 1: "a", 2: "b", 3: "b", 4: "b", 5: "c"}
    before: Assignment = {
        TopicPartition("t", index): replicas
        for index, replicas in enumerate([(0, 2), (0, 3), (5, 1)])
    }
    plan = plan_rebalance(before, racks)
    assert loads(plan, range(6)) == [1] * 6
    assert plan.replicas_to_move == 2
    assert all(len({racks[b] for b in replicas}) == 2 for replicas in plan.assignment.values())


def test_more_replicas_than_brokers_cannot_be() -> None:
    before: Assignment = {TopicPartition("t", 0): (0, 1, 2)}
    with pytest.raises(ApiError, match="Replication factor: 3 larger than") as caught:
        plan_rebalance(before, {0: None, 1: None})
    assert caught.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert plan_rebalance({}, {}).moves == ()


def test_the_same_question_has_the_same_answer() -> None:
    before = placed({"a": 20, "b": 7}, 3, ["x", "y", "z", "x"])
    racks: dict[int, str | None] = {0: "x", 1: "y", 2: "z", 3: "x", 4: "y", 5: "z"}
    one = plan_rebalance(before, racks)
    other = plan_rebalance(dict(reversed(before.items())), dict(reversed(racks.items())))
    assert one.moves == other.moves
    assert one.moves


def test_a_large_cluster_is_planned_in_seconds() -> None:
    before = placed({f"t{number}": 20 for number in range(100)}, 3, [None] * 5)
    plan = plan_rebalance(before, dict.fromkeys(range(6)))
    assert spread(loads(plan, range(6))) <= 1
    assert spread(leaders(plan, range(6))) <= 1
    assert plan.replicas_to_move == 1000
