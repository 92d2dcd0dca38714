"""The fault runs' own arithmetic: plans from seeds, gaps in acks, judgements, reports."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from functools import partial
from itertools import islice
from pathlib import Path

import msgspec
import pytest
from tests.waiting import LONG_S, eventually

from tidemill.testing.faults import judge
from tidemill.testing.faults.cluster import EXACT, LOOSE, PLAIN, SESSION_MS
from tidemill.testing.faults.plan import Kind, Store, kinds_of, plan
from tidemill.testing.faults.report import RunReport, allowed, anomalies
from tidemill.testing.faults.strikes import Struck
from tidemill.testing.history import History
from tidemill.types import TopicPartition


class Ticking:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0

    def monotonic_ms(self) -> int:
        return self.now


def acked_at(history: History, clock: Ticking, key: str, *times_ms: int) -> None:
    for number, time_ms in enumerate(times_ms):
        clock.now = time_ms
        history.ok(history.send("p", key, f"{key}:{number}"), offset=number)


def test_a_seed_decides_the_faults() -> None:
    for store in Store:
        one, again = plan(7, store), plan(7, store)
        first = list(islice(one, 100))
        assert first == list(islice(again, 100))
        assert first != list(islice(plan(8, store), 100))


def test_every_kind_gets_its_turn() -> None:
    kinds = kinds_of(Store.ZOOKEEPER)
    dealt = Counter(strike.kind for strike in islice(plan(1, Store.ZOOKEEPER), 3 * len(kinds)))
    assert dealt == dict.fromkeys(kinds, 3)
    assert not any(kind.startswith("zookeeper") for kind in kinds_of(Store.SQLITE))
    only = [Kind.DISK_FULL]
    assert {strike.kind for strike in islice(plan(1, Store.SQLITE, only), 5)} == set(only)


def test_pauses_reach_three_times_the_sessions_length() -> None:
    pauses = [Kind.PAUSE_LEADER, Kind.PAUSE_CONTROLLER]
    holds = [strike.hold_s for strike in islice(plan(1, Store.SQLITE, pauses), 200)]
    assert min(holds) * 1000 > SESSION_MS
    assert 2.8 * SESSION_MS < max(holds) * 1000 <= 3 * SESSION_MS


def test_a_gap_belongs_to_the_fault_that_it_begins_with() -> None:
    history, clock = History(clock := Ticking()), clock
    acked_at(history, clock, "exact-0", 0, 900, 4_000, 4_100, 9_900, 10_050, 10_100)
    acked_at(history, clock, "exact-1", *range(0, 10_100, 100))
    acks = judge.Acks(history)
    led = [TopicPartition(EXACT, 0)]
    strikes = [
        Struck(1, Kind.KILL_LEADER, 1, 1_000, 2_000, 3_000, led=led),
        Struck(2, Kind.KILL_LEADER, 2, 4_300, 4_500, 5_000, led=[TopicPartition(EXACT, 1)]),
    ]
    assert judge.gaps(strikes, acks) == [3_100, 100]
    assert acks.longest_gap_ms() == (5_800, "exact-0")
    assert acks.longest_gap_of_all_ms() == 100
    assert acks.count == len(history)
    figures = judge.by_kind(strikes, judge.gaps(strikes, acks))[Kind.KILL_LEADER]
    assert (figures.count, figures.gap_max_ms, figures.whole_max_ms) == (2, 3_100, 1_000)


def test_each_topic_is_judged_by_its_own_promise() -> None:
    history = History()
    for topic in (EXACT, PLAIN, LOOSE):
        for number in range(2):
            history.ok(history.send("p", f"{topic}-0", number), offset=number)
    twice = {f"{topic}-0": [(0, 0), (1, 1), (2, 0)] for topic in (EXACT, PLAIN, LOOSE)}
    history.polled("final", twice, final=True)
    reports = judge.judge(history)
    assert anomalies(reports) == {EXACT: {"duplicate": 1}, PLAIN: {}, LOOSE: {}}
    assert allowed(reports)[PLAIN] == {"duplicate": 1}


def test_what_is_missing_in_the_end_is_lost() -> None:
    history = History()
    for number in range(3):
        history.ok(history.send("p", "exact-0", number), offset=number)
    history.polled("final", {"exact-0": [(0, 0), (2, 2)]}, final=True)
    assert anomalies(judge.judge(history))[EXACT] == {"lost-write": 1}


def test_without_a_final_read_nobody_knows_what_is_missing() -> None:
    history = History()
    history.ok(history.send("p", "exact-0", 1), offset=1)
    assert anomalies(judge.judge(history))[EXACT] == {}


def test_replicas_are_compared_byte_for_byte(tmp_path: Path) -> None:
    """Where segments end may differ, what they hold may not."""
    contents = {"a": [b"one", b"two"], "b": [b"onetwo"], "c": [b"one", b"twi"]}
    for name, parts in contents.items():
        folder = tmp_path / name / "t-0"
        folder.mkdir(parents=True)
        for number, part in enumerate(parts):
            (folder / f"{number:020}.log").write_bytes(part)
    key = [TopicPartition("t", 0)]
    assert judge.replicas_differ([tmp_path / "a", tmp_path / "b"], key) == []
    assert len(judge.replicas_differ([tmp_path / "a", tmp_path / "c"], key)) == 1


def test_a_report_for_people_and_for_programs() -> None:
    report = RunReport(
        store="sqlite",
        seed=3,
        flush_policy="ack",
        seconds=60,
        faults=1,
        kinds={"kill-leader": judge.KindFigures(1, 500, 1_500, 100, 200)},
        acked={"p": 12},
        unknown=0,
        polled=12,
        longest_gap_ms=1_500,
        longest_gap_in="exact-0",
        longest_gap_of_all_ms=20,
        offsets_answered=5,
        anomalies={},
        allowed={},
        problems=[],
        strikes=[Struck(1, Kind.KILL_LEADER, 1, 10)],
    )
    assert report.is_good
    text = str(report)
    assert "kill-leader" in text
    assert "1.50 s in exact-0" in text
    assert msgspec.json.decode(report.to_json())["strikes"][0]["kind"] == "kill-leader"
    report.problems.append("something was lost")
    assert "something was lost" in str(report)


def test_the_plan_of_a_seed_can_be_seen_without_running_it() -> None:
    command = [sys.executable, "-m", "tidemill.testing.faults", "--seed", "3", "--plan", "4"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert shown[0] == "seed 3, store sqlite"
    assert shown[1:] == [str(strike) for strike in islice(plan(3, Store.SQLITE), 4)]


def _pids_that_name(text: str) -> list[int]:
    """The processes that have it in their command lines."""
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            is_named = text.encode() in line.read_bytes()
        except OSError:
            continue  # It has ended meanwhile.
        if is_named:
            found.append(int(line.parent.name))
    return found


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc")
def test_sigterm_ends_a_run_with_all_that_it_has_started(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "tidemill.testing.faults", "--minutes", "1"]
    with subprocess.Popen(
        [*command, "--folder", str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        try:
            pids = partial(_pids_that_name, str(folder))
            eventually(lambda: len(pids()) >= 1 + 3, "itself and three brokers")
        finally:
            run.terminate()
            _, said = run.communicate(timeout=LONG_S)
    assert "ended by SIGTERM" in said
    assert _pids_that_name(str(folder)) == []
