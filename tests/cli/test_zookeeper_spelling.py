"""`--zookeeper` of old runbooks: brokers that are registered there are found, whoever they are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from tests.cli.helpers import script

from tidemill.cli.kafka.zookeeper import address_of
from tidemill.testing.zookeeper import ZooKeeperEnsemble, unavailable_reason


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if reason := unavailable_reason():
        pytest.skip(f"NO ZOOKEEPER: {reason}")
    with ZooKeeperEnsemble(tmp_path_factory.mktemp("zookeeper"), servers=1) as ensemble:
        yield ensemble.hosts


def register(hosts: str, chroot: str, bootstrap: str) -> None:
    client = KazooClient(hosts=hosts)
    client.start()
    try:
        value = json.dumps({"version": 4, "endpoints": [f"PLAINTEXT://{bootstrap}"]}).encode()
        client.create(f"{chroot}/brokers/ids/0", value, makepath=True)
    finally:
        client.stop()
        client.close()


def test_brokers_are_found_below_the_path(zookeeper: str, bootstrap: str) -> None:
    register(zookeeper, "/some/path", bootstrap)
    ran = script("kafka-topics", "--zookeeper", f"{zookeeper}/some/path", "--list")
    assert ran.status == 0, ran.err
    assert ran.err == f"--zookeeper {zookeeper}/some/path: its brokers are {bootstrap}\n"
    ran = script("kafka-reassign-partitions", "--zookeeper", f"{zookeeper}/some/path", "--list")
    assert (ran.status, ran.out) == (0, "No partition reassignments found.\n")


def test_a_list_of_broker_ids_is_no_address(zookeeper: str, bootstrap: str, tmp_path: Path) -> None:
    """`--broker-list 0,1` names ids here, and elsewhere, in old spelling, addresses."""
    register(zookeeper, "/ids", bootstrap)
    (tmp_path / "topics.json").write_text('{"version":1,"topics":[{"topic":"not-there"}]}')
    words = "--generate --topics-to-move-json-file topics.json --broker-list 1"
    ran = script(
        "kafka-reassign-partitions", "--zookeeper", f"{zookeeper}/ids", *words.split(), cwd=tmp_path
    )
    assert f"its brokers are {bootstrap}" in ran.err
    assert "not-there" in ran.out + ran.err, "it got as far as asking for the topic"


def test_a_zookeeper_without_brokers_is_said(zookeeper: str, tmp_path: Path) -> None:
    ran = script("kafka-topics", "--zookeeper", f"{zookeeper}/nothing", "--list", cwd=tmp_path)
    assert ran.status == 1
    assert ran.out + ran.err == f"no broker is registered at {zookeeper}/nothing/brokers/ids\n"


def test_what_is_no_address_is_said(tmp_path: Path) -> None:
    ran = script("kafka-topics", "--zookeeper", "h:2181/a,h:2181/b", "--list", cwd=tmp_path)
    assert ran.status == 1
    assert "the path goes once" in ran.out + ran.err


@pytest.mark.parametrize(
    ("registration", "address"),
    [
        (b'{"endpoints":["PLAINTEXT://h:1","SSL://h:2"],"host":"x","port":3}', "h:1"),
        (b'{"endpoints":[],"host":"x","port":3}', "x:3"),
        (b'{"host":"x","port":3,"version":1}', "x:3"),
    ],
)
def test_addresses_of_old_and_new_registrations(registration: bytes, address: str) -> None:
    assert address_of(registration) == address
