"""The front door: where global options may stand, what a mistake costs, what help costs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.cli.helpers import run, tidemill

from tidemill import __version__
from tidemill.cli.exits import Exit
from tidemill.cli.main import globals_last

HEAVY = ("numba", "pyarrow", "pyspark", "pandas", "numpy")
SERVER = ("tidemill.broker", "tidemill.controller", "tidemill.storage", "tidemill.client")
FRAMEWORK = ("cyclopts", "rich")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("-b h:1 topic list", "topic list -b h:1"),
        ("--format=json --yes topic delete a", "topic delete a --format=json --yes"),
        ("-X a=b -X c=d topic list -- x", "topic list -X a=b -X c=d -- x"),
        ("topic list -b h:1", "topic list -b h:1"),
        ("--help", "--help"),
        ("-b h:1", "-b h:1"),
    ],
)
def test_global_options_may_come_first(given: str, meant: str) -> None:
    assert globals_last(given.split()) == meant.split()


def test_version() -> None:
    ran = tidemill("--version")
    assert (ran.status, ran.out.strip()) == (0, __version__)


def test_an_unknown_command_is_a_usage_error_with_a_suggestion() -> None:
    ran = tidemill("topc")
    assert ran.status == Exit.USAGE
    assert 'Did you mean "topic"?' in ran.err
    assert ran.out == ""
    assert "Traceback" not in ran.err


def test_an_unknown_subcommand_is_a_usage_error_with_a_suggestion() -> None:
    ran = tidemill("topic", "creat", "clicks")
    assert ran.status == Exit.USAGE
    assert 'Did you mean "create"?' in ran.err


def test_an_unknown_option_is_a_usage_error() -> None:
    ran = tidemill("topic", "list", "--intern")
    assert ran.status == Exit.USAGE
    assert "--intern" in ran.err


def test_errors_are_json_objects_on_stderr_when_json_is_asked_for() -> None:
    ran = tidemill("topc", "--format", "json")
    found = json.loads(ran.err)
    assert found["exit_code"] == ran.status == Exit.USAGE
    assert "topic" in found["error"]


@pytest.mark.parametrize(
    ("variables", "arguments", "source"),
    [
        ({}, ["-b", "127.0.0.1:1"], "the command line"),
        ({}, ["-X", "bootstrap.servers=127.0.0.1:1"], "the command line"),
        ({"TIDEMILL_BOOTSTRAP": "127.0.0.1:1"}, [], "the variable TIDEMILL_BOOTSTRAP"),
        ({}, ["--profile", "far"], "profile 'far'"),
        ({"TIDEMILL_PROFILE": "far"}, [], "profile 'far'"),
    ],
)
def test_when_nothing_answers_the_error_says_who_gave_the_address(
    variables: dict[str, str], arguments: list[str], source: str, tmp_path: Path
) -> None:
    (tmp_path / "profiles.toml").write_text('[profiles.far]\nbootstrap = "127.0.0.1:1"\n')
    found = {"TIDEMILL_CONFIG_DIR": str(tmp_path), **variables}
    ran = tidemill("topic", "list", "--timeout", "0.5", *arguments, variables=found)
    assert ran.status == Exit.UNREACHABLE
    assert f"127.0.0.1:1 came from {source}" in ran.err
    assert ran.out == ""


def imported_by(*arguments: str) -> tuple[set[str], int]:
    """The modules that a command line imports, and its status."""
    code = (
        "import sys; sys.argv[0] = 'tidemill'\n"
        "from tidemill.cli.main import main\n"
        "try: status = main()\n"
        "except SystemExit as stop: status = stop.code or 0\n"
        "sys.stderr.write('\\0'.join(sys.modules))\n"
        "sys.exit(status)\n"
    )
    ran = run([sys.executable, "-c", code, *arguments])
    return set(ran.err.rpartition("\n")[2].split("\0")), ran.status


def roots(modules: set[str], names: tuple[str, ...]) -> set[str]:
    return {name for name in names for m in modules if m == name or m.startswith(name + ".")}


def test_help_imports_nothing_that_it_does_not_need() -> None:
    modules, status = imported_by("--help")
    assert status == 0
    assert not roots(modules, (*HEAVY, *SERVER))
    assert not roots(modules, ("asyncio",))


def test_up_imports_no_heavy_library_and_no_command_framework() -> None:
    """`--dry-run` stops short of serving; the server's own imports are checked below."""
    modules, status = imported_by("up", "--dry-run")
    assert status == 0
    assert not roots(modules, (*HEAVY, *FRAMEWORK))


def test_the_server_imports_no_heavy_library_and_no_command_framework() -> None:
    code = "import sys, tidemill.broker.server; print('\\0'.join(sys.modules))"
    ran = run([sys.executable, "-c", code])
    assert ran.status == 0, ran.err
    assert not roots(set(ran.out.strip().split("\0")), (*HEAVY, *FRAMEWORK))


@pytest.mark.parametrize("line", ["-v up --dry-run", "--format json up --dry-run", "up --dry-run"])
def test_up_takes_global_options_on_either_side(line: str) -> None:
    ran = tidemill(*line.split())
    assert ran.status == 0, ran.err
    assert "127.0.0.1:9092" in ran.out


@pytest.mark.parametrize("line", ["topic --help", "consume --help", "config explain --help"])
def test_help_of_a_command_stays_light(line: str) -> None:
    modules, status = imported_by(*line.split())
    assert status == 0
    assert not roots(modules, (*HEAVY, "tidemill.broker", "tidemill.controller"))
