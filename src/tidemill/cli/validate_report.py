"""The report of `tidemill validate`: what settings promise, what happened, what it comes to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tidemill.cli.exits import Exit
from tidemill.cli.render import QUIET, titled
from tidemill.testing.validation.judge import Judgement, Verdict
from tidemill.testing.validation.promises import (
    Clause,
    Expectation,
    Scenario,
    Setup,
    expect,
    remarks,
)

_PRODUCER_KEYS = (
    "acks",
    "enable.idempotence",
    "retries",
    "max.in.flight.requests.per.connection",
    "delivery.timeout.ms",
)
_CONSUMER_KEYS = ("group.id", "enable.auto.commit", "auto.offset.reset", "isolation.level")
_TOPIC_KEYS = ("min.insync.replicas", "unclean.leader.election.enable")

EVERYWHERE = "every scenario"


@dataclass(frozen=True, slots=True)
class PromiseRow:
    """What the settings say to one mishap, and in which scenarios."""

    mishap: str
    promise: str
    scenarios: str = field(metadata=titled("IN"))
    why: str


@dataclass(frozen=True, slots=True)
class ScenarioRow:
    """What one scenario came to; a dash where it cannot be known."""

    scenario: str
    verdict: str
    acked: int | None
    failed: int | None
    lost: int | None
    duplicated: int | None
    reordered: int | None
    undelivered: int | None
    redelivered: int | None
    longest_pause_s: float = field(metadata=titled("LONGEST PAUSE S"))
    longest_read_pause_s: float | None = field(metadata=titled("READ PAUSE S"))
    restarts: int = field(metadata=QUIET)
    why: str


@dataclass(frozen=True, slots=True)
class Remark:
    about: str
    remark: str


@dataclass(frozen=True, slots=True)
class Promises:
    """What settings promise, with nothing run."""

    producer: str
    consumer: str
    topic: str
    promises: list[PromiseRow]
    remarks: list[Remark]


@dataclass(frozen=True, slots=True)
class Report:
    """The whole of it; `result` is the sentence to remember."""

    producer: str
    consumer: str
    topic: str
    seed: int
    result: str
    scenarios: list[ScenarioRow]
    promises: list[PromiseRow]
    remarks: list[Remark]

    @property
    def exit_code(self) -> Exit:
        held = {Verdict.KEPT, Verdict.ALLOWED}
        return Exit.OK if all(row.verdict in held for row in self.scenarios) else Exit.FAILED


def promises_only(setup: Setup, scenarios: Iterable[Scenario], more: Iterable[Remark]) -> Promises:
    producer, consumer, topic = _settings(setup)
    return Promises(producer, consumer, topic, promise_rows(setup, scenarios), _all(setup, more))


def report(
    setup: Setup, judgements: Mapping[Scenario, Judgement], seed: int, more: Iterable[Remark]
) -> Report:
    producer, consumer, topic = _settings(setup)
    told = [Remark(name.value, note) for name, each in judgements.items() for note in each.notes]
    return Report(
        producer,
        consumer,
        topic,
        seed,
        _result(judgements),
        [_row(name, each) for name, each in judgements.items()],
        promise_rows(setup, judgements),
        [*_unique(told), *_all(setup, more)],
    )


def _all(setup: Setup, more: Iterable[Remark]) -> list[Remark]:
    return [*(Remark("settings", text) for text in remarks(setup)), *more]


def _unique(told: list[Remark]) -> list[Remark]:
    """A remark that every scenario gave is given once."""
    where: dict[str, list[str]] = {}
    for each in told:
        where.setdefault(each.remark, []).append(each.about)
    return [Remark(", ".join(dict.fromkeys(names)), text) for text, names in where.items()]


def _row(scenario: Scenario, judgement: Judgement) -> ScenarioRow:
    figures = judgement.figures
    read_ms = figures.longest_read_pause_ms
    return ScenarioRow(
        scenario=scenario.value,
        verdict=judgement.verdict.value,
        acked=figures.acked,
        failed=figures.failed,
        lost=figures.lost,
        duplicated=figures.duplicated,
        reordered=figures.reordered,
        undelivered=figures.undelivered,
        redelivered=figures.redelivered,
        longest_pause_s=figures.longest_pause_ms / 1000,
        longest_read_pause_s=None if read_ms is None else read_ms / 1000,
        restarts=judgement.restarts,
        why=judgement.why,
    )


def _result(judgements: Mapping[Scenario, Judgement]) -> str:
    """One sentence: where the promise was broken, or that it was kept, and what that leaves."""
    by_verdict: dict[Verdict, list[str]] = {}
    for name, each in judgements.items():
        by_verdict.setdefault(each.verdict, []).append(name)
    if broken := by_verdict.get(Verdict.BROKEN):
        return f"the settings' promise was BROKEN in {', '.join(broken)}"
    tested = len(judgements) - len(by_verdict.get(Verdict.UNTESTED, []))
    text = f"the settings' promise was kept in {tested} of {len(judgements)} scenarios"
    if allowed := by_verdict.get(Verdict.ALLOWED):
        text += f"; in {', '.join(allowed)} something happened that the settings allow"
    if untested := by_verdict.get(Verdict.UNTESTED):
        text += f"; not tested: {', '.join(untested)}"
    return text


def promise_rows(setup: Setup, scenarios: Iterable[Scenario]) -> list[PromiseRow]:
    """Mishap by mishap; scenarios of which the same is said share a line."""
    expected = {scenario: expect(setup, scenario) for scenario in scenarios}
    rows = []
    for mishap in Expectation.mishaps():
        said: dict[Clause, list[str]] = {}
        for scenario, expectation in expected.items():
            said.setdefault(expectation.of(mishap), []).append(scenario)
        for clause, names in said.items():
            where = EVERYWHERE if len(said) == 1 else ", ".join(names)
            promise = "may happen" if clause.may_happen else "never"
            rows.append(PromiseRow(mishap, promise, where, clause.why))
    return rows


def _settings(setup: Setup) -> tuple[str, str, str]:
    topic = setup.topic
    counted = f"{topic.partitions} partitions, {topic.replication_factor} replicas"
    return (
        _listed(setup.producer, _PRODUCER_KEYS),
        _listed(setup.consumer, _CONSUMER_KEYS),
        f"{counted}, {_listed(topic, _TOPIC_KEYS)}",
    )


def _listed(settings: object, keys: Iterable[str]) -> str:
    return ", ".join(f"{key}={_text(settings, key)}" for key in keys)


def _text(settings: object, key: str) -> str:
    value = getattr(settings, key.replace(".", "_"))
    return str(value).lower() if isinstance(value, bool) else str(value) or "(none)"
