"""The anomalies that a history can show, which of them given settings allow, and the report.

The vocabulary is that of Jepsen's Kafka checker, with two additions: `nonmonotonic-ack` and
`phantom-read`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

EXAMPLES_MAX = 10


class Anomaly(StrEnum):
    """Names as Jepsen spells them; `MEANINGS` says what each one is."""

    LOST_WRITE = "lost-write"
    UNSEEN = "unseen"
    DUPLICATE = "duplicate"
    INCONSISTENT_OFFSETS = "inconsistent-offsets"
    ABORTED_READ = "G1a"
    PRECOMMITTED_READ = "precommitted-read"
    PHANTOM_READ = "phantom-read"
    POLL_SKIP = "poll-skip"
    NONMONOTONIC_POLL = "nonmonotonic-poll"
    INT_POLL_SKIP = "int-poll-skip"
    INT_NONMONOTONIC_POLL = "int-nonmonotonic-poll"
    NONMONOTONIC_SEND = "nonmonotonic-send"
    INT_NONMONOTONIC_SEND = "int-nonmonotonic-send"
    NONMONOTONIC_ACK = "nonmonotonic-ack"
    INT_SEND_SKIP = "int-send-skip"
    WRITE_CYCLE = "G0"
    READ_CYCLE = "G1c"


MEANINGS: Mapping[Anomaly, str] = {
    Anomaly.LOST_WRITE: "a committed record is gone, though it or a later one was polled",
    Anomaly.UNSEEN: "a committed record was not polled by the end of the final read",
    Anomaly.DUPLICATE: "one value is at two offsets",
    Anomaly.INCONSISTENT_OFFSETS: "one offset has two values",
    Anomaly.ABORTED_READ: "a value was polled whose write certainly failed",
    Anomaly.PRECOMMITTED_READ: "a transaction polled its own uncommitted write",
    Anomaly.PHANTOM_READ: "a value was polled that nobody sent",
    Anomaly.POLL_SKIP: "a consumer jumped over records that others polled",
    Anomaly.NONMONOTONIC_POLL: "a consumer went back by itself",
    Anomaly.INT_POLL_SKIP: "one operation jumped over records that others polled",
    Anomaly.INT_NONMONOTONIC_POLL: "one operation polled backwards",
    Anomaly.NONMONOTONIC_SEND: "a producer's later record got a lower offset",
    Anomaly.INT_NONMONOTONIC_SEND: "a later record of one operation got a lower offset",
    Anomaly.NONMONOTONIC_ACK: "a record got a lower offset than one acked before it was sent",
    Anomaly.INT_SEND_SKIP: "records of others are between those of one transaction",
    Anomaly.WRITE_CYCLE: "transactions interleave their writes",
    Anomaly.READ_CYCLE: "transactions read each other's writes in a circle",
}

_ALWAYS_ALLOWED = {Anomaly.INT_SEND_SKIP, Anomaly.WRITE_CYCLE}
"""Kafka has no isolation between writers."""


@dataclass(frozen=True, slots=True)
class Promise:
    """What the settings of a cluster and its clients promise; the default is the strongest."""

    durable: bool = True
    """acks=all, min.insync.replicas of 2 or more, and no unclean election."""
    idempotent: bool = True
    single_in_flight: bool = False
    """max.in.flight.requests.per.connection=1, which keeps the order without idempotence."""
    read_committed: bool = True
    subscribe: bool = False
    """Consumers share the work of a group, and rebalances were not recorded as `Assign`."""
    final_read: bool = True
    """At the end, after everything was healed, consumers read until nothing more came. Marked as
    `Operation.final` in the history, such a read also shows what was polled before and is gone."""
    also_allowed: frozenset[Anomaly] = frozenset()

    def allowed(self) -> frozenset[Anomaly]:
        """The anomalies that are no failure under these settings."""
        found = _ALWAYS_ALLOWED | self.also_allowed
        if not self.read_committed:
            found |= {Anomaly.PRECOMMITTED_READ, Anomaly.READ_CYCLE}
        if not self.idempotent:
            found |= {Anomaly.DUPLICATE}
        if not (self.idempotent or self.single_in_flight):
            found |= {Anomaly.NONMONOTONIC_SEND, Anomaly.INT_NONMONOTONIC_SEND}
        if self.subscribe:
            found |= {Anomaly.POLL_SKIP, Anomaly.NONMONOTONIC_POLL}
        if not self.final_read:
            found |= {Anomaly.UNSEEN}
        if not self.durable:
            found |= _WHEN_LOSSY
        return frozenset(found)


_WHEN_LOSSY = {
    Anomaly.LOST_WRITE,
    Anomaly.UNSEEN,
    Anomaly.INCONSISTENT_OFFSETS,
    Anomaly.NONMONOTONIC_SEND,
    Anomaly.INT_NONMONOTONIC_SEND,
    Anomaly.NONMONOTONIC_ACK,
    Anomaly.NONMONOTONIC_POLL,
    Anomaly.POLL_SKIP,
}
"""What acked records that vanish, and offsets that are given out again, look like."""


@dataclass(slots=True)
class Lag:
    """Milliseconds between the commit of a record and its first sight."""

    median_ms: float = 0
    p99_ms: float = 0
    worst_ms: float = 0
    worst: str = ""


@dataclass(slots=True)
class Report:
    """What a check found: bounded, however long the history."""

    allowed: frozenset[Anomaly]
    counts: Counter[Anomaly] = field(default_factory=Counter)
    examples: dict[Anomaly, list[str]] = field(default_factory=lambda: defaultdict(list))
    operations: int = 0
    committed: int = 0
    unknown: int = 0
    polled: int = 0
    lag: Lag = field(default_factory=Lag)
    longest_ack_gap_ms: float = 0

    def note(self, anomaly: Anomaly, text: str, *args: object) -> None:
        """Count one; the text is put together for the first few only."""
        self.counts[anomaly] += 1
        if self.counts[anomaly] <= EXAMPLES_MAX:
            self.examples[anomaly].append(text.format(*args))

    @property
    def failures(self) -> dict[Anomaly, int]:
        """The anomalies that the promise does not allow, with their counts."""
        return {kind: count for kind, count in self.counts.items() if kind not in self.allowed}

    @property
    def is_valid(self) -> bool:
        return not self.failures

    def __str__(self) -> str:
        lines = [self._verdict(), *self._anomaly_lines(), self._figures()]
        return "\n".join(lines)

    def _verdict(self) -> str:
        if self.is_valid:
            return "no anomaly that the settings do not allow"
        return f"{sum(self.failures.values())} anomalies that the settings do not allow"

    def _anomaly_lines(self) -> list[str]:
        lines = []
        for kind in sorted(self.counts, key=lambda one: (one in self.allowed, one)):
            note = ", allowed" if kind in self.allowed else ""
            lines.append(f"{kind} ({MEANINGS[kind]}): {self.counts[kind]}{note}")
            if kind not in self.allowed:
                lines += [f"    {example}" for example in self.examples[kind]]
        return lines

    def _figures(self) -> str:
        lag = self.lag
        worst = f" ({lag.worst})" if lag.worst else ""
        return (
            f"{self.operations} operations, {self.committed} records committed,"
            f" {self.unknown} unknown, {self.polled} polled;"
            f" lag median {lag.median_ms:g} ms, p99 {lag.p99_ms:g} ms,"
            f" worst {lag.worst_ms:g} ms{worst};"
            f" longest gap between acks {self.longest_ack_gap_ms:g} ms"
        )
