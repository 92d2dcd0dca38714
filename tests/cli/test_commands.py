"""The commands against a live cluster, as a user types them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.helpers import Ran, environment, quick

from tidemill.cli.exits import Exit

Name = Callable[[str], str]


@pytest.fixture
def cli(bootstrap: str, tmp_path: Path) -> Callable[..., Ran]:
    """`tidemill` with the live cluster as its default."""
    variables = {"TIDEMILL_BOOTSTRAP": bootstrap, "TIDEMILL_CONFIG_DIR": str(tmp_path)}

    def call(*arguments: str, stdin: str | None = None) -> Ran:
        return quick(*arguments, stdin=stdin, variables=variables, cwd=tmp_path)

    return call


def as_json(ran: Ran) -> Any:
    assert ran.status == 0, ran.err
    return json.loads(ran.out)


def records_of(ran: Ran) -> list[dict[str, Any]]:
    assert ran.status == 0, ran.err
    return [json.loads(line) for line in ran.out.splitlines()]


def test_a_topic_lives_from_create_to_delete(cli: Callable[..., Ran], topic_name: Name) -> None:
    name = topic_name("life")
    assert cli("topic", "create", name, "-p", "3", "-c", "retention.ms=60000").status == 0
    listed = as_json(cli("topic", "list", "--regex", f"{name}.*", "--format", "json"))
    assert listed == [{"name": name, "partitions": 3, "replicas": 1, "internal": False}]
    assert cli("topic", "alter", name, "--set", "flush.messages=1").status == 0
    detail = as_json(cli("topic", "describe", name, "--format", "json"))
    assert detail["configs"]["retention.ms"] == "60000"
    assert detail["configs"]["flush.messages"] == "1"
    assert [p["end"] for p in detail["partitions"]] == [0, 0, 0]
    assert cli("topic", "alter", name, "--delete", "flush.messages").status == 0
    rows = as_json(cli("config", "get", f"topic/{name}", "--format", "json"))
    assert "flush.messages" not in {row["key"] for row in rows}
    gone = cli("topic", "delete", name, "--yes")
    assert gone.status == 0
    assert "deletes 1 topic, 3 partitions, 0 B" in gone.err
    assert cli("topic", "describe", name).status == Exit.NOT_FOUND


def test_dry_runs_change_nothing(cli: Callable[..., Ran], topic_name: Name) -> None:
    name = topic_name("dry")
    assert cli("topic", "create", name, "--dry-run").status == 0
    assert cli("topic", "describe", name).status == Exit.NOT_FOUND
    cli("topic", "create", name, "-p", "2")
    before = as_json(cli("topic", "describe", name, "--format", "json"))
    for line in (
        f"topic alter {name} --set retention.ms=1 --dry-run",
        f"topic add-partitions {name} --total 5 --dry-run",
        f"topic trim {name} -o end --dry-run",
        f"topic delete {name} --dry-run",
        f"config set topic/{name} retention.ms=1 --dry-run",
        f"perf produce {name} --dry-run",
    ):
        ran = cli(*line.split())
        assert ran.status == 0, (line, ran.err)
    assert cli("produce", name, "--dry-run", stdin="a\n").status == 0
    assert as_json(cli("topic", "describe", name, "--format", "json")) == before


def test_deleting_without_a_terminal_needs_yes(cli: Callable[..., Ran], topic_name: Name) -> None:
    name = topic_name("kept")
    cli("topic", "create", name)
    ran = cli("topic", "delete", name)
    assert ran.status == Exit.USAGE
    assert "--yes" in ran.err
    assert cli("topic", "describe", name).status == 0


def test_a_topic_that_exists_is_a_failure_unless_allowed(
    cli: Callable[..., Ran], topic_name: Name
) -> None:
    name, other = topic_name("twice"), topic_name("other")
    assert cli("topic", "create", name).status == 0
    assert cli("topic", "create", name).status == Exit.FAILED
    assert cli("topic", "create", name, "--if-not-exists").status == 0
    partly = cli("topic", "create", name, other, "--format", "json")
    assert partly.status == Exit.PARTLY_FAILED
    assert [row["status"] for row in json.loads(partly.out)] == ["failed", "created"]


def test_more_partitions_for_keyed_records_come_with_a_warning(
    cli: Callable[..., Ran], topic_name: Name
) -> None:
    name = topic_name("keyed")
    cli("topic", "create", name, "-p", "2")
    cli("produce", name, "-K:", stdin="a:1\nb:2\n")
    dry = cli("topic", "add-partitions", name, "--total", "4", "--dry-run")
    assert dry.status == 0
    assert "most keys will move" in dry.err
    ran = cli("topic", "add-partitions", name, "-n", "2", "--yes")
    assert (ran.status, ran.out.strip()) == (0, f"{name} has 4 partitions, up from 2")
    assert "most keys will move" in ran.err


def test_more_partitions_for_records_without_keys_come_without(
    cli: Callable[..., Ran], topic_name: Name
) -> None:
    name = topic_name("keyless")
    cli("topic", "create", name)
    cli("produce", name, stdin="a\nb\n")
    ran = cli("topic", "add-partitions", name, "--total", "2")
    assert ran.status == 0, ran.err
    assert "keys" not in ran.err


def test_fewer_partitions_are_refused_with_what_to_do(
    cli: Callable[..., Ran], topic_name: Name
) -> None:
    name = topic_name("fewer")
    cli("topic", "create", name, "-p", "3")
    ran = cli("topic", "add-partitions", name, "--total", "2")
    assert ran.status == Exit.USAGE
    assert "would lose records" in ran.err
    assert "create a new topic with 2" in ran.err


def test_produce_and_consume_with_keys_headers_and_tombstones(
    cli: Callable[..., Ran], topic_name: Name
) -> None:
    name = topic_name("records")
    cli("topic", "create", name)
    sent = cli("produce", name, "-K:", "-Z", "-H", "a=1", stdin="k1:v1\nk2:\nno key\n")
    assert (sent.status, sent.err.strip()) == (0, "3 messages, 12 bytes")
    got = records_of(cli("consume", name, "-e"))
    assert [(r["offset"], r["key"], r["value"]) for r in got] == [
        (0, "k1", "v1"),
        (1, "k2", None),
        (2, None, "no key"),
    ]
    assert got[0]["headers"] == [{"name": "a", "value": "1"}]
    printed = cli("consume", name, "-e", "-f", "%p@%o %k=%v\\n")
    assert printed.out == "0@0 k1=v1\n0@1 k2=\n0@2 =no key\n"


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (":end", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ("3:5", [3, 4]),
        ("-2", [8, 9]),
        ("+7", [7, 8, 9]),
        ("end", []),
        ("@-1h:end", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ("@2099-01-01", []),
    ],
)
def test_the_offset_grammar_reads_what_it_says(
    offset: str, expected: list[int], cli: Callable[..., Ran], ten_records: str
) -> None:
    got = records_of(cli("consume", ten_records, "-o", offset, "-e"))
    assert [record["offset"] for record in got] == expected


@pytest.fixture(scope="module")
def ten_records(bootstrap: str) -> str:
    """A topic of one partition with ten records, for tests that only read."""
    name = f"ten-{os.getpid()}-{time.time_ns()}"
    lines = "".join(f"{i}\n" for i in range(10))
    made = quick("-b", bootstrap, "topic", "create", name)
    assert made.status == 0, made.err
    sent = quick("-b", bootstrap, "produce", name, stdin=lines)
    assert sent.status == 0, sent.err
    return name


def test_consume_stops_after_n(cli: Callable[..., Ran], ten_records: str) -> None:
    assert len(records_of(cli("consume", ten_records, "-n", "4"))) == 4


def test_consume_into_a_closed_pipe_is_no_failure(
    bootstrap: str, ten_records: str, tmp_path: Path
) -> None:
    line = f"{sys.executable} -m tidemill.cli consume {ten_records} -e -b {bootstrap} | head -1"
    done = subprocess.run(
        ["/bin/sh", "-c", line], env=environment(), capture_output=True, text=True, timeout=30
    )
    assert json.loads(done.stdout)["offset"] == 0
    assert "Traceback" not in done.stderr


def test_ctrl_c_prints_how_much_came(bootstrap: str, ten_records: str) -> None:
    command = [sys.executable, "-m", "tidemill.cli", "consume", ten_records, "-b", bootstrap]
    with subprocess.Popen(
        command,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # As under a terminal: a job in a script's background is started with SIGINT ignored, and
        # its children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            assert process.stdout is not None
            for _ in range(10):
                process.stdout.readline()
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == Exit.INTERRUPTED
    assert err.strip() == "10 messages, 10 bytes"


def test_what_is_consumed_as_json_can_be_produced_again(
    cli: Callable[..., Ran], ten_records: str, topic_name: Name
) -> None:
    copy = topic_name("copy")
    cli("topic", "create", copy)
    original = cli("consume", ten_records, "-e")
    assert cli("produce", copy, "--json", stdin=original.out).status == 0

    def essence(ran: Ran) -> list[tuple[Any, ...]]:
        return [(r["timestamp"], r["key"], r["value"]) for r in records_of(ran)]

    assert essence(cli("consume", copy, "-e")) == essence(original)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_produce_from_a_file_with_every_codec(
    codec: str, cli: Callable[..., Ran], topic_name: Name, tmp_path: Path
) -> None:
    name = topic_name("codec")
    cli("topic", "create", name)
    (tmp_path / "in.txt").write_text("".join(f"line {i}\n" for i in range(500)))
    sent = cli("produce", name, "--file", "in.txt", "-z", codec, "--format", "json")
    assert as_json(sent)["messages"] == 500
    assert cli("consume", name, "-e", "-f", "%v\\n").out == (tmp_path / "in.txt").read_text()


def test_trim_deletes_what_is_before(cli: Callable[..., Ran], topic_name: Name) -> None:
    name = topic_name("trim")
    cli("topic", "create", name)
    cli("produce", name, stdin="a\nb\nc\n")
    ran = cli("topic", "trim", name, "-o", "2", "--yes")
    assert ran.status == 0, ran.err
    assert "deletes 2 records of 1 partition" in ran.err
    assert [r["value"] for r in records_of(cli("consume", name, "-e"))] == ["c"]


def test_trim_beyond_the_end_takes_what_is_there(cli: Callable[..., Ran], topic_name: Name) -> None:
    """One partition has three records, the other none: neither is asked for more than it has."""
    name = topic_name("trim-all")
    cli("topic", "create", name, "-p", "2")
    cli("produce", name, "-p", "0", stdin="a\nb\nc\n")
    planned = as_json(cli("topic", "trim", name, "-o", "5", "--dry-run", "--format", "json"))
    assert [(row["name"], row["detail"]) for row in planned] == [(f"{name}-0", "3 records")]
    ran = cli("topic", "trim", name, "-o", "5", "--yes")
    assert ran.status == 0, ran.err
    assert "deletes 3 records of 1 partition" in ran.err


def test_a_setting_that_no_broker_knows_is_answered_with_the_one_that_was_meant(
    cli: Callable[..., Ran], topic_name: Name
) -> None:
    name = topic_name("meant")
    cli("topic", "create", name)
    for line, meant in (
        (f"topic alter {name} --set retention.sm=5", "retention.ms"),
        (f"config set topic/{name} retention.m=5", "retention.ms"),
        ("config set brokers log.retention.sm=5", "log.retention.ms"),
        ("config set broker/0 max.conections=5", "max.connections"),
    ):
        ran = cli(*line.split())
        assert ran.status == Exit.USAGE, (line, ran.err)
        assert ran.err.lower().count(f"did you mean {meant}?") == 1, line
    unlike = cli("config", "set", f"topic/{name}", "zzz=5")
    assert unlike.status == Exit.USAGE
    assert "did you mean" not in unlike.err


def test_settings_are_set_and_read_back(cli: Callable[..., Ran], topic_name: Name) -> None:
    name = topic_name("settings")
    cli("topic", "create", name)
    assert cli("config", "set", f"topic/{name}", "retention.ms=1234").status == 0
    got = as_json(cli("config", "get", f"topic/{name}", "retention.ms", "--format", "json"))
    assert [(row["key"], row["value"]) for row in got] == [("retention.ms", "1234")]
    wrong = cli("config", "set", f"topic/{name}", "retention.ms=abc")
    assert wrong.status == Exit.USAGE
    assert cli("config", "get", f"topic/{name}", "nosuch").status == Exit.NOT_FOUND
    assert cli("config", "get", "nonsense").status == Exit.USAGE


def test_perf_reports_in_kafkas_words(cli: Callable[..., Ran], topic_name: Name) -> None:
    name = topic_name("perf")
    cli("topic", "create", name, "-p", "2")
    sent = cli("perf", "produce", name, "-n", "2000", "--size", "100")
    assert sent.status == 0, sent.err
    assert sent.out.startswith("2000 records sent, ")
    assert "99.9th." in sent.out
    read = as_json(cli("perf", "consume", name, "--format", "json"))
    assert read["records"] == 2000
    paced = as_json(cli(*f"perf produce {name} -n 300 --throughput 1000 --format json".split()))
    assert paced["records"] == 300
    assert 500 < paced["records_per_s"] < 1500


def test_a_missing_topic_is_not_found(cli: Callable[..., Ran]) -> None:
    for line in ("topic describe none-such", "consume none-such -e", "topic trim none-such -o 1"):
        ran = cli(*line.split(), "--format", "json")
        assert ran.status == Exit.NOT_FOUND, (line, ran.err)
        assert json.loads(ran.err)["code"] == "UNKNOWN_TOPIC_OR_PARTITION"


def test_doctor_is_content_with_a_healthy_cluster(cli: Callable[..., Ran]) -> None:
    found = as_json(cli("doctor", "--data-dir", ".", "--format", "json"))
    verdicts = {row["check"]: row["verdict"] for row in found}
    assert verdicts["advertised address"] == "ok"
    assert verdicts["controller"] == "ok"
    assert "fail" not in verdicts.values()
