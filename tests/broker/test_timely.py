"""What has to be in time does not wait behind the work that clients give the broker."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from tests.broker.harness import batch, connect, create_topic, produce_request, running_broker
from tests.waiting import eventually_async

from tidemill.broker.server import WORK_THREADS, BrokerServer
from tidemill.clock import SystemClock
from tidemill.executor import ThreadExecutor
from tidemill.store.sqlite import SqliteStore
from tidemill.testing.in_process import until
from tidemill.wire.compression import Codec
from tidemill.wire.messages.offsets import OffsetFetchRequest, OffsetFetchRequestGroup

SESSION_TIMEOUT_MS = 1_500
POOL_BYTES = 4 * 1024 * 1024
VALUE_BYTES = 300_000


@contextmanager
def work_for_all_threads(server: BrokerServer) -> Iterator[None]:
    """Every thread that does the work of clients is busy, and as much again waits."""
    done = threading.Event()
    for _ in range(2 * WORK_THREADS):
        server.broker.executor.submit(lambda: done.wait(60), lambda result, error: None)
    try:
        yield
    finally:
        done.set()


@asynccontextmanager
async def neighbour(directory: Path) -> AsyncIterator[SqliteStore]:
    """Another one at the same store, who ends sessions that were not renewed."""
    executor = ThreadExecutor(asyncio.get_running_loop().call_soon_threadsafe, threads=1)
    store = SqliteStore(directory / "store.db", SystemClock(), executor)
    await store.open(session_timeout_ms=60_000)
    try:
        yield store
    finally:
        await store.close()
        executor.close()


async def test_a_session_outlives_a_flood_of_work(tmp_path: Path) -> None:
    """Rule K6: whoever lives renews its session, however much clients ask for."""
    settings = {"broker.session.timeout.ms": str(SESSION_TIMEOUT_MS)}
    lost: list[bool] = []
    async with running_broker(tmp_path, settings) as server, neighbour(tmp_path):
        server.store.on_session_lost(lambda: lost.append(True))
        with work_for_all_threads(server):
            await asyncio.sleep(2 * SESSION_TIMEOUT_MS / 1000)
            assert lost == []
            await asyncio.wait_for(create_topic(server, "t"), 10)


async def test_groups_are_loaded_during_a_flood_of_work(tmp_path: Path) -> None:
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
    async with running_broker(tmp_path) as server, connect(server.port) as client:

        async def is_served() -> bool:
            return bool((await client.ask(request, 9)).groups[0].error_code == 0)

        with work_for_all_threads(server):
            await create_topic(server, "__consumer_offsets", partitions=50)
            await eventually_async(is_served, "the group is loaded")


async def test_work_that_waits_takes_a_bounded_amount_of_memory(tmp_path: Path) -> None:
    """Batches that wait for a thread to convert them keep the next ones out, and all are stored."""
    settings = {"queued.max.request.bytes": str(POOL_BYTES)}
    values = [random.Random(place).randbytes(VALUE_BYTES) for place in range(4)]
    records = [batch([value], codec=Codec.GZIP) for value in values]
    async with running_broker(tmp_path, settings) as server, AsyncExitStack() as stack:
        await create_topic(server, "t", 8, configs={"compression.type": "lz4"})
        clients = [await stack.enter_async_context(connect(server.port)) for _ in range(8)]
        partitions = list(server.broker.replicas)
        with work_for_all_threads(server):
            for index, client in enumerate(clients):
                for place in range(40):
                    request = produce_request("t", records[place % 4], partition=index, acks=0)
                    client.send(request, 9)
            await asyncio.sleep(1)
            waiting = [len(each.records) for at in partitions for each in at._conversions.queued]
            assert sum(waiting) < 2 * POOL_BYTES
            assert len(waiting) >= len(clients)
        await until(lambda: all(at.log.log_end_offset == 40 for at in partitions), 60)
