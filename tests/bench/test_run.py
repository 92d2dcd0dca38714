"""In which order the benchmark drives the systems, and that it leaves none of them running."""

from __future__ import annotations

import pytest
from bench.measure import Round
from bench.run import in_turns, one_by_one


class Rounds:
    """Rounds of three figures, which note when they begin a load and when they end."""

    def __init__(self, fails: str = "") -> None:
        self.log: list[str] = []
        self._fails = fails

    def run(self, system: str, *, scale: float) -> Round:
        try:
            for number in range(3):
                self.log.append(f"{system}{number}")
                if self._fails == self.log[-1]:
                    raise RuntimeError("the load failed")
                yield f"figure {number}", number * scale
        finally:
            self.log.append(f"{system} stopped")


def test_two_systems_take_turns_from_one_load_to_the_next() -> None:
    rounds = Rounds()
    measured = list(in_turns(["a", "b"], rounds.run, 2.0))
    assert [system for system, _ in measured] == ["a", "b"] * 3
    assert [figure for _, figure in measured[::2]] == [(f"figure {n}", n * 2.0) for n in range(3)]
    assert rounds.log == ["a0", "b0", "a1", "b1", "a2", "b2", "a stopped", "b stopped"]


def test_one_by_one_ends_a_system_before_the_next_begins() -> None:
    rounds = Rounds()
    assert [system for system, _ in one_by_one(["a", "b"], rounds.run, 1.0)] == list("aaabbb")
    assert rounds.log == ["a0", "a1", "a2", "a stopped", "b0", "b1", "b2", "b stopped"]


@pytest.mark.parametrize("fails", ["a1", "b1"])
def test_a_load_that_fails_stops_both_systems(fails: str) -> None:
    rounds = Rounds(fails)
    with pytest.raises(RuntimeError, match="the load failed"):
        list(in_turns(["a", "b"], rounds.run, 1.0))
    assert sorted(rounds.log[-2:]) == ["a stopped", "b stopped"]
