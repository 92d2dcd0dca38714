"""Requests about configurations built, and their answers read: no I/O here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import TypeVar

from tidemill.client.admin_types import (
    AlterOp,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ConfigSynonym,
    ConfigType,
    ResourceType,
    Results,
)
from tidemill.client.errors import ClientError, from_code
from tidemill.wire.messages.configs import (
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

AskBroker = Callable[[int | None, list[ConfigResource]], Awaitable[None]]
E = TypeVar("E", bound=IntEnum)


def by_broker(resources: Iterable[ConfigResource]) -> dict[int | None, list[ConfigResource]]:
    """Which broker knows each resource: one broker's settings only itself, the rest anyone."""
    grouped: dict[int | None, list[ConfigResource]] = {}
    for resource in resources:
        own = resource.type in (ResourceType.BROKER, ResourceType.BROKER_LOGGER)
        broker_id = int(resource.name) if own and resource.name.isdigit() else None
        grouped.setdefault(broker_id, []).append(resource)
    return grouped


def describe_request(
    resources: list[ConfigResource], *, synonyms: bool, documentation: bool
) -> DescribeConfigsRequest:
    asked = [
        DescribeConfigsResource(
            resource_type=resource.type, resource_name=resource.name, configuration_keys=None
        )
        for resource in resources
    ]
    return DescribeConfigsRequest(
        resources=asked, include_synonyms=synonyms, include_documentation=documentation
    )


def described(
    answer: DescribeConfigsResponse,
) -> dict[ConfigResource, dict[str, ConfigEntry] | ClientError]:
    results: dict[ConfigResource, dict[str, ConfigEntry] | ClientError] = {}
    for result in answer.results:
        resource = ConfigResource(ResourceType(result.resource_type), result.resource_name)
        if result.error_code:
            results[resource] = from_code(result.error_code, result.error_message)
        else:
            results[resource] = {entry.name: _entry(entry) for entry in result.configs}
    return results


def _entry(entry: DescribeConfigsResourceResult) -> ConfigEntry:
    return ConfigEntry(
        name=entry.name,
        value=entry.value,
        source=config_source(entry.config_source),
        read_only=entry.read_only,
        sensitive=entry.is_sensitive,
        synonyms=tuple(
            ConfigSynonym(synonym.name, synonym.value, config_source(synonym.source))
            for synonym in entry.synonyms
        ),
        type=_known(ConfigType, entry.config_type, ConfigType.UNKNOWN),
        documentation=entry.documentation,
    )


def config_source(number: int) -> ConfigSource:
    return _known(ConfigSource, number, ConfigSource.UNKNOWN)


def _known(kind: type[E], number: int, fallback: E) -> E:
    try:
        return kind(number)
    except ValueError:
        return fallback


def alter_request(
    changes: Mapping[ConfigResource, Sequence[AlterOp]], *, validate_only: bool
) -> IncrementalAlterConfigsRequest:
    resources = [
        IncrementalAlterConfigsResource(
            resource_type=resource.type,
            resource_name=resource.name,
            configs=[
                IncrementalAlterableConfig(name=op.name, config_operation=op.op, value=op.value)
                for op in ops
            ],
        )
        for resource, ops in changes.items()
    ]
    return IncrementalAlterConfigsRequest(resources=resources, validate_only=validate_only)


def altered(
    answer: IncrementalAlterConfigsResponse | AlterConfigsResponse,
) -> Results[ConfigResource, None]:
    results: Results[ConfigResource, None] = Results()
    for entry in answer.responses:
        resource = ConfigResource(ResourceType(entry.resource_type), entry.resource_name)
        error = from_code(entry.error_code, entry.error_message)
        results[resource] = error if entry.error_code else None
    return results


def list_request(types: Iterable[ResourceType]) -> ListConfigResourcesRequest:
    return ListConfigResourcesRequest(resource_types=[int(kind) for kind in types])


def listed(answer: ListConfigResourcesResponse) -> list[ConfigResource]:
    if answer.error_code:
        raise from_code(answer.error_code)
    found = [
        ConfigResource(ResourceType(entry.resource_type), entry.resource_name)
        for entry in answer.config_resources
    ]
    return sorted(found, key=lambda resource: (resource.type, resource.name))
