"""How a broker enters the cluster: its node, its epoch, and an id if it has none.

The node is ephemeral: it goes with the broker's session. Its creation's commit number is the
broker's epoch, so every incarnation has a new one, however fast the broker comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from tidemill.clock import Clock
from tidemill.controller import tree
from tidemill.errors import ApiError, ErrorCode
from tidemill.image import BrokerImage, Endpoint
from tidemill.store.base import Event, EventKind, NodeExists, NoNode, Store
from tidemill.types import BrokerEpoch, BrokerId


async def register(
    store: Store,
    clock: Clock,
    broker_id: int,
    endpoints: Sequence[Endpoint],
    *,
    rack: str | None,
    directory_id: str,
    wait_ms: int,
) -> BrokerImage:
    """Enter a broker; its node may still be there from before, so wait for it to go.

    A node that stays for `wait_ms`, which should be a session's timeout, belongs to a broker that
    lives: refuse, and say who holds the id.
    """
    broker = BrokerImage(BrokerId(broker_id), BrokerEpoch(-1), tuple(endpoints), rack)
    value = tree.broker_value(broker, clock.now_ms(), directory_id)
    path = tree.broker_path(broker_id)
    deadline_ms = clock.monotonic_ms() + wait_ms
    while True:
        try:
            created = await store.create(path, value, ephemeral=True)
        except NodeExists:
            left_ms = deadline_ms - clock.monotonic_ms()
            await _wait_until_gone(store, path, broker_id, left_ms)
        else:
            assert created.stat is not None
            epoch = BrokerEpoch(created.stat.created)
            return BrokerImage(broker.broker_id, epoch, broker.endpoints, rack)


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
