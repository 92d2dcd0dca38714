"""The broker's assignors: every partition once, evenly, and little moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.coordinators.assignors import (
    ASSIGNORS,
    Partitions,
    Subscriber,
    assign_range,
    assign_uniform,
)

TOPICS = [UUID(int=number) for number in range(1, 7)]
KIP_49_COUNTS = dict(zip(TOPICS[:5], (2, 1, 2, 1, 2), strict=True))
ALL = frozenset(TOPICS[:5])
ODD = frozenset((TOPICS[0], TOPICS[2], TOPICS[4]))
KIP_49 = {
    "C1": Subscriber(ALL),
    "C2": Subscriber(ODD),
    "C3": Subscriber(ODD),
    "C4": Subscriber(ALL),
}


def flat(share: Partitions) -> set[tuple[UUID, int]]:
    return {(topic, p) for topic, partitions in share.items() for p in partitions}


def loads(shares: Mapping[str, Partitions]) -> dict[str, int]:
    return {member: len(flat(share)) for member, share in shares.items()}


def again(
    members: Mapping[str, Subscriber], shares: Mapping[str, Partitions]
) -> dict[str, Subscriber]:
    """The same members with what they were given."""
    return {
        name: Subscriber(member.topics, shares.get(name, {}), member.instance_id)
        for name, member in members.items()
    }


def test_kip_49_with_uniform() -> None:
    """Two each, every partition once."""
    shares = assign_uniform(KIP_49, KIP_49_COUNTS)
    assert loads(shares) == {"C1": 2, "C2": 2, "C3": 2, "C4": 2}
    assert len(set().union(*map(flat, shares.values()))) == 8


def test_kip_49_with_range() -> None:
    shares = assign_range(KIP_49, KIP_49_COUNTS)
    named = {
        name: sorted(f"T{topic.int}-{p}" for topic, p in flat(share))
        for name, share in shares.items()
    }
    assert named == {
        "C1": ["T1-0", "T2-0", "T3-0", "T4-0", "T5-0"],
        "C2": ["T1-1", "T3-1", "T5-1"],
        "C3": [],
        "C4": [],
    }


def test_range_puts_static_members_first_and_meets_equal_keys_at_one_member() -> None:
    members = {
        "a": Subscriber(frozenset(TOPICS[:2])),
        "b": Subscriber(frozenset(TOPICS[:2]), instance_id="z"),
    }
    shares = assign_range(members, {TOPICS[0]: 5, TOPICS[1]: 5})
    first = frozenset({0, 1, 2})
    assert shares["b"] == {TOPICS[0]: first, TOPICS[1]: first}


def test_standby_members_take_over_and_nothing_else_moves() -> None:
    members = {f"m{n:02}": Subscriber(frozenset(TOPICS[:1])) for n in range(22)}
    before = assign_uniform(members, {TOPICS[0]: 20})
    idle = [name for name, load in loads(before).items() if load == 0]
    assert len(idle) == 2
    victim = next(name for name in members if name not in idle)
    rest = {name: m for name, m in again(members, before).items() if name != victim}
    after = assign_uniform(rest, {TOPICS[0]: 20})
    changed = [name for name in rest if after[name] != before[name]]
    assert len(changed) == 1
    assert changed[0] in idle
    assert after[changed[0]] == before[victim]


def test_of_twenty_with_one_each_exactly_one_survivor_carries_two() -> None:
    members = {f"m{n:02}": Subscriber(frozenset(TOPICS[:1])) for n in range(20)}
    before = assign_uniform(members, {TOPICS[0]: 20})
    rest = {name: m for name, m in again(members, before).items() if name != "m07"}
    after = assign_uniform(rest, {TOPICS[0]: 20})
    changed = [name for name in rest if after[name] != before[name]]
    assert len(changed) == 1
    assert flat(after[changed[0]]) == flat(before[changed[0]]) | flat(before["m07"])


counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 12), min_size=1)
subscriptions = st.dictionaries(
    st.sampled_from([f"m{n}" for n in range(9)]),
    st.frozensets(st.sampled_from(TOPICS)).map(Subscriber),
    min_size=1,
)


@pytest.mark.parametrize("name", ASSIGNORS)
@given(members=subscriptions, partition_counts=counts)
def test_every_partition_goes_once_to_somebody_who_wants_it(
    name: str, members: dict[str, Subscriber], partition_counts: dict[UUID, int]
) -> None:
    shares = ASSIGNORS[name](members, partition_counts)
    assert shares.keys() == members.keys()
    given_out = Counter(p for share in shares.values() for p in flat(share))
    wanted = set().union(*(m.topics for m in members.values()))
    exists = {(t, p) for t, n in partition_counts.items() if t in wanted for p in range(n)}
    assert given_out == Counter(exists)
    for member, share in shares.items():
        assert share.keys() <= members[member].topics


@given(members=subscriptions, partition_counts=counts)
def test_uniform_is_as_even_as_subscriptions_allow(
    members: dict[str, Subscriber], partition_counts: dict[UUID, int]
) -> None:
    """No chain of moves leads from a member to one that has two less: then none is more even."""
    shares = assign_uniform(members, partition_counts)
    load = loads(shares)
    for start in members:
        reached, waiting = {start}, [start]
        while waiting:
            here = waiting.pop()
            for other in members.keys() - reached:
                if shares[here].keys() & members[other].topics:
                    reached.add(other)
                    waiting.append(other)
        assert load[start] - min(load[other] for other in reached) <= 1


@given(members=subscriptions, partition_counts=counts)
def test_uniform_does_not_touch_what_is_even(
    members: dict[str, Subscriber], partition_counts: dict[UUID, int]
) -> None:
    shares = assign_uniform(members, partition_counts)
    assert assign_uniform(again(members, shares), partition_counts) == shares


@given(count=st.integers(1, 60), size=st.integers(2, 12), data=st.data())
def test_the_loss_of_a_member_moves_its_partitions_only(
    count: int, size: int, data: st.DataObject
) -> None:
    members = {f"m{n:02}": Subscriber(frozenset(TOPICS[:1])) for n in range(size)}
    before = assign_uniform(members, {TOPICS[0]: count})
    lost = data.draw(st.sampled_from(sorted(members)))
    rest = {name: m for name, m in again(members, before).items() if name != lost}
    after = assign_uniform(rest, {TOPICS[0]: count})
    for name in rest:
        assert flat(before[name]) <= flat(after[name])


@given(count=st.integers(1, 60), size=st.integers(1, 12))
def test_a_newcomer_takes_no_more_than_its_share(count: int, size: int) -> None:
    members = {f"m{n:02}": Subscriber(frozenset(TOPICS[:1])) for n in range(size)}
    before = assign_uniform(members, {TOPICS[0]: count})
    more = again(members, before) | {"new": Subscriber(frozenset(TOPICS[:1]))}
    after = assign_uniform(more, {TOPICS[0]: count})
    moved = sum(len(flat(before[name]) - flat(after[name])) for name in members)
    assert moved == len(flat(after["new"])) == count // (size + 1)
