"""The page about pipelines says what the model, the example and the commands say."""

from __future__ import annotations

from pathlib import Path

from tests.cli.test_examples import EXAMPLES
from tests.spark.pipeline.files import right

from tidemill.spark.pipeline import templates
from tidemill.spark.pipeline.reference import renewed

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "pipelines.md"


def test_the_reference_is_current() -> None:
    assert PAGE.read_text() == renewed(PAGE.read_text()), (
        "run: python -m tidemill.spark.pipeline.reference"
    )


def test_the_file_on_the_page_is_the_one_that_init_writes() -> None:
    text = templates.text_of(templates.EXAMPLE, "clicks")
    assert f"```toml\n{text}```" in PAGE.read_text()
    assert right(text).name == "clicks"


def test_its_commands_are_examples_of_the_help() -> None:
    """`tests/cli/test_examples.py` runs those."""
    commands = [line for line in PAGE.read_text().splitlines() if line.startswith("tidemill ")]
    assert len(commands) == 5
    assert set(commands) <= set(EXAMPLES)
