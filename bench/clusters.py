"""Clusters under test, started, killed and stopped alike: `TidemillCluster` and `KafkaCluster`.

Both have their brokers on this machine, one process each, with the same timeouts, and Kafka's nodes
are brokers and controllers in one, as Tidemill's are. `kill` is SIGKILL, `revive` starts the same
broker on its data again.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from tests.reference.kafka import ApacheKafka

from bench.systems import MODES
from tidemill.testing.process import BrokerProcess
from tidemill.testing.zookeeper import ZooKeeperServer

SESSION_TIMEOUT_MS = 9_000
LAG_TIME_MAX_MS = 5_000

TIMEOUTS = {
    "broker.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "replica.lag.time.max.ms": str(LAG_TIME_MAX_MS),
    "request.timeout.ms": "30000",
    "replica.fetch.wait.max.ms": "500",
    "controller.socket.timeout.ms": "30000",
}
REPLICATION = {
    "num.partitions": "1",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "auto.leader.rebalance.enable": "false",
}
ZOOKEEPER_TICK_MS = 1_000
"""A server grants sessions of up to twenty ticks."""
KAFKA_HEAP = "512m"
READY_TIMEOUT_S = 180


class Cluster(Protocol):
    """Several brokers that a benchmark can drive and kill."""

    name: str

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def kill(self, broker_id: int) -> None: ...
    def revive(self, broker_id: int) -> None: ...
    def address(self, broker_id: int) -> str: ...
    def pid(self, broker_id: int) -> int: ...

    @property
    def alive(self) -> list[int]: ...

    @property
    def bootstrap(self) -> str: ...


class _Members:
    """What both clusters share: which brokers live, and where."""

    def __init__(self, count: int) -> None:
        self._ids = list(range(1, count + 1))
        self._dead: set[int] = set()

    @property
    def alive(self) -> list[int]:
        return [broker_id for broker_id in self._ids if broker_id not in self._dead]

    @property
    def bootstrap(self) -> str:
        return ",".join(self.address(broker_id) for broker_id in self._ids)

    def address(self, broker_id: int) -> str:
        raise NotImplementedError

    def start(self) -> None:
        """All brokers, or none: nothing is left behind by a start that failed."""
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError


class TidemillCluster(_Members):
    """Tidemill brokers that share a store: a SQLite file, or a ZooKeeper server of their own."""

    def __init__(
        self,
        count: int,
        settings: Mapping[str, str] | None = None,
        *,
        on_zookeeper: bool = False,
        name: str = "tidemill",
    ) -> None:
        super().__init__(count)
        self.name = name
        self._settings = {**REPLICATION, **TIMEOUTS, **(settings or {})}
        self._on_zookeeper = on_zookeeper
        self._zookeeper: ZooKeeperServer | None = None
        self._brokers: dict[int, BrokerProcess] = {}

    def _start(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tidemill-bench-"))
        store = f"sqlite://{self._folder / 'store.db'}"
        if self._on_zookeeper:
            self._zookeeper = ZooKeeperServer(
                self._folder / "zookeeper", tick_ms=ZOOKEEPER_TICK_MS
            ).start()
            store = f"zk://{self._zookeeper.address}/bench"
        self._brokers = {
            broker_id: BrokerProcess(
                self._folder / f"broker-{broker_id}",
                {**self._settings, "store.url": store, "node.id": str(broker_id)},
            )
            for broker_id in self._ids
        }
        for broker in self._brokers.values():
            broker.start()

    def stop(self) -> None:
        for broker in self._brokers.values():
            broker.kill()
        if self._zookeeper is not None:
            self._zookeeper.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def kill(self, broker_id: int) -> None:
        self._brokers[broker_id].kill()
        self._dead.add(broker_id)

    def stop_broker(self, broker_id: int) -> None:
        """SIGTERM: the broker hands over what it leads, and goes."""
        self._brokers[broker_id].stop()
        self._dead.add(broker_id)

    def revive(self, broker_id: int) -> None:
        self._brokers[broker_id].start()
        self._dead.discard(broker_id)

    def address(self, broker_id: int) -> str:
        return self._brokers[broker_id].bootstrap

    def pid(self, broker_id: int) -> int:
        return self._brokers[broker_id].pid


class KafkaCluster(_Members):
    """Apache Kafka 4.3.1: KRaft nodes in combined mode, each in a small heap."""

    name = "kafka"

    def __init__(self, count: int, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(count)
        self._settings = {**REPLICATION, **TIMEOUTS, **(settings or {})}

    def _start(self) -> None:
        self._nodes = {
            broker_id: ApacheKafka(heap=KAFKA_HEAP, properties=self._settings)
            for broker_id in self._ids
        }
        voters = ",".join(
            f"{broker_id}@127.0.0.1:{node.controller_port}"
            for broker_id, node in self._nodes.items()
        )
        for broker_id, node in self._nodes.items():
            node.properties |= {"node.id": str(broker_id), "controller.quorum.voters": voters}
            node.format()
        # None is ready before a majority is there.
        for node in self._nodes.values():
            node.start(wait=False)
        for node in self._nodes.values():
            node.wait_until_ready(READY_TIMEOUT_S)

    def stop(self) -> None:
        for node in self._nodes.values():
            node.stop(signal_number=signal.SIGKILL)
            node.close()

    def kill(self, broker_id: int) -> None:
        self._nodes[broker_id].stop(signal_number=signal.SIGKILL)
        self._dead.add(broker_id)

    def revive(self, broker_id: int) -> None:
        self._nodes[broker_id].start()
        self._dead.discard(broker_id)

    def address(self, broker_id: int) -> str:
        return self._nodes[broker_id].bootstrap

    def pid(self, broker_id: int) -> int:
        return self._nodes[broker_id].pid


def both_clusters(mode: str, *, brokers: int = 3, on_zookeeper: bool = False) -> list[Cluster]:
    """Fresh clusters of both systems in one durability mode (`systems.MODES`)."""
    ours, theirs = MODES[mode]
    return [
        TidemillCluster(brokers, ours, on_zookeeper=on_zookeeper),
        KafkaCluster(brokers, theirs),
    ]
