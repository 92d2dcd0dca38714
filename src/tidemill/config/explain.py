"""What `tidemill config explain` and `config print --effective` show: one key, or all of them."""

from __future__ import annotations

from typing import NamedTuple

from tidemill.config.broker import BrokerConfig, Source
from tidemill.config.keys import ConfigError, ConfigKey, Status, Update
from tidemill.config.removed import REMOVED_TOPIC_KEYS, removed_broker_key
from tidemill.config.suggest import did_you_mean
from tidemill.config.tables import (
    BROKER_KEYS,
    BROKER_SYNONYMS,
    DYNAMIC_ONLY_KEYS,
    TOPIC_FALLBACKS,
    TOPIC_KEYS,
)
from tidemill.config.text import HIDDEN, format_value
from tidemill.config.topic import resolve_topic_config


class Explained(NamedTuple):
    """Everything there is to say about a key; `current` is None when unset or not a broker's."""

    name: str
    scope: str  # "broker" or "topic"
    meaning: str
    type: str
    unit: str
    limits: str
    default: str | None
    kafka_default: str | None  # where Kafka's own default is another one
    default_2_8: str | None  # where Kafka 2.8's default was another one
    current: str | None
    origin: str
    update: str
    status: str
    related: tuple[str, ...]  # the broker key behind a topic key, and the other way round


class EffectiveSetting(NamedTuple):
    """One line of `config print --effective`."""

    name: str
    value: str | None
    origin: str
    is_default: bool
    is_read_only: bool


def explain(name: str, config: BrokerConfig) -> Explained:
    """All about one key; a name that is none raises with what to use instead."""
    key = BROKER_KEYS.get(name) or DYNAMIC_ONLY_KEYS.get(name)
    if key is not None:
        return _explained(key, "broker", config)
    if name in TOPIC_KEYS:
        return _explained(TOPIC_KEYS[name], "topic", config)
    hint = removed_broker_key(name) or REMOVED_TOPIC_KEYS.get(name)
    if hint is not None:
        raise ConfigError(f"{name} no longer exists: {hint}")
    suggestion = did_you_mean(name, [*BROKER_KEYS, *TOPIC_KEYS])
    raise ConfigError(f"Unknown key {name}{suggestion}")


def effective(config: BrokerConfig) -> list[EffectiveSetting]:
    """Every broker key with the value that counts and where it came from."""
    listed = [
        EffectiveSetting(
            name,
            config.shown(name),
            config.origin(name),
            config.source(name) is Source.DEFAULT,
            key.update is Update.READ_ONLY,
        )
        for name, key in BROKER_KEYS.items()
    ]
    unlisted = [
        EffectiveSetting(name, HIDDEN, config.origin(name), is_default=False, is_read_only=True)
        for name in config.unlisted_names()
    ]
    return listed + unlisted


def _explained(key: ConfigKey, scope: str, config: BrokerConfig) -> Explained:
    current, origin = _in_force(key, scope, config)
    here = config.default(key.name) if scope == "broker" else None
    return Explained(
        name=key.name,
        scope=scope,
        meaning=key.doc,
        type=key.type.name.lower(),
        unit=key.unit,
        limits=key.constraint.text if key.constraint is not None else "",
        default=here if here is not None else key.default,
        kafka_default=_kafka_default(key, here),
        default_2_8=key.default_2_8,
        current=current,
        origin=origin,
        update=_update(key, scope),
        status=key.status.value,
        related=_related(key.name, scope),
    )


def _in_force(key: ConfigKey, scope: str, config: BrokerConfig) -> tuple[str | None, str]:
    """The value that counts and the place that set it; a topic's is what it inherits."""
    if scope == "broker":
        known = key.name in BROKER_KEYS
        return (config.shown(key.name), config.origin(key.name)) if known else (None, "unset")
    inherited = format_value(resolve_topic_config({}, config).value(key.name))
    behind = TOPIC_FALLBACKS.get(key.name)
    if behind is None:
        return inherited, "default"
    group = BROKER_SYNONYMS.get(behind, (behind,))
    said_by = next((name for name in group if config.text(name) is not None), behind)
    return inherited, f"{config.origin(said_by)} ({said_by})"


def _kafka_default(key: ConfigKey, here: str | None) -> str | None:
    """Kafka's default where this machine's is another: some of ours follow its file limit."""
    if key.kafka_default is None and not key.own and here not in (None, key.default):
        return key.default
    return key.kafka_default


def _update(key: ConfigKey, scope: str) -> str:
    if scope == "topic":
        return "at any time, per topic"
    if key.status in (Status.KRAFT, Status.UNSUPPORTED):
        return "has no effect"
    return {
        Update.READ_ONLY: "at start only",
        Update.PER_BROKER: "at any time, per broker",
        Update.CLUSTER_WIDE: "at any time, per broker or for all",
    }[key.update]


def _related(name: str, scope: str) -> tuple[str, ...]:
    if scope == "topic":
        return (TOPIC_FALLBACKS[name],) if name in TOPIC_FALLBACKS else ()
    return tuple(topic for topic, broker in TOPIC_FALLBACKS.items() if broker == name)
