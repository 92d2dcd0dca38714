"""Numbers that are kept to the letter, and flags that contradict each other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.helpers import quick

from tidemill.cli.exits import Exit


def test_perf_consume_counts_no_more_than_it_was_asked_for(
    bootstrap: str, topic_name: Callable[[str], str]
) -> None:
    name = topic_name("counted")
    lines = "".join(f"{n:04d}\n" for n in range(300))
    assert quick("produce", name, "-b", bootstrap, stdin=lines).status == Exit.OK
    command = ("perf", "consume", name, "--format", "json", "-b", bootstrap)
    everything = json.loads(quick(*command).out)
    some = json.loads(quick(*command, "-n", "100").out)
    assert (everything["records"], some["records"]) == (300, 100)
    assert 0 < some["mb"] < everything["mb"] / 2


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("consume t -n -4 -e", "--num must be at least 0, not -4"),
        ("perf consume t -n 0", "--records must be at least 1, not 0"),
    ],
)
def test_counts_that_cannot_be_are_refused(line: str, words: str) -> None:
    ran = quick(*line.split())
    assert ran.status == Exit.USAGE
    assert words in ran.err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--data-dir a --set log.dirs=a,b", "--data-dir and --set log.dirs"),
        ("--data-dir a -s log.dir=b", "--data-dir and --set log.dir"),
        ("--port 0 --set listeners=PLAINTEXT://127.0.0.1:1", "--port and --set listeners"),
        ("--port 70000", "70000 is no port"),
    ],
)
def test_up_refuses_flags_of_which_one_would_be_ignored(line: str, words: str) -> None:
    ran = quick("up", *line.split(), "--dry-run", "--format", "json")
    assert ran.status == Exit.USAGE
    assert words in json.loads(ran.err)["error"]


def test_up_takes_the_directories_of_a_flag_before_those_of_the_variable(tmp_path: Path) -> None:
    both = f"{tmp_path}/a,{tmp_path}/b"
    arguments = ("up", "--set", f"log.dirs={both}", "--dry-run", "--format", "json")
    ran = quick(*arguments, variables={"TIDEMILL_DATA_DIR": f"{tmp_path}/c"})
    assert json.loads(ran.out)["data_dirs"] == both.split(",")
