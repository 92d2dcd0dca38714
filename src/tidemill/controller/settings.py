"""Decisions about settings: what a request to alter those of topics, brokers and groups comes to.

Pure functions of the image, the request and the broker's own configuration (whose table knows each
key). A resource changes as a whole or not at all. Checks, order and messages are Kafka's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from tidemill.config import (
    BROKER_KEYS,
    GROUP_KEYS,
    TOPIC_KEYS,
    BrokerConfig,
    ConfigError,
    ConfigKey,
    ConfigType,
    Scope,
    check_broker_overrides,
    check_group_overrides,
    check_topic_overrides,
)
from tidemill.controller.names import check_topic_name
from tidemill.errors import ApiError, ErrorCode
from tidemill.image import ClusterImage
from tidemill.types import BrokerId
from tidemill.wire.messages.configs import (
    AlterConfigsResource,
    IncrementalAlterConfigsResource,
)

CONFIGS_PER_RESOURCE_MAX = 1_000
VALUE_CHARS_MAX = 65_536
GROUPS_WITH_SETTINGS_MAX = 10_000
GROUP_ID_CHARS_MAX = 1_000


class ResourceType(IntEnum):
    """Whose settings a request means; the values are the protocol's."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Operation(IntEnum):
    """What an incremental request does to one key."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """The settings that a topic, a group, a broker, or (without any) all brokers will have."""

    configs: Mapping[str, str]
    topic: str | None = None
    broker_id: BrokerId | None = None
    group_id: str | None = None


@dataclass(frozen=True, slots=True)
class ResourcePlan:
    """The answer for one resource: its change, or the error."""

    resource_type: int
    resource_name: str
    change: ConfigChange | None = None
    error: ApiError | None = None


Resource = AlterConfigsResource | IncrementalAlterConfigsResource


def plan_replacements(
    image: ClusterImage,
    resources: Sequence[AlterConfigsResource],
    broker_id: int,
    config: BrokerConfig,
) -> list[ResourcePlan]:
    """AlterConfigs: what is not in the request is no longer set."""

    def wanted(resource: AlterConfigsResource, current: Mapping[str, str]) -> dict[str, str]:
        _refuse_nulls(entry.name for entry in resource.configs if entry.value is None)
        return {entry.name: entry.value or "" for entry in resource.configs}

    return _plan(image, resources, broker_id, config, wanted)


def plan_increments(
    image: ClusterImage,
    resources: Sequence[IncrementalAlterConfigsResource],
    broker_id: int,
    config: BrokerConfig,
) -> list[ResourcePlan]:
    """IncrementalAlterConfigs: what is not in the request stays as it is."""

    def wanted(
        resource: IncrementalAlterConfigsResource, current: Mapping[str, str]
    ) -> dict[str, str]:
        _refuse_nulls(
            entry.name
            for entry in resource.configs
            if entry.value is None and entry.config_operation != Operation.DELETE
        )
        configs = dict(current)
        for entry in resource.configs:
            if entry.config_operation not in Operation.__members__.values():
                problem = f"Unknown operations type {entry.config_operation}"
                raise ApiError(ErrorCode.INVALID_REQUEST, problem)
            operation = Operation(entry.config_operation)
            _apply(configs, resource.resource_type, entry.name, operation, entry.value or "")
        return configs

    return _plan(image, resources, broker_id, config, wanted)


def _plan(
    image: ClusterImage,
    resources: Sequence[Resource],
    broker_id: int,
    config: BrokerConfig,
    wanted: Callable[..., dict[str, str]],
) -> list[ResourcePlan]:
    counts = Counter((each.resource_type, each.resource_name) for each in resources)
    plans = []
    for resource in resources:
        name = (resource.resource_type, resource.resource_name)
        try:
            if counts[name] > 1:
                problem = "Each resource must appear at most once."
                raise ApiError(ErrorCode.INVALID_REQUEST, problem)
            change = _plan_resource(image, resource, broker_id, config, wanted)
        except ApiError as error:
            plans.append(ResourcePlan(*name, error=error))
        else:
            plans.append(ResourcePlan(*name, change=change))
    return plans


def _plan_resource(
    image: ClusterImage,
    resource: Resource,
    broker_id: int,
    config: BrokerConfig,
    wanted: Callable[..., dict[str, str]],
) -> ConfigChange:
    check_changes(resource)
    match resource.resource_type:
        case ResourceType.TOPIC:
            name = resource.resource_name
            topic = image.topics.get(name)
            configs = wanted(resource, topic.configs if topic else {})
            _check_topic(image, name, configs, config)
            return ConfigChange(configs, topic=name)
        case ResourceType.BROKER:
            target = _target_broker(resource.resource_name, broker_id)
            current = (
                image.default_broker_config
                if target is None
                else image.broker_configs.get(target, {})
            )
            configs = wanted(resource, current)
            _check_broker(configs, Scope.CLUSTER if target is None else Scope.BROKER, config)
            return ConfigChange(configs, broker_id=target)
        case ResourceType.GROUP:
            group_id = resource.resource_name
            configs = wanted(resource, image.group_configs.get(group_id, {}))
            _check_group(image, group_id, configs, config)
            return ConfigChange(configs, group_id=group_id)
        case other:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {other}")


def check_changes(resource: Resource) -> None:
    """Refuse a request that names a key twice, or more than anybody needs."""
    names = [entry.name for entry in resource.configs]
    if len(set(names)) != len(names):
        raise ApiError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    if len(names) > CONFIGS_PER_RESOURCE_MAX or any(
        len(entry.value or "") > VALUE_CHARS_MAX for entry in resource.configs
    ):
        raise ApiError(
            ErrorCode.POLICY_VIOLATION,
            f"A resource can have at most {CONFIGS_PER_RESOURCE_MAX} settings of at most "
            f"{VALUE_CHARS_MAX} characters.",
        )


def _refuse_nulls(names: Iterable[str]) -> None:
    listed = ", ".join(names)
    if listed:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {listed}")


def _apply(
    configs: dict[str, str], resource_type: int, name: str, operation: Operation, value: str
) -> None:
    match operation:
        case Operation.SET:
            configs[name] = value
        case Operation.DELETE:
            configs.pop(name, None)
        case Operation.APPEND | Operation.SUBTRACT:
            key = _list_key(resource_type, name, operation)
            parts = _parts(configs.get(name, key.default or ""))
            if operation is Operation.APPEND:
                parts += [part for part in value.split(",") if part not in parts]
            else:
                gone = set(value.split(","))
                parts = [part for part in parts if part not in gone]
            configs[name] = ",".join(parts)


def _list_key(resource_type: int, name: str, operation: Operation) -> ConfigKey:
    tables = {ResourceType.TOPIC: TOPIC_KEYS, ResourceType.GROUP: GROUP_KEYS}
    key = tables.get(ResourceType(resource_type), BROKER_KEYS).get(name)
    if key is not None and key.type is ConfigType.LIST:
        return key
    if resource_type != ResourceType.BROKER:
        problem = f"Can't {operation.name} to key {name} because its type is not LIST."
    else:
        verb = operation.name.lower()
        problem = f"Config value {verb} is not allowed for config key: {name}"
    raise ApiError(ErrorCode.INVALID_CONFIG, problem)


def _parts(value: str) -> list[str]:
    return [part for part in value.split(",") if part]


def _check_topic(
    image: ClusterImage, name: str, configs: Mapping[str, str], config: BrokerConfig
) -> None:
    if not name:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
    check_topic_name(name)
    check_topic_configs(configs, config)
    if name not in image.topics:
        problem = f"The topic '{name}' does not exist."
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, problem)


def _check_group(
    image: ClusterImage, group_id: str, configs: Mapping[str, str], config: BrokerConfig
) -> None:
    if not group_id:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
    is_new = configs and group_id not in image.group_configs
    if len(group_id) > GROUP_ID_CHARS_MAX or (
        is_new and len(image.group_configs) >= GROUPS_WITH_SETTINGS_MAX
    ):
        raise ApiError(
            ErrorCode.POLICY_VIOLATION,
            f"At most {GROUPS_WITH_SETTINGS_MAX} groups can have settings of their own, with ids "
            f"of at most {GROUP_ID_CHARS_MAX} characters.",
        )
    try:
        check_group_overrides(configs, config)
    except ConfigError as problem:
        raise ApiError(problem.code, problem.message) from None


def check_topic_configs(configs: Mapping[str, str], config: BrokerConfig) -> None:
    """Refuse settings that a topic cannot have."""
    try:
        check_topic_overrides(configs, config)
    except ConfigError as problem:
        raise ApiError(problem.code, problem.message) from None


def _check_broker(configs: Mapping[str, str], scope: Scope, config: BrokerConfig) -> None:
    try:
        check_broker_overrides(configs, scope, config)
    except ConfigError as problem:
        raise ApiError(problem.code, problem.message) from None


def _target_broker(name: str, broker_id: int) -> BrokerId | None:
    """The broker that a resource names, None for all of them.

    A broker's own settings are checked against its own configuration, so only it can be asked.
    """
    if not name:
        return None
    check_own_broker(name, broker_id)
    return BrokerId(broker_id)


def check_own_broker(name: str, broker_id: int) -> None:
    """Refuse the name of any other broker than this one."""
    try:
        target = int(name)
    except ValueError:
        problem = f"Node id must be an integer, but it is: {name}"
        raise ApiError(ErrorCode.INVALID_REQUEST, problem) from None
    if target != broker_id:
        problem = f"Unexpected broker id, expected {broker_id}, but received {name}"
        raise ApiError(ErrorCode.INVALID_REQUEST, problem)
