"""Requests about settings: what is accepted, what is refused, and in which words.

The expected codes and messages are Apache Kafka 4.3.1's own answers, but for those marked as ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from tests.controller.helpers import Cluster, create, topic

from tidemill.controller import Controller
from tidemill.controller.settings import ResourcePlan
from tidemill.wire.messages.configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsResource,
)

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
TOPIC, BROKER = 2, 4

Change = tuple[str, int, str | None]


@pytest.fixture
async def controller() -> Controller:
    made = await Cluster().start()
    await create(made, topic("t"))
    return made


def resource(kind: int, name: str, *changes: Change) -> IncrementalAlterConfigsResource:
    return IncrementalAlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            IncrementalAlterableConfig(name=key, config_operation=operation, value=value)
            for key, operation, value in changes
        ],
    )


def replacement(kind: int, name: str, configs: Mapping[str, str | None]) -> AlterConfigsResource:
    return AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[AlterableConfig(name=key, value=value) for key, value in configs.items()],
    )


def answers(plans: Sequence[ResourcePlan]) -> list[tuple[str, str | None]]:
    return [
        ("NONE", None) if plan.error is None else (plan.error.code.name, plan.error.message)
        for plan in plans
    ]


async def change(
    controller: Controller, kind: int, name: str, *changes: Change
) -> tuple[str, str | None]:
    plans = await controller.incremental_alter_configs([resource(kind, name, *changes)])
    return answers(plans)[0]


async def test_single_settings_come_and_go(controller: Controller) -> None:
    assert await change(controller, TOPIC, "t", ("retention.ms", SET, "5")) == ("NONE", None)
    assert await change(controller, TOPIC, "t", ("segment.ms", SET, "6")) == ("NONE", None)
    assert controller.image.topics["t"].configs == {"retention.ms": "5", "segment.ms": "6"}
    assert await change(controller, TOPIC, "t", ("retention.ms", DELETE, None)) == ("NONE", None)
    assert controller.image.topics["t"].configs == {"segment.ms": "6"}
    assert await change(controller, TOPIC, "t", ("foo", DELETE, None)) == ("NONE", None)


async def test_lists_grow_from_their_default_and_shrink_to_nothing(controller: Controller) -> None:
    async def policy(operation: int, value: str) -> str:
        answer = await change(controller, TOPIC, "t", ("cleanup.policy", operation, value))
        assert answer == ("NONE", None)
        return controller.image.topics["t"].configs["cleanup.policy"]

    assert await policy(APPEND, "compact") == "delete,compact"
    assert await policy(APPEND, "compact") == "delete,compact"
    assert await policy(SUBTRACT, "delete") == "compact"
    assert await policy(SUBTRACT, "compact,delete") == ""


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ([("foo", SET, "5")], "INVALID_CONFIG", "Unknown topic config name: foo"),
        (
            [("retention.ms", SET, "x"), ("segment.ms", SET, "7")],
            "INVALID_CONFIG",
            "Invalid value x for configuration retention.ms: Not a number of type LONG",
        ),
        (
            [("retention.ms", APPEND, "5")],
            "INVALID_CONFIG",
            "Can't APPEND to key retention.ms because its type is not LIST.",
        ),
        (
            [("foo", SUBTRACT, "5")],
            "INVALID_CONFIG",
            "Can't SUBTRACT to key foo because its type is not LIST.",
        ),
        (
            [("retention.ms", SET, None)],
            "INVALID_REQUEST",
            "Null value not supported for : retention.ms",
        ),
        (
            [("retention.ms", SET, "5"), ("retention.ms", SET, "6")],
            "INVALID_REQUEST",
            "Error due to duplicate config keys",
        ),
        # Ours: Kafka answers UNKNOWN_SERVER_ERROR.
        ([("retention.ms", 9, "5")], "INVALID_REQUEST", "Unknown operations type 9"),
    ],
)
async def test_changes_of_a_topic_that_are_refused(
    controller: Controller, changes: list[Change], code: str, message: str
) -> None:
    assert await change(controller, TOPIC, "t", *changes) == (code, message)
    assert controller.image.topics["t"].configs == {}


@pytest.mark.parametrize(
    ("kind", "name", "code", "message"),
    [
        (TOPIC, "no", "UNKNOWN_TOPIC_OR_PARTITION", "The topic 'no' does not exist."),
        (TOPIC, "", "INVALID_REQUEST", "Default topic resources are not allowed."),
        (TOPIC, "..", "INVALID_TOPIC_EXCEPTION", "Topic name is invalid: '..' is not allowed"),
        (99, "x", "INVALID_REQUEST", "Unknown resource type 99"),
        (0, "x", "INVALID_REQUEST", "Unknown resource type 0"),
        (
            BROKER,
            "77",
            "INVALID_REQUEST",
            "Unexpected broker id, expected 1, but received 77",
        ),
        (BROKER, "abc", "INVALID_REQUEST", "Node id must be an integer, but it is: abc"),
    ],
)
async def test_resources_that_are_refused(
    controller: Controller, kind: int, name: str, code: str, message: str
) -> None:
    assert await change(controller, kind, name) == (code, message)
    plans = await controller.alter_configs([replacement(kind, name, {})])
    assert answers(plans) == [(code, message)]


@pytest.mark.parametrize(
    ("name", "change_", "code", "message"),
    [
        (
            "1",
            ("broker.id", SET, "7"),
            "INVALID_REQUEST",
            "Cannot update these configs dynamically: [broker.id]",
        ),
        (
            "",
            ("listener.name.plaintext.ssl.keystore.location", SET, "/x"),
            "INVALID_REQUEST",
            "Cannot update these configs at default cluster level, broker id must be specified: "
            "[listener.name.plaintext.ssl.keystore.location]",
        ),
        (
            "1",
            ("listeners", SET, "PLAINTEXT://:1"),
            "INVALID_REQUEST",
            "Cannot update these configs dynamically: [listeners]; listeners are opened at start: "
            "change the broker's file and restart it",
        ),
        (
            "1",
            ("log.retention.ms", SET, "x"),
            "INVALID_REQUEST",
            "Invalid value x for configuration log.retention.ms: Not a number of type LONG",
        ),
        (
            "1",
            ("message.max.bytes", APPEND, "8"),
            "INVALID_CONFIG",
            "Config value append is not allowed for config key: message.max.bytes",
        ),
        ("1", ("message.max.bytes", 9, "8"), "INVALID_REQUEST", "Unknown operations type 9"),
    ],
)
async def test_changes_of_a_broker_that_are_refused(
    controller: Controller, name: str, change_: Change, code: str, message: str
) -> None:
    assert await change(controller, BROKER, name, change_) == (code, message)
    assert dict(controller.image.broker_configs) == {}
    assert controller.image.default_broker_config == {}


async def test_one_broker_and_all_brokers_have_their_own_settings(controller: Controller) -> None:
    for name, value in (("1", "7000"), ("", "8000")):
        answer = await change(controller, BROKER, name, ("log.retention.ms", SET, value))
        assert answer == ("NONE", None)
    image = controller.image
    assert image.broker_configs[controller.broker_id] == {"log.retention.ms": "7000"}
    assert image.default_broker_config == {"log.retention.ms": "8000"}
    await change(controller, BROKER, "1", ("log.retention.ms", DELETE, None))
    assert dict(controller.image.broker_configs) == {}


async def test_a_replacement_drops_what_it_does_not_name(controller: Controller) -> None:
    first = {"retention.ms": "5", "segment.ms": "6"}
    assert answers(await controller.alter_configs([replacement(TOPIC, "t", first)])) == [
        ("NONE", None)
    ]
    await controller.alter_configs([replacement(TOPIC, "t", {"segment.ms": "7"})])
    assert controller.image.topics["t"].configs == {"segment.ms": "7"}
    plans = await controller.alter_configs([replacement(TOPIC, "t", {"segment.ms": None})])
    assert answers(plans) == [("INVALID_REQUEST", "Null value not supported for : segment.ms")]
    await controller.alter_configs([replacement(TOPIC, "t", {})])
    assert controller.image.topics["t"].configs == {}


async def test_resources_succeed_and_fail_each_for_itself(controller: Controller) -> None:
    await create(controller, topic("u"))
    plans = await controller.incremental_alter_configs(
        [
            resource(TOPIC, "t", ("retention.ms", SET, "5")),
            resource(TOPIC, "u", ("retention.ms", SET, "6")),
            resource(TOPIC, "t", ("retention.ms", SET, "7")),
            resource(TOPIC, "no"),
        ]
    )
    twice = ("INVALID_REQUEST", "Each resource must appear at most once.")
    assert answers(plans) == [
        twice,
        ("NONE", None),
        twice,
        ("UNKNOWN_TOPIC_OR_PARTITION", "The topic 'no' does not exist."),
    ]
    assert controller.image.topics["t"].configs == {}
    assert controller.image.topics["u"].configs == {"retention.ms": "6"}


async def test_validate_only_answers_and_changes_nothing(controller: Controller) -> None:
    before = controller.image
    plans = await controller.incremental_alter_configs(
        [resource(TOPIC, "t", ("retention.ms", SET, "5"))], validate_only=True
    )
    assert answers(plans) == [("NONE", None)]
    await controller.alter_configs(
        [replacement(TOPIC, "t", {"segment.ms": "5"})], validate_only=True
    )
    assert controller.image is before


async def test_sizes_are_bounded(controller: Controller) -> None:
    """Rule 3.4: what clients store for others has a limit."""
    code, _ = await change(
        controller, TOPIC, "t", ("leader.replication.throttled.replicas", SET, "1" * 70_000)
    )
    assert code == "POLICY_VIOLATION"
