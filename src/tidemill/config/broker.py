"""`BrokerConfig`: every setting of one broker, where it came from, and who wants to know changes.

A value is the first of: set for this broker while running, set for all brokers while running,
static (flag, environment, file), default. The getters read parsed values; the texts are kept beside
them because DescribeConfigs shows every layer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple

from tidemill.config.getters import Getters
from tidemill.config.keys import ConfigError, ConfigKey, Update, Value
from tidemill.config.listeners import Listener, advertised_listeners, client_listeners
from tidemill.config.parse import parse
from tidemill.config.tables import BROKER_KEYS, DYNAMIC_ONLY_KEYS
from tidemill.config.text import HIDDEN, format_value

logger = logging.getLogger(__name__)

REPLICATION_FACTOR_MAX: Final = 3  # what is chosen by default; topics may ask for more

Changed = Callable[[frozenset[str]], None]


class Source(IntEnum):
    """Where a value comes from; the numbers are those of the DescribeConfigs answer."""

    UNKNOWN = 0
    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_GROUP = 8


class Setting(NamedTuple):
    """A value as text, and the place that set it: `server.properties:12`, `--set`, a variable."""

    text: str
    where: str


class Layer(NamedTuple):
    """One of the layers a key has a value in, strongest first; `text` is unparsed."""

    source: Source
    text: str
    where: str


class BrokerConfig(Getters):
    """The settings of one broker. Made by `load_broker_config`; tests may call it directly."""

    __slots__ = ("_cluster", "_defaults", "_own", "_static", "_subscribers")

    def __init__(
        self,
        static: Mapping[str, Setting] | None = None,
        *,
        derived_defaults: Mapping[str, str] | None = None,
    ) -> None:
        self._static = _with_both_ids(static or {})
        self._defaults = {
            name: key.default for name, key in BROKER_KEYS.items() if key.default is not None
        }
        self._defaults.update(derived_defaults or {})
        self._own: Mapping[str, str] = {}
        self._cluster: Mapping[str, str] = {}
        self._subscribers: dict[int, tuple[frozenset[str], Changed]] = {}
        super().__init__({})
        for name, key in BROKER_KEYS.items():
            self._values[name] = parse(key, self.text(name))
        # A broker that was given no number is number `node.id`'s default under both names.
        if "broker.id" not in self._static:
            self._defaults["broker.id"] = self._defaults["node.id"]
            self._values["broker.id"] = self.int("node.id")

    # --- layers -----------------------------------------------------------------------------------

    def layers(self, name: str) -> Iterator[Layer]:
        """The layers that have a value for `name`, strongest first."""
        if name in self._own:
            yield Layer(Source.DYNAMIC_BROKER, self._own[name], "set for this broker")
        if name in self._cluster:
            yield Layer(Source.DYNAMIC_DEFAULT_BROKER, self._cluster[name], "set for all brokers")
        if name in self._static:
            setting = self._static[name]
            yield Layer(Source.STATIC_BROKER, setting.text, setting.where)
        if name in self._defaults:
            yield Layer(Source.DEFAULT, self._defaults[name], "default")

    def text(self, name: str) -> str | None:
        """The text of the value that counts; None when the key is unset."""
        return next((layer.text for layer in self.layers(name)), None)

    def source(self, name: str) -> Source:
        return next((layer.source for layer in self.layers(name)), Source.DEFAULT)

    def origin(self, name: str) -> str:
        """The place that set the value that counts, in words."""
        return next((layer.where for layer in self.layers(name)), "unset")

    def value(self, name: str) -> Value:
        """The parsed value that counts, whatever its type."""
        return self._values[name]

    def shown(self, name: str) -> str | None:
        """The value for human eyes: as Kafka prints it, and secrets hidden."""
        key = known_key(name)
        value = format_value(self._values.get(name))
        if value is not None and (key is None or key.sensitive):
            return HIDDEN
        return value

    def default(self, name: str) -> str | None:
        """The text of the default on this machine; None when the key has none."""
        return self._defaults.get(name)

    def names_set_while_running(self) -> frozenset[str]:
        return frozenset(self._own) | frozenset(self._cluster)

    def cluster_texts(self) -> Mapping[str, str]:
        """What is set for all brokers while running."""
        return self._cluster

    def unlisted_names(self) -> list[str]:
        """Static settings that belong to no key of the table: plug-ins' and single listeners'."""
        return [name for name in self._static if name not in BROKER_KEYS]

    def static_names(self) -> list[str]:
        """Everything that a file, a variable or a flag set."""
        return list(self._static)

    # --- changes while running --------------------------------------------------------------------

    def apply_dynamic(
        self, per_broker: Mapping[str, str], cluster_default: Mapping[str, str]
    ) -> frozenset[str]:
        """Replace both dynamic layers, tell subscribers, and return the keys whose value changed.

        What does not parse is dropped with a warning: a broker must start and serve whatever an
        older version let into the store.
        """
        touched = {*self._own, *self._cluster, *per_broker, *cluster_default}
        self._own = _usable(per_broker, Update.PER_BROKER)
        self._cluster = _usable(cluster_default, Update.CLUSTER_WIDE)
        changed = frozenset(name for name in touched if self._reparse(name))
        for names, callback in tuple(self._subscribers.values()):
            if relevant := changed & names:
                callback(relevant)
        return changed

    def with_dynamic(self, texts: Mapping[str, str], *, cluster: bool) -> BrokerConfig:
        """A copy, without subscribers, whose layer for all (or this) broker is `texts`."""
        copy = BrokerConfig(self._static, derived_defaults=self._defaults)
        copy.apply_dynamic(self._own if cluster else texts, texts if cluster else self._cluster)
        return copy

    def subscribe(self, keys: Iterable[str], callback: Changed) -> Callable[[], None]:
        """Call `callback` with the changed keys among `keys`; returns how to stop that."""
        names = frozenset(keys)
        if unknown := [name for name in names if known_key(name) is None]:
            raise KeyError(f"no such configuration key: {', '.join(sorted(unknown))}")
        token = max(self._subscribers, default=0) + 1
        self._subscribers[token] = (names, callback)

        def unsubscribe() -> None:
            self._subscribers.pop(token, None)

        return unsubscribe

    def _reparse(self, name: str) -> bool:
        """Bring one parsed value up to date; True if it changed."""
        key = known_key(name)
        if key is None:
            return False
        before = self._values.get(name)
        text = self.text(name)
        if text is None and name in DYNAMIC_ONLY_KEYS:
            return self._values.pop(name, None) is not None
        self._values[name] = parse(key, text)
        return self._values[name] != before

    # --- settings that more than one key decides --------------------------------------------------

    @property
    def broker_id(self) -> int:
        return self.int("node.id")

    @property
    def log_dirs(self) -> tuple[Path, ...]:
        return tuple(Path(text) for text in self.list("log.dirs") or self.list("log.dir"))

    @property
    def listeners(self) -> tuple[Listener, ...]:
        return client_listeners(self)

    @property
    def advertised_listeners(self) -> tuple[Listener, ...]:
        return advertised_listeners(self)

    @property
    def retention_ms(self) -> int:
        """How long records are kept; -1 for ever."""
        retention_ms = self.optional_int("log.retention.ms")
        if retention_ms is None:
            minutes = self.optional_int("log.retention.minutes")
            hours_ms = self.int("log.retention.hours") * 3_600_000
            retention_ms = hours_ms if minutes is None else minutes * 60_000
        return max(retention_ms, -1)

    @property
    def roll_ms(self) -> int:
        roll_ms = self.optional_int("log.roll.ms")
        return self.int("log.roll.hours") * 3_600_000 if roll_ms is None else roll_ms

    @property
    def roll_jitter_ms(self) -> int:
        jitter_ms = self.optional_int("log.roll.jitter.ms")
        return self.int("log.roll.jitter.hours") * 3_600_000 if jitter_ms is None else jitter_ms

    @property
    def flush_interval_ms(self) -> int:
        interval_ms = self.optional_int("log.flush.interval.ms")
        return self.int("log.flush.scheduler.interval.ms") if interval_ms is None else interval_ms

    def default_replication_factor(self, brokers: int) -> int:
        """The replicas of a topic that does not say: what is set, else as many as is safe."""
        if self.source("default.replication.factor") is not Source.DEFAULT:
            return self.int("default.replication.factor")
        return max(1, min(REPLICATION_FACTOR_MAX, brokers))

    def offsets_replication_factor(self, brokers: int) -> int:
        """The same for `__consumer_offsets`."""
        wanted = self.int("offsets.topic.replication.factor")
        if self.source("offsets.topic.replication.factor") is not Source.DEFAULT:
            return wanted
        return max(1, min(wanted, brokers))

    def default_min_insync_replicas(self, replication_factor: int) -> int:
        """What acks=all waits for on a topic that does not say: one broker may be lost."""
        if self.source("min.insync.replicas") is not Source.DEFAULT:
            return self.int("min.insync.replicas")
        return 2 if replication_factor >= REPLICATION_FACTOR_MAX else 1

    def __repr__(self) -> str:
        return f"BrokerConfig(broker {self.broker_id}, {len(self._static)} set)"


def known_key(name: str) -> ConfigKey | None:
    """The key of that name, those included that can be set only while running."""
    return BROKER_KEYS.get(name) or DYNAMIC_ONLY_KEYS.get(name)


def _with_both_ids(static: Mapping[str, Setting]) -> dict[str, Setting]:
    """`node.id` and `broker.id` are one setting: whichever is given stands for both."""
    both = dict(static)
    if "node.id" in both:
        both.setdefault("broker.id", both["node.id"])
    elif "broker.id" in both:
        both["node.id"] = both["broker.id"]
    if "node.id" in both and both["node.id"].text.strip() != both["broker.id"].text.strip():
        raise ConfigError("You must set `node.id` to the same value as `broker.id`.")
    return both


def _usable(texts: Mapping[str, str], layer: Update) -> dict[str, str]:
    usable = {}
    for name, text in texts.items():
        key = known_key(name)
        if key is None:
            continue
        if key.update is Update.READ_ONLY:
            logger.warning("ignored a stored setting: %s is read at start only, from a file", name)
            continue
        if layer is Update.CLUSTER_WIDE and key.update is Update.PER_BROKER:
            logger.warning("%s cannot be set for all brokers at once; ignored", name)
            continue
        try:
            parse(key, text)
        except ConfigError as problem:
            logger.warning("ignored a stored setting: %s", problem.message)
            continue
        usable[name] = text
    return usable
