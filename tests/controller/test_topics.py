"""Requests about topics: what is accepted, what is refused, and in which words.

The expected codes and messages are Apache Kafka 4.3.1's own answers to the same requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from uuid import UUID

import pytest
from tests.controller.helpers import Cluster, create, outcome, topic

from tidemill.controller import Controller
from tidemill.controller.topics import CreatePlan, TopicDefaults, plan_creations
from tidemill.errors import ErrorCode
from tidemill.image import (
    EMPTY_IMAGE,
    BrokerImage,
    ClusterImage,
    with_broker,
    with_topic,
    without_broker,
)
from tidemill.types import BrokerEpoch, BrokerId
from tidemill.wire.messages.topics import (
    CreatableTopic,
    CreatePartitionsAssignment,
    CreatePartitionsTopic,
    DeleteTopicState,
)

ILLEGAL = "contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"


@pytest.fixture
async def controller() -> Controller:
    return await Cluster().start()


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "the empty string is not allowed"),
        (".", "'.' is not allowed"),
        ("..", "'..' is not allowed"),
        ("a" * 250, f"the length of '{'a' * 250}' is longer than the max allowed length 249"),
        ("a b", f"'a b' {ILLEGAL}"),
        ("../etc", f"'../etc' {ILLEGAL}"),
        ("é", f"'é' {ILLEGAL}"),
        ("a\n", f"'a\n' {ILLEGAL}"),
    ],
)
async def test_names_that_are_refused(controller: Controller, name: str, problem: str) -> None:
    """Rule 3.4.5: a topic's name is a folder's name."""
    [result] = await create(controller, topic(name))
    message = f"Topic name is invalid: {problem}"
    assert outcome(result) == (name, "INVALID_TOPIC_EXCEPTION", message)
    assert controller.image.topics == {}


@pytest.mark.parametrize("name", ["a" * 249, "A-Z.0_9", "__consumer_offsets", "...", "-"])
async def test_names_that_are_taken(controller: Controller, name: str) -> None:
    [result] = await create(controller, topic(name))
    assert outcome(result) == (name, "NONE", None)


async def test_dots_and_underscores_collide(controller: Controller) -> None:
    await create(controller, topic("a.b"), topic("ab"))
    results = await create(controller, topic("a_b"), topic("a.b"), topic("a-b"))
    assert [outcome(result) for result in results] == [
        ("a_b", "INVALID_TOPIC_EXCEPTION", "Topic 'a_b' collides with existing topic: a.b"),
        ("a.b", "TOPIC_ALREADY_EXISTS", "Topic 'a.b' already exists."),
        ("a-b", "NONE", None),
    ]


NOT_REPLICABLE = (
    "Unable to replicate the partition 2 time(s): The target replication factor of 2 cannot be "
    "reached because only 1 broker(s) are registered or some brokers have all their log "
    "directories cordoned."
)
FACTOR = "Replication factor must be larger than 0, or -1 to use the default value."
COUNT = "Number of partitions was set to an invalid non-positive value."


@pytest.mark.parametrize(
    ("partitions", "factor", "code", "message"),
    [
        (0, 1, "INVALID_PARTITIONS", COUNT),
        (-2, 1, "INVALID_PARTITIONS", COUNT),
        (1, 0, "INVALID_REPLICATION_FACTOR", FACTOR),
        (1, -2, "INVALID_REPLICATION_FACTOR", FACTOR),
        (0, 0, "INVALID_REPLICATION_FACTOR", FACTOR),
        (1, 2, "INVALID_REPLICATION_FACTOR", NOT_REPLICABLE),
        (
            10_001,
            1,
            "POLICY_VIOLATION",
            "Excessively large number of partitions per request.",
        ),
    ],
)
async def test_counts_that_are_refused(
    controller: Controller, partitions: int, factor: int, code: str, message: str
) -> None:
    [result] = await create(controller, topic("t", partitions, factor))
    assert outcome(result) == ("t", code, message)
    assert (result.num_partitions, result.replication_factor, result.configs) == (-1, -1, [])


async def test_too_many_partitions_together_fail_the_whole_request(controller: Controller) -> None:
    """Rule 3.4: one request can ask only for so much."""
    results = await create(controller, topic("a", 6_000), topic("b", 6_000))
    assert {result.error_code for result in results} == {ErrorCode.POLICY_VIOLATION}
    assert controller.image.topics == {}


MANUAL = "The manual partition assignment includes"


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        ({0: [99]}, f"{MANUAL} broker 99, but no such broker is registered."),
        ({0: []}, f"{MANUAL} an empty replica list."),
        ({0: [1, 1]}, f"{MANUAL} the broker 1 more than once."),
        ({1: [1]}, "partitions should be a consecutive 0-based integer sequence"),
    ],
)
async def test_assignments_that_are_refused(
    controller: Controller, assignments: Mapping[int, list[int]], message: str
) -> None:
    [result] = await create(controller, topic("t", assignments=assignments))
    assert outcome(result) == ("t", "INVALID_REPLICA_ASSIGNMENT", message)


def test_an_assignment_is_kept_as_given_and_the_first_alive_leads() -> None:
    """Rule A10: only a broker that is alive leads, and it is in sync."""
    image = EMPTY_IMAGE
    for number in (1, 2, 3):
        member = BrokerImage(BrokerId(number), BrokerEpoch(1), (), fenced=number == 2)
        image = with_broker(image, member)
    request = topic("t", assignments={0: [2, 3, 1], 1: [1, 2, 3]})
    defaults = TopicDefaults(1, 1, 1)
    [plan] = plan_creations(image, [request], defaults, lambda configs: None, Random(1))
    assert plan.topic is not None
    first, second = plan.topic.partitions
    assert (first.replicas, first.isr, first.leader) == ((2, 3, 1), (3, 1), 3)
    assert (second.replicas, second.isr, second.leader) == ((1, 2, 3), (1, 3), 1)


def test_a_broker_that_is_down_is_counted_on_only_where_the_others_are_too_few() -> None:
    """It holds replicas, so it will be back; Kafka places on fenced brokers likewise."""
    image = EMPTY_IMAGE
    for number in (1, 2, 3):
        image = with_broker(image, BrokerImage(BrokerId(number), BrokerEpoch(1), (), rack="r"))
    defaults = TopicDefaults(1, 1, 1)

    def created(image: ClusterImage, name: str, factor: int) -> CreatePlan:
        request = [topic(name, 6, factor)]
        [plan] = plan_creations(image, request, defaults, lambda configs: None, Random(1))
        return plan

    everywhere = created(image, "before", 3).topic
    assert everywhere is not None
    image = without_broker(with_topic(image, everywhere), BrokerId(3))
    assert image.staying_count == 3
    two, three = created(image, "two", 2).topic, created(image, "three", 3).topic
    assert two is not None
    assert three is not None
    assert {frozenset(each.replicas) for each in two.partitions} == {frozenset({1, 2})}
    for each in three.partitions:
        assert (set(each.replicas), set(each.isr)) == ({1, 2, 3}, {1, 2})
        assert each.leader == each.replicas[0] != 3
    refused = created(image, "four", 4).error
    assert refused is not None
    assert refused.code is ErrorCode.INVALID_REPLICATION_FACTOR


async def test_a_manual_assignment_stands_alone(controller: Controller) -> None:
    manual = "A manual partition assignment was specified, but"
    request = topic("t", assignments={0: [1]})
    request.replication_factor = 1
    [result] = await create(controller, request)
    message = f"{manual} replication factor was not set to -1."
    assert outcome(result) == ("t", "INVALID_REQUEST", message)
    request.replication_factor, request.num_partitions = -1, 1
    [result] = await create(controller, request)
    message = f"{manual} numPartitions was not set to -1."
    assert outcome(result) == ("t", "INVALID_REQUEST", message)
    [result] = await create(controller, topic("t", assignments={1: [1], 0: [1]}))
    assert (result.error_code, result.num_partitions) == (0, 2)


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({"foo": "bar"}, "Unknown topic config name: foo"),
        ({"": "bar"}, "Unknown topic config name: "),
        (
            {"retention.ms": "x"},
            "Invalid value x for configuration retention.ms: Not a number of type LONG",
        ),
        (
            {"retention.ms": "-5"},
            "Invalid value -5 for configuration retention.ms: Value must be at least -1",
        ),
        ({"retention.ms": None}, "Null value not supported for topic configs: retention.ms"),
    ],
)
async def test_settings_that_are_refused(
    controller: Controller, configs: Mapping[str, str | None], message: str
) -> None:
    [result] = await create(controller, topic("t", configs=configs))
    assert outcome(result) == ("t", "INVALID_CONFIG", message)


async def test_repeated_names_come_last_and_create_nothing(controller: Controller) -> None:
    results = await create(
        controller, topic("d"), topic("x"), topic("d", 2), topic("__cluster_metadata"), topic("y")
    )
    internal = "Creation of internal topic __cluster_metadata is prohibited."
    assert [outcome(result) for result in results] == [
        ("x", "NONE", None),
        ("y", "NONE", None),
        ("d", "INVALID_REQUEST", "Duplicate topic name."),
        ("__cluster_metadata", "INVALID_REQUEST", internal),
    ]
    assert sorted(controller.image.topics) == ["x", "y"]


async def test_the_answer_describes_the_topic(controller: Controller) -> None:
    [result] = await create(controller, topic("t", 3, configs={"retention.ms": "1000"}))
    assert (result.num_partitions, result.replication_factor) == (3, 1)
    assert result.topic_id == controller.image.topics["t"].topic_id
    configs = {each.name: each for each in result.configs or []}
    assert list(configs) == sorted(configs)
    assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("1000", 1)
    assert (configs["segment.bytes"].value, configs["segment.bytes"].config_source) == (
        "1073741824",
        5,
    )


async def test_an_empty_request_is_an_empty_answer(controller: Controller) -> None:
    assert await create(controller) == []
    assert await controller.create_partitions([]) == []
    assert await controller.delete_topics() == []


def growth(name: str, count: int, assignments: list[list[int]] | None) -> CreatePartitionsTopic:
    return CreatePartitionsTopic(
        name=name,
        count=count,
        assignments=None
        if assignments is None
        else [CreatePartitionsAssignment(broker_ids=each) for each in assignments],
    )


@pytest.mark.parametrize(
    ("count", "assignments", "code", "message"),
    [
        (2, None, "INVALID_PARTITIONS", "Topic already has 2 partition(s)."),
        (
            1,
            None,
            "INVALID_PARTITIONS",
            "The topic t currently has 2 partition(s); 1 would not be an increase.",
        ),
        (
            3,
            [],
            "INVALID_REPLICA_ASSIGNMENT",
            "Attempted to add 1 additional partition(s), but only 0 assignment(s) were specified.",
        ),
        (
            3,
            [[9]],
            "INVALID_REPLICA_ASSIGNMENT",
            f"{MANUAL} broker 9, but no such broker is registered.",
        ),
        (3, [[]], "INVALID_REPLICA_ASSIGNMENT", f"{MANUAL} an empty replica list."),
        (3, [[1, 1]], "INVALID_REPLICA_ASSIGNMENT", f"{MANUAL} the broker 1 more than once."),
        (20_000, None, "POLICY_VIOLATION", "Excessively large number of partitions per request."),
    ],
)
async def test_growth_that_is_refused(
    controller: Controller,
    count: int,
    assignments: list[list[int]] | None,
    code: str,
    message: str,
) -> None:
    await create(controller, topic("t", 2))
    [plan] = await controller.create_partitions([growth("t", count, assignments)])
    assert plan.error is not None
    assert (plan.error.code.name, plan.error.message) == (code, message)
    assert len(controller.image.topics["t"].partitions) == 2


async def test_partitions_are_added_at_the_end(controller: Controller) -> None:
    await create(controller, topic("t", 2), topic("u"))
    before = controller.image.topics["t"]
    plans = await controller.create_partitions(
        [growth("u", 2, [[1]]), growth("t", 4, None), growth("no", 4, None)]
    )
    assert [(plan.name, plan.error and plan.error.code) for plan in plans] == [
        ("u", None),
        ("t", None),
        ("no", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    after = controller.image.topics["t"]
    assert after.partitions[:2] == before.partitions
    assert [partition.index for partition in after.partitions] == [0, 1, 2, 3]
    assert after.topic_id == before.topic_id


async def test_growth_of_a_repeated_name_is_refused_first(controller: Controller) -> None:
    await create(controller, topic("t"), topic("u"))
    plans = await controller.create_partitions(
        [growth("u", 2, None), growth("t", 2, None), growth("t", 3, None)]
    )
    assert [(plan.name, plan.error and plan.error.message) for plan in plans] == [
        ("t", "Duplicate topic name."),
        ("u", None),
    ]


async def test_deletions_that_are_refused(controller: Controller) -> None:
    created = await create(controller, *(topic(f"d{number}") for number in range(5)))
    ids = [result.topic_id for result in created]
    plans = await controller.delete_topics(
        ["d0", "d0", "none", "d4"],
        [
            DeleteTopicState(),
            DeleteTopicState(name="d1", topic_id=ids[1]),
            DeleteTopicState(topic_id=ids[2]),
            DeleteTopicState(topic_id=ids[2]),
            DeleteTopicState(topic_id=ids[3]),
            DeleteTopicState(name="d3"),
            DeleteTopicState(topic_id=UUID(int=77)),
        ],
    )
    no_id = UUID(int=0)
    assert {
        (plan.name, plan.topic_id, plan.error and plan.error.code.name): plan.error
        and plan.error.message
        for plan in plans
    } == {
        ("d0", no_id, "INVALID_REQUEST"): "Duplicate topic name.",
        ("none", no_id, "UNKNOWN_TOPIC_OR_PARTITION"): (
            "This server does not host this topic-partition."
        ),
        (None, no_id, "INVALID_REQUEST"): "Neither topic name nor id were specified.",
        ("d1", ids[1], "INVALID_REQUEST"): "You may not specify both topic name and topic id.",
        (None, ids[2], "INVALID_REQUEST"): "Duplicate topic id.",
        ("d3", ids[3], "INVALID_REQUEST"): (
            "The provided topic name maps to an ID that was already supplied."
        ),
        (None, UUID(int=77), "UNKNOWN_TOPIC_ID"): "This server does not host this topic ID.",
        ("d4", ids[4], None): None,
    }
    assert sorted(controller.image.topics) == ["d0", "d1", "d2", "d3"]


async def test_a_request_object_is_never_changed(controller: Controller) -> None:
    request = topic("t", -1, -1)
    await create(controller, request)
    assert request == CreatableTopic(name="t", num_partitions=-1, replication_factor=-1)
