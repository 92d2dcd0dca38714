"""`tidemill up --store zk://...`: brokers that meet at a ZooKeeper, and how tools find them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.helpers import script
from tests.cli.ups import Up
from tests.waiting import eventually

from tidemill.testing.zookeeper import ZooKeeperEnsemble, unavailable_reason

pytestmark = [pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if reason := unavailable_reason():
        pytest.skip(f"NO ZOOKEEPER: {reason}")
    with ZooKeeperEnsemble(tmp_path_factory.mktemp("zookeeper"), servers=1) as ensemble:
        yield ensemble.hosts


def test_each_up_is_one_broker_of_the_cluster(zookeeper: str, tmp_path: Path) -> None:
    """The path is made; numbers come from the store; old spellings find the brokers there."""
    where = f"{zookeeper}/kept/for/us"
    with (
        Up(tmp_path / "first", "--store", f"zk://{where}") as first,
        Up(tmp_path / "second", "--store", f"zk://{where}") as second,
    ):
        ids = sorted(each.status()["brokers"][0]["id"] for each in (first, second))
        assert ids[0] > 1000
        assert ids == sorted(set(ids))
        eventually(lambda: len(first.json("cluster", "brokers")) == 2)
        words = ("--topic", "t", "--partitions", "2", "--replication-factor", "2")
        made = script("kafka-topics", "--zookeeper", where, "--create", *words)
        assert made.out == "Created topic t.\n", made.err
        partitions = second.json("topic", "describe", "t")["partitions"]
        assert [sorted(each["replicas"]) for each in partitions] == [ids, ids]
        listed = script("kafka-reassign-partitions", "--zookeeper", where, "--list")
        assert listed.out == "No partition reassignments found.\n"
        assert second.stop() == 0, second.said
        assert first.stop() == 0, first.said


def test_several_brokers_of_one_machine_on_zookeeper(zookeeper: str, tmp_path: Path) -> None:
    with Up(tmp_path / "data", "--brokers", "2", "--store", f"zk://{zookeeper}/many") as up:
        before = {each["port"]: each["id"] for each in up.status()["brokers"]}
        assert up.run("topic", "create", "t", "-p", "2", "-r", "2").status == 0
        port = up.ports[1]
        up.kill(port)
        eventually(lambda: "was killed by SIGKILL" in up.said)
        back = up.broker("start", port)
        assert back.status == 0, back.err
        after = {each["port"]: each["id"] for each in up.status()["brokers"]}
        assert after == before, "a broker that comes back has its number still"
        assert up.json("cluster", "health", "--wait", "30")["healthy"]
        assert up.stop() == 0, up.said
