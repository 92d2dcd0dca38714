"""What a person reads when something is wrong: whole sentences, what to do, no raw objects."""

from __future__ import annotations

import json
import re
import resource
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.helpers import Ran, quick, script

from tidemill.cli import produce
from tidemill.cli.exits import Exit
from tidemill.testing.process import BrokerProcess

Name = Callable[[str], str]


@pytest.fixture
def cli(bootstrap: str) -> Callable[..., Ran]:
    def call(*arguments: str, stdin: str | None = None) -> Ran:
        return quick(*arguments, "-b", bootstrap, stdin=stdin)

    return call


@pytest.mark.parametrize(
    "line",
    [
        "topic describe none-such",
        "topic add-partitions none-such --total 3",
        "topic delete none-such --yes",
        "consume none-such -e",
    ],
)
def test_a_missing_topic_is_told_in_a_sentence(line: str, cli: Callable[..., Ran]) -> None:
    ran = cli(*line.split())
    assert ran.status == Exit.NOT_FOUND
    assert ran.err.splitlines()[0] == "error: topic 'none-such' does not exist"


def test_no_partitions_and_no_replicas_are_refused(
    cli: Callable[..., Ran], bootstrap: str, topic_name: Name
) -> None:
    name = topic_name("zero")
    for option in ("--partitions", "--replicas"):
        ran = cli("topic", "create", name, option, "0")
        assert ran.status == Exit.USAGE
        assert f"{option} must be at least 1, not 0" in ran.err
    command = ("--create", "--topic", name, "--partitions", "0")
    refused = script("kafka-topics", *command, "--bootstrap-server", bootstrap)
    assert refused.status != 0
    assert cli("topic", "describe", name).status == Exit.NOT_FOUND


def test_lists_say_true_or_false(cli: Callable[..., Ran], topic_name: Name) -> None:
    name = topic_name("plain")
    assert cli("topic", "create", name).status == 0
    [row] = json.loads(cli("topic", "list", "--regex", name, "--format", "json").out)
    assert row["internal"] is False
    assert "INTERNAL" not in cli("topic", "list", "--regex", name).out
    rows = json.loads(cli("config", "get", f"topic/{name}", "--all", "--format", "json").out)
    assert {row["read_only"] for row in rows} == {False}


def test_several_topics_are_described_as_tables(cli: Callable[..., Ran], topic_name: Name) -> None:
    first, second = topic_name("one"), topic_name("two")
    assert cli("topic", "create", first, second, "-p", "2").status == 0
    ran = cli("topic", "describe", first, second)
    assert ran.status == 0, ran.err
    assert "{" not in ran.out
    assert f"PARTITIONS OF {second}\n" in ran.out


@pytest.mark.parametrize("acks", ["1", "all"])
def test_produce_gives_up_after_its_timeout_and_says_why(
    acks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal that stays however often one asks: files of the broker cannot grow any more."""
    monkeypatch.setattr(produce, "PATIENCE_S", 0.3)
    with BrokerProcess(tmp_path / "data") as broker:
        target = ("-b", broker.bootstrap)
        assert quick("topic", "create", "t", "-p", "1", *target).status == 0
        unlimited = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (1, unlimited[1]))
        started = time.monotonic()
        ran = quick("produce", "t", "--acks", acks, "--timeout", "1.5", *target, stdin="hi\n")
        took_s = time.monotonic() - started
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, unlimited)
    assert took_s < 15
    assert ran.status == Exit.FAILED
    *waiting, error, _ = ran.err.splitlines()
    # The first may come before the broker's first answer.
    assert any(line.startswith("still waiting for the broker to acknowledge: ") for line in waiting)
    assert re.fullmatch(r"error: .* not delivered in delivery\.timeout\.ms=1500: .+", error)


@pytest.mark.parametrize(("below", "reason"), [("", "it is a file"), ("x", "not a directory")])
def test_a_data_directory_that_cannot_be_one(below: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    target = file / below if below else file
    ran = quick("up", "--port", "0", "--data-dir", str(target))
    assert ran.status == Exit.FAILED
    assert f"cannot keep data in {target}: {reason}" in ran.err
    assert "--data-dir takes a directory" in ran.err
    assert "Errno" not in ran.err


def test_config_check_names_the_line_and_the_key_of_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=2\nnum.io.threads=4\ncontroller.quorum.voters=1@h:1\n")
    ran = quick("config", "check", str(file))
    assert ran.status == 0
    rows = [re.split(r"  +", line)[:3] for line in ran.out.splitlines()]
    assert rows == [
        ["LINE", "KEY", "SEVERITY"],
        ["2", "num.io.threads", "warning"],
        ["3", "controller.quorum.voters", "warning"],
    ]


def test_verify_lists_problems_and_leaves_deleted_partitions_out(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data) as broker:
        target = ("-b", broker.bootstrap)
        assert quick("topic", "create", "kept", "gone", "-p", "1", *target).status == 0
        assert quick("produce", "kept", *target, stdin="a\nb\n").status == 0
        assert quick("topic", "delete", "gone", "--yes", *target).status == 0
    (data / "kept-0.0123-delete").mkdir()
    (data / "kept-0.0123-delete" / "00000000000000000000.log").write_bytes(b"")
    sound = quick("log", "verify", str(data))
    assert sound.status == 0, sound.err
    assert "-delete" not in sound.out
    assert "missing" not in sound.out
    assert "PROBLEMS" not in sound.out
    segment = data / "kept-0" / "00000000000000000000.log"
    segment.write_bytes(segment.read_bytes()[:-1] + b"\xff")
    broken = quick("log", "verify", str(data))
    assert broken.status == Exit.FAILED
    assert f"PROBLEMS OF {data / 'kept-0'}\n" in broken.out
    assert "SEVERITY  FILE" in broken.out
    assert "{" not in broken.out
