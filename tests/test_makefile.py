"""What a target of the Makefile runs, seen by a Python that only notes how it is called."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

STAND_IN = """#!/bin/sh
echo "$@" >> "{notes}"
case "$*" in *"--store {bad} "*) exit 1;; esac
"""


def make(folder: Path, *words: str, bad: str = "none") -> tuple[int, str, list[str]]:
    """The exit status, what was said, and the calls."""
    notes, python, stamp = folder / "notes", folder / "python", folder / "stamp"
    python.write_text(STAND_IN.format(notes=notes, bad=bad))
    python.chmod(0o755)
    stamp.touch()
    done = subprocess.run(
        ["make", "--no-print-directory", *words, f"BIN={folder}", f"STAMP={stamp}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr, notes.read_text().splitlines()


@pytest.mark.parametrize("bad", ["none", "sqlite", "zookeeper"])
def test_faults_go_on_both_stores_and_both_are_reported(tmp_path: Path, bad: str) -> None:
    status, said, calls = make(tmp_path, "faults", "MINUTES=3", "SEED=17", bad=bad)
    assert len(calls) == 2
    for store, call in zip(("sqlite", "zookeeper"), calls, strict=True):
        assert f"--minutes 3 --store {store} --seed 17" in call
        assert f"{store}: {'BAD' if store == bad else 'good'}" in said
    assert (status == 0) == (bad == "none")


def test_faults_go_on_the_one_store_that_is_named(tmp_path: Path) -> None:
    status, said, (call,) = make(tmp_path, "faults", "STORE=zookeeper")
    assert status == 0, said
    assert "--minutes 30 --store zookeeper" in call
    assert "--seed" not in call
