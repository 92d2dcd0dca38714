"""Which fault strikes when: a list without an end that one seed decides.

Faults are dealt from a deck that holds each kind once and is shuffled anew when it is empty, so all
kinds get their turn and none is far more frequent than another. Whom a fault strikes is decided by
role (the leader of some partition, the controller), because who that is depends on the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from tidemill.testing.proxy import Way

INTERVAL_S = (10.0, 15.0)
IMPATIENT_SHARE = 0.25
"""How many faults strike although the cluster has not got over the one before."""


class Store(StrEnum):
    """What the brokers of a cluster meet on."""

    SQLITE = "sqlite"
    ZOOKEEPER = "zookeeper"


class Kind(StrEnum):
    """What may happen; `strikes` says how."""

    KILL_LEADER = "kill-leader"
    KILL_CONTROLLER = "kill-controller"
    KILL_FOLLOWER = "kill-follower"
    PAUSE_SHORT = "pause-short"
    PAUSE_LEADER = "pause-leader"
    PAUSE_CONTROLLER = "pause-controller"
    ROLLING_RESTART = "rolling-restart"
    REASSIGN = "reassign"
    CUT_CLIENTS = "cut-clients"
    CUT_PEERS = "cut-peers"
    ISOLATE = "isolate"
    DISK_FULL = "disk-full"
    DAMAGE_RECORDS = "damage-records"
    DAMAGE_HEADER = "damage-header"
    ZOOKEEPER_KILL_LEADER = "zookeeper-kill-leader"
    ZOOKEEPER_KILL_FOLLOWER = "zookeeper-kill-follower"
    ZOOKEEPER_CUT = "zookeeper-cut"


_ONLY_ZOOKEEPER = frozenset(kind for kind in Kind if kind.startswith("zookeeper"))

_HOLD_S = {
    Kind.KILL_LEADER: (0.0, 6.0),
    Kind.KILL_CONTROLLER: (0.0, 6.0),
    Kind.KILL_FOLLOWER: (0.0, 6.0),
    Kind.PAUSE_SHORT: (0.5, 2.5),
    # From a little above a session's time to three times that.
    Kind.PAUSE_LEADER: (7.0, 18.0),
    Kind.PAUSE_CONTROLLER: (7.0, 18.0),
    Kind.ROLLING_RESTART: (0.0, 1.0),
    Kind.REASSIGN: (0.0, 6.0),
    Kind.CUT_CLIENTS: (3.0, 9.0),
    Kind.CUT_PEERS: (3.0, 10.0),
    Kind.ISOLATE: (3.0, 10.0),
    Kind.DISK_FULL: (4.0, 9.0),
    Kind.DAMAGE_RECORDS: (0.0, 0.0),
    Kind.DAMAGE_HEADER: (0.0, 0.0),
    Kind.ZOOKEEPER_KILL_LEADER: (1.0, 8.0),
    Kind.ZOOKEEPER_KILL_FOLLOWER: (1.0, 8.0),
    Kind.ZOOKEEPER_CUT: (2.0, 10.0),
}


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault of the plan."""

    number: int
    kind: Kind
    choice: float
    """In [0, 1): picks one of those in the role, whoever they are by then."""
    way: Way
    drops: bool
    """Whether a link that is cut loses what is on its way; else that arrives later."""
    hold_s: float
    interval_s: float
    """From the beginning of this fault to the next one's."""
    waits: bool
    """Whether the next fault waits until the cluster is whole again."""

    def pick(self, among: Sequence[int]) -> int:
        return among[int(self.choice * len(among))]

    def __str__(self) -> str:
        text = f"{self.number:3} {self.kind} for {self.hold_s:.1f} s, next after"
        text += f" {self.interval_s:.1f} s{'' if self.waits else ' without waiting'}"
        if self.kind in _LINKS:
            text += f", {self.way}{', with losses' if self.drops else ''}"
        return text


_LINKS = frozenset({Kind.CUT_CLIENTS, Kind.CUT_PEERS, Kind.ISOLATE, Kind.ZOOKEEPER_CUT})


def kinds_of(store: Store) -> tuple[Kind, ...]:
    """The faults that a cluster on this store can have."""
    return tuple(kind for kind in Kind if store is Store.ZOOKEEPER or kind not in _ONLY_ZOOKEEPER)


def plan(
    seed: int,
    store: Store,
    kinds: Sequence[Kind] = (),
    interval_s: tuple[float, float] = INTERVAL_S,
    hold_share: float = 1.0,
) -> Iterator[Strike]:
    """The faults of a run, in order and without end; only these kinds, if any are named.

    `hold_share` is how much of its usual time each fault lasts.
    """
    random = Random(f"{seed} {store}")
    deck: list[Kind] = []
    number = 0
    while True:
        if not deck:
            deck = list(kinds or kinds_of(store))
            random.shuffle(deck)
        kind = deck.pop()
        number += 1
        yield Strike(
            number,
            kind,
            choice=random.random(),
            way=random.choice(list(Way)),
            drops=random.random() < 0.5,
            hold_s=random.uniform(*_HOLD_S[kind]) * hold_share,
            interval_s=random.uniform(*interval_s),
            waits=random.random() >= IMPATIENT_SHARE,
        )
