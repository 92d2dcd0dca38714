"""What a run came to: the histories of all clients judged, gaps in acks, and the replicas compared.

Nothing here looks at a live cluster but `read_everything`, which is the final read of the history.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from statistics import median

import msgspec

from tidemill.client import Admin, Consumer
from tidemill.client.admin_types import OffsetSpec
from tidemill.testing.anomalies import Promise, Report
from tidemill.testing.checker import check
from tidemill.testing.faults.cluster import EXACT, LOOSE, PLAIN
from tidemill.testing.faults.load import KEYS, OffsetWatch, key_of, offsets_path, text_of
from tidemill.testing.faults.strikes import Struck
from tidemill.testing.history import History, Operation, Outcome, Poll
from tidemill.types import TopicPartition

FINAL = "final-read"
_MOMENT_MS = 300
PROMISES = {
    EXACT: Promise(idempotent=True),
    PLAIN: Promise(idempotent=False, single_in_flight=True),
    LOOSE: Promise(idempotent=False),
}


async def read_everything(bootstrap: str, history: History) -> None:
    """The final read: every partition from its beginning to its end."""
    async with Admin(bootstrap) as admin:
        ends = (await admin.list_offsets(dict.fromkeys(KEYS, OffsetSpec.LATEST))).raise_first()
    left = {key: listed.offset for key, listed in ends.items()}
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(KEYS)
        while [key for key, end in left.items() if await consumer.position(key) < end]:
            found: dict[str, list[tuple[int, str]]] = {}
            for each in await consumer.poll(5_000, timeout_ms=500):
                key = key_of(each.topic, each.partition)
                found.setdefault(key, []).append((each.offset, text_of(each.value)))
            history.polled(FINAL, found, final=True)


def judge(operations: Iterable[Operation]) -> dict[str, Report]:
    """Each topic's history against what its producers' settings promise."""
    whole = list(operations)
    # A run that was broken off has no final read: what nobody saw may be there all the same.
    is_complete = any(operation.final for operation in whole)
    return {
        topic: check(_of_topic(whole, topic), replace(promise, final_read=is_complete))
        for topic, promise in PROMISES.items()
    }


def _of_topic(operations: Iterable[Operation], topic: str) -> list[Operation]:
    """The part of a history that is about one topic."""
    prefix = f"{topic}-"
    found = []
    for operation in operations:
        steps = list(operation.steps)
        if any(send.key.startswith(prefix) for send in operation.sends()):
            found.append(operation)
        elif not any(True for _ in operation.sends()):
            for at, step in enumerate(steps):
                if isinstance(step, Poll):
                    records = {k: v for k, v in step.records.items() if k.startswith(prefix)}
                    steps[at] = Poll(records)
            found.append(msgspec.structs.replace(operation, steps=steps))
    return found


def offset_watches(histories: Iterable[Path]) -> OffsetWatch:
    """All answers to how far partitions go, of all loads that asked."""
    total = OffsetWatch()
    for path in map(offsets_path, histories):
        if path.exists():
            watch = msgspec.json.decode(path.read_bytes(), type=OffsetWatch)
            total.asked += watch.asked
            total.answered += watch.answered
            total.backwards += watch.backwards
    return total


# Acks.


class Acks:
    """When which partition's records were acked."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self.by_process: dict[str, int] = defaultdict(int)
        self.failed = 0
        self._times: dict[str, list[float]] = defaultdict(list)
        for operation in operations:
            for send in operation.sends():
                if operation.outcome is Outcome.OK and operation.ended_ms is not None:
                    self._times[send.key].append(operation.ended_ms)
                    self.by_process[operation.process] += 1
                elif operation.outcome is Outcome.INFO:
                    self.failed += 1
        for times in self._times.values():
            times.sort()

    @property
    def count(self) -> int:
        return sum(self.by_process.values())

    def longest_gap_ms(self) -> tuple[float, str]:
        """The longest time in which one partition acked nothing, and which one that was."""
        return max(
            ((_longest(times), key) for key, times in self._times.items()), default=(0.0, "")
        )

    def longest_gap_of_all_ms(self) -> float:
        """The longest time in which no partition acked anything."""
        return _longest(sorted(time for times in self._times.values() for time in times))

    def gap_ms(self, keys: Iterable[str], from_ms: float, to_ms: float) -> float:
        """The longest gap of one of these partitions that begins in this stretch of time.

        The last ack before a fault may be a moment old when it strikes: that is its gap's begin.
        """
        longest = 0.0
        for key in keys:
            times = self._times.get(key, [])
            first = bisect_left(times, from_ms - _MOMENT_MS)
            last = bisect_left(times, to_ms - _MOMENT_MS)
            longest = max(longest, _longest(times[first : last + 1]))
        return longest


def _longest(times: Sequence[float]) -> float:
    return max((later - earlier for earlier, later in pairwise(times)), default=0.0)


@dataclass(frozen=True, slots=True)
class KindFigures:
    """All faults of one kind together, in milliseconds; None where nothing was measured."""

    count: int
    gap_p50_ms: float | None
    gap_max_ms: float | None
    whole_p50_ms: float | None
    whole_max_ms: float | None


def gaps(strikes: Sequence[Struck], acks: Acks) -> list[float]:
    """The longest gap in acks that each fault caused, in what its victim led if it led anything."""
    everything = [key_of(*key) for key in KEYS]
    found = []
    for number, struck in enumerate(strikes):
        until = strikes[number + 1].began_ms if number + 1 < len(strikes) else math.inf
        keys = [key_of(*key) for key in struck.led] or everything
        found.append(acks.gap_ms(keys, struck.began_ms, until))
    return found


def by_kind(strikes: Sequence[Struck], gaps_ms: Sequence[float]) -> Mapping[str, KindFigures]:
    """Faults of a kind; gaps and times only of those that struck a whole cluster."""
    found: dict[str, KindFigures] = {}
    for kind in sorted({struck.kind for struck in strikes}):
        pairs = [(s, gap) for s, gap in zip(strikes, gaps_ms, strict=True) if s.kind is kind]
        alone = [(s, gap) for s, gap in pairs if s.was_whole]
        some = [gap for _, gap in alone]
        times = [s.whole_ms - s.ended_ms for s, _ in alone if s.whole_ms is not None]
        found[kind] = KindFigures(len(pairs), *_middle_and_most(some), *_middle_and_most(times))
    return found


def _middle_and_most(values: Sequence[float]) -> tuple[float | None, float | None]:
    return (median(values), max(values)) if values else (None, None)


# Replicas.


def replicas_differ(directories: Sequence[Path], keys: Sequence[TopicPartition]) -> list[str]:
    """Partitions whose replicas, cleanly stopped, are not the same byte for byte."""
    found = []
    for topic, index in keys:
        sums = {
            directory.name: _digest(sorted((directory / f"{topic}-{index}").glob("*.log")))
            for directory in directories
        }
        if len(set(sums.values())) > 1:
            found.append(f"{topic}-{index}: {sums}")
    return found


def _digest(segments: Iterable[Path]) -> tuple[int, str]:
    digest, size = sha256(), 0
    for path in segments:
        data = path.read_bytes()
        digest.update(data)
        size += len(data)
    return size, digest.hexdigest()[:16]
