"""Each command about groups, word for word as a user types it, on a live broker.

`tests/cli/test_groups.py` goes into the cases; here a group's whole life is told with nothing but
commands, the scripts among them run by a shell from an installation's folder.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cli.helpers import Ran, environment, install, quick, shell
from tests.waiting import eventually

LIMIT_S = 30
COLUMNS = ["COMMITTED", "END", "LAG", "OLDEST UNREAD S", "MEMBER", "HOST"]
Type = Callable[..., Ran]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("groups")
    install(here / "bin")
    return here


@pytest.fixture
def typed(place: Path, bootstrap: str, topic_name: Callable[[str], str]) -> Type:
    """Type a line: TOPIC and GROUP stand for fresh names, B for the broker's address."""
    topic, group = topic_name("typed"), topic_name("grouped")
    assert quick("-b", bootstrap, "topic", "create", topic, "-p", "2").status == 0
    for partition in "01":
        words = ("-b", bootstrap, "produce", topic, "-p", partition)
        assert quick(*words, stdin="a\nb\nc\nd\ne\n").status == 0

    def type_(line: str, status: int = 0) -> Ran:
        words = line.replace("TOPIC", topic).replace("GROUP", group)
        words = re.sub(r"\bB\b", bootstrap, words)
        variables = {"TIDEMILL_BOOTSTRAP": bootstrap}
        if words.startswith("tidemill ") and ">" not in words:
            ran = quick(*shlex.split(words)[1:], variables=variables, cwd=place)
        else:
            ran = shell(words, path=place / "bin", variables=variables, cwd=place)
        assert ran.status == status, f"{words}\n{ran.out}\n{ran.err}"
        assert "Traceback" not in ran.err
        return Ran(
            ran.status,
            ran.out.replace(topic, "TOPIC").replace(group, "GROUP"),
            ran.err.replace(topic, "TOPIC").replace(group, "GROUP"),
        )

    type_.names = (topic, group)  # type: ignore[attr-defined]
    return type_


def offsets(typed: Type) -> dict[int, int]:
    found = json.loads(typed("tidemill group offsets GROUP --format json").out)
    return {row["partition"]: row["offset"] for row in found}


@contextmanager
def reader(typed: Any, place: Path, bootstrap: str, line: str) -> Iterator[subprocess.Popen[str]]:
    """A command that reads as a member until it is stopped."""
    topic, group = typed.names
    words = line.replace("TOPIC", topic).replace("GROUP", group)
    process = subprocess.Popen(
        [str(place / "bin" / words.split()[0]), *words.split()[1:]],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment({"TIDEMILL_BOOTSTRAP": bootstrap}),
    )
    try:
        stable = re.compile(r"^GROUP .*Stable", re.M)
        eventually(lambda: stable.search(typed("tidemill group list").out) is not None)
        yield process
    finally:
        process.kill()
        process.communicate()


def test_the_life_of_a_group(typed: Type, place: Path) -> None:
    read = typed("tidemill consume TOPIC -g GROUP -n 3 -f '%v\\n'")
    assert len(read.out.split()) == 3
    assert re.search(r"^GROUP +classic +Empty", typed("tidemill group list").out, re.M)
    described = typed("tidemill group describe GROUP").out
    assert all(column in described for column in COLUMNS), described
    assert typed("tidemill group members GROUP").out == ""
    for way, wanted in {
        "--to start": {0: 0, 1: 0},
        "--to end": {0: 5, 1: 5},
        "--to @-1h": {0: 0, 1: 0},
        "--shift 2": {0: 2, 1: 2},
        "--to 4": {0: 4, 1: 4},
    }.items():
        before = offsets(typed)
        planned = typed(f"tidemill group seek GROUP {way} --topic TOPIC")
        assert "dry run" in planned.err
        assert offsets(typed) == before
        typed(f"tidemill group seek GROUP {way} --topic TOPIC --execute")
        assert offsets(typed) == wanted
    typed("tidemill group offsets GROUP --format json > kept.json")
    typed("tidemill group seek GROUP --to start --execute")
    typed("tidemill group seek GROUP --file kept.json --execute")
    assert offsets(typed) == {0: 4, 1: 4}
    assert sorted(typed("tidemill consume TOPIC -g GROUP -e -f '%v\\n'").out.split()) == ["e", "e"]
    typed("tidemill group delete GROUP --topic TOPIC:0 --yes")
    assert offsets(typed) == {1: 5}
    typed("tidemill group delete GROUP --yes")
    typed("tidemill group describe GROUP", status=3)


@pytest.mark.parametrize(
    "line",
    [
        "tidemill consume TOPIC -g GROUP",
        "kafka-console-consumer.sh --topic TOPIC --group GROUP --from-beginning",
    ],
    ids=["tidemill", "kafka"],
)
def test_a_reader_that_is_told_to_end_leaves_its_group(
    typed: Type, place: Path, bootstrap: str, line: str
) -> None:
    """SIGTERM, as `timeout` and service managers send it: committed, left, status 143."""
    with reader(typed, place, bootstrap, line) as process:
        assert process.stdout is not None
        for _ in range(10):
            process.stdout.readline()
        live = typed("tidemill group describe GROUP").out
        assert "Stable" in live
        assert "127.0.0.1" in live
        (member,) = json.loads(typed("tidemill group members GROUP --format json").out)
        assert member["partitions"] == ["TOPIC-0", "TOPIC-1"]
        for refused in ("seek GROUP --to start --execute", "delete GROUP --yes"):
            assert "is in use" in typed(f"tidemill group {refused}", status=1).err
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 128 + signal.SIGTERM
    assert re.search(r"STATE +Empty", typed("tidemill group describe GROUP").out)
    assert offsets(typed) == {0: 5, 1: 5}


@pytest.mark.parametrize(
    "given",
    [
        "--consumer-property group.id=GROUP",
        "--command-property group.id=GROUP",
        "--command-config GROUP.properties",
        "--consumer.config GROUP.properties",
        "--group GROUP --consumer.config GROUP.properties",
    ],
)
def test_a_group_is_a_group_wherever_it_is_named(typed: Any, place: Path, given: str) -> None:
    """Kafka's console consumer reads as a member and commits, be the group in a property."""
    _, group = typed.names
    (place / f"{group}.properties").write_text(f"group.id={group}\n")
    line = f"kafka-console-consumer.sh --bootstrap-server B --topic TOPIC {given} --from-beginning"
    assert len(typed(f"{line} --max-messages 10").out.split("deprecated")[-1].split("\n")) >= 10
    assert offsets(typed) == {0: 5, 1: 5}


def test_only_one_group_at_a_time(typed: Type) -> None:
    line = "kafka-console-consumer.sh --bootstrap-server B --topic TOPIC --group GROUP"
    refused = typed(f"{line} --consumer-property group.id=another", status=1).err
    assert refused.startswith("The group ids provided in different places ")
    assert "Detected group ids: 'another', 'GROUP'" in refused
    typed("tidemill group describe GROUP", status=3)


def test_where_the_console_consumer_starts(typed: Type) -> None:
    """A group without offsets starts where the property says; without a group, too."""
    line = "kafka-console-consumer.sh --bootstrap-server B --topic TOPIC --timeout-ms 2000"
    early = "--command-property auto.offset.reset=earliest"
    assert len(typed(f"{line} {early}").out.split()) == 10
    assert len(typed(f"{line}0 {early} --group GROUP --max-messages 10").out.split()) == 10
    late = "--command-property auto.offset.reset=latest"
    assert typed(f"{line} {late}").out == ""
    refused = typed(f"{line} {late} --from-beginning", status=1)
    assert refused.err == (
        "Can't simultaneously specify --from-beginning and 'auto.offset.reset=latest', "
        "please remove one option\n"
    )
    assert typed(f"{line} --command-property auto.offset.reset=nonsense", status=1).out == ""


def test_a_measurement_does_not_read_for_a_group(typed: Any, place: Path) -> None:
    """A file of settings names the group of the application that it was written for."""
    _, group = typed.names
    (place / f"{group}.properties").write_text(f"group.id={group}\n")
    line = "kafka-consumer-perf-test.sh --bootstrap-server B --topic TOPIC --num-records 10"
    typed(f"{line} --command-config GROUP.properties")
    typed("tidemill group describe GROUP", status=3)


KAFKA_LINES: list[tuple[str, str]] = [
    ("--list", r"^GROUP$"),
    ("--list --state", r"^GROUP +Empty"),
    ("--list --type", r"^GROUP +Classic"),
    ("--describe --group GROUP", r"^GROUP +TOPIC +0 +5 +5 +0 +- +- +-"),
    ("--describe --group GROUP --offsets", r"^GROUP +TOPIC +1 +5 +5 +0 +- +- +-"),
    ("--describe --group GROUP --members --verbose", r"has no active members"),
    ("--describe --group GROUP --state", r"^GROUP .* Empty +0"),
    (
        "--group GROUP --reset-offsets --topic TOPIC --to-earliest --dry-run",
        r"^GROUP +TOPIC +0 +0",
    ),
    ("--group GROUP --reset-offsets --topic TOPIC --shift-by -1 --execute", r"^GROUP +TOPIC +0 +4"),
    (
        "--group GROUP --reset-offsets --all-topics --to-datetime 2020-01-01T00:00:00.000 "
        "--execute",
        r"^GROUP +TOPIC +1 +0",
    ),
    ("--group GROUP --reset-offsets --topic TOPIC --by-duration PT1H --execute", r"TOPIC +0 +0"),
    ("--group GROUP --reset-offsets --topic TOPIC:0 --to-offset 3 --execute", r"TOPIC +0 +3"),
    ("--group GROUP --reset-offsets --all-topics --to-current --export --dry-run", r"^TOPIC,0,3$"),
    ("--group GROUP --delete-offsets --topic TOPIC:1", r"TOPIC +1 +Successful"),
    ("--group GROUP --delete", r"was successful"),
]


def test_kafka_consumer_groups(typed: Type) -> None:
    """Kafka's flags, one after the other, on one group."""
    typed("tidemill consume TOPIC -g GROUP -e")
    for words, wanted in KAFKA_LINES:
        ran = typed(f"kafka-consumer-groups.sh --bootstrap-server B {words}")
        assert re.search(wanted, ran.out + ran.err, re.M), f"{words}\n{ran.out}\n{ran.err}"


def test_the_consumer_perf_test_reads_as_a_group(typed: Type) -> None:
    line = "kafka-consumer-perf-test.sh --bootstrap-server B --topic TOPIC --group GROUP"
    figures = typed(f"{line} --num-records 10").out.splitlines()[-1].split(", ")
    assert figures[4] == "10"
    assert int(figures[6]) < LIMIT_S * 1000
    assert offsets(typed) == {0: 5, 1: 5}


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def names(text: str) -> list[str]:
    return [each["name"] for each in events(text)]


def test_the_verifiable_tools(typed: Type) -> None:
    sent = typed("kafka-verifiable-producer.sh --bootstrap-server B --topic TOPIC --max-messages 6")
    assert names(sent.out) == [
        "startup_complete",
        *["producer_send_success"] * 6,
        "shutdown_complete",
        "tool_data",
    ]
    read = typed(
        "kafka-verifiable-consumer.sh --bootstrap-server B --topic TOPIC --group-id GROUP "
        "--max-messages 16 --verbose"
    )
    found = events(read.out)
    values = sorted(each["value"] for each in found if each["name"] == "record_data")
    assert values == sorted([*"aabbccddee", *"012345"])
    assert sum(each["count"] for each in found if each["name"] == "records_consumed") == 16
    assert names(read.out)[-3:] == ["partitions_revoked", "shutdown_complete", "shutdown_requested"]
    assert sum(offsets(typed).values()) == 16


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("kafka-verifiable-producer.sh --bootstrap-server B", "argument --topic is required"),
        (
            "kafka-verifiable-producer.sh --bootstrap-server B --topic T --acks 7",
            "argument --acks: invalid choice",
        ),
        (
            "kafka-verifiable-consumer.sh --bootstrap-server B --topic T",
            "argument --group-id is required",
        ),
        (
            "kafka-verifiable-consumer.sh --bootstrap-server B --topic T --group-id g "
            "--group-protocol nonsense",
            "classic",
        ),
        (
            "kafka-verifiable-consumer.sh --bootstrap-server B --topic T --group-id g "
            "--assignment-strategy org.example.NoSuch",
            "NoSuch",
        ),
    ],
)
def test_wrong_lines_of_the_verifiable_tools(typed: Type, line: str, complaint: str) -> None:
    assert complaint in typed(line, status=1).err


def test_the_verifiable_tools_explain_themselves(typed: Type) -> None:
    for tool in ("producer", "consumer"):
        for words in ("", "--help"):
            assert "--max-messages" in typed(f"kafka-verifiable-{tool}.sh {words}").out
