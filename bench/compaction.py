"""How fast compaction is, and what the event loop feels of it.

    python -m bench.compaction [--megabytes 200] [--codec lz4] [--value-bytes 100]

Writes one log of updates to a temporary directory, compacts it as a broker does - pieces of work in
a thread, pauses between them - and prints the rate and how late a timer of the loop was meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable
from random import Random
from uuid import UUID

from tidemill.broker.ticker import Ticker
from tidemill.clock import SystemClock
from tidemill.executor import ThreadExecutor
from tidemill.storage.cleaner import LogCleaner
from tidemill.storage.cleaner_run import CleanerSettings
from tidemill.storage.files import OsFiles
from tidemill.storage.log import Log
from tidemill.storage.log_config import LogConfig
from tidemill.storage.manager import LogManager
from tidemill.types import TopicPartition
from tidemill.wire.compression import Codec
from tidemill.wire.records import Record, build_batch

KEYS = 100_000
RECORDS_PER_BATCH = 150
IDLE_S = 3.0
SWITCH_INTERVAL_S = 0.0005
"""What a broker sets; see `tidemill.broker.server`."""
CONFIG = LogConfig(
    segment_bytes=64 << 20,
    cleanup_compact=True,
    cleanup_delete=False,
    min_cleanable_ratio=0.0,
    file_delete_delay_ms=0,
)
TP = TopicPartition("updates", 0)


def fill(log: Log, size_bytes: int, codec: Codec, value_bytes: int) -> int:
    """Append updates until the log is that large; how many records."""
    random, count = Random(1), 0
    now_ms = SystemClock().now_ms()
    while log.size_bytes < size_bytes:
        records = [
            Record(
                index,
                now_ms,
                b"key-%08d" % random.randrange(KEYS),
                random.randbytes(value_bytes // 2) + bytes(value_bytes // 2),
            )
            for index in range(RECORDS_PER_BATCH)
        ]
        log.append_as_leader(bytearray(build_batch(records, codec=codec)), leader_epoch=0)
        count += len(records)
    log.roll()
    log.flush()
    return count


async def lateness(stop: asyncio.Event | float) -> list[float]:
    """How many milliseconds late a timer of one millisecond was, until a moment or an event."""
    late: list[float] = []
    end = time.perf_counter() + stop if isinstance(stop, float) else float("inf")
    while time.perf_counter() < end and not (isinstance(stop, asyncio.Event) and stop.is_set()):
        before = time.perf_counter()
        await asyncio.sleep(0.001)
        late.append((time.perf_counter() - before) * 1000 - 1)
    return sorted(late)


async def report_lateness(when: str, watching: Awaitable[list[float]]) -> None:
    late = await watching
    print(
        f"loop {when}: late by {late[len(late) // 2]:.2f} ms median, "
        f"{late[int(len(late) * 0.99)]:.2f} ms p99, {late[-1]:.2f} ms at worst"
    )


async def clean(manager: LogManager, log: Log, executor: ThreadExecutor) -> float:
    """Compact the log as a broker would; how many seconds it took."""
    ticker = Ticker(SystemClock(), asyncio.get_running_loop())
    cleaner = LogCleaner(
        manager,
        clock=SystemClock(),
        executor=executor,
        call_later=ticker.schedule,
        settings=CleanerSettings,
        high_watermarks=lambda: {TP: log.log_end_offset},
    )
    await report_lateness("before", lateness(IDLE_S))
    done = asyncio.Event()
    watching = asyncio.create_task(lateness(done))
    before = time.perf_counter()
    cleaner.run(done.set)
    await done.wait()
    seconds = time.perf_counter() - before
    await report_lateness("meanwhile", watching)
    ticker.close()
    assert cleaner.totals.passes, cleaner.uncleanable
    return seconds


async def measure(directory: str, options: argparse.Namespace) -> None:
    executor = ThreadExecutor(asyncio.get_running_loop().call_soon_threadsafe, threads=4)
    manager = LogManager(
        [directory],
        files=OsFiles(),
        clock=SystemClock(),
        random=Random(1),
        executor=executor,
        cluster_id="bench",
        node_id=1,
    )
    manager.start()
    log = manager.create(TP, UUID(int=1), CONFIG)
    codec = Codec[options.codec.upper()]
    records = fill(log, options.megabytes << 20, codec, options.value_bytes)
    before_bytes = log.size_bytes
    await asyncio.sleep(IDLE_S)  # What closing the segments has set off shall be over.
    seconds = await clean(manager, log, executor)
    print(
        f"{before_bytes / 1e6:.0f} MB, {records} records, {options.codec}: "
        f"{before_bytes / 1e6 / seconds:.1f} MB/s, {records / seconds:,.0f} records/s, "
        f"{log.size_bytes / 1e6:.1f} MB left"
    )
    executor.close()
    manager.shutdown({})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--codec", default="none", choices=[codec.name.lower() for codec in Codec])
    parser.add_argument("--value-bytes", type=int, default=100)
    options = parser.parse_args()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(measure(directory, options))


if __name__ == "__main__":
    main()
