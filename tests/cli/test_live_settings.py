"""What the commands say of a running broker: where it lives, and what its settings are."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.helpers import Ran, quick

from tidemill.cli.exits import Exit
from tidemill.testing.process import BrokerProcess

HERE = "what `tidemill up` would use here"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker of our own, because these tests change its settings."""
    data_dir = tmp_path_factory.mktemp("live") / "data"
    with BrokerProcess(data_dir, {"log.retention.hours": "24"}) as running:
        yield running


def explained(broker: BrokerProcess, *arguments: str) -> dict[str, Any]:
    ran = quick("config", "explain", *arguments, "-b", broker.bootstrap, "--format", "json")
    assert ran.status == 0, ran.err
    found: dict[str, Any] = json.loads(ran.out)
    return found


def alter(broker: BrokerProcess, *arguments: str) -> Ran:
    return quick("config", "set", *arguments, "-b", broker.bootstrap)


def test_status_shows_a_live_broker_as_a_table(broker: BrokerProcess) -> None:
    ran = quick("status", "--data-dir", str(broker.data_dir))
    assert ran.status == 0, ran.err
    title, headings, row = ran.out.splitlines()
    assert title == "BROKERS"
    assert headings.split()[:4] == ["ID", "HOST", "PORT", "PID"]
    assert row.split()[:3] == ["0", "127.0.0.1", str(broker.port)]


def test_explain_asks_the_broker(broker: BrokerProcess) -> None:
    found = explained(broker, "log.retention.hours")
    assert (found["current"], found["default"]) == ("24", "168")
    assert found["origin"].startswith("set at its start")
    assert found["seen_at"] == f"broker 0 at {broker.bootstrap}"
    assert alter(broker, "brokers", "log.retention.ms=60000").status == 0
    try:
        found = explained(broker, "log.retention.ms")
        assert (found["current"], found["origin"]) == ("60000", "set for all brokers")
        topic = explained(broker, "retention.ms")
        assert topic["current"] == "60000"
        assert topic["origin"] == "set for all brokers (log.retention.ms)"
    finally:
        assert alter(broker, "brokers", "--delete", "log.retention.ms").status == 0
    assert explained(broker, "retention.ms")["current"] == str(24 * 3_600_000)
    limit = explained(broker, "max.connections")
    assert limit["current"] == limit["default"]
    assert limit["kafka_default"] == "2147483647"


def test_explain_of_a_file_asks_no_broker(broker: BrokerProcess, tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("log.retention.hours=7\n")
    found = explained(broker, "log.retention.hours", "--config", str(file))
    assert (found["current"], found["origin"]) == ("7", "server.properties:1")
    assert found["seen_at"] == HERE
    found = explained(broker, "log.retention.hours", "--set", "log.retention.hours=8")
    assert (found["current"], found["origin"]) == ("8", "--set")
    printed = quick("config", "print", "--config", str(file), "--format", "json")
    assert json.loads(printed.out) == [
        {
            "key": "log.retention.hours",
            "value": "7",
            "source": "server.properties:1",
            "read_only": True,
        }
    ]


def test_explain_without_a_broker_is_quick_and_silent(tmp_path: Path) -> None:
    started = time.monotonic()
    variables = {"TIDEMILL_BOOTSTRAP": "127.0.0.1:1", "TIDEMILL_LOG_RETENTION_HOURS": "3"}
    ran = quick("config", "explain", "log.retention.hours", variables=variables, cwd=tmp_path)
    assert (ran.status, ran.err) == (0, "")
    rows = dict(line.split("  ", 1) for line in ran.out.splitlines() if "  " in line)
    assert rows["CURRENT"].strip() == "3"
    assert rows["ORIGIN"].strip() == "$TIDEMILL_LOG_RETENTION_HOURS"
    assert rows["SEEN AT"].strip() == HERE
    assert "DEFAULT IN 2.8" in ran.out
    assert time.monotonic() - started < 10


def test_explain_of_a_broker_that_was_named_wants_its_answer() -> None:
    """A value from elsewhere would be taken for that broker's."""
    ran = quick("config", "explain", "log.retention.hours", "-b", "127.0.0.1:1")
    assert ran.status == Exit.UNREACHABLE, ran.out
    assert "127.0.0.1:1" in ran.err


def test_a_listener_cannot_be_changed_while_the_broker_runs(broker: BrokerProcess) -> None:
    refused = alter(broker, "broker/0", "listeners=PLAINTEXT://0.0.0.0:1")
    assert refused.status != 0
    assert "Cannot update these configs dynamically: [listeners]" in refused.err
    assert "restart" in refused.err
    command = ("config", "get", "broker/0", "listeners", "max.connections", "--format", "json")
    got = quick(*command, "-b", broker.bootstrap)
    by_key = {row["key"]: row for row in json.loads(got.out)}
    assert by_key["listeners"]["value"] == f"PLAINTEXT://{broker.bootstrap}"
    assert by_key["listeners"]["read_only"] is True
    assert by_key["max.connections"]["read_only"] is False


def test_a_broker_that_is_not_there_is_not_found(broker: BrokerProcess) -> None:
    ran = alter(broker, "broker/7", "max.connections=5")
    assert ran.status == Exit.NOT_FOUND, ran.err
    assert "7" in ran.err
