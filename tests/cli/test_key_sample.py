"""`topic add-partitions` warns of keys that will move, wherever in the topic the keys are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.cli.helpers import quick

Name = Callable[[str], str]

WARNING = "most keys will move"


def growing(bootstrap: str, name: str) -> str:
    """What is said on stderr when the topic is to have more partitions."""
    ran = quick("-b", bootstrap, "topic", "add-partitions", name, "-n", "1", "--dry-run")
    assert ran.status == 0, ran.err
    return ran.err


def produce(bootstrap: str, name: str, lines: str, *flags: str, partition: int = 0) -> None:
    words = ("produce", name, "-p", str(partition), *flags)
    ran = quick("-b", bootstrap, *words, stdin=lines)
    assert ran.status == 0, ran.err


def new_topic(bootstrap: str, name: str, partitions: int) -> str:
    assert quick("-b", bootstrap, "topic", "create", name, "-p", str(partitions)).status == 0
    return name


def test_keys_of_long_ago_are_found(bootstrap: str, topic_name: Name) -> None:
    name = new_topic(bootstrap, topic_name("long-ago"), 1)
    produce(bootstrap, name, "key:value\n" * 100, "-K:")
    produce(bootstrap, name, "value\n" * 20_000)
    assert WARNING in growing(bootstrap, name)


def test_keys_among_the_latest_records_are_found(bootstrap: str, topic_name: Name) -> None:
    name = new_topic(bootstrap, topic_name("now-and-then"), 1)
    produce(bootstrap, name, "value\n" * 5_000)
    produce(bootstrap, name, "key:value\n", "-K:")
    produce(bootstrap, name, "value\n" * 500)
    assert WARNING in growing(bootstrap, name)


@pytest.mark.parametrize("partitions", [1, 40, 200])
def test_keys_in_the_last_partition_are_found(
    bootstrap: str, topic_name: Name, partitions: int
) -> None:
    """Also where there are more partitions than are looked at."""
    name = new_topic(bootstrap, topic_name("last"), partitions)
    produce(bootstrap, name, "value\n")
    assert WARNING not in growing(bootstrap, name)
    produce(bootstrap, name, "key:value\n", "-K:", partition=partitions - 1)
    assert WARNING in growing(bootstrap, name)


def test_no_keys_and_no_records_come_without_a_warning(bootstrap: str, topic_name: Name) -> None:
    name = new_topic(bootstrap, topic_name("none"), 3)
    assert WARNING not in growing(bootstrap, name)
    produce(bootstrap, name, "value\n" * 30_000, partition=1)
    assert WARNING not in growing(bootstrap, name)
