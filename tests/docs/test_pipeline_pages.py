"""The pages of docs/pipelines whose commands no other test runs.

`tests/spark/test_shipped.py` follows those of the pipelines, `tests/copying` that of the copies.
"""

from __future__ import annotations

from pathlib import Path

from tests.cli.helpers import install, shell

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "pipelines"


def test_the_commands_of_the_page_about_ship(tmp_path: Path) -> None:
    """Its files are not here, so that it says what it would do; a test of its own ships some."""
    lines = (PAGES / "ship.md").read_text().splitlines()
    commands = [line.strip() for line in lines if line.startswith("    tidemill ")]
    assert commands
    for command in commands:
        variables = {"TIDEMILL_STATE_DIR": str(tmp_path)}
        ran = shell(f"{command} --dry-run", path=install(tmp_path / "bin"), variables=variables)
        assert ran.status == 0, f"{command}: {ran.err}"


def test_every_page_is_to_be_found() -> None:
    index = (PAGES / "README.md").read_text()
    for page in PAGES.glob("*.md"):
        assert page.name == "README.md" or f"({page.name})" in index
    assert "(pipelines/README.md)" in (ROOT / "docs" / "pipelines.md").read_text()
