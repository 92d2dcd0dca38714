"""What a seed decides before anything happens: the cluster's size, its settings, its troubles."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tidemill.testing.network import Quality

TOPIC = "orders"
OFFSETS_TOPIC = "__consumer_offsets"
GROUP = "readers"
REPLICAS = 3
MIN_ISR = 2
PORT = 9092


@dataclass(frozen=True, slots=True)
class Plan:
    """One seed's cluster, clients and troubles."""

    seed: int
    brokers: int
    partitions: int
    flush_policy: str
    """`ack` survives any number of power cuts, `async` one at a time."""
    session_timeout_ms: int
    lag_max_ms: int
    disk_ms_max: float
    """How long a flush may take."""
    quality: Quality
    producers: int
    assigned_consumers: int
    group_members: int
    group_protocol: str
    records_per_s: float
    trouble_s: float
    """How long things go wrong."""
    pause_s_mean: float
    """Between one trouble and the next."""
    ops_per_commit: int
    """How many operations the store takes at once; it cuts what is longer. 0: all of them."""

    def random(self, what: str) -> Random:
        """The randomness of one part of the world: others may draw more without changing it."""
        return Random(f"{self.seed}/{what}")

    @classmethod
    def of(cls, seed: int) -> Plan:
        """The plan of a seed."""
        random = Random(f"{seed}/plan")
        return cls(
            seed=seed,
            brokers=random.choice((3, 3, 3, 4, 5)),
            partitions=random.choice((1, 2, 2, 3)),
            flush_policy=random.choice(("ack", "ack", "ack", "async")),
            session_timeout_ms=random.choice((600, 1_000, 2_000)),
            lag_max_ms=random.choice((500, 1_000, 2_000)),
            disk_ms_max=random.choice((1.0, 5.0, 30.0)),
            quality=_quality(random),
            producers=random.choice((1, 2, 2, 3)),
            assigned_consumers=1,
            group_members=random.choice((0, 0, 1, 2)),
            group_protocol=random.choice(("classic", "consumer")),
            records_per_s=random.choice((3.0, 8.0, 20.0)),
            trouble_s=random.uniform(5.0, 12.0),
            pause_s_mean=random.choice((0.3, 0.7, 1.5)),
            ops_per_commit=random.choice((0, 0, 1, 2, 3)),
        )


def _quality(random: Random) -> Quality:
    return Quality(
        delay_ms_min=0.1,
        delay_ms_max=random.choice((1.0, 3.0, 20.0)),
        loss=random.choice((0.0, 0.0, 0.01)),
        reset=random.choice((0.0, 0.0, 0.001)),
    )
