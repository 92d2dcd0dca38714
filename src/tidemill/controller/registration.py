"""How a broker enters the cluster: its node, its epoch, and an id if it has none.

The node is ephemeral: it goes with the broker's session. Its creation's commit number is the
broker's epoch, so every incarnation has a new one, however fast the broker comes back.

A node may still be there from before, since a session outlives its process for a while. If it names
our own data directory, which we hold the lock of, its process is dead: it is taken over at once.
Any other may belong to a broker that lives: wait a session's time for it to go, then refuse and say
who holds the id (rule K5).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass

from tidemill.clock import Clock
from tidemill.controller import tree
from tidemill.errors import ApiError, ErrorCode
from tidemill.image import BrokerImage, Endpoint
from tidemill.store.base import (
    BadVersion,
    Delete,
    Event,
    EventKind,
    Node,
    NodeExists,
    NoNode,
    Op,
    Store,
)
from tidemill.types import BrokerEpoch, BrokerId

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Registration:
    """What a broker says of itself; see `tree.broker_value` for the last ones.

    `directory_id` names all its data directories, comma by comma. A broker that lost its session
    says the same again: that its process has not ended is seen by `process`, and only if a
    controller has seen that one before is its past settled (rule F3).
    """

    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    directory_id: str = ""
    clean_shutdown_epoch: int = -1
    flush_policy: str = ""
    process: str = ""
    machine: str = ""


async def register(
    store: Store, clock: Clock, broker_id: BrokerId, says: Registration, *, wait_ms: int
) -> BrokerEpoch:
    """Enter a broker; the answer is its epoch. `wait_ms` should be a session's timeout."""
    broker = BrokerImage(
        broker_id, BrokerEpoch(-1), says.endpoints, says.rack, machine=says.machine
    )
    value = tree.broker_value(
        broker,
        clock.now_ms(),
        says.directory_id,
        clean_shutdown_epoch=says.clean_shutdown_epoch,
        flush_policy=says.flush_policy,
        process=says.process,
    )
    path = tree.broker_path(broker_id)
    deadline_ms = clock.monotonic_ms() + wait_ms
    while True:
        try:
            created = await store.create(path, value, ephemeral=True)
        except NodeExists:
            if not await _take_over(store, path, says.directory_id):
                left_ms = deadline_ms - clock.monotonic_ms()
                await _wait_until_gone(store, path, broker_id, left_ms)
        else:
            assert created.stat is not None
            return BrokerEpoch(created.stat.created)


async def _take_over(store: Store, path: str, directory_id: str) -> bool:
    """Remove a node that an earlier process of ours left; True if there is none any more.

    If that process was the controller, the office goes with it.
    """
    try:
        node = await store.get(path)
        if tree.read_claims(node).directories.isdisjoint(directory_id.split(",")):
            return False
        log.info("taking over %s, which an earlier session on our data directory left", path)
        await store.multi(await _leftovers(store, path, node))
    except (NoNode, BadVersion):
        pass  # It went by itself, or somebody else was there first: look again.
    return True


async def _leftovers(store: Store, path: str, node: Node) -> list[Op]:
    ops: list[Op] = [Delete(path, node.stat.version)]
    with contextlib.suppress(NoNode):
        office = await store.get(tree.CONTROLLER)
        if office.stat.owner == node.stat.owner:
            ops.append(Delete(tree.CONTROLLER, office.stat.version))
    return ops


async def _wait_until_gone(store: Store, path: str, broker_id: int, left_ms: int) -> None:
    gone = asyncio.Event()

    def on_event(event: Event) -> None:
        if event.kind is EventKind.DELETED:
            gone.set()

    watch = store.watch(path, on_event)
    try:
        # It may have gone before the watch was set: look again, then wait.
        node = await store.get(path)
        async with asyncio.timeout(max(left_ms, 0) / 1000):
            await gone.wait()
    except NoNode:
        return
    except TimeoutError:
        holder = tree.read_broker(broker_id, node)
        addresses = ", ".join(f"{e.host}:{e.port}" for e in holder.endpoints)
        raise ApiError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"Another live broker has the id {broker_id}: {addresses}. "
            "Stop it, or give this one another node.id.",
        ) from None
    finally:
        watch.cancel()


async def next_broker_id(store: Store, reserved_max: int) -> BrokerId:
    """An id that no broker has had: above those which people may choose themselves."""
    for path in (tree.BROKERS, tree.BROKER_SEQUENCE):
        with contextlib.suppress(NodeExists):
            await store.create(path)
    stat = await store.put(tree.BROKER_SEQUENCE, b"")
    return BrokerId(reserved_max + stat.version)
