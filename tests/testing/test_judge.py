"""The judgement of a trial: figures from the evidence, verdicts from the promise."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tidemill.client import Consumer, Producer
from tidemill.testing.history import Value
from tidemill.testing.validation.evidence import Evidence, Place, Rank, key_of
from tidemill.testing.validation.judge import Judgement, Verdict, judge, longest_gap_ms, measure
from tidemill.testing.validation.promises import Scenario, Setup, TopicSettings, commits_of, expect

Log = dict[int, list[tuple[int, Value]]]


def setup(producer: dict[str, Any] | None = None, group: bool = False, **topic: Any) -> Setup:
    consumer: dict[str, Any] = {"group.id": "g", "auto.offset.reset": "earliest"} if group else {}
    reads = Consumer("127.0.0.1:1", **consumer).settings
    writes = Producer("127.0.0.1:1", **(producer or {})).settings
    return Setup(writes, reads, TopicSettings(**topic), commits_of(reads))


def evidence(acked: list[int], log: Log, delivered: list[Place] | None = None) -> Evidence:
    """A producer that was acknowledged these numbers, consumers that got these records."""
    found = Evidence()
    for number in acked:
        key = next(
            (key_of("t", i) for i, part in log.items() if number in dict(part).values()), "t-0"
        )
        sending = found.history.send("producer", key, number)
        found.history.ok(sending)
        found.acked[number] += 1
    numbers = [*acked, *(v for part in log.values() for _, v in part if isinstance(v, int))]
    found.ranks = {number: Rank("producer", number) for number in numbers}
    everything = [Place(i, offset, value) for i, part in log.items() for offset, value in part]
    found.delivered = Counter(everything if delivered is None else delivered)
    found.history.polled("final", {key_of("t", i): part for i, part in log.items()}, final=True)
    return found


def judged(
    found: Evidence, log: Log, given: Setup, scenario: Scenario = Scenario.LEADER_KILL, **more: Any
) -> Judgement:
    return judge(found, log, expect(given, scenario), given, **more)


def test_all_is_well() -> None:
    log: Log = {0: [(0, 0), (1, 2)], 1: [(0, 1)]}
    found = judged(evidence([0, 1, 2], log), log, setup())
    assert (found.verdict, found.why) == (Verdict.KEPT, "")
    assert found.figures.lost == found.figures.duplicated == found.figures.reordered == 0
    assert found.notes == ()


def test_a_lost_record_breaks_the_promise_or_not() -> None:
    log: Log = {0: [(0, 0)]}
    strict = judged(evidence([0, 1], log), log, setup())
    assert strict.verdict is Verdict.BROKEN
    assert strict.why.startswith("1 lost, though acks=all")
    loose = judged(evidence([0, 1], log), log, setup({"acks": "1"}))
    assert loose.verdict is Verdict.ALLOWED
    assert loose.why.startswith("1 lost because acks=1:")


def test_a_duplicate_is_counted_once_per_further_copy() -> None:
    log: Log = {0: [(0, 0), (1, 1), (2, 0), (3, 0)]}
    found = judged(evidence([0, 1], log), log, setup())
    assert found.figures.duplicated == 2
    assert found.figures.reordered == 0, "the first copies are in order"
    assert found.verdict is Verdict.BROKEN
    loose = judged(evidence([0, 1], log), log, setup({"enable.idempotence": "false"}))
    assert loose.verdict is Verdict.ALLOWED


def test_a_record_behind_a_later_one_is_reordered() -> None:
    log: Log = {0: [(0, 0), (1, 2), (2, 1)]}
    found = judged(evidence([0, 1, 2], log), log, setup())
    assert found.figures.reordered == 1
    assert found.why.startswith("1 reordered, though enable.idempotence=true")


def test_what_consumers_missed_and_saw_twice() -> None:
    log: Log = {0: [(0, 0), (1, 1)]}
    seen = [Place(0, 0, 0), Place(0, 0, 0)]
    found = judged(evidence([0, 1], log, seen), log, setup(group=True))
    assert (found.figures.undelivered, found.figures.redelivered) == (1, 1)
    assert found.verdict is Verdict.BROKEN
    assert "1 undelivered" in found.why
    assert "redelivered" not in found.why, "at least once is all that is promised"


def test_an_anomaly_without_a_figure_breaks_the_promise_too() -> None:
    log: Log = {0: [(0, 0)]}
    found = evidence([0], log)
    found.history.polled("consumer", {"t-0": [(0, 7)]})
    assert "phantom-read" in judged(found, log, setup()).why


def test_silence_after_the_cluster_was_healed_breaks_the_promise() -> None:
    log: Log = {0: [(0, 0)]}
    assert judged(evidence([0], log), log, setup(), acked_after=0).verdict is Verdict.BROKEN
    assert judged(evidence([0], log), log, setup(), acked_after=1).verdict is Verdict.KEPT


def test_without_a_load_nothing_is_proven() -> None:
    log: Log = {0: [(0, 0)]}
    found = judged(evidence([0], log), log, setup(), was_running=False)
    assert found.verdict is Verdict.UNTESTED


def test_where_nobody_says_what_was_acked_a_record_that_was_seen_must_stay() -> None:
    log: Log = {0: [(0, "a")]}
    found = Evidence(knows_acks=False, knows_deliveries=False)
    found.watched = {Place(0, 0, "a"), Place(0, 1, "b")}
    judgement = judged(found, log, setup())
    assert judgement.figures.lost == 1
    assert judgement.verdict is Verdict.BROKEN
    assert judgement.figures.acked is None
    assert judgement.notes == ("not judged, for nobody knows: reordered, undelivered, redelivered",)


def test_values_that_repeat_are_counted_but_not_told_apart() -> None:
    log: Log = {0: [(0, "a"), (1, "a")]}
    found = Evidence(values_are_unique=False, knows_deliveries=False)
    found.acked = Counter({"a": 3})
    figures = measure(found, log)
    assert (figures.lost, figures.duplicated, figures.reordered) == (1, None, None)


def test_no_setting_spans_a_restart_of_the_program() -> None:
    log: Log = {0: [(0, 0), (1, 0)]}
    found = evidence([0], log)
    found.restarts = 1
    judgement = judged(found, log, setup())
    assert judgement.verdict is Verdict.ALLOWED
    assert "because the program died and was started again, once" in judgement.why


def test_the_longest_pause_is_between_acks() -> None:
    assert longest_gap_ms([]) == 0
    assert longest_gap_ms([5]) == 0
    assert longest_gap_ms([1, 900, 5]) == 895
