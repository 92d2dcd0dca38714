"""`tidemill cluster` on one broker: what it shows, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.helpers import Ran, quick

from tidemill.cli.cluster import UNDER_MIN_ISR, UNDER_REPLICATED, _problem_of
from tidemill.cli.exits import Exit
from tidemill.cli.reassign import _rate
from tidemill.client.admin_types import PartitionDescription

Cli = Callable[..., Ran]


@pytest.fixture
def cli(bootstrap: str) -> Cli:
    return lambda *words: quick("-b", bootstrap, *words)


@pytest.fixture
def topic(cli: Cli, topic_name: Callable[[str], str]) -> str:
    name = topic_name("cluster")
    assert cli("topic", "create", name, "-p", "2").status == 0
    return name


def test_info(cli: Cli, topic: str) -> None:
    found = json.loads(cli("cluster", "info", "--format", "json").out)
    assert found["brokers"] == 1
    assert found["controller"] == 0
    assert found["cluster_id"]
    assert found["partitions"] >= 2


def test_brokers(cli: Cli, topic: str) -> None:
    [found] = json.loads(cli("cluster", "brokers", "--format", "json").out)
    assert found["controller"] is True
    assert found["leads"] == found["replicas"] == found["in_sync"] >= 2
    assert "CONTROLLER" in cli("cluster", "brokers").out


def test_health(cli: Cli, topic: str) -> None:
    ran = cli("cluster", "health")
    assert ran.status == 0, ran.out
    assert "HEALTHY" in ran.out
    told = json.loads(cli("cluster", "health", "--format", "json").out)
    assert told["problems"] == []
    assert told["unclean_elections"] == 0


def test_an_unhealthy_cluster_has_its_own_status(cli: Cli, topic: str) -> None:
    try:
        cli("topic", "alter", topic, "--set", "min.insync.replicas=2")
        ran = cli("cluster", "health", "--format", "json")
        assert ran.status == Exit.FAILED
        found = json.loads(ran.out)
        ours = [each for each in found["problems"] if each["what"].startswith(topic)]
        assert [each["problem"] for each in ours] == [UNDER_MIN_ISR] * 2
        assert found["under_min_isr"] >= 2
    finally:
        cli("topic", "delete", topic, "--yes")


@pytest.mark.parametrize(
    ("leader", "isr", "min_isr", "problem"),
    [
        (1, (1, 2, 3), 2, None),
        (1, (1, 2), 2, UNDER_REPLICATED),
        (1, (1,), 2, UNDER_MIN_ISR),
        (None, (1,), 1, "no leader"),
    ],
)
def test_a_partitions_worst_problem(
    leader: int | None, isr: tuple[int, ...], min_isr: int, problem: str | None
) -> None:
    partition = PartitionDescription(0, leader, 5, (1, 2, 3), isr)
    assert _problem_of(partition, min_isr) == problem


def test_elections_that_nobody_needs(cli: Cli, topic: str) -> None:
    ran = cli("cluster", "elect", topic)
    assert (ran.status, ran.out) == (0, "")
    assert "every preferred leader leads" in ran.err
    ran = cli("cluster", "elect", topic, "--unclean", "--yes")
    assert (ran.status, ran.out) == (0, "")
    assert "every partition has a leader" in ran.err


def test_elections_of_what_is_not_there(cli: Cli, topic: str) -> None:
    assert cli("cluster", "elect", "no-such-topic").status == Exit.NOT_FOUND
    assert cli("cluster", "elect", topic, "-p", "9").status == Exit.NOT_FOUND
    assert cli("cluster", "elect", "-p", "9").status == Exit.USAGE


def test_a_plan_that_moves_nothing(cli: Cli, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    ran = cli("cluster", "reassign", "plan", topic, "-o", str(file), "--format", "json")
    assert ran.status == 0, ran.err
    assert json.loads(ran.out)["partitions"] == 0
    assert json.loads(file.read_text()) == {"version": 1, "partitions": []}
    for verb in ("execute", "verify", "cancel"):
        done = cli("cluster", "reassign", verb, str(file))
        assert (done.status, done.out) == (0, ""), done.err


def test_a_plan_that_is_in_force(cli: Cli, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    row = {"topic": topic, "partition": 0, "replicas": [0]}
    file.write_text(json.dumps({"version": 1, "partitions": [row]}))
    ran = cli("cluster", "reassign", "execute", str(file))
    assert (ran.status, ran.out) == (0, "")
    assert "every partition is where the plan has it" in ran.err
    verified = json.loads(cli("cluster", "reassign", "verify", str(file), "--format", "json").out)
    assert [(each["name"], each["status"]) for each in verified] == [(f"{topic}-0", "arrived")]
    ran = cli("cluster", "reassign", "cancel", str(file))
    assert (ran.status, ran.out) == (0, "")
    assert "nothing moves" in ran.err


@pytest.mark.parametrize(
    ("partitions", "status"),
    [
        ([{"topic": "no-such-topic", "partition": 0, "replicas": [0]}], Exit.NOT_FOUND),
        ([{"topic": "T", "partition": 9, "replicas": [0]}], Exit.NOT_FOUND),
        ([{"topic": "T", "partition": 0, "replicas": [77]}], Exit.USAGE),
        ([{"topic": "T", "partition": 0, "replicas": [0], "log_dirs": ["/x"]}], Exit.USAGE),
        ("nonsense", Exit.USAGE),
    ],
)
def test_plans_that_cannot_be(
    cli: Cli, topic: str, tmp_path: Path, partitions: object, status: Exit
) -> None:
    file = tmp_path / "plan.json"
    file.write_text(
        json.dumps({"version": 1, "partitions": partitions}).replace('"T"', f'"{topic}"')
    )
    ran = cli("cluster", "reassign", "execute", str(file))
    assert ran.status == status, ran.err
    assert "Traceback" not in ran.err


def test_a_file_that_is_not_there(cli: Cli, tmp_path: Path) -> None:
    ran = cli("cluster", "reassign", "execute", str(tmp_path / "no.json"))
    assert ran.status == Exit.NOT_FOUND


def test_brokers_that_are_none(cli: Cli, topic: str) -> None:
    assert cli("cluster", "reassign", "plan", "--brokers", "77").status == Exit.NOT_FOUND
    assert cli("cluster", "reassign", "plan", "--brokers", "x").status == Exit.USAGE


@pytest.mark.parametrize(
    ("text", "rate"),
    [("20MB", 20 << 20), ("1.5k", 1536), ("7", 7), ("1GiB/s", 1 << 30), (None, None)],
)
def test_rates(text: str | None, rate: int | None) -> None:
    assert _rate(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "0", "-5", "5TB"])
def test_rates_that_are_none(cli: Cli, text: str) -> None:
    ran = cli("cluster", "reassign", "rebalance", f"--throttle={text}", "--yes")
    assert ran.status == Exit.USAGE
    assert "--throttle takes bytes per second" in ran.err
