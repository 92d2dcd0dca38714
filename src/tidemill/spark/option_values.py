"""Reading options one by one: case does not matter, values are checked, mistakes are explained.

Spark hands a source its options as text with names in any case. `Given` takes them one by one;
what nobody has taken in the end is a mistake, and `OptionError` names the nearest option there is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from tidemill.client.errors import SettingsError
from tidemill.client.settings import CommonSettings, is_known, parse
from tidemill.config.suggest import nearest

KAFKA_PREFIX = "kafka."
VALUE_SHOWN_CHARS_MAX = 200

HIDDEN = "[hidden]"
_SECRET = re.compile(r"password|secret|token|jaas|key(?!s$)|auth|credential", re.IGNORECASE)
_USER_IN_URL = re.compile(r"//[^/@\s]+@")
_SECURITY = ("sasl.", "ssl.")
_NO_SECURITY = (
    "connections with TLS or SASL are not supported yet: the brokers need a PLAINTEXT one"
)

_UNITS_MS = {
    "": 1,
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_DURATION = re.compile(r"(\d+)\s*([a-z]*)")

# Spark's own, which it hands to every sink or source of a query along with theirs.
SPARK_OWN = frozenset(
    {
        "checkpointlocation",
        "queryname",
        "outputmode",
        "asyncprogresstrackingenabled",
        "asyncprogresstrackingcheckpointintervalms",
    }
)

# What Java's clients know and ours has no use for: taken, so that a query needs no change.
JAVA_ONLY = frozenset(
    {
        "auto.include.jmx.reporter",
        "client.dns.lookup",
        "enable.metrics.push",
        "exclude.internal.topics",
        "group.id",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "receive.buffer.bytes",
        "send.buffer.bytes",
        "socket.connection.setup.timeout.max.ms",
    }
)


class OptionError(ValueError):
    """An option is missing, unknown or has a value that cannot be; says what to write instead.

    It ends up in logs and in what `status` shows, so it knows no value that may be a secret.
    """

    def __init__(self, option: str, value: str | None, advice: str) -> None:
        self.option, self.value, self.advice = option, showable(option, value), advice
        shown = f"`{option}`" if self.value is None else f"`{option}` = {self.value!r}"
        super().__init__(f"option {shown}: {advice}")

    def __reduce__(self) -> tuple[type[OptionError], tuple[str, str | None, str]]:
        return OptionError, (self.option, self.value, self.advice)


def showable(option: str, value: str | None) -> str | None:
    """A value for people: short, and without passwords."""
    if value is None:
        return None
    if _SECRET.search(option):
        return HIDDEN
    text = _USER_IN_URL.sub(f"//{HIDDEN}@", value)
    return text if len(text) <= VALUE_SHOWN_CHARS_MAX else f"{text[:100]}..."


class Given:
    """What the user wrote; `names` are the options there are, in the spelling of the documents."""

    def __init__(self, options: Mapping[str, str], names: Iterable[str]) -> None:
        self._left = {name.lower(): str(value) for name, value in options.items()}
        self._spelling = {name.lower(): name for name in names}

    def has(self, name: str) -> bool:
        return name.lower() in self._left

    def text(self, name: str) -> str | None:
        """The value without the blanks around it; None when it was not given."""
        value = self._left.pop(name.lower(), None)
        if value is not None and not value.strip():
            raise OptionError(name, value, "is empty; give it a value or leave it out")
        return value.strip() if value is not None else None

    def flag(self, name: str, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise OptionError(name, value, "must be true or false")
        return value.lower() == "true"

    def count(self, name: str, *, low: int = 1) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not re.fullmatch(r"-?\d+", value) or int(value) < low:
            raise OptionError(name, value, f"must be a whole number, {low} or more")
        return int(value)

    def duration_ms(self, name: str) -> int | None:
        """`15m`, `30s`, `500ms`; a bare number is milliseconds, as for Spark's own source."""
        value = self.text(name)
        if value is None:
            return None
        match = _DURATION.fullmatch(value.lower())
        if match is None or match[2] not in _UNITS_MS:
            raise OptionError(name, value, "must be a duration such as 15m, 30s or 500ms")
        return int(match[1]) * _UNITS_MS[match[2]]

    def choice(self, name: str, choices: Iterable[str], default: str) -> str:
        value = self.text(name)
        known = list(choices)
        if value is None:
            return default
        if value.lower() not in known:
            raise OptionError(name, value, f"must be one of {', '.join(known)}")
        return value.lower()

    def names(self, name: str) -> tuple[str, ...] | None:
        """A list with commas; every name once."""
        value = self.text(name)
        if value is None:
            return None
        parts = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
        if not parts:
            raise OptionError(name, value, "names nothing; write names with commas between them")
        return parts

    def json_object(self, name: str, example: str) -> dict[str, Any] | None:
        """A JSON object."""
        value = self.text(name)
        if value is None:
            return None
        try:
            found = json.loads(value)
        except json.JSONDecodeError as error:
            raise OptionError(name, value, f"is no JSON ({error}); write {example}") from None
        if not isinstance(found, dict):
            raise OptionError(name, value, f"must be a JSON object such as {example}")
        return found

    def prefixed(self, *prefixes: str) -> dict[str, str]:
        """All options whose names begin so, with the prefix."""
        found = {name: value for name, value in self._left.items() if name.startswith(prefixes)}
        for name in found:
            del self._left[name]
        return found

    def settings(
        self, kind: type[CommonSettings], owned: Mapping[str, str], *, required: bool = True
    ) -> tuple[str, dict[str, str]]:
        """Broker addresses and the client's settings from the options that begin with `kafka.`.

        `owned` are settings that are not the user's to choose, each with what to do instead.
        """
        given = self.prefixed(KAFKA_PREFIX)
        settings = {name.removeprefix(KAFKA_PREFIX): value for name, value in given.items()}
        bootstrap = settings.pop("bootstrap.servers", None)
        if bootstrap is None and required:
            option = f"{KAFKA_PREFIX}bootstrap.servers"
            raise OptionError(option, None, "is required: brokers to ask first, host:port")
        for name, value in settings.items():
            if name in owned:
                raise OptionError(KAFKA_PREFIX + name, value, owned[name])
        kept = {name: value for name, value in settings.items() if name not in JAVA_ONLY}
        for name, value in kept.items():
            _check_security(name, value)
            _check(KAFKA_PREFIX + name, value, kind, {name: value})
        if bootstrap is not None:
            _check(f"{KAFKA_PREFIX}bootstrap.servers", bootstrap, kind, {}, bootstrap)
        return bootstrap or "", kept

    def finish(self) -> None:
        """Whatever is left was not meant for us, or was misspelled."""
        for name in self._left:
            if name not in SPARK_OWN:
                # Nobody knows what it is, so nobody knows whether it is a secret.
                raise OptionError(name, None, self._unknown(name))

    def _unknown(self, name: str) -> str:
        if name == "path":
            return "topics are given by `subscribe`, tables by `table`; leave the path out"
        if name == "bootstrap.servers" or is_known(CommonSettings, name):
            return f"settings of the client begin with {KAFKA_PREFIX}: `{KAFKA_PREFIX}{name}`"
        found = nearest(name, self._spelling)
        return f"is unknown; did you mean `{self._spelling[found]}`?" if found else "is unknown"


def _check(
    option: str,
    value: str,
    kind: type[CommonSettings],
    settings: Mapping[str, str],
    bootstrap: str | None = None,
) -> None:
    try:
        parse(kind, settings, bootstrap)
    except SettingsError as error:
        is_ours = bootstrap is not None or all(is_known(kind, name) for name in settings)
        raise OptionError(option, value if is_ours else None, str(error)) from None


def _check_security(name: str, value: str) -> None:
    """Say plainly what no spelling of a setting can give."""
    if name.startswith(_SECURITY):
        raise OptionError(KAFKA_PREFIX + name, HIDDEN, _NO_SECURITY)
    if name == "security.protocol" and value.upper() != "PLAINTEXT":
        raise OptionError(KAFKA_PREFIX + name, value, _NO_SECURITY)
