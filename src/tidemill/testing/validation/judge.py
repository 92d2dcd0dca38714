"""The judgement of a trial: what happened, whether the settings allow it, and in which words.

Everything here is a pure function of the evidence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, pairwise

from tidemill.testing.anomalies import MEANINGS, Anomaly, Report
from tidemill.testing.checker import check
from tidemill.testing.history import Value
from tidemill.testing.validation.evidence import Evidence, FinalLog, Place, Rank
from tidemill.testing.validation.promises import Expectation, Setup

COUNTED = frozenset(
    {
        Anomaly.LOST_WRITE,
        Anomaly.UNSEEN,
        Anomaly.DUPLICATE,
        Anomaly.NONMONOTONIC_SEND,
        Anomaly.INT_NONMONOTONIC_SEND,
    }
)
"""Anomalies that have a figure of their own."""


class Verdict(StrEnum):
    KEPT = "KEPT"
    """Nothing happened that should not."""
    ALLOWED = "allowed"
    """Something happened that the settings do not rule out."""
    BROKEN = "BROKEN"
    """Something happened that the settings rule out."""
    UNTESTED = "untested"
    """The trial proves nothing: no load was there when the cluster was hurt."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What happened; None where it cannot be known."""

    records: int
    """In the log, in the end."""
    acked: int | None
    failed: int | None
    lost: int | None
    duplicated: int | None
    reordered: int | None
    undelivered: int | None
    redelivered: int | None
    longest_pause_ms: int
    """The longest time without an acknowledgement or, where nobody says, without a new record."""
    longest_read_pause_ms: int | None

    def of(self, mishap: str) -> int | None:
        found: int | None = getattr(self, mishap)
        return found


@dataclass(frozen=True, slots=True)
class Judgement:
    """One trial's outcome."""

    verdict: Verdict
    why: str
    figures: Figures
    restarts: int = 0
    notes: tuple[str, ...] = ()


def judge(
    evidence: Evidence,
    log: FinalLog,
    expectation: Expectation,
    setup: Setup,
    *,
    was_running: bool = True,
    acked_after: int | None = None,
) -> Judgement:
    """Compare what happened with what the settings promise.

    `was_running` says whether there was a load when the cluster was hurt, `acked_after` how many
    records were acknowledged after it was healed.
    """
    figures = measure(evidence, log)
    notes = tuple(_notes(evidence, figures))
    if not was_running:
        why = "there was no load when the cluster was hurt"
        return Judgement(Verdict.UNTESTED, why, figures, evidence.restarts, notes)
    broken, allowed = _sorted_out(evidence, expectation, figures)
    if evidence.knows_acks and evidence.values_are_unique:
        broken += other_anomalies(check(evidence.history, expectation.promise(setup)))
    if acked_after == 0:
        broken.append("nothing was acknowledged after the cluster was healed")
    if broken:
        return Judgement(Verdict.BROKEN, "; ".join(broken), figures, evidence.restarts, notes)
    if allowed:
        return Judgement(Verdict.ALLOWED, "; ".join(allowed), figures, evidence.restarts, notes)
    return Judgement(Verdict.KEPT, "", figures, evidence.restarts, notes)


def _notes(evidence: Evidence, figures: Figures) -> list[str]:
    unknown = [each for each in Expectation.mishaps() if figures.of(each) is None]
    unjudged = [f"not judged, for nobody knows: {', '.join(unknown)}"] if unknown else []
    return [*evidence.notes, *unjudged]


def _sorted_out(
    evidence: Evidence, expectation: Expectation, figures: Figures
) -> tuple[list[str], list[str]]:
    """The mishaps that the settings rule out, and those that they allow."""
    broken, allowed = [], []
    for mishap in Expectation.mishaps():
        count = figures.of(mishap)
        if not count:
            continue
        clause = expectation.of(mishap)
        reason = clause.why if clause.may_happen else _restart_reason(evidence, mishap)
        if reason is None:
            broken.append(f"{count:,} {mishap}, though {clause.why}")
        else:
            allowed.append(f"{count:,} {mishap} because {reason}")
    return broken, allowed


def _restart_reason(evidence: Evidence, mishap: str) -> str | None:
    """No setting but a transaction spans the death of the program itself."""
    if not evidence.restarts or mishap not in ("duplicated", "reordered", "redelivered"):
        return None
    times = "once" if evidence.restarts == 1 else f"{evidence.restarts} times"
    return f"the program died and was started again, {times}"


def other_anomalies(report: Report) -> list[str]:
    """What the history checker found beyond the figures."""
    return [
        f"{count:,} {kind} ({MEANINGS[kind]})"
        for kind, count in report.failures.items()
        if kind not in COUNTED
    ]


def measure(evidence: Evidence, log: FinalLog) -> Figures:
    held = Counter(value for _, value in chain.from_iterable(log.values()))
    delivered = evidence.delivered
    knows_deliveries = evidence.knows_deliveries
    in_order = evidence.knows_acks and _can_rank(evidence, held)
    return Figures(
        records=held.total(),
        acked=evidence.acked.total() if evidence.knows_acks else None,
        failed=evidence.failed if evidence.knows_acks else None,
        lost=(evidence.acked - held).total() if evidence.knows_acks else _gone(evidence, log),
        duplicated=held.total() - len(held) if evidence.values_are_unique else None,
        reordered=sum(_overtaken(part, evidence.ranks) for part in log.values())
        if in_order
        else None,
        undelivered=_undelivered(evidence, held) if knows_deliveries else None,
        redelivered=delivered.total() - len(delivered) if knows_deliveries else None,
        longest_pause_ms=longest_gap_ms(evidence.ack_times_ms),
        longest_read_pause_ms=evidence.longest_read_pause_ms if knows_deliveries else None,
    )


def _gone(evidence: Evidence, log: FinalLog) -> int:
    """How many records were there for consumers to see, and are not there in the end."""
    there = {Place(index, *record) for index, part in log.items() for record in part}
    return len(evidence.watched - there)


def _can_rank(evidence: Evidence, held: Counter[Value]) -> bool:
    return evidence.values_are_unique and held.keys() <= evidence.ranks.keys()


def _overtaken(part: Iterable[tuple[int, Value]], ranks: dict[Value, Rank]) -> int:
    """How many records stand, with their first copy, behind one that was sent later."""
    count = 0
    highest: dict[str, int] = {}
    seen: set[Value] = set()
    for _, value in sorted(part, key=lambda record: record[0]):
        if value in seen:
            continue
        seen.add(value)
        producer, number = ranks[value]
        count += number < highest.get(producer, -1)
        highest[producer] = max(number, highest.get(producer, -1))
    return count


def _undelivered(evidence: Evidence, held: Counter[Value]) -> int:
    got = Counter[Value]()
    for place in evidence.delivered:
        got[place.value] += 1
    return sum(1 for value in held if not got[value])


def longest_gap_ms(times_ms: Iterable[int]) -> int:
    return max((later - earlier for earlier, later in pairwise(sorted(times_ms))), default=0)
