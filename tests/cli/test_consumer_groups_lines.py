"""Command lines of `kafka-consumer-groups` that are refused, or end, without a broker's help.

`test_groups_reference.py` has the same refusals beside Kafka's tool; here they are held where there
is no Java: what is refused must not be done.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.cli.helpers import script

REFUSED: list[tuple[str, str]] = [
    ("--delete --group g --topic t", "does not support topic-specific offset deletion"),
    ("--delete --group g --all-groups", '[group]" can\'t be used with option "[all-groups]'),
    ("--reset-offsets --group g --all-groups --execute", "can't be used with option"),
    ("--delete-offsets --all-groups --topic t", "takes the following options: [group], [topic]"),
    ("--describe --group g --topic t", '[topic]" can\'t be used with option "[describe]'),
    ("--list --members", "Option(s) [members] are unavailable"),
    ("--delete --group g --verbose", "Option(s) [verbose] are unavailable"),
]


@pytest.fixture
def mute() -> Iterator[str]:
    """The address of somebody who takes connections and never says a word."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        host, port = server.getsockname()[:2]
        yield f"{host}:{port}"


@pytest.mark.parametrize(("words", "complaint"), REFUSED, ids=[words for words, _ in REFUSED])
def test_a_line_that_kafka_refuses_is_refused(words: str, complaint: str, mute: str) -> None:
    ran = script("kafka-consumer-groups", "--bootstrap-server", mute, *words.split())
    assert ran.status == 1
    assert complaint in ran.err


def test_only_one_group_loses_offsets(mute: str) -> None:
    words = "--delete-offsets --group g --group h --topic t"
    ran = script("kafka-consumer-groups", "--bootstrap-server", mute, *words.split())
    assert "Found multiple arguments for option group" in ran.out


@pytest.mark.parametrize("words", ["--list", "--describe --group g", "--delete --group g"])
def test_an_answer_is_awaited_as_long_as_asked(words: str, mute: str) -> None:
    begin = time.monotonic()
    line = [*words.split(), "--timeout", "300"]
    ran = script("kafka-consumer-groups", "--bootstrap-server", mute, *line)
    assert time.monotonic() - begin < 20, "the clients' own limits are 30 and 60 seconds"
    assert (ran.status, ran.out) == (1, "")
    assert "in 300 ms" in ran.err
