"""`tidemill group` and `tidemill consume -g` on a live broker."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cli.helpers import Ran, quick

from tidemill.cli import group as group_command
from tidemill.client import Consumer

Name = Callable[[str], str]


@pytest.fixture
def topic(bootstrap: str, topic_name: Name) -> str:
    """A topic with two partitions of five records each."""
    name = topic_name("grouped")
    assert run(bootstrap, "topic", "create", name, "-p", "2").status == 0
    for partition in ("0", "1"):
        lines = "".join(f"{partition}-{n}\n" for n in range(5))
        assert run(bootstrap, "produce", name, "-p", partition, stdin=lines).status == 0
    return name


def run(bootstrap: str, *words: str, stdin: str | None = None) -> Ran:
    return quick("-b", bootstrap, *words, stdin=stdin)


def rows(ran: Ran) -> Any:
    assert ran.status == 0, ran.err
    return json.loads(ran.out)


def offsets(bootstrap: str, group: str) -> dict[int, int]:
    found = rows(run(bootstrap, "group", "offsets", group, "--format", "json"))
    return {row["partition"]: row["offset"] for row in found}


@contextmanager
def living_member(bootstrap: str, group: str, topic: str) -> Iterator[None]:
    """A member that polls in a thread of its own."""
    ready, stop = threading.Event(), threading.Event()

    async def live() -> None:
        settings = {"group_id": group, "auto_offset_reset": "earliest", "client_id": "reader"}
        async with Consumer(bootstrap, **settings) as consumer:  # type: ignore[arg-type]
            consumer.subscribe([topic])
            while not stop.is_set():
                await consumer.poll(timeout_ms=100)
                if consumer.assignment():
                    ready.set()

    thread = threading.Thread(target=lambda: asyncio.run(live()))
    thread.start()
    try:
        assert ready.wait(30)
        yield
    finally:
        stop.set()
        thread.join()


def test_consuming_as_a_group_goes_on_where_it_stopped(
    bootstrap: str, topic: str, topic_name: Name
) -> None:
    group = topic_name("goes-on")
    first = run(bootstrap, "consume", topic, "-g", group, "-n", "3", "-f", "%v\n")
    assert first.status == 0, first.err
    rest = run(bootstrap, "consume", topic, "-g", group, "-e", "-f", "%v\n")
    values = first.out.split() + rest.out.split()
    assert len(first.out.split()) == 3
    assert sorted(values) == sorted(f"{p}-{n}" for p in range(2) for n in range(5))
    assert offsets(bootstrap, group) == {0: 5, 1: 5}
    again = run(bootstrap, "consume", topic, "-g", group, "-e")
    assert (again.status, again.out) == (0, "")


def test_what_a_group_cannot_do(bootstrap: str, topic: str) -> None:
    ran = run(bootstrap, "consume", topic, "-g", "x", "-p", "0")
    assert ran.status == 2
    assert "--partition or --group" in ran.err
    ran = run(bootstrap, "consume", topic, "-g", "x", "-o", "5")
    assert ran.status == 2
    assert "tidemill group seek" in ran.err


def test_describing_a_group(bootstrap: str, topic: str, topic_name: Name) -> None:
    group = topic_name("described")
    run(bootstrap, "consume", topic, "-g", group, "-e")
    assert run(bootstrap, "produce", topic, "-p", "0", stdin="late\n").status == 0
    idle = rows(run(bootstrap, "group", "describe", group, "--format", "json"))
    assert (idle["state"], idle["type"], idle["lag"], idle["members"]) == ("Empty", "classic", 1, 0)
    behind, done = idle["partitions"]
    assert (behind["committed"], behind["end"], behind["lag"]) == (5, 6, 1)
    assert 0 <= behind["oldest_unread_s"] < 120
    assert (done["lag"], done["oldest_unread_s"], done["member"]) == (0, None, None)
    with living_member(bootstrap, group, topic):
        live = rows(run(bootstrap, "group", "describe", group, "--format", "json"))
        assert live["state"] == "Stable"
        assert {row["client"] for row in live["partitions"]} == {"reader"}
        assert all("127.0.0.1" in row["host"] for row in live["partitions"])
        (member,) = rows(run(bootstrap, "group", "members", group, "--format", "json"))
        assert member["partitions"] == [f"{topic}-0", f"{topic}-1"]
        listed = rows(run(bootstrap, "group", "list", "--state", "stable", "--format", "json"))
        assert group in [row["group"] for row in listed]
        shown = run(bootstrap, "group", "describe", group)
        assert "OLDEST UNREAD S" in shown.out or "LAG" in shown.out
    listed = rows(run(bootstrap, "group", "list", "--state", "stable", "--format", "json"))
    assert group not in [row["group"] for row in listed]
    unknown = run(bootstrap, "group", "describe", topic_name("no-such"))
    assert unknown.status == 3


def test_what_was_not_looked_at_is_said(
    bootstrap: str, topic: str, topic_name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell that is empty might be taken for a record that is not old."""
    group = topic_name("sampled")
    assert run(bootstrap, "group", "seek", group, "--to", "1", "-t", topic, "--execute").status == 0
    whole = run(bootstrap, "group", "describe", group, "--format", "json")
    assert whole.err == ""
    monkeypatch.setattr(group_command, "AGE_SAMPLE_PARTITIONS_MAX", 1)
    part = run(bootstrap, "group", "describe", group, "--format", "json")
    ages = [row["oldest_unread_s"] for row in rows(part)["partitions"]]
    assert [age is None for age in ages] == [False, True]
    assert "for 1 of 2 partitions" in part.err


SEEKS: list[tuple[list[str], dict[int, int]]] = [
    (["--to", "start"], {0: 0, 1: 0}),
    (["--to", "end"], {0: 5, 1: 5}),
    (["--to", "3"], {0: 3, 1: 3}),
    (["--to", "99"], {0: 5, 1: 5}),
    (["--to", "-2"], {0: 3, 1: 3}),
    (["--to", "@-1h"], {0: 0, 1: 0}),
    (["--to", "@2100-01-01"], {0: 5, 1: 5}),
    (["--shift", "-2"], {0: 2, 1: 2}),
    (["--shift", "100"], {0: 5, 1: 5}),
]


@pytest.mark.parametrize(("words", "wanted"), SEEKS, ids=lambda value: str(value)[:30])
def test_moving_a_group(
    bootstrap: str, topic: str, topic_name: Name, words: list[str], wanted: dict[int, int]
) -> None:
    group = topic_name("moved")
    begin = run(bootstrap, "group", "seek", group, "--to", "4", "-t", topic, "--execute")
    assert begin.status == 0, begin.err
    planned = run(bootstrap, "group", "seek", group, *words, "--format", "json")
    assert {row["partition"]: row["after"] for row in rows(planned)} == wanted
    assert "--execute" in planned.err
    assert offsets(bootstrap, group) == {0: 4, 1: 4}
    only = run(bootstrap, "group", "seek", group, *words, "-t", f"{topic}:1", "--execute")
    assert only.status == 0
    assert offsets(bootstrap, group) == {0: 4, 1: wanted[1]}
    assert run(bootstrap, "group", "seek", group, "--to", "4", "--execute").status == 0
    assert run(bootstrap, "group", "seek", group, *words, "--execute").status == 0
    assert offsets(bootstrap, group) == wanted


def test_moving_a_group_by_a_file(
    bootstrap: str, topic: str, topic_name: Name, tmp_path: Path
) -> None:
    group = topic_name("filed")
    path = tmp_path / "offsets.csv"
    path.write_text(f"{topic},0,2\n{topic},1,3\n")
    assert run(bootstrap, "group", "seek", group, "--file", str(path), "--execute").status == 0
    assert offsets(bootstrap, group) == {0: 2, 1: 3}
    saved = tmp_path / "offsets.json"
    saved.write_text(run(bootstrap, "group", "offsets", group, "--format", "json").out)
    assert run(bootstrap, "group", "seek", group, "--to", "end", "--execute").status == 0
    assert run(bootstrap, "group", "seek", group, "--file", str(saved), "--execute").status == 0
    assert offsets(bootstrap, group) == {0: 2, 1: 3}
    path.write_text("nonsense\n")
    wrong = run(bootstrap, "group", "seek", group, "--file", str(path))
    assert wrong.status == 2
    assert "TOPIC,PARTITION,OFFSET" in wrong.err


def test_a_group_in_use_is_left_alone(bootstrap: str, topic: str, topic_name: Name) -> None:
    group = topic_name("busy")
    run(bootstrap, "group", "seek", group, "--to", "1", "-t", topic, "--execute")
    with living_member(bootstrap, group, topic):
        for words in (["seek", group, "--to", "start", "--execute"], ["delete", group, "--yes"]):
            ran = run(bootstrap, "group", *words)
            assert ran.status == 1
            assert "is in use" in ran.err
        ran = run(bootstrap, "group", "delete", group, "--topic", topic, "--yes")
        assert ran.status == 1
        assert ran.out == ""
        assert "GROUP_SUBSCRIBED_TO_TOPIC" in ran.err
        assert f"{topic}-0" in ran.err
    assert set(offsets(bootstrap, group)) == {0, 1}


def test_deleting(bootstrap: str, topic: str, topic_name: Name) -> None:
    group = topic_name("deleted")
    run(bootstrap, "group", "seek", group, "--to", "4", "-t", topic, "--execute")
    planned = run(bootstrap, "group", "delete", group, "--topic", f"{topic}:0", "--dry-run")
    assert "would be deleted" in planned.out
    assert run(bootstrap, "group", "delete", group, "--topic", f"{topic}:0", "-y").status == 0
    assert offsets(bootstrap, group) == {1: 4}
    assert "would be deleted" in run(bootstrap, "group", "delete", group, "--dry-run").out
    refused = run(bootstrap, "group", "delete", group)
    assert refused.status == 2
    assert "--yes" in refused.err
    assert run(bootstrap, "group", "delete", group, "--yes").status == 0
    assert run(bootstrap, "group", "describe", group).status == 3


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["describe"], "name at least one group"),
        (["seek", "g"], "give one of"),
        (["seek", "g", "--to", "1:2"], "one point"),
        (["seek", "g", "--to", "start", "--execute", "--dry-run"], "not both"),
        (["seek", "no-such-group", "--to", "start"], "name the topics"),
        (["offsets", "g", "--topic", "t:x"], "is no topic"),
    ],
)
def test_wrong_command_lines(bootstrap: str, words: list[str], complaint: str) -> None:
    ran = run(bootstrap, "group", *words)
    assert ran.status == 2
    assert complaint in ran.err
