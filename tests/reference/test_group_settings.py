"""Settings of single groups: set, described, listed and refused as by Apache Kafka."""

from __future__ import annotations

import time

from tests.reference.group_steps import Stage, play
from tests.reference.pair import Pair

from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    ListConfigResourcesRequest,
)

GROUP = 32
SET, DELETE, APPEND = 0, 1, 2
SESSION = "consumer.session.timeout.ms"
HEARTBEAT = "consumer.heartbeat.interval.ms"
ASSIGNMENT = "consumer.assignment.interval.ms"


class Settings:
    """The settings of one group on one system."""

    def __init__(self, stage: Stage, group: str) -> None:
        self.stage, self.group = stage, group

    def alter(
        self,
        step: str,
        *changes: tuple[str, int, str | None],
        group: str | None = None,
        validate_only: bool = False,
    ) -> None:
        resource = IncrementalAlterConfigsResource(
            resource_type=GROUP,
            resource_name=self.group if group is None else group,
            configs=[
                IncrementalAlterableConfig(name=name, config_operation=operation, value=value)
                for name, operation, value in changes
            ],
        )
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
        self.stage.ask(step, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)
        self.pause()

    def replace(self, step: str, **values: str) -> None:
        configs = [AlterableConfig(name=HEARTBEAT, value=value) for value in values.values()]
        resource = AlterConfigsResource(
            resource_type=GROUP, resource_name=self.group, configs=configs
        )
        request = AlterConfigsRequest(resources=[resource])
        self.stage.ask(step, ApiKey.ALTER_CONFIGS, 2, request)
        self.pause()

    def describe(self, step: str, *keys: str, group: str | None = None, version: int = 4) -> None:
        resource = DescribeConfigsResource(
            resource_type=GROUP,
            resource_name=self.group if group is None else group,
            configuration_keys=list(keys) or None,
        )
        request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
        self.stage.ask(step, ApiKey.DESCRIBE_CONFIGS, version, request)

    def list(self, step: str) -> None:
        request = ListConfigResourcesRequest(resource_types=[GROUP])
        answer = self.stage.peer.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, request)
        answer.config_resources = [
            each for each in answer.config_resources if each.resource_name == self.group
        ]
        self.stage.note(step, ApiKey.LIST_CONFIG_RESOURCES, 1, answer)

    def pause(self) -> None:
        """Kafka's brokers hear of a change after its answer has left."""
        if self.stage.peer.name == "kafka":
            time.sleep(0.2)


def test_set_described_and_taken_back(pair: Pair, name: str) -> None:
    def scenario(stage: Stage) -> None:
        group = Settings(stage, f"{name}/a.b")
        group.describe("without any")
        group.list("not listed")
        group.alter("set two", (SESSION, SET, "50000"), (ASSIGNMENT, SET, "0"))
        for version in (1, 2, 3, 4):
            group.describe("set", SESSION, HEARTBEAT, version=version)
        group.describe("all")
        group.list("listed")
        group.alter("only tried", (SESSION, SET, "51000"), validate_only=True)
        group.describe("as before", SESSION)
        group.replace("replaced", heartbeat="6000")
        group.describe("all anew", SESSION, HEARTBEAT)
        group.alter("taken back", (HEARTBEAT, DELETE, None))
        group.describe("none again", HEARTBEAT)
        group.list("gone")
        group.alter("taken back twice", (HEARTBEAT, DELETE, None))

    play(pair, scenario)


def test_refused(pair: Pair, name: str) -> None:
    def scenario(stage: Stage) -> None:
        group = Settings(stage, name)
        group.describe("no name", group="")
        group.alter("set without a name", (SESSION, SET, "50000"), group="")
        for value in ("1", "44999", "60001", "-1", "soon", ""):
            group.alter(f"session {value}", (SESSION, SET, value))
        for value in ("0", "99", "15001"):
            group.alter(f"heartbeat {value}", (HEARTBEAT, SET, value))
        for value in ("-1", "15001"):
            group.alter(f"assignment {value}", (ASSIGNMENT, SET, value))
        group.alter("unknown", ("no.such.key", SET, "1"))
        group.alter("appended", (SESSION, APPEND, "1"))
        group.alter("null", (SESSION, SET, None))
        group.alter("twice", (SESSION, SET, "50000"), (SESSION, SET, "50001"))
        group.alter("for share groups", ("share.session.timeout.ms", SET, "46000"))
        group.list("nothing was set")

    play(pair, scenario)
