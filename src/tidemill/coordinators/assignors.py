"""The server-side assignors of the newer group protocol: `uniform` and `range`. Pure functions.

An assignor is given what each member wants and has, and says what each shall have. How members get
there, one revoked partition at a time, is no concern of it (see `reconcile`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from tidemill.client.balance import balance
from tidemill.types import TopicId

Partitions = Mapping[TopicId, frozenset[int]]
"""Partitions by topic; a topic without partitions is left out."""

NO_PARTITIONS: Partitions = {}

_NUMBER = attrgetter("int")


def in_order(topics: Iterable[TopicId]) -> list[TopicId]:
    """Topic ids as they sort; by their numbers, since ids themselves compare slowly."""
    return sorted(topics, key=_NUMBER)


@dataclass(frozen=True, slots=True)
class Subscriber:
    """One member as an assignor sees it; `owned` is its part of the last target assignment."""

    topics: frozenset[TopicId]
    owned: Partitions = field(default_factory=dict)
    instance_id: str | None = None


Assignor = Callable[[Mapping[str, Subscriber], Mapping[TopicId, int]], dict[str, Partitions]]
"""(members, partitions per topic) -> each member's share."""


def assign_uniform(
    members: Mapping[str, Subscriber], partition_counts: Mapping[TopicId, int]
) -> dict[str, Partitions]:
    """Everybody carries the same, within one where subscriptions allow, and little moves."""
    shares = balance(
        {member_id: member.topics for member_id, member in members.items()},
        partition_counts,
        {member_id: member.owned for member_id, member in members.items()},
        in_order(partition_counts),
    )
    return {member_id: _frozen(share) for member_id, share in shares.items()}


def assign_range(
    members: Mapping[str, Subscriber], partition_counts: Mapping[TopicId, int]
) -> dict[str, Partitions]:
    """Each topic in consecutive ranges, so that topics with equal keys meet at one member.

    Members are in the order of their instance ids, those without come after by member id: a static
    member that restarts finds its old place.
    """
    order = sorted(members, key=lambda m: (members[m].instance_id is None,
                                           members[m].instance_id or m, m))  # fmt: skip
    shares: dict[str, dict[TopicId, frozenset[int]]] = {member_id: {} for member_id in members}
    for topic in in_order(partition_counts):
        takers = [member_id for member_id in order if topic in members[member_id].topics]
        for member_id, part in zip(takers, ranges(partition_counts[topic], len(takers)),
                                   strict=True):  # fmt: skip
            if part:
                shares[member_id][topic] = frozenset(part)
    return dict(shares)


def ranges(count: int, parts: int) -> list[range]:
    """`count` numbers cut into so many ranges; the first ones are longer by one if need be."""
    if parts == 0:
        return []
    size, longer = divmod(count, parts)
    found: list[range] = []
    start = 0
    for number in range(parts):
        stop = start + size + (number < longer)
        found.append(range(start, stop))
        start = stop
    return found


ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}


def _frozen(share: Mapping[TopicId, set[int]]) -> Partitions:
    return {topic: frozenset(partitions) for topic, partitions in share.items()}
