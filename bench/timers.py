"""What a million timers cost: insert, cancel and expire on the timing wheel, beside a heap.

Run it with `python -m bench.timers [count]`. The delays are those of a busy broker: spread over a
minute. The garbage collector is off while the clock runs, as the broker freezes what is long-lived.
"""

from __future__ import annotations

import gc
import heapq
import random
import sys
import time
import tracemalloc
from collections.abc import Callable

from tidemill.timers import TimingWheel
from tidemill.types import TimestampMs

SPAN_MS = 60_000
STEP_MS = 5


class HandClock:
    def __init__(self) -> None:
        self.at_ms = 0

    def now_ms(self) -> TimestampMs:
        return TimestampMs(self.at_ms)

    def monotonic_ms(self) -> int:
        return self.at_ms


def nothing() -> None:
    pass


def timed(label: str, count: int, work: Callable[[], object]) -> None:
    gc.collect()
    gc.disable()
    start = time.perf_counter()
    work()
    elapsed = time.perf_counter() - start
    gc.enable()
    print(f"{label:38} {elapsed / count * 1e9:8.0f} ns each {elapsed:8.3f} s")


def bench_wheel(delays: list[int]) -> None:
    clock = HandClock()
    wheel = TimingWheel(clock)
    count = len(delays)
    handles = []
    timed(
        "wheel: insert",
        count,
        lambda: handles.extend([wheel.schedule(delay_ms, nothing) for delay_ms in delays]),
    )
    timed("wheel: cancel", count, lambda: [handle.cancel() for handle in handles])
    handles.clear()
    for delay_ms in delays:
        wheel.schedule(delay_ms, nothing)

    def expire() -> None:
        while len(wheel):
            clock.at_ms += STEP_MS
            wheel.advance(clock.at_ms)

    timed(f"wheel: expire, a step each {STEP_MS} ms", count, expire)


def bench_heap(delays: list[int]) -> None:
    heap: list[tuple[int, int]] = []

    def insert() -> None:
        for number, delay_ms in enumerate(delays):
            heapq.heappush(heap, (delay_ms, number))

    def expire() -> None:
        while heap:
            heapq.heappop(heap)

    timed("heap: insert", len(delays), insert)
    timed("heap: expire (a cancelled one, too)", len(delays), expire)


def bench_memory(delays: list[int]) -> None:
    wheel = TimingWheel(HandClock())
    tracemalloc.start()
    handles = [wheel.schedule(delay_ms, nothing) for delay_ms in delays]
    size_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"{'wheel: memory':38} {size_bytes / len(handles):8.0f} bytes each")


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    source = random.Random(1)
    delays = [source.randrange(1, SPAN_MS) for _ in range(count)]
    print(f"{count} timers, delays up to {SPAN_MS} ms")
    bench_wheel(delays)
    bench_heap(delays)
    bench_memory(delays[:100_000])


if __name__ == "__main__":
    main()
