"""Which brokers hold a new partition: round robin over zones, then over the brokers in each.

A zone is a rack; brokers without one are in one zone together if others have one. If nobody has, it
is a machine: the end of one should not be the end of a partition that has replicas elsewhere.

A pure function of the image and a source of randomness. Consecutive partitions start at
consecutive zones, so leaders spread evenly; a partition's replicas go to as many zones as there
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
    """Deals out brokers so that each takes its turn and zones alternate."""

    def __init__(self, brokers: Sequence[BrokerImage], random: Random) -> None:
        self._random = random
        self._alive = {broker.broker_id for broker in brokers if broker.alive}
        has_racks = any(broker.rack for broker in brokers)
        by_zone: dict[str, list[BrokerId]] = {}
        for broker in brokers:
            zone = (broker.rack or "") if has_racks else broker.machine
            by_zone.setdefault(zone, []).append(broker.broker_id)
        self._zones = list(by_zone.values())
        self._dealt = 0
        self._shuffle()

    def _shuffle(self) -> None:
        self._random.shuffle(self._zones)
        for zone in self._zones:
            self._random.shuffle(zone)
        self._order = self._interleave()

    def _interleave(self) -> list[BrokerId]:
        """All brokers in an order in which neighbours are in different zones where possible."""
        longest = max(len(zone) for zone in self._zones)
        return [zone[turn] for turn in range(longest) for zone in self._zones if turn < len(zone)]

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
        """Take brokers from new zones first, then any, keeping the order within each kind."""
        zone_of = {broker: number for number, zone in enumerate(self._zones) for broker in zone}
        chosen: list[BrokerId] = []
        left = order
        while len(chosen) < count:
            used: set[int] = set()
            rest: list[BrokerId] = []
            for broker in left:
                if len(chosen) < count and zone_of[broker] not in used:
                    used.add(zone_of[broker])
                    chosen.append(broker)
                else:
                    rest.append(broker)
            left = rest
        return chosen
