"""Every command that a document shows is run, and every link it has leads somewhere."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.ups import Up
from tests.waiting import eventually

from tidemill.testing.process import BrokerProcess

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
] + sorted((ROOT / "docs").rglob("*.md"))
LINK = re.compile(r"\]\((?!http|#)([^)#]+)")
CODE_PATH = re.compile(r"`((?:[a-z_]+/)+[a-z_]+\.py)(?::([A-Za-z_.]+))?`")


def indented_commands(document: Path, first_word: str) -> list[str]:
    """The command lines of a document's indented blocks, comments removed."""
    lines = [line.strip() for line in document.read_text().splitlines() if line.startswith("    ")]
    commands = [line.split("  #")[0].strip() for line in lines]
    return [line for line in commands if re.search(rf"(^|\| ){first_word} ", line)]


def run(command: str, environment: dict[str, str], cwd: Path) -> str:
    done = subprocess.run(
        ["bash", "-c", command],
        env=environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def verb(command: str) -> str:
    """`topic` of `echo hello | tidemill topic ...`."""
    return shlex.split(command.split("|")[-1])[1]


def quickstart() -> tuple[list[str], list[str]]:
    """The commands of the README for one broker, and those for several."""
    commands = indented_commands(ROOT / "README.md", "tidemill")
    second = [at for at, command in enumerate(commands) if verb(command) == "up"][1]
    return commands[:second], commands[second:]


def variables(bootstrap: str) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "TIDEMILL_BOOTSTRAP": bootstrap}


def test_the_quickstart_of_the_readme(tmp_path: Path) -> None:
    """All four lines, word for word; only the port is another, so that tests can run anywhere."""
    commands, _ = quickstart()
    assert [verb(each) for each in commands] == ["up", "topic", "produce", "consume"]
    with BrokerProcess(tmp_path / "tidemill-data") as broker:
        environment = variables(broker.bootstrap)
        outputs = [run(command, environment, tmp_path) for command in commands[1:]]
    assert "hello" in outputs[-1]


def test_the_cluster_of_the_readme(tmp_path: Path) -> None:
    """The same with three brokers, of which one is killed before the last line."""
    _, commands = quickstart()
    assert [verb(each) for each in commands] == ["up", "topic", "cluster", "broker"]
    assert commands[0] == "tidemill up --brokers 3 --data-dir ./three"
    with Up(tmp_path / "three", "--brokers", "3") as up:
        environment = variables(up.bootstrap)
        run(commands[1], environment, tmp_path)
        assert "HEALTHY               yes" in run(commands[2], environment, tmp_path)
        port = up.ports[1]
        up.kill(port)
        eventually(lambda: port not in up.pids())
        assert "--port 9093" in commands[3]
        restart = commands[3].replace("9093", str(port))
        assert "started broker 2" in run(restart, environment, tmp_path)


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_make_targets_exist(document: str) -> None:
    targets = {shlex.split(command)[1] for command in indented_commands(ROOT / document, "make")}
    assert targets, "the document shows no make command; has its layout changed?"
    for target in targets:
        done = subprocess.run(
            ["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    for target in LINK.findall(document.read_text()):
        assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_the_architecture_names_what_exists() -> None:
    """`broker/connection.py:Connection.buffer_updated` must be a file and a name in it."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    named = CODE_PATH.findall(text)
    assert len(named) > 20
    for path, name in named:
        source = ROOT / "src" / "tidemill" / path
        assert source.exists(), path
        for part in filter(None, name.split(".")):
            assert re.search(rf"\b{part}\b", source.read_text()), f"{part} is not in {path}"


def test_the_page_about_validate_shows_what_the_command_shows() -> None:
    """Its commands are examples of the help, which `tests/cli/test_examples.py` runs; its output
    has the report's columns; its scenarios are those there are."""
    from dataclasses import fields

    from tests.cli.test_examples import EXAMPLES

    from tidemill.cli.render import heading
    from tidemill.cli.validate_report import PromiseRow, ScenarioRow
    from tidemill.testing.validation.promises import MEANINGS

    text = (ROOT / "docs" / "validate.md").read_text()
    commands = [line for line in text.splitlines() if line.startswith("tidemill ")]
    assert commands
    assert set(commands) <= set(EXAMPLES)
    for row in (ScenarioRow, PromiseRow):
        shown = [heading(each) for each in fields(row) if "quiet" not in each.metadata]
        assert re.search(r"\s+".join(shown), text)
    for scenario, meaning in MEANINGS.items():
        assert f"| `{scenario}` | {meaning} |" in text
