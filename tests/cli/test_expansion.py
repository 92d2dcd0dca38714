"""A fourth broker joins three that hold data, and partitions move to it while records flow."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.helpers import Ran, script
from tests.cli.ups import Up

from tidemill.client import blocking
from tidemill.testing.process import free_port

pytestmark = [pytest.mark.timeout(300)]

PARTITIONS = 8
OLD = [f"old-{number}-{'x' * 500}".encode() for number in range(4_000)]
"""What is there before the fourth broker comes: two megabytes for the moves to copy."""


@contextmanager
def load(up: Up) -> Iterator[list[bytes]]:
    """Records sent with acks=all for as long as the block lasts; those that were acknowledged."""
    acked: list[bytes] = []
    failures: list[BaseException] = []
    over = threading.Event()

    def send() -> None:
        try:
            with blocking.Producer(up.bootstrap, acks="all") as producer:
                number = 0
                while not over.is_set():
                    value = f"value-{number}".encode()
                    producer.send("t", value, key=str(number % 97).encode())
                    acked.append(value)
                    number += 1
        except BaseException as error:  # noqa: BLE001 - told to the test below
            failures.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield acked
    finally:
        over.set()
        thread.join(60)
    assert not failures, failures


def values(up: Up) -> Counter[bytes]:
    ran = up.run("consume", "t", "-o", "start", "-e", "-f", "%v\\n")
    assert ran.status == 0, ran.err
    return Counter(line.encode() for line in ran.out.split())


def leaders(up: Up) -> Counter[int]:
    return Counter(each["leader"] for each in up.json("topic", "describe", "t")["partitions"])


def replicas(up: Up) -> Counter[int]:
    partitions = up.json("topic", "describe", "t")["partitions"]
    return Counter(broker for each in partitions for broker in each["replicas"])


def join(up: Up) -> None:
    made = up.run("topic", "create", "t", "-p", str(PARTITIONS))
    assert made.status == 0, made.err
    filled = up.run("produce", "t", stdin="".join(f"{value.decode()}\n" for value in OLD))
    assert filled.status == 0, filled.err
    added = up.broker("start", free_port())
    assert added.status == 0, added.err
    assert "added broker 4" in added.out


def check(up: Up, acked: list[bytes]) -> None:
    """Nothing lost, nothing twice, and everybody carries as much as the others."""
    assert values(up) == Counter([*OLD, *acked])
    assert set(leaders(up).values()) == {PARTITIONS // 4}
    assert set(replicas(up).values()) == {PARTITIONS * 3 // 4}
    assert up.json("cluster", "health", "--wait", "30")["healthy"]


def test_with_our_commands(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    with Up(tmp_path / "data", "--brokers", "3") as up:
        join(up)
        with load(up) as acked:
            planned = up.json("cluster", "reassign", "plan", "t", "-o", str(plan))
            assert planned["partitions"] == len(planned["moves"]) > 0
            assert up.run("cluster", "reassign", "verify", str(plan), "--dry-run").status == 6
            moved = up.run("cluster", "reassign", "execute", str(plan), "--throttle", "50MB")
            assert moved.status == 0, moved.err
            verified = up.run("cluster", "reassign", "verify", str(plan))
            assert verified.status == 0, verified.out
            assert up.json("cluster", "reassign", "list") == []
        assert len(acked) > 0
        check(up, acked)
        again = up.run("cluster", "reassign", "rebalance", "t", "--yes")
        assert "even already" in again.err
        assert "throttled" not in json.dumps(up.json("topic", "describe", "t")["configs"])


def test_with_kafkas_commands_and_files(tmp_path: Path) -> None:
    topics, plan = tmp_path / "topics.json", tmp_path / "plan.json"
    topics.write_text('{"topics":[{"topic":"t"}],"version":1}')

    with Up(tmp_path / "data", "--brokers", "3") as up:

        def reassign(*words: str) -> Ran:
            return script("kafka-reassign-partitions", "--bootstrap-server", up.bootstrap, *words)

        join(up)
        with load(up) as acked:
            generated = reassign(
                "--generate", "--topics-to-move-json-file", str(topics), "--broker-list", "1,2,3,4"
            )
            assert generated.status == 0, generated.err
            head, _, proposal = generated.out.partition(
                "\n\nProposed partition reassignment configuration\n"
            )
            assert head.startswith('Current partition replica assignment\n{"version":1,')
            plan.write_text(proposal)
            begun = reassign(
                "--execute", "--reassignment-json-file", str(plan), "--throttle", "50000000"
            )
            assert begun.status == 0, begun.out
            assert "Successfully started partition reassignments for t-" in begun.out
            verified = reassign("--verify", "--reassignment-json-file", str(plan))
            while "still in progress" in verified.out:
                verified = reassign("--verify", "--reassignment-json-file", str(plan))
            assert verified.out.count("is completed.") == PARTITIONS
            assert "Clearing topic-level throttles on topic t" in verified.out
            assert reassign("--list").out == "No partition reassignments found.\n"
            elected = script(
                "kafka-leader-election", "--bootstrap-server", up.bootstrap,
                "--election-type", "preferred", "--all-topic-partitions",
            )  # fmt: skip
            assert elected.status == 0, elected.err
        check(up, acked)
