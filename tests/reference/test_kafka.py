"""The reference itself runs: a node that starts, serves Kafka's own commands, and goes away."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.reference.kafka import ApacheKafka, SharedKafka, run_kafka_tool, shared_kafka


def test_a_topic_is_created_and_described(apache_kafka: SharedKafka) -> None:
    common = ("--bootstrap-server", apache_kafka.bootstrap, "--topic", "reference-smoke")
    run_kafka_tool("kafka-topics", "--create", *common, "--partitions", "3", check=True)
    described = run_kafka_tool("kafka-topics", "--describe", *common, check=True)
    assert "PartitionCount: 3" in described.stdout
    run_kafka_tool("kafka-topics", "--delete", *common, check=True)


def test_users_of_one_run_share_the_node(apache_kafka: SharedKafka, run_dir: Path) -> None:
    with shared_kafka(run_dir) as second:
        assert second.pid == apache_kafka.pid
    os.kill(apache_kafka.pid, 0)  # it lives on while this test's fixture uses it


def test_a_node_leaves_nothing_behind(apache_kafka: SharedKafka) -> None:
    with ApacheKafka(properties={"num.partitions": "5"}) as node:
        pid, directory = node.pid, node.directory
        assert node.data_dir.is_dir()
    assert not directory.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
