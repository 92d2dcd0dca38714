"""A controller on a store in memory, with one or more brokers registered."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from tests.timers.helpers import HandClock

from tidemill.config import BrokerConfig, load_broker_config
from tidemill.controller import Controller
from tidemill.errors import ErrorCode
from tidemill.image import Endpoint
from tidemill.store.base import Store
from tidemill.store.memory import MemoryStore, MemoryTree
from tidemill.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
)

ENDPOINT = Endpoint("PLAINTEXT", "127.0.0.1", 9092)


def broker_config(**settings: str) -> BrokerConfig:
    """A broker's configuration; an underscore in a name stands for a dot."""
    overrides = {name.replace("_", "."): value for name, value in settings.items()}
    return load_broker_config(overrides=overrides)[0]


class Cluster:
    """One tree, and controllers on it: the first to start holds the office."""

    def __init__(self) -> None:
        self.clock = HandClock(1_700_000_000_000)
        self.tree = MemoryTree(self.clock)

    async def start(
        self,
        broker_id: int = 1,
        store: Store | None = None,
        rack: str | None = None,
        config: BrokerConfig | None = None,
    ) -> Controller:
        controller = Controller(
            store or MemoryStore(self.tree),
            config or broker_config(),
            self.clock,
            Random(broker_id),
            broker_id=broker_id,
        )
        await controller.start()
        await controller.register_broker([ENDPOINT], rack=rack)
        return controller


def topic(
    name: str,
    partitions: int = 1,
    factor: int = 1,
    assignments: Mapping[int, list[int]] | None = None,
    configs: Mapping[str, str | None] | None = None,
) -> CreatableTopic:
    manual = assignments is not None
    return CreatableTopic(
        name=name,
        num_partitions=-1 if manual else partitions,
        replication_factor=-1 if manual else factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=broker_ids)
            for index, broker_ids in (assignments or {}).items()
        ],
        configs=[
            CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()
        ],
    )


async def create(controller: Controller, *topics: CreatableTopic) -> list[CreatableTopicResult]:
    return await controller.create_topics(topics)


def outcome(result: CreatableTopicResult) -> tuple[str, str, str | None]:
    return result.name, ErrorCode(result.error_code).name, result.error_message
