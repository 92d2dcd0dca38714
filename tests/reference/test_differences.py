"""The list of intended differences is the one that users read."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from tests.reference.differences import ELSEWHERE, HANDLERS, INTENDED

from tidemill.wire.apis import ApiKey

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "src" / "tidemill" / "broker" / "handlers").glob("*.py"))


def told_lines() -> set[str]:
    """What the rows of the table that users read are about."""
    rows = (ROOT / "docs" / "differences.md").read_text().splitlines()
    return {row.split(" | ")[0].removeprefix("| ") for row in rows if row.startswith("| ")}


def deviations(path: Path) -> list[str]:
    """The sentences of a handler's docstring on where it differs from Kafka on purpose."""
    contract = ast.get_docstring(ast.parse(path.read_text())) or ""
    told = [part for part in contract.split("\n\n") if "Deviations:" in part]
    return [
        sentence
        for part in told
        for sentence in re.split(
            r"(?<=\.) (?=[A-Z])", " ".join(part.split("Deviations:")[1].split())
        )
    ]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_users_are_told_every_deviation_of_a_handler(path: Path) -> None:
    """And no sentence of ours is kept that the handler no longer says."""
    known = HANDLERS.get(path.stem, {})
    sentences = deviations(path)
    assert [s for s in sentences if not s.startswith(tuple(known))] == []
    assert [start for start in known if not any(s.startswith(start) for s in sentences)] == []
    assert {line for lines in known.values() for line in lines} <= told_lines()


def test_deviations_are_found() -> None:
    assert {path.stem for path in MODULES if deviations(path)} == set(HANDLERS)
    assert sum(len(deviations(path)) for path in MODULES) >= 20


@pytest.mark.parametrize(("line", "test"), ELSEWHERE.items())
def test_what_no_answer_shows_is_told_and_tested_elsewhere(line: str, test: str) -> None:
    told = (ROOT / "docs" / "differences.md").read_text()
    assert f"\n| {line} |" in told
    assert (ROOT / test).is_file()


def test_every_difference_is_of_an_api_that_there_is() -> None:
    assert {line.api for line in INTENDED} <= {key.name for key in ApiKey}
    assert all(line.reason for line in INTENDED)
