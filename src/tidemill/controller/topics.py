"""Decisions about topics: what a request to create, grow or delete them comes to.

Pure functions: given the image and the request they return the answers and the topics' next
images, and change nothing. The checks, their order and their messages are Kafka's, because tools
and people match on them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from tidemill.controller import tree
from tidemill.controller.names import check_topic_name, unified
from tidemill.controller.placement import place
from tidemill.errors import ApiError, ErrorCode
from tidemill.image import (
    INTERNAL_TOPICS,
    BrokerImage,
    ClusterImage,
    PartitionImage,
    TopicImage,
    frozen,
)
from tidemill.types import (
    ZERO_TOPIC_ID,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    PartitionIndex,
    TopicId,
)
from tidemill.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatePartitionsTopic,
    DeleteTopicState,
)

PARTITIONS_PER_REQUEST_MAX = 10_000
"""One request is one commit, and a larger one would hold the store for too long."""

CLUSTER_METADATA_TOPIC = "__cluster_metadata"

Assignment = tuple[BrokerId, ...]
CheckConfigs = Callable[[Mapping[str, str]], None]
"""Raises an `ApiError` with INVALID_CONFIG for settings that a topic cannot have."""


@dataclass(frozen=True, slots=True)
class TopicDefaults:
    """What a topic gets when its request leaves the choice to the cluster."""

    partitions: int
    replication_factor: int
    internal_replication_factor: int


@dataclass(frozen=True, slots=True)
class CreatePlan:
    """One requested topic: either it comes into being, or an error says why not."""

    name: str
    topic: TopicImage | None = None
    error: ApiError | None = None


def plan_creations(
    image: ClusterImage,
    requests: Sequence[CreatableTopic],
    defaults: TopicDefaults,
    check_configs: CheckConfigs,
    random: Random,
) -> list[CreatePlan]:
    """One plan per distinct name, in the order of the answer: duplicates come last."""
    if _requested_partitions(requests, defaults) > PARTITIONS_PER_REQUEST_MAX:
        return [CreatePlan(request.name, error=_too_many_partitions()) for request in requests]
    repeated = _repeated(request.name for request in requests)
    taken = {unified(name): name for name in image.topics}
    plans = []
    refused = [
        _refusal(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name.") for name in repeated
    ]
    for request in requests:
        name = request.name
        if name in repeated:
            continue
        if name == CLUSTER_METADATA_TOPIC:
            problem = f"Creation of internal topic {name} is prohibited."
            refused.append(_refusal(name, ErrorCode.INVALID_REQUEST, problem))
            continue
        try:
            _check_new_name(image, name, taken)
            topic = _create(image, request, defaults, check_configs, random)
        except ApiError as error:
            plans.append(CreatePlan(name, error=error))
        else:
            plans.append(CreatePlan(name, topic=topic))
    return plans + refused


def _requested_partitions(requests: Iterable[CreatableTopic], defaults: TopicDefaults) -> int:
    total = 0
    for request in requests:
        automatic = defaults.partitions if request.num_partitions == -1 else request.num_partitions
        total += len(request.assignments) or max(automatic, 0)
    return total


def _too_many_partitions() -> ApiError:
    return ApiError(
        ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request."
    )


def _repeated(names: Iterable[str]) -> dict[str, None]:
    """The names that occur more than once, in the order of their first occurrence."""
    return {name: None for name, count in Counter(names).items() if count > 1}


def _refusal(name: str, code: ErrorCode, message: str) -> CreatePlan:
    return CreatePlan(name, error=ApiError(code, message))


def _create(
    image: ClusterImage,
    request: CreatableTopic,
    defaults: TopicDefaults,
    check_configs: CheckConfigs,
    random: Random,
) -> TopicImage:
    configs = _creation_configs(request)
    check_configs(configs)
    replicas = _new_assignment(image, request, defaults, random)
    return TopicImage(
        name=request.name,
        topic_id=tree.random_uuid(random),
        partitions=new_partitions(image, 0, replicas),
        configs=frozen(configs),
    )


def _check_new_name(image: ClusterImage, name: str, taken: Mapping[str, str]) -> None:
    if name in image.topics:
        raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    check_topic_name(name)
    other = taken.get(unified(name))
    if other is not None:
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{name}' collides with existing topic: {other}",
        )


def _creation_configs(request: CreatableTopic) -> dict[str, str]:
    nulls = [config.name for config in request.configs if config.value is None]
    if nulls:
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            f"Null value not supported for topic configs: {','.join(nulls)}",
        )
    return {config.name: config.value for config in request.configs if config.value is not None}


def _new_assignment(
    image: ClusterImage,
    request: CreatableTopic,
    defaults: TopicDefaults,
    random: Random,
) -> list[Assignment]:
    if request.assignments:
        return _manual_assignment(image, request)
    if request.replication_factor < -1 or request.replication_factor == 0:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if request.num_partitions < -1 or request.num_partitions == 0:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            "Number of partitions was set to an invalid non-positive value.",
        )
    partitions = defaults.partitions if request.num_partitions == -1 else request.num_partitions
    factor = request.replication_factor
    if factor == -1:
        is_internal = request.name in INTERNAL_TOPICS
        factor = (
            defaults.internal_replication_factor if is_internal else defaults.replication_factor
        )
    return _place(image, partitions, factor, random)


def _place(
    image: ClusterImage, partitions: int, replication_factor: int, random: Random
) -> list[Assignment]:
    try:
        return place(_hosts(image, replication_factor), partitions, replication_factor, random)
    except ApiError as error:
        raise ApiError(
            error.code,
            f"Unable to replicate the partition {replication_factor} time(s): {error.message}",
        ) from None


def _hosts(image: ClusterImage, replication_factor: int) -> Iterable[BrokerImage]:
    """The brokers that may hold the replicas: those that are down only where the others are few."""
    is_short = replication_factor > len(image.alive_brokers())
    return (image.members() if is_short else image.brokers).values()


def _manual_assignment(image: ClusterImage, request: CreatableTopic) -> list[Assignment]:
    for field, value in (
        ("replication factor", request.replication_factor),
        ("numPartitions", request.num_partitions),
    ):
        if value != -1:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"A manual partition assignment was specified, but {field} was not set to -1.",
            )
    by_index = _by_partition(image, request.assignments)
    if sorted(by_index) != list(range(len(by_index))):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "partitions should be a consecutive 0-based integer sequence",
        )
    return [by_index[index] for index in range(len(by_index))]


def _by_partition(
    image: ClusterImage, assignments: Iterable[CreatableReplicaAssignment]
) -> dict[int, Assignment]:
    by_index: dict[int, Assignment] = {}
    factor: int | None = None
    for assignment in assignments:
        index = assignment.partition_index
        if index in by_index:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Found multiple manual partition assignments for partition {index}",
            )
        by_index[index] = _checked_replicas(image, assignment.broker_ids, factor, index)
        factor = len(assignment.broker_ids)
    return by_index


def _checked_replicas(
    image: ClusterImage, broker_ids: Sequence[int], factor: int | None, index: int
) -> Assignment:
    """The replicas that a request names for one partition, if they can be."""
    problem = replicas_problem(image.brokers, broker_ids, factor)
    replicas = tuple(map(BrokerId, broker_ids))
    if problem is None and not _alive(image, replicas):
        problem = (
            f"All brokers specified in the manual partition assignment for partition {index} "
            "are fenced or in controlled shutdown."
        )
    if problem is not None:
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)
    return replicas


def replicas_problem(
    known: Container[int], broker_ids: Sequence[int], factor: int | None = None
) -> str | None:
    """Why these brokers cannot be one partition's replicas; `known` are those there are."""
    if not broker_ids:
        return "The manual partition assignment includes an empty replica list."
    previous = None
    for broker_id in sorted(broker_ids):
        if broker_id not in known:
            return (
                f"The manual partition assignment includes broker {broker_id}, "
                "but no such broker is registered."
            )
        if broker_id == previous:
            return (
                f"The manual partition assignment includes the broker {broker_id} more than once."
            )
        previous = broker_id
    if factor is not None and len(broker_ids) != factor:
        return (
            f"The manual partition assignment includes a partition with {len(broker_ids)} "
            f"replica(s), but this is not consistent with previous partitions, which have "
            f"{factor} replica(s)."
        )
    return None


def _alive(image: ClusterImage, replicas: Iterable[BrokerId]) -> Assignment:
    known = (image.brokers.get(broker_id) for broker_id in replicas)
    return tuple(broker.broker_id for broker in known if broker is not None and broker.alive)


def new_partitions(
    image: ClusterImage, first: int, assignments: Sequence[Assignment]
) -> tuple[PartitionImage, ...]:
    """Partitions in their first state: in sync are the replicas alive, the first of them leads."""
    epoch = ControllerEpoch(image.controller_epoch)
    partitions = []
    for index, replicas in enumerate(assignments, first):
        isr = _alive(image, replicas)
        partitions.append(
            PartitionImage(
                index=PartitionIndex(index),
                leader=isr[0],
                leader_epoch=LeaderEpoch(0),
                replicas=replicas,
                isr=isr,
                controller_epoch=epoch,
            )
        )
    return tuple(partitions)


@dataclass(frozen=True, slots=True)
class GrowthPlan:
    """One answer of a request for more partitions: the topic as it will be, or the error."""

    name: str
    topic: TopicImage | None = None
    error: ApiError | None = None


def plan_growth(
    image: ClusterImage, requests: Sequence[CreatePartitionsTopic], random: Random
) -> list[GrowthPlan]:
    """One plan per distinct name, in the order of the answer: repeated names come first."""
    repeated = _repeated(request.name for request in requests)
    duplicate = ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
    plans = [GrowthPlan(name, error=duplicate) for name in repeated]
    budget = PARTITIONS_PER_REQUEST_MAX
    for request in requests:
        if request.name in repeated:
            continue
        try:
            topic = _grow(image, request, random, budget)
        except ApiError as error:
            plans.append(GrowthPlan(request.name, error=error))
        else:
            budget -= len(topic.partitions) - len(image.topics[topic.name].partitions)
            plans.append(GrowthPlan(request.name, topic=topic))
    return plans


def _grow(
    image: ClusterImage, request: CreatePartitionsTopic, random: Random, budget: int
) -> TopicImage:
    topic = image.topics.get(request.name)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    _check_count(topic, request.count)
    present = len(topic.partitions)
    additional = request.count - present
    if request.assignments is not None and len(request.assignments) != additional:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Attempted to add {additional} additional partition(s), but only "
            f"{len(request.assignments)} assignment(s) were specified.",
        )
    if additional > budget:
        raise _too_many_partitions()
    factor = topic.replication_factor
    if request.assignments is None:
        replicas = place(_hosts(image, factor), additional, factor, random)
    else:
        replicas = [
            _checked_replicas(image, assignment.broker_ids, factor, index)
            for index, assignment in enumerate(request.assignments, present)
        ]
    added = new_partitions(image, present, replicas)
    return replace(topic, partitions=topic.partitions + added)


def _check_count(topic: TopicImage, count: int) -> None:
    present = len(topic.partitions)
    if count == present:
        problem = f"Topic already has {present} partition(s)."
    elif count < present:
        problem = (
            f"The topic {topic.name} currently has {present} partition(s); "
            f"{count} would not be an increase."
        )
    else:
        return
    raise ApiError(ErrorCode.INVALID_PARTITIONS, problem)


@dataclass(frozen=True, slots=True)
class DeletePlan:
    """One answer of a request to delete: the topic that goes, or the error."""

    name: str | None
    topic_id: TopicId
    topic: TopicImage | None = None
    error: ApiError | None = None


def plan_deletions(
    image: ClusterImage, names: Sequence[str], states: Sequence[DeleteTopicState]
) -> list[DeletePlan]:
    """One plan per topic that the request names, by name (`names`, old versions) or either way.

    A topic that is named twice, by whatever means, is not deleted: the request contradicts itself.
    """
    plans = []
    by_name = list(names)
    by_id = []
    for state in states:
        if state.name is None and state.topic_id == ZERO_TOPIC_ID:
            problem = "Neither topic name nor id were specified."
            plans.append(_undeleted(None, ZERO_TOPIC_ID, ErrorCode.INVALID_REQUEST, problem))
        elif state.name is None:
            by_id.append(state.topic_id)
        elif state.topic_id == ZERO_TOPIC_ID:
            by_name.append(state.name)
        else:
            problem = "You may not specify both topic name and topic id."
            plans.append(_undeleted(state.name, state.topic_id, ErrorCode.INVALID_REQUEST, problem))
    found = _find_by_id(image, by_id, plans)
    _find_by_name(image, by_name, found, plans)
    return plans + [
        DeletePlan(topic.name, topic_id, topic=topic)
        for topic_id, topic in found.items()
        if topic is not None
    ]


def _undeleted(name: str | None, topic_id: TopicId, code: ErrorCode, message: str) -> DeletePlan:
    return DeletePlan(name, topic_id, error=ApiError(code, message))


def _find_by_id(
    image: ClusterImage, ids: Sequence[TopicId], plans: list[DeletePlan]
) -> dict[TopicId, TopicImage | None]:
    """The topics of these ids; None stands for an id that was given more than once."""
    found: dict[TopicId, TopicImage | None] = {}
    for topic_id, count in Counter(ids).items():
        topic = image.topic_by_id(topic_id)
        if count > 1:
            found[topic_id] = None
            problem = "Duplicate topic id."
            plans.append(_undeleted(None, topic_id, ErrorCode.INVALID_REQUEST, problem))
        elif topic is None:
            problem = "This server does not host this topic ID."
            plans.append(_undeleted(None, topic_id, ErrorCode.UNKNOWN_TOPIC_ID, problem))
        else:
            found[topic_id] = topic
    return found


def _find_by_name(
    image: ClusterImage,
    names: Sequence[str],
    found: dict[TopicId, TopicImage | None],
    plans: list[DeletePlan],
) -> None:
    repeated = _repeated(names)
    for name in dict.fromkeys(names):
        topic = image.topics.get(name)
        if name in repeated:
            problem = "Duplicate topic name."
            plans.append(_undeleted(name, ZERO_TOPIC_ID, ErrorCode.INVALID_REQUEST, problem))
        elif topic is None:
            problem = "This server does not host this topic-partition."
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            plans.append(_undeleted(name, ZERO_TOPIC_ID, code, problem))
        elif topic.topic_id in found:
            found[topic.topic_id] = None
            problem = "The provided topic name maps to an ID that was already supplied."
            plans.append(_undeleted(name, topic.topic_id, ErrorCode.INVALID_REQUEST, problem))
        else:
            found[topic.topic_id] = topic
