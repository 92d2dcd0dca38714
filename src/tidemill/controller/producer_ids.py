"""Blocks of producer ids: each is given out once in the life of the cluster."""

from __future__ import annotations

from tidemill.controller import tree
from tidemill.controller.office import find
from tidemill.errors import ApiError, ErrorCode
from tidemill.store.base import BadVersion, Node, NodeExists, Store, StoreError

IDS_PER_BLOCK = 1_000
ID_MAX = 2**63 - 1
_ATTEMPTS_MAX = 10


async def next_block(store: Store, broker_id: int) -> tuple[int, int]:
    """The next block, for this broker: its first id, and how many.

    A store that cannot be asked now is answered as Kafka does: clients of any age ask again then.
    """
    try:
        return await _take_block(store, broker_id)
    except StoreError as error:
        problem = f"No producer ids can be had now: {error}"
        raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, problem) from error


async def _take_block(store: Store, broker_id: int) -> tuple[int, int]:
    for _ in range(_ATTEMPTS_MAX):
        node = await find(store, tree.PRODUCER_ID_BLOCK)
        start = 0 if node is None else int(tree.load(node.value)["block_end"]) + 1
        end = start + IDS_PER_BLOCK - 1
        if end > ID_MAX:
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "All producer ids are used up.")
        try:
            await _note(store, node, tree.producer_id_block(broker_id, start, end))
        except (BadVersion, NodeExists):
            continue  # Another broker took this block: the next one, then.
        return start, IDS_PER_BLOCK
    raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "Too many brokers ask for producer ids.")


async def _note(store: Store, node: Node | None, value: bytes) -> None:
    if node is None:
        await store.create(tree.PRODUCER_ID_BLOCK, value)
    else:
        await store.put(tree.PRODUCER_ID_BLOCK, value, node.stat.version)
