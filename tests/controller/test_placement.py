"""Placement: replicas spread over racks, leaders over brokers, and Kafka's words when it cannot."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.controller.placement import place
from tidemill.errors import ApiError
from tidemill.image import BrokerImage
from tidemill.types import BrokerEpoch, BrokerId


def brokers(racks: list[str | None], fenced: frozenset[int] = frozenset()) -> list[BrokerImage]:
    return [
        BrokerImage(BrokerId(number), BrokerEpoch(1), (), rack, fenced=number in fenced)
        for number, rack in enumerate(racks)
    ]


RACKS = st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=7)


@given(racks=RACKS, partitions=st.integers(1, 40), seed=st.integers(0, 100), data=st.data())
def test_every_partition_has_distinct_replicas_on_as_many_racks_as_can_be(
    racks: list[str | None], partitions: int, seed: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, len(racks)))
    placed = place(brokers(racks), partitions, factor, Random(seed))
    assert len(placed) == partitions
    for replicas in placed:
        assert len(set(replicas)) == factor
        assert len({racks[broker] or "" for broker in replicas}) == min(
            factor, len({rack or "" for rack in racks})
        )


@given(racks=RACKS, rounds=st.integers(1, 5), seed=st.integers(0, 100))
def test_preferred_leaders_are_even(racks: list[str | None], rounds: int, seed: int) -> None:
    placed = place(brokers(racks), rounds * len(racks), 1, Random(seed))
    assert set(Counter(replicas[0] for replicas in placed).values()) == {rounds}


def test_replicas_are_even_where_racks_are() -> None:
    placed = place(brokers(["a", "b", "c", "a", "b", "c"]), 60, 3, Random(4))
    counts = Counter(broker for replicas in placed for broker in replicas)
    assert max(counts.values()) - min(counts.values()) <= 6


def test_the_same_seed_places_the_same_way() -> None:
    one = place(brokers([None] * 5), 20, 3, Random(7))
    assert one == place(brokers([None] * 5), 20, 3, Random(7))
    assert one != place(brokers([None] * 5), 20, 3, Random(8))


def test_brokers_that_are_down_hold_replicas_only_when_they_must() -> None:
    fenced = frozenset({0, 1})
    for replicas in place(brokers([None] * 4, fenced), 12, 2, Random(1)):
        assert not fenced & set(replicas)
    for replicas in place(brokers([None] * 4, fenced), 12, 3, Random(1)):
        assert replicas[0] not in fenced
        assert len(fenced & set(replicas)) == 1


@pytest.mark.parametrize(
    ("racks", "factor", "message"),
    [
        ([None], 0, "Invalid replication factor 0: the replication factor must be positive."),
        ([], 1, "All brokers are currently fenced."),
        ([None], 2, "The target replication factor of 2 cannot be reached because only 1 broker"),
    ],
)
def test_what_cannot_be_placed_is_refused(
    racks: list[str | None], factor: int, message: str
) -> None:
    with pytest.raises(ApiError, match=message):
        place(brokers(racks), 1, factor, Random(1))


def test_without_racks_machines_are_what_replicas_are_spread_over() -> None:
    machines = ["m1", "m1", "m2", "m2"]
    hosts = [
        replace(broker, machine=machine)
        for broker, machine in zip(brokers([None] * 4), machines, strict=True)
    ]
    for seed in range(20):
        for replicas in place(hosts, 8, 2, Random(seed)):
            assert {machines[broker] for broker in replicas} == {"m1", "m2"}
    racked = [replace(broker, rack="r1" if broker.broker_id % 2 else "r2") for broker in hosts]
    for replicas in place(racked, 8, 2, Random(1)):
        assert len({broker % 2 for broker in replicas}) == 2, "what people say goes first"
    partly = [replace(broker, rack="r" if broker.broker_id == 0 else None) for broker in hosts]
    for replicas in place(partly, 8, 2, Random(1)):
        assert BrokerId(0) in replicas, "the others are in one zone together"
