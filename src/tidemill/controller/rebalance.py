"""A plan that spreads replicas and leaders evenly over brokers and moves as little as it can.

It serves an operator who has added a broker, empties one, or asks for a proposal: given who holds
what, which brokers may hold it, and how large it is, `plan_rebalance` returns the assignments to
change and the bytes that will cross the network. It is a pure function of its arguments, so the
same question has the same answer.

Four passes, each of which keeps what those before it have reached:

1. replicas leave the brokers that may not hold any;
2. a partition's replicas go to as many racks as they can;
3. replicas move from the brokers that hold most to those that hold least, until they differ by one
   or the racks forbid more; of the replicas that could move, one goes whose topic the receiving
   broker has least of, and of those the smallest;
4. leaders are evened by changing only the order of replicas, which moves no data.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from tidemill.errors import ApiError, ErrorCode
from tidemill.types import TopicPartition

Replicas = tuple[int, ...]


class Move(NamedTuple):
    """One partition whose assignment changes; `bytes_to_move` is what new replicas have to copy."""

    partition: TopicPartition
    before: Replicas
    after: Replicas
    bytes_to_move: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What would change, in the order of the partitions; `assignment` is all of it afterwards."""

    moves: tuple[Move, ...]
    assignment: Mapping[TopicPartition, Replicas]

    @property
    def bytes_to_move(self) -> int:
        return sum(move.bytes_to_move for move in self.moves)

    @property
    def replicas_to_move(self) -> int:
        return sum(len(set(move.after) - set(move.before)) for move in self.moves)


def plan_rebalance(
    assignment: Mapping[TopicPartition, Sequence[int]],
    brokers: Mapping[int, str | None],
    *,
    sizes_bytes: Mapping[TopicPartition, int] | None = None,
    rack_aware: bool = True,
) -> Plan:
    """Spread these partitions over `brokers`, which are given with their racks."""
    _check(assignment, brokers)
    racks = {broker: (rack or "") if rack_aware else "" for broker, rack in brokers.items()}
    board = _Board(assignment, racks, sizes_bytes or {})
    board.vacate()
    board.spread_over_racks()
    board.even_replicas()
    board.even_leaders()
    moves = tuple(board.moves(assignment))
    return Plan(moves, {tp: tuple(replicas) for tp, replicas in board.replicas.items()})


def _check(
    assignment: Mapping[TopicPartition, Sequence[int]], brokers: Mapping[int, str | None]
) -> None:
    factor = max(map(len, assignment.values()), default=0)
    if factor > len(brokers):
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor: {factor} larger than available brokers: {len(brokers)}.",
        )


class _Board:
    """The assignment while it is being changed, with the counts that the passes go by."""

    def __init__(
        self,
        assignment: Mapping[TopicPartition, Sequence[int]],
        racks: Mapping[int, str],
        sizes_bytes: Mapping[TopicPartition, int],
    ) -> None:
        self.replicas = {tp: list(assignment[tp]) for tp in sorted(assignment)}
        self._original = {tp: frozenset(replicas) for tp, replicas in self.replicas.items()}
        self._racks = racks
        self._rack_count = len(set(racks.values()))
        self._sizes_bytes = sizes_bytes
        self._load = dict.fromkeys(sorted(racks), 0)
        # Of each broker, by topic, its partitions from the smallest to the largest.
        self._held: dict[int, dict[str, list[tuple[int, TopicPartition]]]] = {
            broker: defaultdict(list) for broker in racks
        }
        for tp, replicas in self.replicas.items():
            for broker in replicas:
                self._take(broker, tp)

    def moves(self, before: Mapping[TopicPartition, Sequence[int]]) -> Iterator[Move]:
        for tp, replicas in self.replicas.items():
            old, new = tuple(before[tp]), tuple(replicas)
            if old != new:
                copies = len(set(new) - set(old))
                yield Move(tp, old, new, copies * self._sizes_bytes.get(tp, 0))

    def vacate(self) -> None:
        """Replace the replicas on brokers that may not hold any, in their places."""
        for tp, replicas in self.replicas.items():
            for broker in [broker for broker in replicas if broker not in self._racks]:
                self._move(tp, broker, self._best_for(tp, leaving=broker))

    def spread_over_racks(self) -> None:
        for tp, replicas in self.replicas.items():
            while not self._well_spread(replicas):
                source = self._crowded(replicas)
                self._move(tp, source, self._best_for(tp, leaving=source))

    def even_replicas(self) -> None:
        _even(self._load, self._pass_on)

    def even_leaders(self) -> None:
        led = _Leaders(self.replicas, self._load)
        _even(led.counts, led.pass_on)

    def _take(self, broker: int, tp: TopicPartition) -> None:
        if broker in self._load:
            self._load[broker] += 1
            insort(self._held[broker][tp.topic], (self._sizes_bytes.get(tp, 0), tp))

    def _move(self, tp: TopicPartition, source: int, target: int) -> None:
        replicas = self.replicas[tp]
        replicas[replicas.index(source)] = target
        if source in self._load:
            self._load[source] -= 1
            self._held[source][tp.topic].remove((self._sizes_bytes.get(tp, 0), tp))
        self._take(target, tp)

    def _best_for(self, tp: TopicPartition, *, leaving: int) -> int:
        """Where one more replica of this partition weighs least, on a new rack if there is one."""
        others = [broker for broker in self.replicas[tp] if broker != leaving]
        used = {self._racks[broker] for broker in others if broker in self._racks}

        def weight(broker: int) -> tuple[bool, int, int, int]:
            of_topic = len(self._held[broker][tp.topic])
            return self._racks[broker] in used, self._load[broker], of_topic, broker

        free = (broker for broker in self._load if broker not in self.replicas[tp])
        return min(free, key=weight)

    def _well_spread(self, replicas: Sequence[int]) -> bool:
        used = {self._racks[broker] for broker in replicas}
        return len(used) >= min(len(replicas), self._rack_count)

    def _crowded(self, replicas: Sequence[int]) -> int:
        """The replica to take from a rack with several: a follower, on the fullest broker."""
        racks = [self._racks[broker] for broker in replicas]
        shared = [
            broker for broker, rack in zip(replicas, racks, strict=True) if racks.count(rack) > 1
        ]
        return max(shared, key=lambda broker: (broker != replicas[0], self._load[broker], broker))

    def _pass_on(self, source: int, target: int) -> bool:
        """Make `source` hold one replica less and `target` one more, if need be through a third.

        A replica that the plan has put on `source` costs nothing to put elsewhere: those go first.
        """
        for is_free in (True, False):
            direct = self._movable(source, target, is_free=is_free)
            if direct is not None:
                self._move(direct, source, target)
                return True
            if self._pass_through(source, target, is_free=is_free):
                return True
        return False

    def _pass_through(self, source: int, target: int, *, is_free: bool) -> bool:
        for between in self._load:
            if between in (source, target):
                continue
            first = self._movable(source, between, is_free=is_free)
            second = self._movable(between, target, is_free=is_free)
            if first is not None and second is not None:
                self._move(first, source, between)
                self._move(second, between, target)
                return True
        return False

    def _movable(self, source: int, target: int, *, is_free: bool) -> TopicPartition | None:
        """The partition that had best move: of the topic that `target` lacks most, the smallest.

        With `is_free` only one whose replica was not there before the plan.
        """
        held, there = self._held[source], self._held[target]
        by_need = sorted(held, key=lambda topic: (len(there[topic]) - len(held[topic]), topic))
        for topic in by_need:
            for _, tp in held[topic]:
                is_costly = source in self._original[tp]
                if not (is_free and is_costly) and self._may_move(tp, source, target):
                    return tp
        return None

    def _may_move(self, tp: TopicPartition, source: int, target: int) -> bool:
        replicas = self.replicas[tp]
        if target in replicas:
            return False
        return self._well_spread([target if broker == source else broker for broker in replicas])


class _Leaders:
    """Who leads how many, and which partitions could change from one leader to another."""

    def __init__(
        self, replicas: dict[TopicPartition, list[int]], brokers: Mapping[int, int]
    ) -> None:
        self._replicas = replicas
        self.counts = dict.fromkeys(brokers, 0)
        # A dictionary in place of a set: it keeps an order, so that plans can be repeated.
        self._shared: dict[int, dict[int, dict[TopicPartition, None]]] = {
            broker: defaultdict(dict) for broker in brokers
        }
        for tp in replicas:
            self._count(tp, 1)

    def _count(self, tp: TopicPartition, step: int) -> None:
        leader, *followers = self._replicas[tp]
        self.counts[leader] += step
        for follower in followers:
            if step > 0:
                self._shared[leader][follower][tp] = None
            else:
                del self._shared[leader][follower][tp]

    def pass_on(self, source: int, target: int) -> bool:
        """Make `source` lead one less and `target` one more, through as few others as it takes."""
        path = self._path(source, target)
        for leader, follower in pairwise(path):
            tp = next(iter(self._shared[leader][follower]))
            self._count(tp, -1)
            others = [broker for broker in self._replicas[tp] if broker != follower]
            self._replicas[tp][:] = [follower, *others]
            self._count(tp, 1)
        return bool(path)

    def _path(self, source: int, target: int) -> list[int]:
        """The shortest way along which each leader can hand a partition to the next."""
        came_from = {source: source}
        queue = deque([source])
        while queue and target not in came_from:
            leader = queue.popleft()
            for follower in sorted(self._shared[leader]):
                if self._shared[leader][follower] and follower not in came_from:
                    came_from[follower] = leader
                    queue.append(follower)
        if target not in came_from:
            return []
        path = [target]
        while path[-1] != source:
            path.append(came_from[path[-1]])
        return path[::-1]


def _even(counts: Mapping[int, int], pass_on: Callable[[int, int], bool]) -> None:
    """Hand on from the fullest to the emptiest until they differ by one at most.

    A pair for which nothing can be done is not tried again. Every step makes the counts more even,
    so this ends.
    """
    stuck: set[tuple[int, int]] = set()
    while True:
        pair = _widest(counts, stuck)
        if pair is None:
            return
        if not pass_on(*pair):
            stuck.add(pair)


def _widest(counts: Mapping[int, int], stuck: set[tuple[int, int]]) -> tuple[int, int] | None:
    """The two brokers that differ most, of those that differ by two or more."""
    order = sorted(counts, key=lambda broker: (counts[broker], broker))
    best: tuple[int, int] | None = None
    for source in reversed(order):
        for target in order:
            gap = counts[source] - counts[target]
            if gap < 2 or (best is not None and gap <= counts[best[0]] - counts[best[1]]):
                break
            if (source, target) not in stuck:
                best = (source, target)
                break
    return best
