"""The assignors of a classic group's leader, and what members tell each other."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.client.assignors import ASSIGNORS, Shares, choose
from tidemill.client.consumer_protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from tidemill.client.errors import SettingsError
from tidemill.errors import WireError
from tidemill.types import TopicPartition

COUNTS = {"T1": 2, "T2": 1, "T3": 2, "T4": 1, "T5": 2}
ALL, ODD = ("T1", "T2", "T3", "T4", "T5"), ("T1", "T3", "T5")
KIP_49 = {name: Subscription(t) for name, t in zip(("C1", "C2", "C3", "C4"), (ALL, ODD, ODD, ALL), strict=True)}  # fmt: skip  # noqa: E501
STICKY = ["sticky", "cooperative-sticky"]


def shown(shares: Shares) -> dict[str, list[str]]:
    return {member: sorted(map(str, share)) for member, share in shares.items()}


def remembered(
    name: str, topics: tuple[str, ...], had: set[TopicPartition], generation: int
) -> Subscription:
    """A member's subscription as it travels, with what it had in that generation."""
    data = ASSIGNORS[name].user_data(had, generation)
    written = encode_subscription(Subscription(topics, data, frozenset(had), generation))
    return decode_subscription(written)


def test_kip_49_with_range() -> None:
    assert shown(ASSIGNORS["range"].assign(KIP_49, COUNTS)) == {
        "C1": ["T1-0", "T2-0", "T3-0", "T4-0", "T5-0"],
        "C2": ["T1-1", "T3-1", "T5-1"],
        "C3": [],
        "C4": [],
    }


def test_kip_49_with_round_robin() -> None:
    assert shown(ASSIGNORS["roundrobin"].assign(KIP_49, COUNTS)) == {
        "C1": ["T1-0", "T3-0", "T5-0"],
        "C2": ["T1-1", "T3-1", "T5-1"],
        "C3": [],
        "C4": ["T2-0", "T4-0"],
    }


@pytest.mark.parametrize("name", STICKY)
def test_kip_49_with_sticky(name: str) -> None:
    """Two each, every partition once."""
    shares = ASSIGNORS[name].assign(KIP_49, COUNTS)
    assert [len(share) for share in shares.values()] == [2, 2, 2, 2]
    assert len(set().union(*shares.values())) == 8


@pytest.mark.parametrize("name", STICKY)
@pytest.mark.parametrize(("size", "idle"), [(22, 2), (20, 0)])
def test_a_lost_member_s_partition_goes_to_one_and_nothing_else_moves(
    name: str, size: int, idle: int
) -> None:
    counts = {"t": 20}
    before = ASSIGNORS[name].assign({f"m{n:02}": Subscription(("t",)) for n in range(size)}, counts)
    assert sum(1 for share in before.values() if not share) == idle
    lost = next(member for member, share in before.items() if share)
    rest = {m: remembered(name, ("t",), had, 4) for m, had in before.items() if m != lost}
    after = ASSIGNORS[name].assign(rest, counts)
    changed = [member for member in rest if after[member] != before[member]]
    assert len(changed) == 1
    assert after[changed[0]] == before[changed[0]] | before[lost]
    assert len(before[changed[0]]) == (0 if idle else 1)


@pytest.mark.parametrize("name", ASSIGNORS)
@given(
    members=st.dictionaries(
        st.sampled_from([f"m{n}" for n in range(7)]),
        st.builds(
            Subscription,
            st.lists(st.sampled_from("abcd"), unique=True).map(tuple),
            instance_id=st.none() | st.sampled_from(["i1", "i2"]),
        ),
        min_size=1,
    ),
    counts=st.dictionaries(st.sampled_from("abcd"), st.integers(1, 9)),
)
def test_every_partition_goes_once_to_somebody_who_wants_it(
    name: str, members: dict[str, Subscription], counts: dict[str, int]
) -> None:
    shares = ASSIGNORS[name].assign(members, counts)
    wanted = {topic for member in members.values() for topic in member.topics}
    exists = {TopicPartition(t, p) for t in wanted & counts.keys() for p in range(counts[t])}
    assert Counter(p for share in shares.values() for p in share) == Counter(exists)
    for member, share in shares.items():
        assert {partition.topic for partition in share} <= set(members[member].topics)


def test_a_member_that_was_away_does_not_claim_its_past() -> None:
    """Both say that they had partition 0; the younger generation is right."""
    past, now = {TopicPartition("t", 0)}, {TopicPartition("t", 0), TopicPartition("t", 1)}
    members = {
        "ghost": remembered("sticky", ("t",), past, 3),
        "owner": remembered("sticky", ("t",), now, 7),
    }
    shares = ASSIGNORS["sticky"].assign(members, {"t": 2})
    assert {len(share) for share in shares.values()} == {1}
    assert shares["owner"] <= now
    same = {m: remembered("sticky", ("t",), past, 3) for m in ("a", "b")}
    assert sorted(map(len, ASSIGNORS["sticky"].assign(same, {"t": 1}).values())) == [0, 1]


def test_cooperative_members_get_nothing_that_another_still_has() -> None:
    had = {TopicPartition("t", p) for p in range(4)}
    name = "cooperative-sticky"
    members = {"a": remembered(name, ("t",), had, 1), "b": remembered(name, ("t",), set(), -1)}
    first = ASSIGNORS[name].assign(members, {"t": 4})
    assert len(first["a"]) == 2
    assert first["b"] == set()
    members["a"] = remembered(name, ("t",), first["a"], 2)
    second = ASSIGNORS[name].assign(members, {"t": 4})
    assert second["a"] == first["a"]
    assert second["b"] == had - first["a"]


def test_the_sticky_user_data_is_kafka_s_byte_for_byte() -> None:
    written = ASSIGNORS["sticky"].user_data({TopicPartition("t", 1), TopicPartition("t", 0)}, 5)
    assert written == bytes.fromhex("0000000100017400000002000000000000000100000005")
    assert ASSIGNORS["sticky"].user_data(set(), -1) is None
    assert ASSIGNORS["cooperative-sticky"].user_data(set(), 5) == bytes.fromhex("00000005")


def test_old_and_odd_user_data_is_no_obstacle() -> None:
    old = bytes.fromhex("000000010001740000000100000000")
    members = {"a": Subscription(("t",), b"\xff"), "b": Subscription(("t",), old)}
    shares = ASSIGNORS["sticky"].assign(members, {"t": 2})
    assert TopicPartition("t", 0) in shares["b"]


@pytest.mark.parametrize("version", range(4))
def test_subscriptions_of_every_version(version: int) -> None:
    whole = Subscription(("a", "b"), b"x", frozenset({TopicPartition("a", 1)}), 7, "rack")
    read = decode_subscription(encode_subscription(whole, version))
    assert (read.topics, read.user_data) == (("a", "b"), b"x")
    assert read.owned == (whole.owned if version >= 1 else frozenset())
    assert read.generation == (7 if version >= 2 else -1)
    assert read.rack == ("rack" if version >= 3 else None)


def test_what_is_newer_is_read_as_far_as_it_is_known() -> None:
    data = encode_subscription(Subscription(("a",)))
    assert decode_subscription(b"\x00\x09" + data[2:] + b"more").topics == ("a",)
    with pytest.raises(WireError):
        decode_subscription(b"\x00")
    with pytest.raises(WireError):
        decode_subscription(b"\xff\xff\x00")


@pytest.mark.parametrize("version", range(4))
def test_assignments_of_every_version(version: int) -> None:
    partitions = {TopicPartition("a", 1), TopicPartition("b", 0), TopicPartition("a", 0)}
    assert decode_assignment(encode_assignment(partitions, b"u", version)) == partitions
    assert decode_assignment(b"") == frozenset()


def test_assignors_are_chosen_by_either_name() -> None:
    java = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
    assert [a.name for a in choose(["range", java, "range"])] == ["range", "cooperative-sticky"]
    with pytest.raises(SettingsError, match="there are range"):
        choose(["rage"])
    with pytest.raises(SettingsError):
        choose([])
