"""How the leader of a classic group shares out partitions: range, roundrobin, (cooperative-)sticky.

An `Assignor` is pure: subscriptions and partition counts in, partitions per member out. Members of
a mixed group (Java, librdkafka, ours) take turns at leading it, so names, order of members and
`user_data` are Kafka's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from tidemill.client.balance import balance
from tidemill.client.consumer_protocol import (
    NO_GENERATION,
    Subscription,
    TopicPartitionList,
    by_topic,
    flat,
    grouped,
)
from tidemill.client.errors import SettingsError
from tidemill.errors import WireError
from tidemill.types import TopicPartition
from tidemill.wire.codec import decode, encode
from tidemill.wire.declare import Message, array, int32

Shares = dict[str, set[TopicPartition]]

EAGER = 0
COOPERATIVE = 1

_GENERATION = struct.Struct(">i")


class StickyUserData(Message, versions="0-1"):
    """What Kafka's sticky assignor remembers through its members; version 0 had no generation."""

    previous_assignment: list[TopicPartitionList] = array(TopicPartitionList)
    generation: int = int32("1+", default=NO_GENERATION, ignorable=True)


class Assignor(Protocol):
    """One way to assign; `cooperative` members keep what they have until told otherwise."""

    name: str
    cooperative: bool

    def user_data(self, owned: Iterable[TopicPartition], generation: int) -> bytes | None:
        """What a member adds to its subscription."""
        ...

    def assign(
        self, members: Mapping[str, Subscription], partition_counts: Mapping[str, int]
    ) -> Shares:
        """Each member's share; topics that do not exist are not in `partition_counts`."""
        ...


class RangeAssignor:
    """Each topic in consecutive ranges over its members."""

    name = "range"
    cooperative = False

    def user_data(self, owned: Iterable[TopicPartition], generation: int) -> bytes | None:
        return None

    def assign(
        self, members: Mapping[str, Subscription], partition_counts: Mapping[str, int]
    ) -> Shares:
        shares: Shares = {member_id: set() for member_id in members}
        for topic, count in sorted(partition_counts.items()):
            takers = [m for m in in_order(members) if topic in members[m].topics]
            size, longer = divmod(count, len(takers)) if takers else (0, 0)
            start = 0
            for number, member_id in enumerate(takers):
                stop = start + size + (number < longer)
                shares[member_id] |= {TopicPartition(topic, p) for p in range(start, stop)}
                start = stop
        return shares


class RoundRobinAssignor:
    """All partitions dealt out in turn, passing over members that do not want the topic."""

    name = "roundrobin"
    cooperative = False

    def user_data(self, owned: Iterable[TopicPartition], generation: int) -> bytes | None:
        return None

    def assign(
        self, members: Mapping[str, Subscription], partition_counts: Mapping[str, int]
    ) -> Shares:
        shares: Shares = {member_id: set() for member_id in members}
        order = in_order(members)
        turn = 0
        for topic, count in sorted(partition_counts.items()):
            if not any(topic in members[member_id].topics for member_id in order):
                continue
            for partition in range(count):
                while topic not in members[order[turn % len(order)]].topics:
                    turn += 1
                shares[order[turn % len(order)]].add(TopicPartition(topic, partition))
                turn += 1
        return shares


class StickyAssignor:
    """Even, and as little moves as can be; members remember through `user_data` what they had."""

    name = "sticky"
    cooperative = False

    def user_data(self, owned: Iterable[TopicPartition], generation: int) -> bytes | None:
        had = list(owned)
        if not had and generation == NO_GENERATION:
            return None
        message = StickyUserData(previous_assignment=by_topic(had), generation=generation)
        return encode(message, 1)

    def assign(
        self, members: Mapping[str, Subscription], partition_counts: Mapping[str, int]
    ) -> Shares:
        return _balanced(members, partition_counts, self._claims(members))

    def _claims(
        self, members: Mapping[str, Subscription]
    ) -> dict[str, tuple[int, frozenset[TopicPartition]]]:
        return {member_id: _sticky_claim(members[member_id]) for member_id in members}


class CooperativeStickyAssignor:
    """Sticky, and nothing is given to a member while another one still has it."""

    name = "cooperative-sticky"
    cooperative = True

    def user_data(self, owned: Iterable[TopicPartition], generation: int) -> bytes | None:
        return _GENERATION.pack(generation)

    def assign(
        self, members: Mapping[str, Subscription], partition_counts: Mapping[str, int]
    ) -> Shares:
        claims = {member_id: _cooperative_claim(members[member_id]) for member_id in members}
        shares = _balanced(members, partition_counts, claims)
        owner = {p: m for m in members for p in members[m].owned}
        for member_id, share in shares.items():
            # Its owner gives it up in this round; the round that follows gives it away.
            share -= {p for p in share if owner.get(p, member_id) != member_id}
        return shares


ASSIGNORS: Mapping[str, Assignor] = {
    assignor.name: assignor
    for assignor in (
        RangeAssignor(),
        RoundRobinAssignor(),
        StickyAssignor(),
        CooperativeStickyAssignor(),
    )
}
_JAVA_NAMES = {
    "RangeAssignor": "range",
    "RoundRobinAssignor": "roundrobin",
    "StickyAssignor": "sticky",
    "CooperativeStickyAssignor": "cooperative-sticky",
}


def choose(names: Sequence[str]) -> list[Assignor]:
    """The assignors of these names, Kafka's class names included; what all can do is decided by
    whether any of them is eager."""
    found: list[Assignor] = []
    for written in names:
        last = written.strip().rpartition(".")[2]
        assignor = ASSIGNORS.get(_JAVA_NAMES.get(last, last))
        if assignor is None:
            raise SettingsError(
                f"no assignor is called {written!r}; there are {', '.join(ASSIGNORS)}"
            )
        if assignor not in found:
            found.append(assignor)
    if not found:
        raise SettingsError("`partition.assignment.strategy` names no assignor")
    return found


def in_order(members: Mapping[str, Subscription]) -> list[str]:
    """Static members by instance id, then the others by member id: Kafka's order."""
    return sorted(
        members,
        key=lambda m: (members[m].instance_id is None, members[m].instance_id or m, m),
    )


def _balanced(
    members: Mapping[str, Subscription],
    partition_counts: Mapping[str, int],
    claims: Mapping[str, tuple[int, frozenset[TopicPartition]]],
) -> Shares:
    owned = {member_id: grouped(had) for member_id, had in _settle(claims).items()}
    wanted = {
        member_id: frozenset(member.topics) & frozenset(partition_counts)
        for member_id, member in members.items()
    }
    found = balance(wanted, partition_counts, owned, sorted(partition_counts))
    return {
        member_id: {TopicPartition(t, p) for t, partitions in share.items() for p in partitions}
        for member_id, share in found.items()
    }


def _settle(
    claims: Mapping[str, tuple[int, frozenset[TopicPartition]]],
) -> dict[str, set[TopicPartition]]:
    """Who keeps what: of several claims the one of the latest generation; of equals, none.

    A member that was away for a while still claims what it had: its generation gives it away.
    """
    latest: dict[TopicPartition, int] = {}
    claimants: dict[TopicPartition, list[str]] = {}
    for member_id in sorted(claims):
        generation, had = claims[member_id]
        for partition in had:
            if generation > latest.get(partition, -2):
                latest[partition] = generation
                claimants[partition] = [member_id]
            elif generation == latest[partition]:
                claimants[partition].append(member_id)
    kept: dict[str, set[TopicPartition]] = {member_id: set() for member_id in claims}
    for partition, who in claimants.items():
        if len(who) == 1:
            kept[who[0]].add(partition)
    return kept


def _sticky_claim(member: Subscription) -> tuple[int, frozenset[TopicPartition]]:
    """(generation, partitions) that a member of the sticky assignor had."""
    data = member.user_data
    if not data:
        return member.generation, member.owned
    for version in (1, 0):
        try:
            said = decode(StickyUserData, version, data)
        except WireError:
            continue
        return said.generation, flat(said.previous_assignment)
    return NO_GENERATION, frozenset()


def _cooperative_claim(member: Subscription) -> tuple[int, frozenset[TopicPartition]]:
    generation = member.generation
    if generation == NO_GENERATION and len(member.user_data or b"") >= _GENERATION.size:
        generation = int(_GENERATION.unpack_from(member.user_data or b"")[0])
    return generation, member.owned
