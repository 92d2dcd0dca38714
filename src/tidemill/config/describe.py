"""What DescribeConfigs answers: each key's value, its source, and every layer it could come from.

Kafka lists layer by layer (this broker, all brokers, static, default), within a layer the key and
its synonyms in other units; entries before the first one of the key's own name are left out. So a
topic whose retention comes from `log.retention.hours` shows no synonym and the source "default".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from tidemill.config.broker import BrokerConfig, Source, known_key
from tidemill.config.group import resolve_group_config
from tidemill.config.keys import ConfigKey, ConfigType, Update
from tidemill.config.tables import (
    BROKER_KEYS,
    BROKER_SYNONYMS,
    GROUP_FALLBACKS,
    GROUP_KEYS,
    TOPIC_FALLBACKS,
    TOPIC_KEYS,
)
from tidemill.config.text import format_value
from tidemill.config.topic import resolve_topic_config


class Synonym(NamedTuple):
    """One layer's value under one name; a secret's value is None."""

    name: str
    value: str | None
    source: Source


class DescribedConfig(NamedTuple):
    """One key of a DescribeConfigs answer; a secret's value is None."""

    name: str
    value: str | None
    source: Source
    type: ConfigType
    is_default: bool
    read_only: bool
    sensitive: bool
    synonyms: tuple[Synonym, ...]
    doc: str


def describe_topic(
    overrides: Mapping[str, str],
    broker: BrokerConfig,
    *,
    replication_factor: int = 1,
    names: Collection[str] | None = None,
) -> list[DescribedConfig]:
    """A topic's settings; `names` limits the answer to those keys, None asks for all."""
    resolved = resolve_topic_config(overrides, broker, replication_factor=replication_factor)
    described = []
    for name, key in TOPIC_KEYS.items():
        if names is not None and name not in names:
            continue
        synonyms = _topic_synonyms(name, resolved.overrides, broker)
        described.append(_entry(key, format_value(resolved.value(name)), synonyms, read_only=False))
    return described


def describe_group(
    overrides: Mapping[str, str], broker: BrokerConfig, *, names: Collection[str] | None = None
) -> list[DescribedConfig]:
    """A group's settings, whether there is such a group or not."""
    resolved = resolve_group_config(overrides, broker)
    described = []
    for name, key in GROUP_KEYS.items():
        if names is not None and name not in names:
            continue
        synonyms = _group_synonyms(key, resolved.overrides, broker)
        described.append(_entry(key, format_value(resolved.value(name)), synonyms, read_only=False))
    return described


def describe_broker(
    config: BrokerConfig, *, brokers: int = 1, names: Collection[str] | None = None
) -> list[DescribedConfig]:
    """One broker's settings; `brokers` is the size of the cluster, which decides some defaults."""
    described = []
    for key in _broker_keys(config):
        if names is not None and key.name not in names:
            continue
        value = format_value(config.value(key.name))
        if key.name == "default.replication.factor":
            value = str(config.default_replication_factor(brokers))
        read_only = key.update is Update.READ_ONLY
        described.append(
            _entry(key, value, _broker_synonyms(key.name, config), read_only=read_only)
        )
    if names is None:
        described += [_unknown_entry(name) for name in config.unlisted_names()]
    return described


def describe_broker_default(
    config: BrokerConfig, *, names: Collection[str] | None = None
) -> list[DescribedConfig]:
    """What is set for all brokers while running; unlike the others, no defaults are listed."""
    described = []
    for name, text in config.cluster_texts().items():
        key = known_key(name)
        if key is None or (names is not None and name not in names):
            continue
        synonym = Synonym(name, None if key.sensitive else text, Source.DYNAMIC_DEFAULT_BROKER)
        described.append(_entry(key, text, (synonym,), read_only=False))
    return described


def _entry(
    key: ConfigKey, value: str | None, synonyms: tuple[Synonym, ...], *, read_only: bool
) -> DescribedConfig:
    source = synonyms[0].source if synonyms else Source.DEFAULT
    return DescribedConfig(
        name=key.name,
        value=None if key.sensitive else value,
        source=source,
        type=key.type,
        is_default=source is Source.DEFAULT,
        read_only=read_only,
        sensitive=key.sensitive,
        synonyms=synonyms,
        doc=key.doc,
    )


def _unknown_entry(name: str) -> DescribedConfig:
    """A setting that belongs to no key (a plug-in's, a listener's): it may be a secret."""
    synonym = Synonym(name, None, Source.STATIC_BROKER)
    return DescribedConfig(
        name, None, Source.STATIC_BROKER, ConfigType.UNKNOWN, False, True, True, (synonym,), ""
    )


def _broker_keys(config: BrokerConfig) -> Iterator[ConfigKey]:
    yield from BROKER_KEYS.values()
    for name in sorted(config.names_set_while_running()):
        if name not in BROKER_KEYS and (key := known_key(name)) is not None:
            yield key


def _topic_synonyms(
    name: str, overrides: Mapping[str, str], broker: BrokerConfig
) -> tuple[Synonym, ...]:
    fallback = TOPIC_FALLBACKS.get(name)
    below = _broker_synonyms(fallback, broker) if fallback is not None else ()
    if name not in overrides:
        return below
    return (Synonym(name, overrides[name], Source.DYNAMIC_TOPIC), *below)


def _group_synonyms(
    key: ConfigKey, overrides: Mapping[str, str], broker: BrokerConfig
) -> tuple[Synonym, ...]:
    fallback = GROUP_FALLBACKS.get(key.name)
    if fallback is None:
        below: tuple[Synonym, ...] = (Synonym(key.name, key.default, Source.DEFAULT),)
    else:
        below = _broker_synonyms(fallback, broker)
    if key.name not in overrides:
        return below
    return (Synonym(key.name, overrides[key.name], Source.DYNAMIC_GROUP), *below)


def _broker_synonyms(name: str, config: BrokerConfig) -> tuple[Synonym, ...]:
    group = BROKER_SYNONYMS.get(name, (name,))
    layers = [(each, layer) for each in group for layer in config.layers(each)]
    layers.sort(key=lambda pair: pair[1].source)  # stable: within a layer the group's order stays
    synonyms = tuple(_synonym(each, layer.text, layer.source) for each, layer in layers)
    own = next((at for at, each in enumerate(synonyms) if each.name == name), len(synonyms))
    return synonyms[own:]


def _synonym(name: str, text: str, source: Source) -> Synonym:
    key = known_key(name)
    return Synonym(name, None if key is None or key.sensitive else text, source)
