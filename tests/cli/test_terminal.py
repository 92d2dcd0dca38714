"""What changes when a person sits in front of it: one short line per record, questions, colour."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from tests.cli.helpers import environment, quick

from tidemill.cli.exits import Exit

Name = Callable[[str], str]


@contextlib.contextmanager
def terminal() -> Iterator[tuple[int, int]]:
    ours, theirs = pty.openpty()
    try:
        yield ours, theirs
    finally:
        for each in (ours, theirs):
            with contextlib.suppress(OSError):
                os.close(each)


def read_all(descriptor: int) -> str:
    found = b""
    with contextlib.suppress(OSError):  # a terminal whose other end is closed says EIO
        while data := os.read(descriptor, 65536):
            found += data
    return found.decode()


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tidemill.cli", *arguments]


def test_records_are_one_short_line_each_on_a_terminal(bootstrap: str, topic_name: Name) -> None:
    name = topic_name("pretty")
    quick("topic", "create", name, "-p", "1", "-b", bootstrap)
    quick("produce", name, "-K:", "-Z", "-b", bootstrap, stdin="k:v\nk:\n")
    with terminal() as (ours, theirs):
        arguments = command("consume", name, "-e", "-b", bootstrap)
        subprocess.run(arguments, stdout=theirs, env=environment(), timeout=30, check=True)
        os.close(theirs)
        lines = read_all(ours).replace("\r", "").splitlines()
    assert re.fullmatch(r"0@0 \d\d:\d\d:\d\d k = v", lines[0])
    assert re.fullmatch(r"0@1 \d\d:\d\d:\d\d k = \(tombstone\)", lines[1])


@pytest.mark.parametrize(("answer", "status"), [(b"n\n", Exit.FAILED), (b"y\n", Exit.OK)])
def test_a_person_is_asked_before_something_is_lost(
    answer: bytes, status: Exit, bootstrap: str, topic_name: Name
) -> None:
    name = topic_name("asked")
    quick("topic", "create", name, "-b", bootstrap)
    with terminal() as (ours, theirs):
        process = subprocess.Popen(
            command("topic", "delete", name, "-b", bootstrap),
            stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(),
        )  # fmt: skip
        os.write(ours, answer)
        _, err = process.communicate(timeout=30)
    assert process.returncode == status
    assert f"Delete {name} for good? [y/N]" in err.decode()


@pytest.mark.parametrize(
    ("variables", "flags", "coloured"),
    [({}, (), True), ({"NO_COLOR": "1"}, (), False), ({}, ("--no-color",), False)],
)
def test_help_has_colour_for_a_person_unless_told(
    variables: dict[str, str], flags: tuple[str, ...], coloured: bool
) -> None:
    found = {k: v for k, v in environment().items() if k != "NO_COLOR"}
    found |= {"TERM": "xterm-256color", **variables}
    with terminal() as (ours, theirs):
        arguments = command("topic", "create", "--help", *flags)
        subprocess.run(arguments, stdout=theirs, env=found, timeout=30, check=True)
        os.close(theirs)
        text = read_all(ours)
    assert bool(re.search(r"\x1b\[[0-9;]*3\dm", text)) is coloured
