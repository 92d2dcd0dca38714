"""The settings of one topic: its own, and below them what its broker says."""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.config.broker import BrokerConfig
from tidemill.config.getters import Getters
from tidemill.config.keys import ConfigError, Value
from tidemill.config.parse import parse
from tidemill.config.tables import TOPIC_FALLBACKS, TOPIC_KEYS


class TopicConfig(Getters):
    """A topic's settings, resolved; `overrides` are those that the topic itself carries."""

    __slots__ = ("overrides",)

    def __init__(self, values: dict[str, Value], overrides: Mapping[str, str]) -> None:
        super().__init__(values)
        self.overrides = overrides

    def value(self, name: str) -> Value:
        """The parsed value, whatever its type."""
        return self._values[name]


def resolve_topic_config(
    overrides: Mapping[str, str], broker: BrokerConfig, *, replication_factor: int = 1
) -> TopicConfig:
    """The topic's own settings over the broker's; unknown ones are left out, not refused.

    Overrides come from the store, where an older or newer version may have put them, and a topic
    must stay readable; `check_topic_overrides` is what refuses new ones.
    """
    values = broker_topic_values(broker, replication_factor)
    kept = {name: text for name, text in overrides.items() if name in TOPIC_KEYS}
    for name, text in kept.items():
        values[name] = parse(TOPIC_KEYS[name], text)
    return TopicConfig(values, kept)


def broker_topic_values(broker: BrokerConfig, replication_factor: int) -> dict[str, Value]:
    """What a topic without settings of its own has, on this broker."""
    values: dict[str, Value] = {}
    for name, key in TOPIC_KEYS.items():
        fallback = TOPIC_FALLBACKS.get(name)
        values[name] = parse(key, key.default) if fallback is None else broker.value(fallback)
    values["retention.ms"] = broker.retention_ms
    values["segment.ms"] = broker.roll_ms
    values["segment.jitter.ms"] = broker.roll_jitter_ms
    values["flush.ms"] = broker.flush_interval_ms
    values["min.insync.replicas"] = broker.default_min_insync_replicas(replication_factor)
    return values


def check_topic_overrides(overrides: Mapping[str, str], broker: BrokerConfig | None = None) -> None:
    """Refuse a topic's settings as Kafka would; `overrides` is all that the topic would carry."""
    for name in overrides:
        if name not in TOPIC_KEYS:
            raise ConfigError(f"Unknown topic config name: {name}")
    values = broker_topic_values(broker or BrokerConfig(), replication_factor=1)
    for name, text in overrides.items():
        values[name] = parse(TOPIC_KEYS[name], text)
    _check_together(TopicConfig(values, overrides))


def _check_together(topic: TopicConfig) -> None:
    """The rules that span several keys."""
    low, high = topic.int("min.compaction.lag.ms"), topic.int("max.compaction.lag.ms")
    if low > high:
        raise ConfigError(
            f"conflict topic config setting min.compaction.lag.ms ({low})"
            f" > max.compaction.lag.ms ({high})"
        )
    if topic.bool("remote.storage.enable"):
        raise ConfigError(
            "Tiered Storage functionality is disabled in the broker."
            " Topic cannot be configured with remote log storage."
        )
