"""What is wrong with settings, and what an operator should know about those that are right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from tidemill.config.broker import BrokerConfig, Setting
from tidemill.config.dynamic import LISTENER_PREFIX, check_related
from tidemill.config.keys import ConfigError, ConfigKey, Status
from tidemill.config.parse import parse
from tidemill.config.removed import removed_broker_key
from tidemill.config.suggest import nearest
from tidemill.config.tables import BROKER_KEYS, DYNAMIC_ONLY_KEYS, TOPIC_FALLBACKS

# Settings of plug-ins that Kafka loads by class name; Tidemill loads none.
_PLUGIN_PREFIXES: Final = ("config.providers.", "rsm.config.", "rlmm.config.")


class Problem(NamedTuple):
    """One finding. `line` is 0 where a file's line is not to blame."""

    line: int
    key: str
    message: str
    suggestion: str | None = None
    is_warning: bool = False
    where: str = ""

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        subject = f"{self.key}: " if self.key and self.key not in self.message else ""
        hint = f" Did you mean {self.suggestion}?" if self.suggestion else ""
        return f"{place}{subject}{self.message}{hint}"


def vet(name: str, text: str) -> Problem | None:
    """What is wrong with one static setting; None if nothing is."""
    key = BROKER_KEYS.get(name)
    if key is None:
        return _vet_unlisted(name)
    try:
        parse(key, text)
    except ConfigError as problem:
        return Problem(0, name, problem.message)
    return None


def _vet_unlisted(name: str) -> Problem | None:
    if name.startswith(_PLUGIN_PREFIXES):
        return None
    if name.startswith(LISTENER_PREFIX):
        return _vet_listener_key(name)
    if hint := removed_broker_key(name):
        return Problem(0, name, f"{name} no longer exists: {hint}")
    if name in DYNAMIC_ONLY_KEYS:
        return Problem(0, name, f"{name} can be set only on a running broker, not in advance")
    if name in TOPIC_FALLBACKS:
        return Problem(
            0, name, f"{name} is a topic's setting, not a broker's.", TOPIC_FALLBACKS[name]
        )
    return Problem(0, name, f"Unknown key {name}.", nearest(name, BROKER_KEYS))


def _vet_listener_key(name: str) -> Problem | None:
    """`listener.name.internal.ssl.key.password`: a key for one listener only."""
    parts = name.removeprefix(LISTENER_PREFIX).split(".")
    if any(".".join(parts[start:]) in BROKER_KEYS for start in range(1, len(parts))):
        return None
    return Problem(0, name, f"Unknown key {name}: it must end in a broker key")


# --- can a broker start with these? ---------------------------------------------------------------


def check_startable(config: BrokerConfig) -> list[Problem]:
    """Settings that are well formed but that no broker can run with."""
    problems = [*_unservable(config)]
    checks: tuple[tuple[str, Callable[[], object]], ...] = (
        ("listeners", lambda: config.listeners),
        ("advertised.listeners", lambda: config.advertised_listeners),
        ("", lambda: check_related(config)),
    )
    for key, check in checks:
        try:
            check()
        except ConfigError as problem:
            problems.append(Problem(0, key, problem.message, where=_where(config, key)))
            break
    return problems


def _unservable(config: BrokerConfig) -> Iterator[Problem]:
    if config.optional_str("zookeeper.connect") and config.optional_str("store.url"):
        yield _problem(
            config,
            "zookeeper.connect",
            "zookeeper.connect and store.url both say where the store is; keep one of them",
        )
    if config.list("process.roles") == ["controller"]:
        yield _problem(
            config,
            "process.roles",
            "process.roles=controller has nothing to run: every Tidemill broker can be the"
            " controller; use broker,controller",
        )
    if config.str("authorizer.class.name"):
        yield _problem(
            config,
            "authorizer.class.name",
            "authorizer.class.name: access rules cannot be enforced yet, and a broker that"
            " ignored them would be open to all; remove the line to accept that",
        )


def _problem(config: BrokerConfig, key: str, message: str) -> Problem:
    return Problem(0, key, message, where=_where(config, key))


def _where(config: BrokerConfig, key: str) -> str:
    return config.origin(key) if key and config.origin(key) not in ("default", "unset") else ""


# --- warnings -------------------------------------------------------------------------------------


def ineffective(known: Iterable[str]) -> Iterator[Problem]:
    """The settings that will do nothing, one by one, for whoever goes through a file."""
    for name in known:
        key = BROKER_KEYS.get(name)
        if key is None or key.status is Status.UNSUPPORTED:
            yield Problem(0, name, "is not supported, and ignored.", is_warning=True)
        elif key.status is Status.ACCEPTED:
            yield Problem(0, name, f"has no effect. {_second_sentence(key)}", is_warning=True)
        elif key.status is Status.KRAFT:
            message = "steers Kafka's metadata quorum, which Tidemill does not need; ignored."
            yield Problem(0, name, message, is_warning=True)


def warnings_about(config: BrokerConfig, known: Mapping[str, Setting]) -> list[str]:
    """What the operator should know: each kind of ineffective setting once, with its names."""
    keys = [BROKER_KEYS[name] for name in known if name in BROKER_KEYS]
    warnings = [
        f"{key.name} has no effect. {_second_sentence(key)}"
        for key in keys
        if key.status is Status.ACCEPTED
    ]
    if kraft := [key.name for key in keys if key.status is Status.KRAFT]:
        warnings.append(_kraft_warning(config, kraft))
    unsupported = [key.name for key in keys if key.status is Status.UNSUPPORTED]
    unsupported += [name for name in known if name not in BROKER_KEYS]
    if unsupported:
        warnings.append(f"Not supported, and ignored: {', '.join(sorted(unsupported))}.")
    return warnings


def _kraft_warning(config: BrokerConfig, names: list[str]) -> str:
    closed = [name.upper() for name in config.list("controller.listener.names")]
    listener = f" The listener {', '.join(closed)} is not opened." if closed else ""
    return (
        "These settings steer Kafka's metadata quorum, which Tidemill does not need; ignored: "
        f"{', '.join(sorted(names))}.{listener}"
    )


def _second_sentence(key: ConfigKey) -> str:
    """The docs of keys without effect say first what Kafka does, then what stands in its place."""
    return key.doc.partition(". ")[2]
