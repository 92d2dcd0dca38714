"""Partitioning: keys go where every other Kafka client puts them, the rest is spread evenly."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_python_murmur2

from tidemill.client.partitioner import RoundRobin, StickyChoice, murmur2, positive_hash


@pytest.mark.parametrize(
    ("text", "signed"),
    [
        ("21", -973932308),
        ("foobar", -790332482),
        ("a-little-bit-long-string", -985981536),
        ("a-little-bit-longer-string", -1486304829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        ("abc", 479470107),
        ("", 275646681),
    ],
)
def test_golden_hashes(text: str, signed: int) -> None:
    assert murmur2(text.encode()) == signed % 2**32


@given(st.binary(max_size=70))
def test_same_hash_as_another_client(key: bytes) -> None:
    assert murmur2(key) == kafka_python_murmur2(key) % 2**32
    assert positive_hash(key) == murmur2(key) & 0x7FFFFFFF


def test_sticky_stays_for_a_batch_and_spreads_in_the_long_run() -> None:
    sticky = StickyChoice(Random(7), stick_bytes=1000)
    chosen = []
    for _ in range(20_000):
        if not sticky.take(100):
            sticky.choose(range(4))
        chosen.append(sticky.current)
    changes = sum(a != b for a, b in pairwise(chosen))
    assert changes < len(chosen) / 8
    shares = Counter(chosen)
    assert all(4000 < shares[index] < 6000 for index in range(4))


def test_sticky_avoids_long_queues() -> None:
    sticky = StickyChoice(Random(7), stick_bytes=1)
    shares = Counter(sticky.choose([0, 1], [0, 9]) for _ in range(2000))
    assert shares[0] > 5 * shares[1] > 0


def test_round_robin_takes_turns() -> None:
    choose = RoundRobin(Random(1))
    turns = [choose("t", None, None, 3) for _ in range(9)]
    assert sorted(Counter(turns).values()) == [3, 3, 3]
    assert all((b - a) % 3 == 1 for a, b in pairwise(turns))
