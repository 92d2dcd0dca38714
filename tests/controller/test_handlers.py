"""The handlers of topics and settings, in every version, through the codec and back.

They run on a real controller over a store in memory; the rest of a broker they do not touch. What
Apache Kafka answers to the same requests is compared in the reference tests.
"""

from __future__ import annotations

import inspect
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.controller.helpers import Cluster, broker_config, topic

from tidemill.broker.context import Broker
from tidemill.broker.dispatch import REGISTRY, RequestContext
from tidemill.broker.handlers import configs, topics
from tidemill.config import BrokerConfig
from tidemill.wire.apis import APIS, ApiKey
from tidemill.wire.codec import decode, encode
from tidemill.wire.declare import Message
from tidemill.wire.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    ListConfigResourcesRequest,
)
from tidemill.wire.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)

RANGES = {
    ApiKey.CREATE_TOPICS: (2, 7),
    ApiKey.DELETE_TOPICS: (1, 6),
    ApiKey.CREATE_PARTITIONS: (0, 3),
    ApiKey.DESCRIBE_CONFIGS: (1, 4),
    ApiKey.ALTER_CONFIGS: (0, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1),
    ApiKey.LIST_CONFIG_RESOURCES: (0, 1),
}


def versions(key: ApiKey) -> range:
    first, last = RANGES[key]
    return range(first, last + 1)


class Caller:
    """Sends requests to the handlers as a connection would: encoded, decoded, answered, decoded."""

    def __init__(self, config: BrokerConfig | None = None) -> None:
        self._config = config
        self.broker = cast(Broker, None)

    async def start(self) -> Caller:
        controller = await Cluster().start(config=self._config)
        broker = SimpleNamespace(
            controller=controller,
            config=controller._config,
            broker_id=controller.broker_id,
            image=controller.image,
        )

        def follow(image: object) -> None:
            broker.image = image
            controller._config.apply_dynamic(
                controller.image.broker_configs.get(controller.broker_id, {}),
                controller.image.default_broker_config,
            )

        controller.subscribe(follow)
        self.broker = cast(Broker, broker)
        return self

    async def __call__(self, key: ApiKey, version: int, request: Message) -> Any:
        registration = REGISTRY[key]
        assert registration.min_version <= version <= registration.max_version
        received = decode(APIS[key].request, version, encode(request, version))
        client = SimpleNamespace(peer_id=None)
        context = RequestContext(key, version, 1, "test", cast(Any, client))
        answer = registration.handler(self.broker, context, received)
        if inspect.isawaitable(answer):
            answer = await answer
        return decode(APIS[key].response, version, encode(answer, version))


@pytest.fixture
async def call() -> Caller:
    return await Caller().start()


def test_the_ranges_are_kafkas() -> None:
    assert configs is not None
    assert topics is not None
    for key, (first, last) in RANGES.items():
        registration = REGISTRY[key]
        assert (registration.min_version, registration.max_version) == (first, last)
        assert (APIS[key].min_version, APIS[key].max_version) == (first, last)


async def test_topics_are_created_in_every_version(call: Caller) -> None:
    for version in versions(ApiKey.CREATE_TOPICS):
        request = CreateTopicsRequest(topics=[topic(f"v{version}", 2), topic("..")])
        answer = await call(ApiKey.CREATE_TOPICS, version, request)
        good, bad = answer.topics
        assert (good.name, good.error_code, good.error_message) == (f"v{version}", 0, None)
        assert bad.error_code == 17
        created = call.broker.image.topics[f"v{version}"]
        if version >= 5:
            assert (good.num_partitions, good.replication_factor) == (2, 1)
            assert good.configs
            assert good.topic_config_error_code == 0
            assert (bad.num_partitions, bad.configs) == (-1, [])
        if version >= 7:
            assert good.topic_id == created.topic_id
            assert bad.topic_id.int == 0


async def test_topics_are_deleted_in_every_version(call: Caller) -> None:
    for version in versions(ApiKey.DELETE_TOPICS):
        create = CreateTopicsRequest(topics=[topic("a"), topic("b")])
        ids = [each.topic_id for each in (await call(ApiKey.CREATE_TOPICS, 7, create)).topics]
        if version >= 6:
            by = [DeleteTopicState(topic_id=ids[0]), DeleteTopicState(name="b")]
            request = DeleteTopicsRequest(topics=by)
        else:
            request = DeleteTopicsRequest(topic_names=["a", "b"])
        answer = await call(ApiKey.DELETE_TOPICS, version, request)
        assert sorted((each.name, each.error_code) for each in answer.responses) == [
            ("a", 0),
            ("b", 0),
        ]
        assert call.broker.image.topics == {}


async def test_deletion_can_be_switched_off() -> None:
    call = await Caller(broker_config(delete_topic_enable="false")).start()
    await call(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic("a")]))
    for version, code in ((1, 42), (2, 42), (3, 73), (5, 73)):
        request = DeleteTopicsRequest(topic_names=["a", "no"])
        answer = await call(ApiKey.DELETE_TOPICS, version, request)
        assert [(each.name, each.error_code) for each in answer.responses] == [
            ("a", code),
            ("no", code),
        ]
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name="a")])
    answer = await call(ApiKey.DELETE_TOPICS, 6, request)
    assert [(each.name, each.error_code) for each in answer.responses] == [("a", 73)]
    assert list(call.broker.image.topics) == ["a"]


async def test_partitions_are_added_in_every_version(call: Caller) -> None:
    await call(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic("a")]))
    for version in versions(ApiKey.CREATE_PARTITIONS):
        request = CreatePartitionsRequest(
            topics=[
                CreatePartitionsTopic(name="a", count=version + 2, assignments=None),
                CreatePartitionsTopic(name="no", count=2, assignments=None),
            ]
        )
        answer = await call(ApiKey.CREATE_PARTITIONS, version, request)
        assert [(each.name, each.error_code, each.error_message) for each in answer.results] == [
            ("a", 0, None),
            ("no", 3, None),
        ]
        assert len(call.broker.image.topics["a"].partitions) == version + 2


async def test_a_broker_that_is_not_the_controller_says_so_for_everything(call: Caller) -> None:
    await call.broker.controller.stop()
    create = CreateTopicsRequest(topics=[topic("a"), topic("b")])
    answer = await call(ApiKey.CREATE_TOPICS, 7, create)
    assert [each.error_code for each in answer.topics] == [41, 41]
    delete = DeleteTopicsRequest(topic_names=["a"])
    assert (await call(ApiKey.DELETE_TOPICS, 5, delete)).responses[0].error_code == 41
    grow = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="a", count=2)])
    assert (await call(ApiKey.CREATE_PARTITIONS, 3, grow)).results[0].error_code == 41
    alter = AlterConfigsRequest(
        resources=[AlterConfigsResource(resource_type=2, resource_name="a")]
    )
    assert (await call(ApiKey.ALTER_CONFIGS, 2, alter)).responses[0].error_code == 41


async def describe(call: Caller, version: int, *asked: DescribeConfigsResource) -> Any:
    request = DescribeConfigsRequest(
        resources=list(asked), include_synonyms=True, include_documentation=version >= 3
    )
    return (await call(ApiKey.DESCRIBE_CONFIGS, version, request)).results


def asked(kind: int, name: str, keys: list[str] | None = None) -> DescribeConfigsResource:
    return DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)


async def test_settings_are_changed_and_described_in_every_version(call: Caller) -> None:
    await call(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic("a")]))
    for version in versions(ApiKey.INCREMENTAL_ALTER_CONFIGS):
        request = IncrementalAlterConfigsRequest(
            resources=[
                IncrementalAlterConfigsResource(
                    resource_type=kind,
                    resource_name=name,
                    configs=[IncrementalAlterableConfig(name=key, value=value)],
                )
                for kind, name, key, value in (
                    (2, "a", "retention.ms", "5000"),
                    (4, "1", "log.retention.ms", "7000"),
                    (4, "", "log.retention.ms", "8000"),
                )
            ]
        )
        answer = await call(ApiKey.INCREMENTAL_ALTER_CONFIGS, version, request)
        assert [(each.error_code, each.error_message) for each in answer.responses] == [
            (0, None)
        ] * 3
    for version in versions(ApiKey.DESCRIBE_CONFIGS):
        results = await describe(
            call,
            version,
            asked(2, "a", ["retention.ms", "nonsense"]),
            asked(4, "1", ["log.retention.ms"]),
            asked(4, ""),
        )
        values = [[(each.name, each.value) for each in result.configs] for result in results]
        assert values == [
            [("retention.ms", "5000")],
            [("log.retention.ms", "7000")],
            [("log.retention.ms", "8000")],
        ]
        synonyms = [(each.name, each.value, each.source) for each in results[0].configs[0].synonyms]
        assert synonyms[:3] == [
            ("retention.ms", "5000", 1),
            ("log.retention.ms", "7000", 2),
            ("log.retention.ms", "8000", 3),
        ]
        assert [each.config_source for result in results for each in result.configs] == [1, 2, 3]
        assert {result.error_message for result in results} == {""}
        if version >= 3:
            assert results[0].configs[0].config_type == 5
            assert results[0].configs[0].documentation


async def test_all_settings_are_listed_where_none_is_named(call: Caller) -> None:
    await call(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic("a")]))
    whole, empty, broker = await describe(call, 4, asked(2, "a"), asked(2, "a", []), asked(4, "1"))
    assert len(whole.configs) == len(empty.configs) >= 33
    assert len(broker.configs) > 150
    secrets = [each for each in broker.configs if each.is_sensitive]
    assert secrets
    assert all(each.value is None for each in secrets)


@pytest.mark.parametrize(
    ("kind", "name", "code", "message"),
    [
        (2, "no", 3, ""),
        (2, "", 17, "Topic name is invalid: the empty string is not allowed"),
        (4, "77", 42, "Unexpected broker id, expected 1 or empty string, but received 77"),
        (4, "x", 42, "Broker id must be an integer, but it is: x"),
        (99, "x", 42, "Unsupported resource type: 99"),
    ],
)
async def test_what_cannot_be_described(
    call: Caller, kind: int, name: str, code: int, message: str
) -> None:
    [result] = await describe(call, 4, asked(kind, name))
    assert (result.error_code, result.error_message, result.configs) == (code, message, [])
    assert (result.resource_type, result.resource_name) == (kind, name)


async def test_settings_are_replaced_in_every_version(call: Caller) -> None:
    await call(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic("a")]))
    for version in versions(ApiKey.ALTER_CONFIGS):
        request = AlterConfigsRequest(
            resources=[AlterConfigsResource(resource_type=2, resource_name=n) for n in ("a", "no")]
        )
        answer = await call(ApiKey.ALTER_CONFIGS, version, request)
        assert [(each.resource_name, each.error_code) for each in answer.responses] == [
            ("a", 0),
            ("no", 3),
        ]


async def test_resources_with_settings_are_listed(call: Caller) -> None:
    await call(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic("a")]))

    async def listed(version: int, *types: int) -> tuple[int, list[tuple[int, str]]]:
        request = ListConfigResourcesRequest(resource_types=list(types))
        answer = await call(ApiKey.LIST_CONFIG_RESOURCES, version, request)
        found = [(each.resource_type, each.resource_name) for each in answer.config_resources]
        return answer.error_code, found

    assert await listed(0) == (0, [])
    assert await listed(1) == (0, [(8, "1"), (4, "1"), (2, "a")])
    assert await listed(1, 2, 2) == (0, [(2, "a")])
    assert await listed(1, 32) == (0, [])
    assert await listed(1, 2, 99) == (35, [])


async def test_log_levels_are_changed_without_being_stored(call: Caller) -> None:
    logger = logging.getLogger("tidemill.controller.test_levels")

    async def alter(name: str, *changes: tuple[str, int, str | None]) -> tuple[int, str | None]:
        request = IncrementalAlterConfigsRequest(
            resources=[
                IncrementalAlterConfigsResource(
                    resource_type=8,
                    resource_name=name,
                    configs=[
                        IncrementalAlterableConfig(name=key, config_operation=what, value=value)
                        for key, what, value in changes
                    ],
                ),
                IncrementalAlterConfigsResource(resource_type=2, resource_name="no"),
            ]
        )
        answer = await call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)
        assert answer.responses[1].error_code == 3
        return answer.responses[0].error_code, answer.responses[0].error_message

    async def level() -> str | None:
        [result] = await describe(call, 4, asked(8, "1", [logger.name]))
        [entry] = result.configs
        assert entry.config_source == 6
        value: str | None = entry.value
        return value

    before = call.broker.image
    assert await alter("1", (logger.name, 0, "DEBUG")) == (0, None)
    assert await level() == "DEBUG"
    assert await alter("1", (logger.name, 0, "FATAL")) == (0, None)
    assert await level() == "FATAL"
    assert await alter("1", (logger.name, 1, None)) == (0, None)
    assert logger.level == logging.NOTSET
    assert await alter("1", ("nope", 0, "INFO")) == (40, "Logger nope does not exist!")
    assert (await alter("1", ("root", 0, "FOO")))[0] == 40
    assert (await alter("1", ("root", 1, None)))[0] == 42
    assert (await alter("1", ("root", 2, "INFO")))[0] == 42
    assert await alter("", ("root", 0, "INFO")) == (42, "Node id must be an integer, but it is: ")
    assert call.broker.image is before
    [empty, other] = await describe(call, 4, asked(8, ""), asked(8, "9"))
    assert empty.error_message == "Broker id must not be empty"
    assert other.error_message == "Unexpected broker id, expected 1 but received 9"


async def test_a_small_request_cannot_ask_for_gigabytes(
    call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 3.4: an answer has a largest size, and what does not fit is said, not dropped."""
    monkeypatch.setattr(configs, "REPEATED_ENTRIES_MAX", 500)
    results = await describe(call, 4, *[asked(4, "1")] * 30)
    codes = [result.error_code for result in results]
    assert codes == [0] * 3 + [42] * 27
    monkeypatch.setattr(configs, "ENTRIES_MAX", 30)
    results = await describe(call, 4, *[asked(32, f"group-{number}") for number in range(30)])
    codes = [result.error_code for result in results]
    assert codes == [0] * 2 + [42] * 28
    assert results[-1].error_message.startswith("One answer has at most")
