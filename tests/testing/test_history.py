"""The history checker: one minimal history per anomaly, and its clean twin."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tidemill.testing.anomalies import EXAMPLES_MAX, MEANINGS, Anomaly, Promise
from tidemill.testing.checker import HistoryError, check
from tidemill.testing.clock import ManualClock
from tidemill.testing.cycles import circles
from tidemill.testing.history import Assign, History, Operation, Outcome, Poll, Send, Step, Value

OK, FAIL, INFO = Outcome.OK, Outcome.FAIL, Outcome.INFO


def send(value: Value, offset: int | None, outcome: Outcome = OK, by: str = "p") -> Operation:
    return Operation(by, [Send("k", value, offset)], outcome)


def poll(*records: tuple[int, Value], by: str = "c") -> Operation:
    return Operation(by, [Poll({"k": list(records)})], OK)


def final(*records: tuple[int, Value]) -> Operation:
    return Operation("f", [Poll({"k": list(records)})], OK, final=True)


def txn(*steps: Step, outcome: Outcome = OK, by: str = "t") -> Operation:
    return Operation(by, list(steps), outcome, transactional=True)


def at(operation: Operation, started_ms: float, ended_ms: float) -> Operation:
    operation.started_ms, operation.ended_ms = started_ms, ended_ms
    return operation


def to(key: str, value: Value, offset: int | None = None) -> Send:
    return Send(key, value, offset)


def of(key: str, *records: tuple[int, Value]) -> Poll:
    return Poll({key: list(records)})


@dataclass(frozen=True)
class Case:
    """A history that shows an anomaly, and one that differs in one thing and does not."""

    anomaly: Anomaly
    bad: list[Operation]
    good: list[Operation]
    forgiven_by: Promise | None = None


CASES = {
    "an acked record is missing between two that were polled": Case(
        Anomaly.LOST_WRITE,
        [send("a", 0), send("b", 1), poll((1, "b"))],
        [send("a", 0), send("b", 1), poll((0, "a"), (1, "b"))],
        Promise(durable=False),
    ),
    "one write of a transaction was seen, so the other one must exist": Case(
        Anomaly.LOST_WRITE,
        [
            txn(to("k", "a", 0), to("l", "b", 0), outcome=INFO),
            send("z", 1),
            poll((0, "a"), (1, "z")),
            Operation("p", [to("l", "y", 1)], OK),
            Operation("d", [of("l", (1, "y"))], OK),
        ],
        [
            txn(to("k", "a", 0), to("l", "b", 0), outcome=INFO),
            send("z", 1),
            poll((1, "z")),
            Operation("p", [to("l", "y", 1)], OK),
            Operation("d", [of("l", (1, "y"))], OK),
        ],
    ),
    "a record was polled and is gone in the end": Case(
        Anomaly.LOST_WRITE,
        [send("a", 0), send("b", 1), poll((0, "a"), (1, "b")), final((0, "a"))],
        [send("a", 0), send("b", 1), poll((0, "a"), (1, "b")), final((0, "a"), (1, "b"))],
        Promise(durable=False),
    ),
    "a record of unknown outcome was polled and is gone in the end": Case(
        Anomaly.LOST_WRITE,
        [send("a", None, INFO), poll((0, "a")), final()],
        [send("a", None, INFO), poll(), final()],
        Promise(durable=False),
    ),
    "the last acked record is missing": Case(
        Anomaly.UNSEEN,
        [send("a", 0), send("b", 1), poll((0, "a"))],
        [send("a", 0), send("b", 1, INFO), poll((0, "a"))],
        Promise(final_read=False),
    ),
    "a record without a known offset is missing": Case(
        Anomaly.UNSEEN,
        [send("a", None), send("b", 1), poll((1, "b"))],
        [send("a", None), send("b", 1), poll((0, "a"), (1, "b"))],
        Promise(durable=False),
    ),
    "a retry was written twice": Case(
        Anomaly.DUPLICATE,
        [send("a", 0), poll((0, "a"), (1, "a"))],
        [send("a", 0), poll((0, "a"))],
        Promise(idempotent=False),
    ),
    "an ack names another offset than the poll": Case(
        Anomaly.DUPLICATE,
        [send("a", 0), poll((1, "a"))],
        [send("a", 1), poll((1, "a"))],
        Promise(idempotent=False),
    ),
    "two consumers see different values at one offset": Case(
        Anomaly.INCONSISTENT_OFFSETS,
        [send("a", None), send("b", None), poll((0, "a")), poll((0, "b"), by="d")],
        [send("a", None), send("b", None), poll((0, "a")), poll((1, "b"), by="d")],
        Promise(durable=False),
    ),
    "one offset was acked twice": Case(
        Anomaly.INCONSISTENT_OFFSETS,
        [send("a", 0), send("b", 0, by="q"), poll((0, "a"))],
        [send("a", 0), send("b", 1, by="q"), poll((0, "a"), (1, "b"))],
        Promise(durable=False),
    ),
    "an aborted transaction was seen": Case(
        Anomaly.ABORTED_READ,
        [txn(to("k", "a", 0), outcome=FAIL), poll((0, "a"))],
        [txn(to("k", "a", 0), outcome=INFO), poll((0, "a"))],
        Promise(read_committed=False),
    ),
    "a refused record was seen": Case(
        Anomaly.ABORTED_READ,
        [send("a", None, FAIL), poll((0, "a"))],
        [send("a", None, INFO), poll((0, "a"))],
    ),
    "a transaction saw its own write": Case(
        Anomaly.PRECOMMITTED_READ,
        [txn(to("k", "a", 0), of("k", (0, "a")))],
        [txn(to("k", "a", 0)), txn(of("k", (0, "a")))],
        Promise(read_committed=False),
    ),
    "a value came from nowhere": Case(
        Anomaly.PHANTOM_READ,
        [poll((0, "a"))],
        [send("a", None, INFO), poll((0, "a"))],
    ),
    "a consumer jumps between polls": Case(
        Anomaly.POLL_SKIP,
        [
            send("a", 0),
            send("b", 1),
            send("c", 2),
            poll((0, "a")),
            poll((2, "c")),
            poll((1, "b"), by="d"),
        ],
        [send("a", 0), send("b", 1), send("c", 2), poll((0, "a")), poll((1, "b")), poll((2, "c"))],
        Promise(subscribe=True),
    ),
    "a consumer goes back between polls": Case(
        Anomaly.NONMONOTONIC_POLL,
        [send("a", 0), send("b", 1), poll((0, "a"), (1, "b")), poll((0, "a"), (1, "b"))],
        [
            send("a", 0),
            send("b", 1),
            poll((0, "a"), (1, "b")),
            Operation("c", [Assign(["k"])], OK),
            poll((0, "a"), (1, "b")),
        ],
        Promise(subscribe=True),
    ),
    "a consumer gets the same record twice": Case(
        Anomaly.NONMONOTONIC_POLL,
        [send("a", 0), poll((0, "a")), poll((0, "a"))],
        [send("a", 0), poll((0, "a")), poll((0, "a"), by="d")],
        Promise(subscribe=True),
    ),
    "one poll jumps": Case(
        Anomaly.INT_POLL_SKIP,
        [
            send("a", 0),
            send("b", 1),
            send("c", 2),
            poll((0, "a"), (2, "c")),
            poll((1, "b"), by="d"),
        ],
        [send("a", 0), send("c", 2), poll((0, "a"), (2, "c"))],
    ),
    "one poll goes back": Case(
        Anomaly.INT_NONMONOTONIC_POLL,
        [send("a", 0), send("b", 1), poll((1, "b"), (0, "a"))],
        [send("a", 0), send("b", 1), poll((0, "a"), (1, "b"))],
    ),
    "two polls of one transaction jump": Case(
        Anomaly.INT_POLL_SKIP,
        [
            send("a", 0),
            send("b", 1),
            send("c", 2),
            txn(of("k", (0, "a")), of("k", (2, "c"))),
            poll((1, "b")),
        ],
        [
            send("a", 0),
            send("b", 1),
            send("c", 2),
            txn(of("k", (0, "a")), of("k", (1, "b"), (2, "c"))),
        ],
    ),
    "a producer's later record is before its earlier one": Case(
        Anomaly.NONMONOTONIC_SEND,
        [send("a", 1), send("b", 0), poll((0, "b"), (1, "a"))],
        [send("a", 1), send("b", 0, by="q"), poll((0, "b"), (1, "a"))],
        Promise(idempotent=False),
    ),
    "records of one transaction are in the wrong order": Case(
        Anomaly.INT_NONMONOTONIC_SEND,
        [txn(to("k", "a", 1), to("k", "b", 0)), poll((0, "b"), (1, "a"))],
        [txn(to("k", "a", 0), to("k", "b", 1)), poll((0, "a"), (1, "b"))],
        Promise(idempotent=False),
    ),
    "a record is before one that was acked before it was sent": Case(
        Anomaly.NONMONOTONIC_ACK,
        [
            at(send("a", 1), 0, 10),
            at(send("b", 0, by="q"), 11, 20),
            at(poll((0, "b"), (1, "a")), 30, 31),
        ],
        [
            at(send("a", 1), 0, 10),
            at(send("b", 0, by="q"), 9, 20),
            at(poll((0, "b"), (1, "a")), 30, 31),
        ],
        Promise(durable=False),
    ),
    "a transaction has strangers between its records": Case(
        Anomaly.INT_SEND_SKIP,
        [txn(to("k", "a", 0), to("k", "c", 2)), send("b", 1), poll((0, "a"), (1, "b"), (2, "c"))],
        [txn(to("k", "a", 0), to("k", "c", 1)), send("b", 2), poll((0, "a"), (1, "c"), (2, "b"))],
        Promise(),
    ),
    "two transactions write around each other": Case(
        Anomaly.WRITE_CYCLE,
        [
            txn(to("k", "a", 0), to("l", "d", 1)),
            txn(to("k", "b", 1), to("l", "c", 0), by="u"),
            poll((0, "a"), (1, "b")),
            Operation("c", [of("l", (0, "c"), (1, "d"))], OK),
        ],
        [
            txn(to("k", "a", 0), to("l", "d", 0)),
            txn(to("k", "b", 1), to("l", "c", 1), by="u"),
            poll((0, "a"), (1, "b")),
            Operation("c", [of("l", (0, "d"), (1, "c"))], OK),
        ],
        Promise(),
    ),
    "two transactions read from each other": Case(
        Anomaly.READ_CYCLE,
        [txn(to("k", "a", 0), of("l", (0, "b"))), txn(to("l", "b", 0), of("k", (0, "a")), by="u")],
        [
            txn(to("k", "a", 0)),
            txn(to("l", "b", 0), of("k", (0, "a")), by="u"),
            Operation("c", [of("l", (0, "b"))], OK),
        ],
        Promise(read_committed=False),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_anomaly_is_found_and_its_clean_twin_is_not(name: str) -> None:
    """The vocabulary of rules part 0."""
    case = CASES[name]
    bad, good = check(case.bad), check(case.good)
    assert case.anomaly in bad.counts, str(bad)
    assert not good.counts, str(good)
    assert bad.is_valid == (case.anomaly in Promise().allowed())


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.forgiven_by])
def test_settings_decide_what_is_allowed(name: str) -> None:
    case = CASES[name]
    assert case.forgiven_by is not None
    report = check(case.bad, case.forgiven_by)
    assert case.anomaly not in report.failures, str(report)


def test_every_anomaly_has_a_case_and_a_meaning() -> None:
    assert {case.anomaly for case in CASES.values()} == set(Anomaly) == set(MEANINGS)


def test_the_strongest_promise_allows_only_what_kafka_never_excludes() -> None:
    assert Promise().allowed() == {Anomaly.INT_SEND_SKIP, Anomaly.WRITE_CYCLE}
    one_at_a_time = Promise(idempotent=False, single_in_flight=True)
    assert Anomaly.NONMONOTONIC_SEND not in one_at_a_time.allowed()
    extra = Promise(also_allowed=frozenset({Anomaly.UNSEEN}))
    assert Anomaly.UNSEEN in extra.allowed()


def test_gaps_of_control_records_and_aborted_data_are_no_skips() -> None:
    history = [
        txn(to("k", "a", 0)),
        txn(to("k", "b", 2), outcome=FAIL),
        txn(to("k", "c", 4)),
        poll((0, "a")),
        poll((4, "c")),
    ]
    assert not check(history).counts


def test_uncommitted_readers_may_all_see_aborted_data_but_none_may_skip_it() -> None:
    history = [
        txn(to("k", "a", 0), outcome=FAIL),
        txn(to("k", "b", 1), outcome=FAIL),
        txn(to("k", "c", 2)),
        poll((0, "a"), (1, "b"), (2, "c")),
        poll((0, "a"), (2, "c"), by="d"),
    ]
    report = check(history, Promise(read_committed=False))
    assert report.failures == {Anomaly.INT_POLL_SKIP: 1}


def test_positions_after_an_aborted_transaction_are_its_own_affair() -> None:
    history = [
        send("a", 0),
        send("b", 1),
        txn(of("k", (0, "a"), (1, "b")), outcome=FAIL),
        txn(of("k", (0, "a"), (1, "b"))),
    ]
    assert not check(history).counts


def test_a_value_that_is_sent_twice_is_a_mistake_of_the_test() -> None:
    with pytest.raises(HistoryError, match="unique"):
        check([send("a", 0), send("a", 1)])


def test_the_report_is_bounded_and_readable() -> None:
    history = [send(number, number) for number in range(5_000)]
    history += [poll((5_000, "end")), send("end", 5_000)]
    report = check(history)
    assert report.counts[Anomaly.LOST_WRITE] == 5_000
    assert len(report.examples[Anomaly.LOST_WRITE]) == EXAMPLES_MAX
    text = str(report)
    assert "5000 anomalies that the settings do not allow" in text
    assert "k: 0, written by p at offset 0, was never polled, but offset 5000 was" in text
    assert len(text) < 2_000
    assert "allowed" in str(check(history, Promise(durable=False)))


def test_lag_and_the_longest_gap_between_acks_are_measured() -> None:
    clock = ManualClock()
    history = History(clock)
    for number, wait_ms in enumerate((5, 700, 5)):
        sending = history.send("p", "k", number)
        clock.advance(wait_ms)
        history.ok(sending, offset=number)
    clock.advance(40)
    history.polled("c", {"k": [(0, 0), (1, 1), (2, 2)], "l": []})
    report = check(history)
    assert report.is_valid
    assert report.longest_ack_gap_ms == 700
    assert (report.lag.median_ms, report.lag.worst_ms) == (45, 745)
    assert report.lag.worst == "0 of k"
    assert (report.committed, report.polled, report.operations) == (3, 3, 4)


def test_an_operation_that_nobody_ends_is_of_unknown_outcome() -> None:
    history = History(ManualClock())
    history.send("p", "k", 1)
    refused = history.send("p", "k", 2)
    history.fail(refused)
    timed_out = history.send("p", "k", 3)
    history.info(timed_out)
    report = check(history)
    assert report.is_valid
    assert (report.committed, report.unknown) == (0, 2)


def test_histories_are_saved_and_put_together(tmp_path: Path) -> None:
    clock = ManualClock()
    one, two = History(clock), History(clock)
    sending = one.begin("t", Send("k", "a"), transactional=True)
    clock.advance(5)
    two.assigned("c", ["k"])
    one.ok(sending, offset=0)
    clock.advance(1)
    two.polled("c", {"k": [(0, "a")]})
    one.save(tmp_path / "one.jsonl")
    two.save(tmp_path / "two.jsonl")
    both = History.load(tmp_path / "two.jsonl", tmp_path / "one.jsonl")
    assert both.operations == [*one, *two]
    assert check(both).is_valid


def test_circles_are_found_in_long_chains_without_recursion() -> None:
    chain = {number: [number + 1] for number in range(50_000)}
    assert circles(chain) == []
    chain[50_000] = [49_998]
    chain[7] = [8, 5]
    assert sorted(circles(chain)) == [[5, 6, 7], [49_998, 49_999, 50_000]]
