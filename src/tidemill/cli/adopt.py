"""Starting in a directory that was formatted first, by `kafka-storage.sh` or by a Kafka.

Such a directory says in `meta.properties` which cluster it belongs to, but has no store yet. The
store is made with that id, so that the broker joins the cluster it was formatted for instead of
inventing one and refusing its own directory.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.cli.kafka.common import parse_properties

if TYPE_CHECKING:
    from collections.abc import Sequence

META = "meta.properties"


def adopt_cluster_id(directories: Sequence[Path]) -> None:
    """Give a new store the cluster id of the directories, when they have one."""
    from tidemill.broker.server import STORE_NAME

    store = directories[0] / STORE_NAME
    if store.exists():
        return
    for directory in directories:
        path = directory / META
        if path.exists():
            cluster_id = parse_properties(path.read_text()).get("cluster.id")
            if cluster_id:
                directories[0].mkdir(parents=True, exist_ok=True)
                asyncio.run(_write(store, cluster_id))
                return


async def _write(path: Path, cluster_id: str) -> None:
    from tidemill.clock import SystemClock
    from tidemill.controller import tree
    from tidemill.executor import ThreadExecutor
    from tidemill.store.base import Create
    from tidemill.store.sqlite import SqliteStore

    executor = ThreadExecutor(asyncio.get_running_loop().call_soon_threadsafe, threads=1)
    store = SqliteStore(path, SystemClock(), executor)
    try:
        await store.open(session_timeout_ms=None)
        parent = tree.CLUSTER_ID.rpartition("/")[0]
        value = tree.dump({"version": "1", "id": cluster_id})
        await store.multi([Create(parent), Create(tree.CLUSTER_ID, value)])
    finally:
        await store.close()
        executor.close()
