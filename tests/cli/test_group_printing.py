"""What a command that reads as a member could not print, it does not commit."""

from __future__ import annotations

import argparse
import asyncio
import io
import sys
from collections.abc import Callable
from typing import Any

import pytest
from tests.cli.helpers import quick

from tidemill.cli.consume_group import GroupRun
from tidemill.cli.kafka import console_consumer
from tidemill.client import Consumer, ConsumerRecord
from tidemill.types import TopicPartition

Name = Callable[[str], str]


class Pipe(io.RawIOBase):
    """A pipe whose reader goes away after so many writes; those of nothing do not count."""

    def __init__(self, writes: int) -> None:
        self._left = writes
        self.buffer = self
        self.lines: list[bytes] = []

    def write(self, data: Any) -> int:
        if data and self._left == 0:
            raise BrokenPipeError
        self._left -= bool(data)
        self.lines += bytes(data).splitlines()
        return len(data)


@pytest.fixture
def topic(bootstrap: str, topic_name: Name) -> str:
    """A topic with ten records."""
    name = topic_name("printed")
    assert quick("-b", bootstrap, "topic", "create", name, "-p", "1").status == 0
    lines = "".join(f"{n}\n" for n in range(10))
    assert quick("-b", bootstrap, "produce", name, stdin=lines).status == 0
    return name


def member(bootstrap: str, topic: str) -> Consumer:
    settings: dict[str, Any] = {"group_id": f"g-{topic}", "auto_offset_reset": "earliest"}
    return Consumer(bootstrap, **settings)


async def committed(bootstrap: str, topic: str) -> int:
    tp = TopicPartition(topic, 0)
    async with member(bootstrap, topic) as consumer:
        found = (await consumer.committed(tp))[tp]
    return 0 if found is None else found.offset


@pytest.mark.parametrize("writes", [0, 2])
async def test_consume_commits_what_was_printed(
    bootstrap: str, topic: str, writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def show(record: ConsumerRecord, number: int) -> bytes:
        return record.value + b"\n"  # type: ignore[no-any-return]

    monkeypatch.setattr("tidemill.cli.consume_group.POLL_RECORDS_MAX", 3)
    pipe = Pipe(writes)
    async with member(bootstrap, topic) as consumer:
        run = GroupRun(consumer, show, None, exit_at_end=False)
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", pipe)
            with pytest.raises(BrokenPipeError):
                await run.go([topic], regex=False)
    assert pipe.lines == [b"%d" % n for n in range(writes * 3)]
    assert await committed(bootstrap, topic) == writes * 3


async def test_the_console_consumer_commits_what_was_printed(
    bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = f"g-{topic}"
    words = ["--bootstrap-server", bootstrap, "--topic", topic, "--group", group]
    options: argparse.Namespace = console_consumer.parser().parse_args([*words, "--from-beginning"])
    monkeypatch.setattr(console_consumer, "POLL_RECORDS_MAX", 3)
    pipe = Pipe(1)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", pipe)
        with pytest.raises(BrokenPipeError):
            await asyncio.wait_for(console_consumer._work(options), 30)
    assert pipe.lines == [b"0", b"1", b"2"]
    assert await committed(bootstrap, topic) == 3
