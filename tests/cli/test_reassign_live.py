"""Moves that take a while: listed, looked at, cancelled; and Kafka's own tools on our brokers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.helpers import Ran, script
from tests.cli.ups import Up
from tests.reference.kafka import kafka_jars, run_kafka_tool, unavailable_reason
from tests.waiting import eventually

from tidemill.cli.exits import Exit

pytestmark = [pytest.mark.timeout(240)]

SLOW_BYTES_PER_S = 2_000


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    """Two brokers, and a topic on the first of them with more than a slow move copies in time."""
    with Up(tmp_path / "data", "--brokers", "2") as running:
        words = ("--topic", "t", "--replica-assignment", "1")
        made = script("kafka-topics", "--bootstrap-server", running.bootstrap, "--create", *words)
        assert made.status == 0, made.out
        filled = running.run("produce", "t", stdin=f"{'x' * 1000}\n" * 2_000)
        assert filled.status == 0, filled.err
        yield running


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    row = {"topic": "t", "partition": 0, "replicas": [2]}
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"version": 1, "partitions": [row]}))
    return file


def replicas(up: Up) -> list[int]:
    [only] = up.json("topic", "describe", "t")["partitions"]
    found: list[int] = only["replicas"]
    return found


def test_a_slow_move_is_listed_and_taken_back(up: Up, plan: Path) -> None:
    begun = up.run(
        "cluster",
        "reassign",
        "execute",
        str(plan),
        "--throttle",
        f"{SLOW_BYTES_PER_S}",
        "--no-wait",
    )
    assert begun.status == 0, begun.err
    assert "the throttle stays until" in begun.err
    [row] = up.json("cluster", "reassign", "list")
    assert (row["partition"], row["adding"], row["removing"]) == ("t-0", [2], [1])
    assert row["percent"] < 100
    verified = up.run("cluster", "reassign", "verify", str(plan))
    assert verified.status == Exit.PARTLY_FAILED
    assert "moving" in verified.out
    again = up.run("cluster", "reassign", "cancel", "--dry-run")
    assert "would be cancelled" in again.out
    cancelled = up.run("cluster", "reassign", "cancel")
    assert cancelled.status == 0, cancelled.err
    assert "stays on 1" in cancelled.out
    assert up.json("cluster", "reassign", "list") == []
    assert replicas(up) == [1]
    assert "throttled" not in json.dumps(up.json("topic", "describe", "t")["configs"])


def test_the_same_in_kafkas_words(up: Up, plan: Path) -> None:
    def reassign(*words: str) -> Ran:
        return script("kafka-reassign-partitions", "--bootstrap-server", up.bootstrap, *words)

    file = ("--reassignment-json-file", str(plan))
    begun = reassign("--execute", *file, "--throttle", str(SLOW_BYTES_PER_S))
    assert begun.status == 0, begun.out
    assert f"The inter-broker throttle limit was set to {SLOW_BYTES_PER_S} B/s\n" in begun.out
    listed = reassign("--list").out
    assert listed == (
        "Current partition reassignments:\nt-0: replicas: 2,1. adding: 2. removing: 1.\n"
    )
    assert "Reassignment of partition t-0 is still in progress." in reassign("--verify", *file).out
    refused = reassign("--execute", *file)
    assert refused.status == 1
    assert refused.out.startswith("Cannot execute because there is an existing partition")
    faster_bytes_per_s = SLOW_BYTES_PER_S * 2
    faster = reassign("--execute", *file, "--additional", "--throttle", str(faster_bytes_per_s))
    assert faster.status == 0, faster.out
    assert f"The inter-broker throttle limit was set to {faster_bytes_per_s} B/s\n" in faster.out
    cancelled = reassign("--cancel", *file)
    assert cancelled.out.startswith("Successfully cancelled partition reassignment for: t-0\n")
    assert replicas(up) == [1]
    assert reassign("--execute", *file).status == 0
    eventually(lambda: "is completed" in reassign("--verify", *file).out)
    assert replicas(up) == [2]
    none_left = reassign("--cancel", *file)
    assert none_left.out.startswith("None of the specified partition reassignments are active.\n")


@pytest.mark.reference
def test_kafkas_own_tools_on_our_brokers(up: Up, plan: Path) -> None:
    if kafka_jars() is None:
        pytest.skip(f"NO REFERENCE: Apache Kafka cannot run here: {unavailable_reason()}")

    def reassign(*words: str) -> str:
        done = run_kafka_tool(
            "kafka-reassign-partitions", "--bootstrap-server", up.bootstrap, *words, check=True
        )
        return done.stdout

    file = ("--reassignment-json-file", str(plan))
    assert reassign("--list") == "No partition reassignments found.\n"
    slow = reassign("--execute", *file, "--throttle", str(SLOW_BYTES_PER_S))
    assert "Successfully started partition reassignment for t-0\n" in slow
    assert "adding: 2. removing: 1." in reassign("--list")
    assert "Successfully cancelled partition reassignment for: t-0\n" in reassign("--cancel", *file)
    assert replicas(up) == [1]
    assert "Successfully started" in reassign("--execute", *file)
    eventually(lambda: replicas(up) == [2])
    verified = reassign("--verify", *file)
    assert re.search(r"Reassignment of partition t-0 is completed\.", verified)
    elected = run_kafka_tool(
        "kafka-leader-election", "--bootstrap-server", up.bootstrap,
        "--election-type", "preferred", "--topic", "t", "--partition", "0", check=True,
    )  # fmt: skip
    assert elected.stdout == "Valid replica already elected for partitions t-0\n"
