"""Which options go together: what Kafka's own commands refuse, ours refuse in the same words.

An option that has no meaning beside another was meant for something else. A command that does the
rest all the same may delete more than it was asked to.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.test_kafka_reference import first_complaint
from tests.reference.kafka import SharedKafka
from tests.reference.tool_batch import ToolBatch

from tidemill.cli.kafka import configs, consumer_perf_test, delete_records, topics
from tidemill.cli.kafka.common import UsageError

pytestmark = [pytest.mark.reference, pytest.mark.timeout(240)]

ACTIONS = ("list", "describe", "create", "alter", "delete")
FLAGS = {
    "": [],
    "partitions": ["3"],
    "replication-factor": ["1"],
    "replica-assignment": ["1"],
    "config": ["flush.ms=9"],
    "if-exists": [],
    "if-not-exists": [],
    "exclude-internal": [],
    "topics-with-overrides": [],
    "under-replicated-partitions": [],
    "unavailable-partitions": [],
    "under-min-isr-partitions": [],
    "at-min-isr-partitions": [],
    "partition-size-limit-per-response": ["5"],
}
PAIRS = [
    ("create", "replica-assignment", "partitions"),
    ("create", "replica-assignment", "replication-factor"),
    ("alter", "replica-assignment", "partitions"),
    ("describe", "under-replicated-partitions", "at-min-isr-partitions"),
    ("describe", "topics-with-overrides", "under-replicated-partitions"),
    ("describe", "topics-with-overrides", "exclude-internal"),
]


@pytest.fixture(scope="module")
def batch(apache_kafka: SharedKafka) -> Iterator[ToolBatch]:
    with ToolBatch() as running:
        yield running


def _lines_about_topics() -> Iterator[list[str]]:
    stem = f"arguments-{time.time_ns()}"
    for number, (action, flag) in enumerate(itertools.product(ACTIONS, FLAGS)):
        if (action, flag) == ("alter", "config"):
            continue  # what Kafka dropped and runbooks still hold: tests/cli/test_spellings.py
        named = [f"--{flag}", *FLAGS[flag]] if flag else []
        yield [f"--{action}", *named]
        yield [f"--{action}", "--topic", f"{stem}-{number}", *named]
    for action, *flags in PAIRS:
        words = [word for flag in flags for word in (f"--{flag}", *FLAGS[flag])]
        yield [f"--{action}", "--topic", f"{stem}-{action}", *words]
    yield ["--describe", "--topic-id", "AAAAAAAAAAAAAAAAAAAAAQ", "--if-exists"]


def _refusal_of_topics(words: list[str]) -> str | None:
    try:
        topics.check(topics.parser().read(words))
    except UsageError as error:
        return str(error)
    return None


def test_options_of_topics_go_together_as_in_kafka(
    batch: ToolBatch, apache_kafka: SharedKafka
) -> None:
    address = ["--bootstrap-server", apache_kafka.bootstrap]
    refused = 0
    for words in _lines_about_topics():
        done = batch.run("kafka-topics", *address, *words)
        # Kafka prints its options after what is wrong with them, and only then.
        theirs = first_complaint(done.stderr) if "Description" in done.stderr else None
        assert _refusal_of_topics([*address, *words]) == theirs, words
        refused += theirs is not None
    assert refused > 50


@pytest.mark.parametrize("action", ["list", "describe", "create", "delete"])
def test_delete_config_is_for_alter(
    action: str, batch: ToolBatch, apache_kafka: SharedKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    """With `--alter` runbooks still hold it; elsewhere it never meant anything."""
    words = ["--bootstrap-server", apache_kafka.bootstrap, f"--{action}", "--topic", "none-such"]
    words += ["--delete-config", "flush.ms"]
    theirs = batch.run("kafka-topics", *words)
    assert topics.main(words) == theirs.returncode == 1
    assert first_complaint(capsys.readouterr().err) == first_complaint(theirs.stderr)


CONFIGS = [
    "--describe --topic T --add-config a=b",
    "--describe --topic T --delete-config a",
    "--describe --topic T --entity-name T",
    "--describe --topic T --entity-type topics",
    "--describe --topic T --broker 1",
    "--describe --entity-type topics --entity-type brokers",
    "--describe --entity-type topics --entity-name T --entity-default",
    "--describe --entity-type topics --entity-default",
    "--describe --entity-type brokers --broker-defaults",
    "--describe --broker 1 --broker-defaults",
    "--describe --entity-type brokers --entity-name 1 --entity-name 2",
    "--describe --bootstrap-controller 127.0.0.1:1 --topic T",
    "--alter --topic T --add-config a=b --add-config-file none",
    "--alter --entity-type topics --add-config a=b",
    "--alter --entity-type topics --entity-default",
    "--alter --entity-type topics --entity-name T --entity-default",
    "--alter --entity-type topics --entity-name T --entity-default --add-config a=b",
    "--alter --entity-type topics --entity-default --add-config a=b",
    "--alter --entity-type groups --add-config a=b",
    "--alter --entity-type groups --entity-default --add-config a=b",
    "--alter --entity-type brokers --add-config a=b",
    "--alter --entity-type brokers --entity-name 1 --entity-default --add-config a=b",
]


def test_options_of_configs_go_together_as_in_kafka(
    batch: ToolBatch, apache_kafka: SharedKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in CONFIGS:
        words = ["--bootstrap-server", apache_kafka.bootstrap, *line.split()]
        theirs = batch.run("kafka-configs", *words)
        status = configs.main(words)
        ours = capsys.readouterr()
        assert (status, ours.out) == (theirs.returncode, theirs.stdout) == (1, ""), line
        assert first_complaint(ours.err) == first_complaint(theirs.stderr), line


def test_a_report_every_no_milliseconds_is_refused(
    batch: ToolBatch, apache_kafka: SharedKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--bootstrap-server", apache_kafka.bootstrap, "--topic", "none-such"]
    words += ["--num-records", "1", "--reporting-interval", "0"]
    theirs = batch.run("kafka-consumer-perf-test", *words)
    assert consumer_perf_test.main(words) == theirs.returncode == 1
    assert first_complaint(capsys.readouterr().err) == first_complaint(theirs.stderr)


OFFSETS = [
    "[]",
    "null",
    '{"version": 2, "partitions": []}',
    '{"version": "1", "partitions": []}',
    '{"version": 1.0, "partitions": []}',
    '{"version": 1}',
    '{"partitions": {}}',
    '{"partitions": [1]}',
    '{"partitions": [{"partition": 0, "offset": 1}]}',
    '{"partitions": [{"topic": "t", "offset": 1}]}',
    '{"partitions": [{"topic": "t", "partition": 0}]}',
    '{"partitions": [{"topic": 1, "partition": 0, "offset": 1}]}',
    '{"partitions": [{"topic": "t", "partition": "0", "offset": 1}]}',
    '{"partitions": [{"topic": "t", "partition": true, "offset": 1}]}',
    '{"partitions": [{"topic": "t", "partition": 4294967296, "offset": 1}]}',
    '{"partitions": [{"topic": "t", "partition": 0, "offset": "1"}]}',
    '{"partitions": [{"topic": "t", "partition": 0, "offset": 1.5}]}',
]


def test_offsets_to_delete_are_read_as_kafka_reads_them(
    batch: ToolBatch,
    apache_kafka: SharedKafka,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is cut off is gone, so a file that Kafka would not take is not guessed at."""
    for number, text in enumerate(OFFSETS):
        path = tmp_path / f"{number}.json"
        path.write_text(text)
        words = ["--bootstrap-server", apache_kafka.bootstrap, "--offset-json-file", str(path)]
        theirs = batch.run("kafka-delete-records", *words)
        status = delete_records.main(words)
        ours = capsys.readouterr()
        assert (status, ours.out) == (theirs.returncode, theirs.stdout) == (1, ""), text
        assert first_complaint(ours.err) == first_complaint(theirs.stderr), text
