"""The settings of one group: its own, and below them what its broker says.

A group need not be there to have settings. What it may ask for is bounded by the broker's
`group.consumer.min...` and `group.consumer.max...`; where the bounds were moved afterwards, a value
outside counts as the nearest one inside.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from tidemill.config.broker import BrokerConfig
from tidemill.config.getters import Getters
from tidemill.config.keys import ConfigError, Status, Value
from tidemill.config.parse import parse
from tidemill.config.tables import GROUP_FALLBACKS, GROUP_KEYS

_HEARTBEAT: Final = "consumer.heartbeat.interval.ms"
_SESSION: Final = "consumer.session.timeout.ms"


class _Bounds(NamedTuple):
    lowest: str
    highest: str


# In the order in which Kafka looks at them.
_BOUNDS: Final[Mapping[str, _Bounds]] = {
    _HEARTBEAT: _Bounds(
        "group.consumer.min.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"
    ),
    _SESSION: _Bounds(
        "group.consumer.min.session.timeout.ms", "group.consumer.max.session.timeout.ms"
    ),
    "consumer.assignment.interval.ms": _Bounds(
        "group.consumer.min.assignment.interval.ms", "group.consumer.max.assignment.interval.ms"
    ),
}


class GroupConfig(Getters):
    """A group's settings, resolved; `overrides` are those that were set for the group itself."""

    __slots__ = ("overrides",)

    def __init__(self, values: dict[str, Value], overrides: Mapping[str, str]) -> None:
        super().__init__(values)
        self.overrides = overrides

    def value(self, name: str) -> Value:
        """The parsed value, whatever its type."""
        return self._values[name]


def resolve_group_config(overrides: Mapping[str, str], broker: BrokerConfig) -> GroupConfig:
    """The group's own settings over the broker's; unknown ones are left out, not refused."""
    values = _broker_values(broker)
    kept = {name: text for name, text in overrides.items() if name in GROUP_KEYS}
    for name, text in kept.items():
        values[name] = parse(GROUP_KEYS[name], text)
    config = GroupConfig(values, kept)
    for name, bounds in _BOUNDS.items():
        lowest, highest = broker.int(bounds.lowest), broker.int(bounds.highest)
        if name in kept:
            values[name] = max(lowest, min(config.int(name), highest))
    return config


def _broker_values(broker: BrokerConfig) -> dict[str, Value]:
    """What a group without settings of its own has, on this broker."""
    return {
        name: parse(key, key.default)
        if (fallback := GROUP_FALLBACKS.get(name)) is None
        else broker.value(fallback)
        for name, key in GROUP_KEYS.items()
    }


def check_group_overrides(overrides: Mapping[str, str], broker: BrokerConfig | None = None) -> None:
    """Refuse a group's settings as Kafka would; `overrides` is all that the group would carry."""
    broker = broker or BrokerConfig()
    for name in overrides:
        if name not in GROUP_KEYS:
            raise ConfigError(f"Unknown group config name: {name}")
    values = _broker_values(broker)
    for name, text in overrides.items():
        values[name] = parse(GROUP_KEYS[name], text)
    for name in overrides:
        if GROUP_KEYS[name].status is Status.UNSUPPORTED:
            raise ConfigError(
                f"{name} is for share or streams groups, which Tidemill does not offer"
            )
    config = GroupConfig(values, overrides)
    _check_bounds(config, broker)
    if config.int(_SESSION) <= config.int(_HEARTBEAT):
        raise ConfigError(f"{_SESSION} must be greater than {_HEARTBEAT}")


def _check_bounds(config: GroupConfig, broker: BrokerConfig) -> None:
    for name, bounds in _BOUNDS.items():
        if config.int(name) < broker.int(bounds.lowest):
            raise ConfigError(f"{name} must be greater than or equal to {bounds.lowest}")
        if config.int(name) > broker.int(bounds.highest):
            raise ConfigError(f"{name} must be less than or equal to {bounds.highest}")


def check_group_defaults(broker: BrokerConfig) -> None:
    """Refuse a broker whose own defaults for groups are outside its bounds, in Kafka's words."""
    for name, bounds in _BOUNDS.items():
        default = f"group.{name}"
        low, value, high = (broker.int(each) for each in (bounds.lowest, default, bounds.highest))
        if high < low:
            raise ConfigError(f"{bounds.highest} must be greater than or equal to {bounds.lowest}")
        if value < low:
            raise ConfigError(f"{default} must be greater than or equal to {bounds.lowest}")
        if value > high:
            raise ConfigError(f"{default} must be less than or equal to {bounds.highest}")
    heartbeat, session = f"group.{_HEARTBEAT}", f"group.{_SESSION}"
    if broker.int(heartbeat) >= broker.int(session):
        raise ConfigError(f"{heartbeat} must be less than {session}")
