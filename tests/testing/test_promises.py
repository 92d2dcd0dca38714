"""What settings promise, as a table: one line per setting that matters."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill.client import Consumer, Producer
from tidemill.testing.anomalies import Anomaly
from tidemill.testing.validation.promises import (
    Commits,
    Scenario,
    Setup,
    TopicSettings,
    commits_of,
    expect,
    remarks,
)

KILL, ROLL, UNCLEAN = Scenario.LEADER_KILL, Scenario.ROLLING_RESTART, Scenario.UNCLEAN_ELECTION
GROUP = {"group.id": "g", "auto.offset.reset": "earliest"}


def setup(
    producer: dict[str, Any] | None = None,
    consumer: dict[str, Any] | None = None,
    by_hand: Commits = Commits.AFTER,
    **topic: Any,
) -> Setup:
    reads = Consumer("127.0.0.1:1", **(consumer or {})).settings
    writes = Producer("127.0.0.1:1", **(producer or {})).settings
    return Setup(writes, reads, TopicSettings(**topic), commits_of(reads, by_hand))


PRODUCERS = [
    # settings, topic, scenario -> which mishaps may happen, and the setting that is named
    ({}, {}, KILL, {}),
    ({}, {}, UNCLEAN, {}),
    ({"acks": "-1"}, {}, KILL, {}),
    ({"acks": "0"}, {}, KILL, {"lost": "acks=0", "duplicated": "enable.", "reordered": "max.in"}),
    ({"acks": "1"}, {}, KILL, {"lost": "acks=1", "duplicated": "enable.", "reordered": "max.in"}),
    ({"acks": "1"}, {}, ROLL, {"lost": "acks=1", "duplicated": "enable.", "reordered": "max.in"}),
    ({"acks": "1", "retries": "0"}, {}, KILL, {"lost": "acks=1"}),
    (
        {"acks": "1", "max.in.flight.requests.per.connection": "1"},
        {},
        KILL,
        {"lost": "acks=1", "duplicated": "enable."},
    ),
    # The only replica's disk outlives its process: nobody else may take records back.
    ({"acks": "1", "retries": "0"}, {"replication_factor": 1, "min_insync_replicas": 1}, KILL, {}),
    (
        {"enable.idempotence": "false"},
        {},
        KILL,
        {"duplicated": "enable.idempotence=false", "reordered": "max.in.flight"},
    ),
    ({"enable.idempotence": "false", "retries": "0"}, {}, KILL, {}),
    (
        {"enable.idempotence": "false", "max.in.flight": "1"},
        {},
        KILL,
        {"duplicated": "enable.idempotence=false"},
    ),
    # More in flight than an idempotent producer may have: it is none.
    ({"max.in.flight": "10"}, {}, KILL, {"duplicated": "enable.", "reordered": "=10"}),
    # One replica is enough: whoever has it comes back with it.
    ({}, {"min_insync_replicas": 1}, KILL, {}),
    ({}, {"min_insync_replicas": 1}, UNCLEAN, {}),
    # An acked record is on two brokers, and one of them dies: no need for an unclean election.
    ({}, {"unclean_leader_election_enable": True}, KILL, {}),
    ({}, {"unclean_leader_election_enable": True}, UNCLEAN, {"lost": "unclean."}),
    (
        {},
        {"unclean_leader_election_enable": True, "min_insync_replicas": 1},
        KILL,
        {"lost": "unclean."},
    ),
    (
        {},
        {
            "unclean_leader_election_enable": True,
            "replication_factor": 1,
            "min_insync_replicas": 1,
        },
        UNCLEAN,
        {},
    ),
]


@pytest.mark.parametrize(("producer", "topic", "scenario", "may"), PRODUCERS)
def test_what_a_producer_and_a_topic_promise(
    producer: dict[str, str], topic: dict[str, Any], scenario: Scenario, may: dict[str, str]
) -> None:
    expectation = expect(setup(producer, **topic), scenario)
    for mishap in ("lost", "duplicated", "reordered"):
        clause = expectation.of(mishap)
        assert clause.may_happen == (mishap in may), (mishap, clause)
        assert may.get(mishap, "") in clause.why
        assert clause.why


CONSUMERS = [
    ({}, Commits.AFTER, Commits.NEVER, {}),
    (GROUP, Commits.AFTER, Commits.AUTO, {"redelivered": "enable.auto.commit=true"}),
    (
        {**GROUP, "enable.auto.commit": "false"},
        Commits.AFTER,
        Commits.AFTER,
        {"redelivered": "committed after"},
    ),
    (
        {**GROUP, "enable.auto.commit": "false"},
        Commits.BEFORE,
        Commits.BEFORE,
        {"undelivered": "committed before"},
    ),
    (
        {"group.id": "g"},
        Commits.AFTER,
        Commits.AUTO,
        {"undelivered": "auto.offset.reset=latest", "redelivered": "enable.auto.commit"},
    ),
    (
        {**GROUP, "auto.offset.reset": "by_duration:PT1H"},
        Commits.AFTER,
        Commits.AUTO,
        {"undelivered": "with its last records", "redelivered": "auto"},
    ),
    ({**GROUP, "auto.offset.reset": "none"}, Commits.AFTER, Commits.AUTO, {"redelivered": "auto"}),
]


@pytest.mark.parametrize(("consumer", "by_hand", "commits", "may"), CONSUMERS)
@pytest.mark.parametrize("scenario", Scenario)
def test_what_a_consumer_promises(
    consumer: dict[str, str],
    by_hand: Commits,
    commits: Commits,
    may: dict[str, str],
    scenario: Scenario,
) -> None:
    found = setup(consumer=consumer, by_hand=by_hand)
    assert found.commits is commits
    expectation = expect(found, scenario)
    for mishap in ("undelivered", "redelivered"):
        clause = expectation.of(mishap)
        assert clause.may_happen == (mishap in may), (mishap, clause)
        assert may.get(mishap, "") in clause.why


def test_where_records_may_vanish_a_reader_may_miss_some_and_see_some_twice() -> None:
    """Offsets of records that vanish are given out again, behind the reader's position."""
    expectation = expect(setup({"acks": "1"}), KILL)
    assert expectation.undelivered.may_happen
    assert expectation.redelivered.may_happen
    assert "acks=1" in expectation.undelivered.why


def test_the_history_checker_is_told_the_same() -> None:
    strict = setup()
    loose = setup({"acks": "1"}, GROUP)
    assert Anomaly.LOST_WRITE not in expect(strict, KILL).promise(strict).allowed()
    assert Anomaly.DUPLICATE not in expect(strict, KILL).promise(strict).allowed()
    allowed = expect(loose, KILL).promise(loose).allowed()
    assert {Anomaly.LOST_WRITE, Anomaly.DUPLICATE, Anomaly.POLL_SKIP} <= allowed


@pytest.mark.parametrize(
    ("producer", "topic", "words"),
    [
        ({}, {}, None),
        ({}, {"min_insync_replicas": 1}, "single copy"),
        ({}, {"min_insync_replicas": 3}, "while one broker is down"),
        ({}, {"replication_factor": 1, "min_insync_replicas": 1}, "gone with"),
        ({"acks": "1"}, {}, "no effect with acks=1"),
        ({"retries": "0"}, {}, "retries=0"),
    ],
)
def test_what_killed_processes_cannot_show_is_remarked(
    producer: dict[str, str], topic: dict[str, Any], words: str | None
) -> None:
    found = remarks(setup(producer, **topic))
    assert found == [] if words is None else any(words in each for each in found)
