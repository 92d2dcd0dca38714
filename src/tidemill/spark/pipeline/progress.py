"""How far a query is, from what Spark reports about its batches: pure, fed with plain values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Positions = dict[tuple[str, str], int]


class Progress(NamedTuple):
    """One query at one moment."""

    batch: int | None = None
    rows: int = 0
    rows_per_s: float = 0.0
    done: int = 0
    """Offsets behind us since this run began to look."""
    behind: int | None = None
    """Offsets ahead of us, as far as Spark knows."""
    watermark: str | None = None
    late: int = 0
    """Rows that came later than the watermark allows, and that Spark left out for it. It counts
    those of an aggregate after a first grouping, so there may have been more."""

    @property
    def fraction(self) -> float | None:
        """How much of what is known to be there is done."""
        if self.behind is None:
            return None
        total = self.done + self.behind
        return self.done / total if total else 1.0


@dataclass(slots=True)
class Meter:
    """Adds up the batches of one query.

    Spark reports a batch once, and between batches that it has nothing to do, under the number of
    the next one; a later report of the same time is the same report.
    """

    _seen: str = ""
    _rows: int = 0
    _batch: int | None = None
    _rate: float = 0.0
    _first: Positions = field(default_factory=dict)
    _end: Positions = field(default_factory=dict)
    _latest: Positions | None = None
    _watermark: str | None = None
    _late: int = 0

    def is_new(self, timestamp: str) -> bool:
        """Whether a report of this time has not been added yet."""
        return timestamp > self._seen

    def add(self, reports: Iterable[Mapping[str, Any]]) -> None:
        """Reports in their order; those of former calls may be among them."""
        for report in reports:
            if self.is_new(report["timestamp"]):
                self._seen = report["timestamp"]
                self._add(report)

    def _add(self, report: Mapping[str, Any]) -> None:
        rows = report.get("numInputRows") or 0
        if rows:
            self._batch = report["batchId"]
            self._rate = report.get("processedRowsPerSecond") or 0.0
        else:
            self._rate = 0.0
        self._rows += rows
        for operator in report.get("stateOperators", ()):
            self._late += operator.get("numRowsDroppedByWatermark") or 0
        self._watermark = (report.get("eventTime") or {}).get("watermark", self._watermark)
        latest: Positions = {}
        for source in report.get("sources", ()):
            for place, at in positions(source.get("startOffset")).items():
                self._first.setdefault(place, at)
            self._end |= positions(source.get("endOffset"))
            latest |= positions(source.get("latestOffset"))
        for place, at in self._end.items():
            self._first.setdefault(place, at if not rows else 0)
        self._latest = latest or self._latest

    @property
    def now(self) -> Progress:
        done = sum(max(0, at - self._first[place]) for place, at in self._end.items())
        behind = None
        if self._latest is not None:
            behind = sum(max(0, at - self._end.get(place, 0)) for place, at in self._latest.items())
        return Progress(
            self._batch, self._rows, self._rate, done, behind, self._watermark, self._late
        )


def positions(offsets: object) -> Positions:
    """Spark's text for a source's offsets, by topic and partition; nothing if it is none."""
    if isinstance(offsets, str):
        try:
            offsets = json.loads(offsets)
        except ValueError:
            return {}
    if not isinstance(offsets, dict):
        return {}
    return {
        (topic, partition): at
        for topic, partitions in offsets.items()
        if isinstance(partitions, dict)
        for partition, at in partitions.items()
        if isinstance(at, int)
    }
