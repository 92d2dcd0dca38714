"""DescribeConfigs: v1-4. AlterConfigs: v0-2. IncrementalAlterConfigs: v0-1. ListConfigResources:
v0-1.

Behaviour: topics, groups, one broker by its id, and all brokers (the empty name). DescribeConfigs
gives every key, or those asked for, with value, source, synonyms (the layers below, KIP-226), type
and documentation (KIP-569); secrets have no value. AlterConfigs replaces all settings of a
resource, the incremental one (KIP-339) sets, deletes, appends to or subtracts from single keys. A
resource changes as a whole or not at all, and takes effect before the answer leaves. A group need
not be there to have settings (KIP-848); they hold for its next heartbeat. ListConfigResources
(KIP-1142; v0 was ListClientMetricsResources, KIP-1000) names what has settings.

Log levels (BROKER_LOGGER) are in `loggers.py`.

Deviations: client metrics have no settings here yet: describing or altering them is
INVALID_REQUEST, and they are not listed. A group's keys for share and streams groups are described
and refused, since there are no such groups. A broker key that nobody knows is refused, where Kafka
stores it without effect. An unknown operation on a topic is INVALID_REQUEST, where Kafka
fails with UNKNOWN_SERVER_ERROR. The same resource twice in AlterConfigs is refused in every form,
where Kafka leaves some requests unanswered. An answer has a largest size.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from tidemill.broker.context import Broker
from tidemill.broker.dispatch import RequestContext, handles
from tidemill.broker.handlers.loggers import alter_loggers, describe_loggers
from tidemill.config import (
    DescribedConfig,
    describe_broker,
    describe_broker_default,
    describe_group,
    describe_topic,
)
from tidemill.controller.names import check_topic_name
from tidemill.controller.settings import (
    ResourcePlan,
    ResourceType,
    check_changes,
    check_own_broker,
)
from tidemill.errors import ApiError, ErrorCode
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    ConfigResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

ENTRIES_MAX = 500_000
"""The settings in one answer, besides those of topics: 29,000 groups fit, of which the broker does
not know whether they are there, and a small request cannot ask for gigabytes."""
_ENTRIES_PER_TOPIC = 50
REPEATED_ENTRIES_MAX = 50_000
"""Nor for everything again and again."""

_RESOURCES_PER_TURN = 5

_LISTABLE = (
    ResourceType.GROUP,
    ResourceType.CLIENT_METRICS,
    ResourceType.BROKER_LOGGER,
    ResourceType.BROKER,
    ResourceType.TOPIC,
)


@handles(ApiKey.DESCRIBE_CONFIGS, 1, 4, is_heavy=True)
async def describe_configs(
    broker: Broker, context: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    results = []
    allowance = _Allowance(broker)
    for number, resource in enumerate(request.resources, 1):
        limit = allowance.limit_for(resource)
        if limit.left <= 0:
            results.append(_too_much(resource, limit.entries_max))
            continue
        result = _describe(broker, resource, request)
        limit.left -= len(result.configs) + 1
        results.append(result)
        if number % _RESOURCES_PER_TURN == 0:
            # `kafka-topics --describe` asks for all topics at once: others get their turn, too.
            await asyncio.sleep(0)
    return DescribeConfigsResponse(results=results)


class _Limit:
    """How many settings may still be told."""

    def __init__(self, entries_max: int) -> None:
        self.entries_max = self.left = entries_max


class _Allowance:
    """What one request may ask for: everything that there is, and of the same only so much."""

    def __init__(self, broker: Broker) -> None:
        self._first = _Limit(ENTRIES_MAX + _ENTRIES_PER_TOPIC * len(broker.image.topics))
        self._again = _Limit(REPEATED_ENTRIES_MAX)
        self._seen: set[tuple[int, str]] = set()

    def limit_for(self, resource: DescribeConfigsResource) -> _Limit:
        kind, name = resource.resource_type, resource.resource_name
        if kind not in (ResourceType.TOPIC, ResourceType.GROUP):
            name = name and "own"  # There is one broker to ask for, and an id has many spellings.
        if (kind, name) in self._seen:
            return self._again
        self._seen.add((kind, name))
        return self._first


def _too_much(resource: DescribeConfigsResource, entries_max: int) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        error_code=ErrorCode.INVALID_REQUEST,
        error_message=f"One answer has at most {entries_max} settings of this kind: ask for fewer "
        "resources, and for each once.",
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def _describe(
    broker: Broker, resource: DescribeConfigsResource, request: DescribeConfigsRequest
) -> DescribeConfigsResult:
    # Kafka's answer has an empty message, not none, where there is nothing to say.
    result = DescribeConfigsResult(
        error_message="",
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
    names = set(resource.configuration_keys) if resource.configuration_keys else None
    try:
        if resource.resource_type == ResourceType.BROKER_LOGGER:
            _check_own_loggers(broker, resource.resource_name)
            result.configs = describe_loggers(names)
        else:
            described = _settings(broker, resource, names)
            result.configs = [_entry(each, request) for each in described]
    except ApiError as error:
        result.error_code = int(error.code)
        result.error_message = error.message or ""
    return result


def _settings(
    broker: Broker, resource: DescribeConfigsResource, names: set[str] | None
) -> list[DescribedConfig]:
    match resource.resource_type:
        case ResourceType.TOPIC:
            check_topic_name(resource.resource_name)
            topic = broker.image.topic(resource.resource_name)
            if topic is None:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            factor = topic.sure_factor
            return describe_topic(
                topic.configs, broker.config, replication_factor=factor, names=names
            )
        case ResourceType.BROKER if not resource.resource_name:
            return describe_broker_default(broker.config, names=names)
        case ResourceType.BROKER:
            _check_own_id(broker, resource.resource_name)
            members = broker.image.staying_count
            return describe_broker(broker.config, brokers=members, names=names)
        case ResourceType.GROUP:
            if not resource.resource_name:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
            overrides = broker.image.group_configs.get(resource.resource_name, {})
            return describe_group(overrides, broker.config, names=names)
        case other:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {other}")


def _check_own_id(broker: Broker, name: str) -> None:
    if _broker_id(name) != broker.broker_id:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {broker.broker_id} or empty string, "
            f"but received {name}",
        )


def _check_own_loggers(broker: Broker, name: str) -> None:
    if not name:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
    if _broker_id(name) != broker.broker_id:
        problem = f"Unexpected broker id, expected {broker.broker_id} but received {name}"
        raise ApiError(ErrorCode.INVALID_REQUEST, problem)


def _broker_id(name: str) -> int:
    try:
        return int(name)
    except ValueError:
        problem = f"Broker id must be an integer, but it is: {name}"
        raise ApiError(ErrorCode.INVALID_REQUEST, problem) from None


def _entry(
    described: DescribedConfig, request: DescribeConfigsRequest
) -> DescribeConfigsResourceResult:
    synonyms = described.synonyms if request.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=described.name,
        value=described.value,
        read_only=described.read_only,
        config_source=described.source,
        is_sensitive=described.sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=each.name, value=each.value, source=each.source)
            for each in synonyms
        ],
        config_type=described.type,
        documentation=described.doc if request.include_documentation else None,
    )


@handles(ApiKey.ALTER_CONFIGS, 0, 2)
async def alter_configs(
    broker: Broker, context: RequestContext, request: AlterConfigsRequest
) -> AlterConfigsResponse:
    try:
        plans = await broker.controller.alter_configs(
            request.resources, validate_only=request.validate_only, origin=context.peer_id
        )
    except ApiError as error:
        plans = _all_failed(request.resources, error)
    return AlterConfigsResponse(responses=[_answer(plan) for plan in plans])


@handles(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1)
async def incremental_alter_configs(
    broker: Broker, context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    stored = [each for each in request.resources if not _is_logger(each)]
    try:
        plans = await broker.controller.incremental_alter_configs(
            stored, validate_only=request.validate_only, origin=context.peer_id
        )
    except ApiError as error:
        plans = _all_failed(stored, error)
    answers = iter(plans)
    times = Counter(each.resource_name for each in request.resources if _is_logger(each))
    ordered = [
        _alter_loggers(broker, each, times[each.resource_name], request.validate_only)
        if _is_logger(each)
        else next(answers)
        for each in request.resources
    ]
    return IncrementalAlterConfigsResponse(responses=[_answer(plan) for plan in ordered])


def _is_logger(resource: IncrementalAlterConfigsResource) -> bool:
    return resource.resource_type == ResourceType.BROKER_LOGGER


def _alter_loggers(
    broker: Broker, resource: IncrementalAlterConfigsResource, times: int, validate_only: bool
) -> ResourcePlan:
    """Levels belong to this process and are not stored, so the controller has no part in it."""
    name = resource.resource_name
    try:
        if times > 1:
            problem = "Each resource must appear at most once."
            raise ApiError(ErrorCode.INVALID_REQUEST, problem)
        check_own_broker(name, broker.broker_id)
        check_changes(resource)
        alter_loggers(resource.configs, validate_only=validate_only)
    except ApiError as error:
        return ResourcePlan(resource.resource_type, name, error=error)
    return ResourcePlan(resource.resource_type, name)


def _all_failed(
    resources: Sequence[AlterConfigsResource] | Sequence[IncrementalAlterConfigsResource],
    error: ApiError,
) -> list[ResourcePlan]:
    return [
        ResourcePlan(resource.resource_type, resource.resource_name, error=error)
        for resource in resources
    ]


def _answer(plan: ResourcePlan) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=plan.error.code if plan.error else 0,
        error_message=plan.error.message if plan.error else None,
        resource_type=plan.resource_type,
        resource_name=plan.resource_name,
    )


@handles(ApiKey.LIST_CONFIG_RESOURCES, 0, 1)
def list_config_resources(
    broker: Broker, context: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    wanted = request.resource_types if context.version >= 1 else [ResourceType.CLIENT_METRICS]
    if any(each not in _LISTABLE for each in wanted):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    kinds = [each for each in _LISTABLE if not wanted or each in wanted]
    return ListConfigResourcesResponse(
        config_resources=[resource for kind in kinds for resource in _resources(broker, kind)]
    )


def _resources(broker: Broker, kind: ResourceType) -> list[ConfigResource]:
    image = broker.image
    names: list[str] = []
    if kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
        names = [str(broker_id) for broker_id in sorted(image.brokers)]
    elif kind is ResourceType.TOPIC:
        names = list(image.topics)
    elif kind is ResourceType.GROUP:
        names = list(image.group_configs)
    return [ConfigResource(resource_name=name, resource_type=kind) for name in names]
