"""Throughput and latency the way Kafka's perf tools count them."""

from __future__ import annotations

import random
from dataclasses import dataclass

SAMPLES_MAX = 500_000
"""More latencies than this are sampled: memory stays bounded, percentiles stay true."""


@dataclass(frozen=True, slots=True)
class Summary:
    """One line of a perf report."""

    records: int
    records_per_s: float
    mb_per_s: float
    avg_ms: float
    max_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    p999_ms: float


class Tally:
    """Count, bytes, sum and maximum: what a line while a test runs shows."""

    __slots__ = ("bytes", "count", "max_ms", "sum_ms")

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        self.sum_ms = 0.0
        self.max_ms = 0.0

    def add(self, latency_ms: float, size_bytes: int) -> None:
        self.count += 1
        self.bytes += size_bytes
        self.sum_ms += latency_ms
        if latency_ms > self.max_ms:
            self.max_ms = latency_ms

    def line(self, elapsed_s: float) -> str:
        seconds = max(elapsed_s, 1e-9)
        average_ms = self.sum_ms / self.count if self.count else 0.0
        return (
            f"{self.count} records sent, {self.count / seconds:.1f} records/sec "
            f"({self.bytes / seconds / 2**20:.2f} MB/sec), {average_ms:.1f} ms avg latency, "
            f"{self.max_ms:.1f} ms max latency."
        )


class Latencies:
    """Reservoir of latencies in milliseconds, with exact count, sum and maximum."""

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        self._sum_ms = 0.0
        self._max_ms = 0.0
        self._samples: list[float] = []
        self._random = random.Random(0)

    def add(self, latency_ms: float, size_bytes: int) -> None:
        self.count += 1
        self.bytes += size_bytes
        self._sum_ms += latency_ms
        if latency_ms > self._max_ms:
            self._max_ms = latency_ms
        if len(self._samples) < SAMPLES_MAX:
            self._samples.append(latency_ms)
        elif (slot := self._random.randrange(self.count)) < SAMPLES_MAX:
            self._samples[slot] = latency_ms

    def summary(self, elapsed_s: float) -> Summary:
        ordered = sorted(self._samples)
        seconds = max(elapsed_s, 1e-9)
        return Summary(
            self.count,
            self.count / seconds,
            self.bytes / seconds / (1024 * 1024),
            self._sum_ms / self.count if self.count else 0.0,
            self._max_ms,
            *(_percentile(ordered, p) for p in (0.5, 0.95, 0.99, 0.999)),
        )


def _percentile(ordered: list[float], fraction: float) -> float:
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


def total_line(s: Summary) -> str:
    """The last line of a producer perf test."""
    return (
        f"{s.records} records sent, {s.records_per_s:.6f} records/sec ({s.mb_per_s:.2f} MB/sec), "
        f"{s.avg_ms:.2f} ms avg latency, {s.max_ms:.2f} ms max latency, "
        f"{s.p50_ms:.0f} ms 50th, {s.p95_ms:.0f} ms 95th, "
        f"{s.p99_ms:.0f} ms 99th, {s.p999_ms:.0f} ms 99.9th."
    )
