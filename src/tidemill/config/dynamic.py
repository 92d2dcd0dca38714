"""Which settings of a running broker may change, and to what: the checks behind AlterConfigs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final

from tidemill.config.broker import BrokerConfig, known_key
from tidemill.config.group import check_group_defaults
from tidemill.config.keys import ConfigError, Update
from tidemill.config.parse import parse
from tidemill.config.suggest import did_you_mean
from tidemill.config.tables import BROKER_KEYS
from tidemill.errors import ErrorCode

LISTENER_PREFIX: Final = "listener.name."
# Key and trust stores belong to one listener each, so they change only under its prefix.
_PER_LISTENER_ONLY: Final = frozenset(
    {
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
    }
)
# Kafka opens and closes listeners of a running broker; here they are what they were at start.
_OPENED_AT_START: Final = frozenset({"listeners", "listener.security.protocol.map"})


class Scope(Enum):
    """Whose setting is changed: one broker's, or the default of all."""

    BROKER = "broker"
    CLUSTER = "cluster"


def check_broker_overrides(
    overrides: Mapping[str, str], scope: Scope | str, broker: BrokerConfig | None = None
) -> None:
    """Refuse dynamic settings as Kafka would; `overrides` is all that the scope would hold."""
    scope = Scope(scope)
    _refuse_unknown(overrides)
    _refuse_read_only(overrides)
    _refuse_unprefixed_security(overrides)
    if scope is Scope.CLUSTER:
        _refuse_per_broker(overrides)
    for name, text in overrides.items():
        key = known_key(name)
        if key is not None:
            try:
                parse(key, text)
            except ConfigError as problem:
                raise _refusal(problem.message) from None
    _check_together(overrides, scope, broker)


def _refuse_unknown(names: Iterable[str]) -> None:
    """Kafka stores any name here; a misspelt one would then be in force nowhere, unnoticed."""
    for name in names:
        if known_key(name) is None and not name.startswith(LISTENER_PREFIX):
            raise _refusal(f"Unknown broker config name: {name}{did_you_mean(name, BROKER_KEYS)}")


def _refuse_read_only(names: Iterable[str]) -> None:
    fixed = [
        name
        for name in names
        if (key := known_key(name)) is not None and key.update is Update.READ_ONLY
    ]
    if fixed:
        problem = f"Cannot update these configs dynamically: [{', '.join(fixed)}]"
        if not _OPENED_AT_START.isdisjoint(fixed):
            problem += "; listeners are opened at start: change the broker's file and restart it"
        raise _refusal(problem)


def _refuse_unprefixed_security(names: Iterable[str]) -> None:
    bare = [name for name in names if name in _PER_LISTENER_ONLY]
    if bare:
        raise _refusal(
            "These security configs can be dynamically updated only per-listener using the"
            f" listener prefix: [{', '.join(bare)}]"
        )


def _refuse_per_broker(names: Iterable[str]) -> None:
    own = [
        name
        for name in names
        if name.startswith(LISTENER_PREFIX)
        or ((key := known_key(name)) is not None and key.update is Update.PER_BROKER)
    ]
    if own:
        raise _refusal(
            "Cannot update these configs at default cluster level, broker id must be specified:"
            f" [{', '.join(own)}]"
        )


def _check_together(
    overrides: Mapping[str, str], scope: Scope, broker: BrokerConfig | None
) -> None:
    """Try the settings on a copy of the broker, so that rules over several keys are checked."""
    trial = (broker or BrokerConfig()).with_dynamic(overrides, cluster=scope is Scope.CLUSTER)
    try:
        check_related(trial)
    except ConfigError as problem:
        raise _refusal(problem.message) from None


def check_related(config: BrokerConfig) -> None:
    """The rules that span several broker keys, in Kafka's words."""
    if config.retention_ms == 0:
        raise ConfigError(
            "requirement failed: log.retention.ms must be unlimited (-1) or, greater than or"
            " equal to 1"
        )
    if config.roll_ms < 1:
        raise ConfigError("requirement failed: log.roll.ms must be greater than or equal to 1")
    if config.roll_jitter_ms < 0:
        raise ConfigError(
            "requirement failed: log.roll.jitter.ms must be greater than or equal to 0"
        )
    check_group_defaults(config)


def _refusal(message: str) -> ConfigError:
    return ConfigError(message, ErrorCode.INVALID_REQUEST)
