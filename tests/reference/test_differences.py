"""The list of intended differences is the one that users read."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.reference.differences import ELSEWHERE, INTENDED

from tidemill.wire.apis import ApiKey

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("line", "test"), ELSEWHERE.items())
def test_what_no_answer_shows_is_told_and_tested_elsewhere(line: str, test: str) -> None:
    told = (ROOT / "docs" / "differences.md").read_text()
    assert f"\n| {line} |" in told
    assert (ROOT / test).is_file()


def test_every_difference_is_of_an_api_that_there_is() -> None:
    assert {line.api for line in INTENDED} <= {key.name for key in ApiKey}
    assert all(line.reason for line in INTENDED)
