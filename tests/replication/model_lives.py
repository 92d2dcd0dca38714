"""What can happen in the model's cluster, how often, and whole lives made of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from tests.replication.model import LAG_MAX_MS, Cluster, Node, Plan
from tests.replication.model_controller import NODES

Action = Callable[[Cluster, Node, int], None]

ACTIONS: tuple[tuple[int, Action], ...] = (
    (6, lambda cluster, node, number: cluster.produce_at_leader(number)),
    (10, lambda cluster, node, number: cluster.fetch(node)),
    (20, lambda cluster, node, number: cluster.deliver()),
    (2, lambda cluster, node, number: cluster.deliver(number)),
    (1, lambda cluster, node, number: cluster.drop(number)),
    (5, lambda cluster, node, number: cluster.flush(node)),
    (1, lambda cluster, node, number: cluster.delete_records(node, number)),
    (8, lambda cluster, node, number: cluster.apply_view(node, newest=number % 2 == 0)),
    (1, lambda cluster, node, number: cluster.crash(node)),
    (1, lambda cluster, node, number: cluster.expire(node)),
    (2, lambda cluster, node, number: cluster.controller.move_leader(number)),
    (3, lambda cluster, node, number: cluster.rejoin(node)),
    (3, lambda cluster, node, number: cluster.restart(node)),
    (2, lambda cluster, node, number: cluster.notice(node)),
    (1, lambda cluster, node, number: cluster.give_up_fetch(node)),
    (1, lambda cluster, node, number: cluster.give_up_proposal(node)),
    (3, lambda cluster, node, number: cluster.check_lag(node)),
    (2, lambda cluster, node, number: cluster.clock.advance(number % LAG_MAX_MS)),
)
_TABLE = tuple(action for weight, action in ACTIONS for _ in range(weight))


def run(plan: Plan, tape: Sequence[int], seed: int = 0) -> Cluster:
    """One life of a cluster; raises `BrokenPromiseError` if it breaks a promise."""
    cluster = Cluster(plan, seed)
    for number in tape:
        action = _TABLE[number % len(_TABLE)]
        number //= len(_TABLE)
        node = cluster.nodes[number % len(NODES)]
        action(cluster, node, number // len(NODES))
        cluster.observe()
    cluster.heal()
    return cluster


def tape_of(seed: int, length: int) -> list[int]:
    random = Random(seed)
    return [random.getrandbits(24) for _ in range(length)]
