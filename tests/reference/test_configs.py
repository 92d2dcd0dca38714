"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources."""

from __future__ import annotations

import pytest
from tests.reference.answers import create
from tests.reference.differences import OUR_KEYS
from tests.reference.pair import Case, Pair

from tidemill.wire.apis import APIS, ApiKey
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

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)


def describe(
    kind: int, name: str, keys: list[str] | None = None, *, synonyms: bool = True
) -> DescribeConfigsRequest:
    wanted = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=keys
    )
    return DescribeConfigsRequest(resources=[wanted], include_synonyms=synonyms)


def twice(request: DescribeConfigsRequest) -> DescribeConfigsRequest:
    request.resources *= 2
    return request


@pytest.mark.parametrize("version", range(1, APIS[ApiKey.DESCRIBE_CONFIGS].max_version + 1))
def test_describe_configs(pair: Pair, name: str, version: int) -> None:
    configs: dict[str, str | None] = {"retention.ms": "1234567", "cleanup.policy": "compact"}
    pair.create(create(name, configs=configs))
    pair.compare(
        ApiKey.DESCRIBE_CONFIGS,
        version,
        [
            Case("some keys", describe(TOPIC, name, ["retention.ms", "cleanup.policy"])),
            Case("unknown key", describe(TOPIC, name, ["no.such.key"])),
            Case("no keys", describe(TOPIC, name, [])),
            Case("no such topic", describe(TOPIC, f"{name}-missing")),
            Case("bad topic name", describe(TOPIC, "a/b")),
            Case("unknown kind", describe(99, name)),
            Case("a broker's key", describe(BROKER, "1", ["num.partitions"])),
            Case("the default broker", describe(BROKER, "")),
            Case("another broker", describe(BROKER, "7")),
            Case("not a broker id", describe(BROKER, "x")),
            Case("the same twice", twice(describe(TOPIC, name, ["retention.ms"]))),
        ],
    )


def test_a_topic_has_exactly_kafkas_keys_and_ours(pair: Pair, name: str) -> None:
    pair.create(create(name))
    theirs, ours = pair.both(ApiKey.DESCRIBE_CONFIGS, 4, describe(TOPIC, name))
    kafka_keys = {config.name for config in theirs.results[0].configs}
    our_keys = {config.name for config in ours.results[0].configs}
    assert our_keys - kafka_keys == OUR_KEYS
    assert kafka_keys <= our_keys


def alter(kind: int, name: str, **configs: str | None) -> AlterConfigsRequest:
    wanted = AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            AlterableConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )
    return AlterConfigsRequest(resources=[wanted])


@pytest.mark.parametrize("version", range(APIS[ApiKey.ALTER_CONFIGS].max_version + 1))
def test_alter_configs(pair: Pair, name: str, version: int) -> None:
    pair.create(create(name))
    only_validate = alter(TOPIC, name, retention_ms="99")
    only_validate.validate_only = True
    pair.compare(
        ApiKey.ALTER_CONFIGS,
        version,
        [
            Case("set", alter(TOPIC, name, retention_ms="1000", segment_bytes="2000000")),
            Case("replace all", alter(TOPIC, name, retention_ms="2000")),
            Case("only to validate", only_validate),
            Case("unknown key", alter(TOPIC, name, no_such_key="1")),
            Case("bad value", alter(TOPIC, name, retention_ms="soon")),
            Case("null value", alter(TOPIC, name, retention_ms=None)),
            Case("no such topic", alter(TOPIC, f"{name}-missing", retention_ms="1")),
            Case("unknown kind", alter(99, name, retention_ms="1")),
            Case("read-only key of the broker", alter(BROKER, "1", log_dirs="elsewhere")),
            Case("another broker", alter(BROKER, "9", num_io_threads="4")),
        ],
    )
    pair.compare(
        ApiKey.DESCRIBE_CONFIGS,
        4,
        [Case("afterwards", describe(TOPIC, name, ["retention.ms", "segment.bytes"]))],
    )


def change(
    kind: int, name: str, *operations: tuple[str, int, str | None]
) -> IncrementalAlterConfigsRequest:
    wanted = IncrementalAlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            IncrementalAlterableConfig(name=key, config_operation=operation, value=value)
            for key, operation, value in operations
        ],
    )
    return IncrementalAlterConfigsRequest(resources=[wanted])


@pytest.mark.parametrize("version", range(APIS[ApiKey.INCREMENTAL_ALTER_CONFIGS].max_version + 1))
def test_incremental_alter_configs(pair: Pair, name: str, version: int) -> None:
    pair.create(create(name))
    policy = "cleanup.policy"
    pair.compare(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        version,
        [
            Case("set", change(TOPIC, name, ("retention.ms", SET, "1000"))),
            Case("append", change(TOPIC, name, (policy, APPEND, "compact"))),
            Case("append again", change(TOPIC, name, (policy, APPEND, "compact"))),
            Case("subtract", change(TOPIC, name, (policy, SUBTRACT, "delete"))),
            Case("append to a number", change(TOPIC, name, ("retention.ms", APPEND, "1"))),
            Case("delete", change(TOPIC, name, ("retention.ms", DELETE, None))),
            Case("delete what is not set", change(TOPIC, name, ("flush.ms", DELETE, None))),
            Case("unknown operation", change(TOPIC, name, ("flush.ms", 9, "1"))),
            Case("unknown key", change(TOPIC, name, ("no.such.key", SET, "1"))),
            Case("bad value", change(TOPIC, name, ("flush.ms", SET, "x"))),
            Case("null value", change(TOPIC, name, ("flush.ms", SET, None))),
            Case(
                "the same key twice",
                change(TOPIC, name, ("flush.ms", SET, "1"), ("flush.ms", SET, "2")),
            ),
            Case("no such topic", change(TOPIC, f"{name}-missing", ("flush.ms", SET, "1"))),
            Case("empty topic name", change(TOPIC, "", ("flush.ms", SET, "1"))),
            Case("unknown kind", change(99, name, ("flush.ms", SET, "1"))),
            Case("all brokers", change(BROKER, "", ("log.cleaner.threads", SET, "1"))),
            Case("all brokers, undone", change(BROKER, "", ("log.cleaner.threads", DELETE, None))),
            Case("read-only key", change(BROKER, "1", ("log.dirs", SET, "elsewhere"))),
            Case("unknown broker key", change(BROKER, "1", ("no.such.key", SET, "1"))),
            Case("bad broker value", change(BROKER, "1", ("log.retention.ms", SET, "soon"))),
            Case("another broker", change(BROKER, "9", ("log.retention.ms", SET, "1"))),
        ],
    )
    pair.compare(
        ApiKey.DESCRIBE_CONFIGS,
        4,
        [Case("afterwards", describe(TOPIC, name, ["retention.ms", policy, "flush.ms"]))],
    )


@pytest.mark.parametrize("version", range(APIS[ApiKey.LIST_CONFIG_RESOURCES].max_version + 1))
def test_list_config_resources(pair: Pair, name: str, version: int) -> None:
    pair.create(create(name))
    theirs, ours = pair.both(ApiKey.LIST_CONFIG_RESOURCES, version, ListConfigResourcesRequest())
    assert ours.error_code == theirs.error_code
    if version >= 1:
        for answer in (theirs, ours):
            found = {(each.resource_type, each.resource_name) for each in answer.config_resources}
            assert (TOPIC, name) in found
            assert (BROKER, "1") in found
        unknown = ListConfigResourcesRequest(resource_types=[99])
        theirs, ours = pair.both(ApiKey.LIST_CONFIG_RESOURCES, version, unknown)
        assert ours.error_code == theirs.error_code
