"""Input in pieces: what comes out is what went in, whatever the delimiter and the cuts."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cli.helpers import quick, run

from tidemill.cli import feed
from tidemill.cli.exits import CommandError


async def collect(path: Path, delimiter: bytes) -> list[bytes]:
    return [m async for part in feed.messages([str(path)], delimiter) for m in part]


@given(
    messages=st.lists(st.binary(max_size=20), max_size=30),
    delimiter=st.sampled_from([b"\n", b"\0", b"--", b"\r\n"]),
    chunk=st.integers(1, 50),
)
@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_messages_survive_any_cut(
    messages: list[bytes], delimiter: bytes, chunk: int, tmp_path: Path
) -> None:
    whole = b"".join(m + delimiter for m in messages)
    expected = whole.split(delimiter)[:-1]
    path = tmp_path / "input"
    path.write_bytes(whole)
    with mock.patch.object(feed, "CHUNK_BYTES", chunk):
        assert asyncio.run(collect(path, delimiter)) == expected


def test_the_last_message_needs_no_delimiter(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"a\nb")
    assert asyncio.run(collect(path, b"\n")) == [b"a", b"b"]


def test_input_without_its_delimiter_is_refused_before_memory_fills(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"x" * 1000)
    with mock.patch.object(feed, "MESSAGE_BYTES_MAX", 100), pytest.raises(CommandError):
        asyncio.run(collect(path, b"\n"))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    ran = quick("produce", "t", "--dry-run", "--file", "none.txt", cwd=tmp_path)
    assert ran.status == 3
    assert "none.txt" in ran.err


def test_settings_are_listed_on_request() -> None:
    ran = quick("topic", "list", "-X", "list")
    assert ran.status == 0
    assert "linger.ms" in ran.out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_installed_and_knows_the_commands(shell: str, tmp_path: Path) -> None:
    variables = {"HOME": str(tmp_path), "SHELL": f"/bin/{shell}"}
    ran = quick("--install-completion", "--shell", shell, variables=variables)
    assert ran.status == 0, ran.err
    scripts = [p for p in tmp_path.rglob("*") if p.is_file() and "tidemill" in p.name]
    assert scripts, ran.out
    assert any("add-partitions" in p.read_text() for p in scripts)


def test_topic_names_complete_silently_when_no_broker_answers() -> None:
    """The shell asks `tidemill __complete WORDS`; nothing there means nothing said."""
    command = [sys.executable, "-m", "tidemill.cli", "__complete", "topic", "describe", ""]
    ran = run(command, variables={"TIDEMILL_BOOTSTRAP": "127.0.0.1:1"}, timeout_s=20)
    assert ran.status == 0
    assert ran.err == ""
