"""The commands on the page about `ship` are run: they say what they would do."""

from __future__ import annotations

from pathlib import Path

from tests.cli.helpers import install, shell

PAGE = Path(__file__).resolve().parents[2] / "docs" / "pipelines" / "ship.md"


def test_the_commands_of_the_page(tmp_path: Path) -> None:
    lines = PAGE.read_text().splitlines()
    commands = [line.strip() for line in lines if line.startswith("    tidemill ")]
    assert commands
    for command in commands:
        variables = {"TIDEMILL_STATE_DIR": str(tmp_path)}
        ran = shell(f"{command} --dry-run", path=install(tmp_path / "bin"), variables=variables)
        assert ran.status == 0, f"{command}: {ran.err}"
