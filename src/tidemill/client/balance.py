"""Spread partitions over members evenly and move as few of them as possible. Pure functions.

The client's sticky assignors and the broker's `uniform` one are the same problem, solved here:
members want topics, topics have partitions, and each partition may have an owner from before.

`balance` keeps every partition with its owner where it can, gives the rest to whoever has least,
and then moves partitions along the shortest chains of members that make the loads more even. When
no such chain is left, no assignment is more even: the loads differ by at most one wherever the
subscriptions allow it. Members that all want the same need no chains and take a shorter way.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)
"""How a topic is named: clients know its name, brokers its id."""

Owned = dict[T, set[int]]
"""Partitions by topic."""


def balance(
    wanted: Mapping[str, frozenset[T]],
    partition_counts: Mapping[T, int],
    owned: Mapping[str, Mapping[T, frozenset[int]]],
    order: Sequence[T],
) -> dict[str, Owned[T]]:
    """Who gets what: every partition of a wanted topic once, to a member that wants it.

    Args:
        wanted: per member its topics.
        partition_counts: per topic how many partitions it has; topics without are unknown.
        owned: per member what it had; no partition may be owned by two members.
        order: all topics in the order in which new partitions are given out.
    """
    if not wanted:
        return {}
    round_ = _Round(wanted, partition_counts, order)
    round_.keep(owned)
    if len(set(wanted.values())) == 1:
        round_.cut_to_quota()
        round_.give_out()
    else:
        round_.give_out()
        round_.even_out()
    return round_.result


class _Round(Generic[T]):
    """One computation; members are visited in the order of their names, so it is repeatable."""

    def __init__(
        self,
        wanted: Mapping[str, frozenset[T]],
        partition_counts: Mapping[T, int],
        order: Sequence[T],
    ) -> None:
        self._members = sorted(wanted)
        self._wanted = wanted
        self._counts = partition_counts
        self._order = [topic for topic in order if partition_counts.get(topic, 0) > 0]
        self._takers = self._find_takers()
        self.result: dict[str, Owned[T]] = {member: {} for member in self._members}
        self._load = dict.fromkeys(self._members, 0)
        self._kept: dict[str, Mapping[T, frozenset[int]]] = {}

    def _find_takers(self) -> dict[T, list[str]]:
        """Who wants which topic; where all want the same, the topics share one list."""
        if len(set(self._wanted.values())) > 1:
            wanted = self._wanted
            return {t: [m for m in self._members if t in wanted[m]] for t in self._order}
        wished = self._wanted[self._members[0]]
        nobody: list[str] = []
        return {topic: self._members if topic in wished else nobody for topic in self._order}

    # --- before ----------------------------------------------------------------------------------

    def keep(self, owned: Mapping[str, Mapping[T, frozenset[int]]]) -> None:
        """Leave with each member what it had, still wants, and what still exists."""
        taken: dict[T, set[int]] = {topic: set() for topic in self._order}
        for member in self._members:
            for topic, partitions in owned.get(member, {}).items():
                if topic not in self._wanted[member] or topic not in taken:
                    continue
                stays = {p for p in partitions if p < self._counts[topic]} - taken[topic]
                if stays:
                    taken[topic] |= stays
                    self.result[member][topic] = stays
                    self._load[member] += len(stays)
        self._kept = {
            member: {topic: frozenset(parts) for topic, parts in topics.items()}
            for member, topics in self.result.items()
        }

    # --- members that all want the same ----------------------------------------------------------

    def cut_to_quota(self) -> None:
        """Take from those who have more than their share; who is above it keeps one extra."""
        total = sum(self._counts[topic] for topic in self._order if self._takers[topic])
        share, extras = divmod(total, len(self._members))
        for member in sorted(self._members, key=lambda m: (-self._load[m], m)):
            allowed = share
            if self._load[member] > share and extras:
                allowed += 1
                extras -= 1
            self._drop(member, self._load[member] - allowed)

    def _drop(self, member: str, surplus: int) -> None:
        """Take partitions from the topics of which the member has most."""
        mine = self.result[member]
        for _ in range(max(surplus, 0)):
            topic = max(mine, key=lambda t: len(mine[t]))
            mine[topic].discard(max(mine[topic]))
            if not mine[topic]:
                del mine[topic]
            self._load[member] -= 1

    # --- giving out ------------------------------------------------------------------------------

    def give_out(self) -> None:
        """Give each partition that nobody has to the least loaded member that wants it.

        Topics that few want go first: whoever is busy with them takes less of the rest.
        """
        taken: dict[T, set[int]] = {topic: set() for topic in self._order}
        for topics in self.result.values():
            for topic, partitions in topics.items():
                taken[topic] |= partitions
        takers: list[str] | None = None
        heap: list[tuple[int, int]] = []
        for topic in sorted(self._order, key=lambda t: len(self._takers[t])):
            if self._takers[topic] is not takers:
                takers = self._takers[topic]
                heap = [(self._load[member], rank) for rank, member in enumerate(takers)]
                heapq.heapify(heap)
            for partition in range(self._counts[topic]):
                if partition in taken[topic] or not heap:
                    continue
                load, rank = heap[0]
                self._give(takers[rank], topic, partition)
                heapq.heapreplace(heap, (load + 1, rank))

    def _give(self, member: str, topic: T, partition: int) -> None:
        self.result[member].setdefault(topic, set()).add(partition)
        self._load[member] += 1

    # --- evening out -----------------------------------------------------------------------------

    def even_out(self) -> None:
        """Move partitions along chains until no chain makes the loads more even.

        Each chain lowers the sum of the squares of the loads, so this comes to an end.
        """
        moved = True
        while moved:
            moved = False
            for member in sorted(self._members, key=lambda m: (-self._load[m], m)):
                while chain := self._chain(member):
                    self._shift(chain)
                    moved = True

    def _chain(self, start: str) -> list[tuple[str, T, str]]:
        """The shortest chain of moves (from, topic, to) to the lightest member within its reach."""
        came_by: dict[str, tuple[str, T]] = {}
        seen = {start}
        seen_topics: set[T] = set()
        level: deque[str] = deque([start])
        while level:
            best: str | None = None
            for _ in range(len(level)):
                member = level.popleft()
                for topic in self.result[member]:
                    if topic in seen_topics:
                        continue
                    seen_topics.add(topic)
                    for taker in self._takers[topic]:
                        if taker in seen:
                            continue
                        seen.add(taker)
                        came_by[taker] = (member, topic)
                        level.append(taker)
                        if best is None or self._load[taker] < self._load[best]:
                            best = taker
            if best is not None and self._load[start] - self._load[best] >= 2:
                return _walk_back(start, best, came_by)
        return []

    def _shift(self, chain: list[tuple[str, T, str]]) -> None:
        for source, topic, target in chain:
            partition = self._loosest(source, topic)
            mine = self.result[source]
            mine[topic].discard(partition)
            if not mine[topic]:
                del mine[topic]
            self._load[source] -= 1
            self._give(target, topic, partition)

    def _loosest(self, member: str, topic: T) -> int:
        """The partition to part with: one that the member did not have before, if there is one."""
        kept = self._kept[member].get(topic, frozenset())
        return max(self.result[member][topic], key=lambda p: (p not in kept, p))


def _walk_back(
    start: str, end: str, came_by: Mapping[str, tuple[str, T]]
) -> list[tuple[str, T, str]]:
    chain: list[tuple[str, T, str]] = []
    while end != start:
        source, topic = came_by[end]
        chain.append((source, topic, end))
        end = source
    chain.reverse()
    return chain
