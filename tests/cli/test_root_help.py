"""`tidemill` alone: the list of commands and the version, at once and without the framework."""

from __future__ import annotations

import contextlib
import io

import pytest
from tests.cli.helpers import quick
from tests.cli.test_main import FRAMEWORK, HEAVY, SERVER, imported_by, roots

from tidemill import __version__
from tidemill.cli import root
from tidemill.cli.app import build
from tidemill.cli.exits import Exit


@pytest.mark.parametrize("line", ["", "--help", "-h", "--no-color --help", "--version"])
def test_the_front_page_needs_no_framework(line: str) -> None:
    modules, status = imported_by(*line.split())
    assert status == 0
    assert not roots(modules, (*FRAMEWORK, *HEAVY, *SERVER, "asyncio", "argparse"))


@pytest.mark.parametrize("line", ["", "--help", "-h"])
def test_every_command_is_on_the_front_page(line: str) -> None:
    ran = quick(*line.split())
    assert (ran.status, ran.err) == (Exit.OK, "")
    shown = {word for row in ran.out.splitlines() for word in row.split()[:1]}
    assert {name for _, name, _, _ in root.COMMANDS} <= shown
    assert all(text in ran.out for _, _, _, text in root.COMMANDS)
    assert all(len(row) <= 80 for row in ran.out.splitlines())


def test_the_version_is_one_word() -> None:
    assert quick("--version").out == f"{__version__}\n"


def test_the_framework_would_say_the_same() -> None:
    """Its own page is not shown, but completion and `-b HOST --help` go by what it knows."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        build()(["--help"], exit_on_error=False)
    framework = " ".join(out.getvalue().replace("│", " ").split())
    for word in (*root.groups(), *root.OPTION_TEXTS, root.SUMMARY):
        assert word in framework
    for _, name, _, text in root.COMMANDS:
        assert f"{name} {text}" in framework
