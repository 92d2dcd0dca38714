"""Which brokers hold a new partition: round robin over racks, then over the brokers in each.

A pure function of the image and a source of randomness. Consecutive partitions start at
consecutive racks, so leaders spread evenly; a partition's replicas go to as many racks as there
are; and after every full round the orders are shuffled, so that two brokers do not share all of
their partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

from tidemill.errors import ApiError, ErrorCode
from tidemill.image import BrokerImage
from tidemill.types import BrokerId


def place(
    brokers: Iterable[BrokerImage], partition_count: int, replication_factor: int, random: Random
) -> list[tuple[BrokerId, ...]]:
    """The replicas of each new partition, preferred leader first.

    The preferred leader is alive; other replicas may be on brokers that are down, if there are
    too few alive, as they will catch up when they return.
    """
    registered = sorted(brokers, key=lambda broker: broker.broker_id)
    _check(replication_factor, registered)
    stripes = _Stripes(registered, random)
    return [stripes.next(replication_factor) for _ in range(partition_count)]


def _check(replication_factor: int, brokers: Sequence[BrokerImage]) -> None:
    if replication_factor <= 0:
        problem = (
            f"Invalid replication factor {replication_factor}: "
            "the replication factor must be positive."
        )
    elif not any(broker.alive for broker in brokers):
        problem = "All brokers are currently fenced."
    elif replication_factor > len(brokers):
        problem = (
            f"The target replication factor of {replication_factor} cannot be reached because "
            f"only {len(brokers)} broker(s) are registered or some brokers have all their log "
            "directories cordoned."
        )
    else:
        return
    raise ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, problem)


class _Stripes:
    """Deals out brokers so that each takes its turn and racks alternate."""

    def __init__(self, brokers: Sequence[BrokerImage], random: Random) -> None:
        self._random = random
        self._alive = {broker.broker_id for broker in brokers if broker.alive}
        by_rack: dict[str, list[BrokerId]] = {}
        for broker in brokers:
            by_rack.setdefault(broker.rack or "", []).append(broker.broker_id)
        self._racks = list(by_rack.values())
        self._dealt = 0
        self._shuffle()

    def _shuffle(self) -> None:
        self._random.shuffle(self._racks)
        for rack in self._racks:
            self._random.shuffle(rack)
        self._order = self._interleave()

    def _interleave(self) -> list[BrokerId]:
        """All brokers in an order in which neighbours are on different racks where possible."""
        longest = max(len(rack) for rack in self._racks)
        return [rack[turn] for turn in range(longest) for rack in self._racks if turn < len(rack)]

    def next(self, replication_factor: int) -> tuple[BrokerId, ...]:
        if self._dealt == len(self._order):
            self._dealt = 0
            self._shuffle()
        order = self._order[self._dealt :] + self._order[: self._dealt]
        self._dealt += 1
        # The brokers alive come first, so that a replica waits for its broker only if it must.
        order.sort(key=lambda broker_id: broker_id not in self._alive)
        return tuple(self._spread(order, replication_factor))

    def _spread(self, order: list[BrokerId], count: int) -> list[BrokerId]:
        """Take brokers from new racks first, then any, keeping the order within each kind."""
        rack_of = {broker: number for number, rack in enumerate(self._racks) for broker in rack}
        chosen: list[BrokerId] = []
        left = order
        while len(chosen) < count:
            used: set[int] = set()
            rest: list[BrokerId] = []
            for broker in left:
                if len(chosen) < count and rack_of[broker] not in used:
                    used.add(rack_of[broker])
                    chosen.append(broker)
                else:
                    rest.append(broker)
            left = rest
        return chosen
