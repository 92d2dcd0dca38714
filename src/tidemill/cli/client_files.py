"""A user's `producer.properties` and `consumer.properties`: told apart, checked, filled in.

Files are in Java's format with Kafka's names. Which client one is for shows in its keys, else in
its name. A key that nobody knows is an error that names the nearest one; a key of Kafka's that has
no bearing on what is promised (serializers, passwords, metrics) is put aside and named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from tidemill.cli.exits import CommandError, Exit
from tidemill.client.errors import SettingsError
from tidemill.client.settings import (
    CommonSettings,
    ConsumerSettings,
    ProducerSettings,
    is_known,
    parse,
)
from tidemill.config.keys import ConfigError
from tidemill.config.properties import Property, parse_properties

FILE_BYTES_MAX: Final = 1 << 20
BOOTSTRAP: Final = "bootstrap.servers"

_PUT_ASIDE_PREFIXES: Final = ("ssl.", "sasl.", "metrics.", "config.providers", "kafka.metrics.")
_PUT_ASIDE: Final = frozenset(
    {
        BOOTSTRAP,
        "security.protocol",
        "security.providers",
        "key.serializer",
        "value.serializer",
        "key.deserializer",
        "value.deserializer",
        "interceptor.classes",
        "partitioner.class",
        "metric.reporters",
        "auto.include.jmx.reporter",
        "enable.metrics.push",
        "client.dns.lookup",
        "send.buffer.bytes",
        "receive.buffer.bytes",
        "socket.connection.setup.timeout.max.ms",
        "metadata.max.idle.ms",
        "metadata.recovery.rebootstrap.trigger.ms",
        "partitioner.availability.timeout.ms",
        "exclude.internal.topics",
    }
)
"""Keys of Kafka's clients that change nothing here: the throw-away cluster has no passwords, the
load writes its own bytes, and nobody asks for metrics."""

_NOT_HERE: Final = {
    "transactional.id": "the load has no transactions; with --app your program may have them",
    "transaction.timeout.ms": "the load has no transactions; with --app your program may have them",
}


class Kind(StrEnum):
    PRODUCER = "producer"
    CONSUMER = "consumer"

    @property
    def table(self) -> type[CommonSettings]:
        return ProducerSettings if self is Kind.PRODUCER else ConsumerSettings

    @property
    def other(self) -> Kind:
        return Kind.CONSUMER if self is Kind.PRODUCER else Kind.PRODUCER


@dataclass(frozen=True, slots=True)
class ClientFile:
    """One file: which client it is for, the settings that count, the keys that do not."""

    kind: Kind
    path: Path | None = None
    text: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    put_aside: tuple[str, ...] = ()

    def arguments(self) -> dict[str, Any]:
        """The settings as a client takes them."""
        return dict(self.settings)

    def filled_in(self, bootstrap: str) -> str:
        """The file's text with the brokers' address in place of its own."""
        pattern = rf"(?m)^[ \t]*{re.escape(BOOTSTRAP)}[ \t]*[=:](?:\\[\s\S]|[^\\\n])*\n?"
        rest = re.sub(pattern, "", self.text).rstrip("\\\n ")
        return f"{rest}\n{BOOTSTRAP}={bootstrap}\n".lstrip("\n")


def read_all(paths: Iterable[str], *, strict: bool) -> dict[Kind, ClientFile]:
    """The files by kind, one each at most; for a kind without a file, one without settings.

    `strict` is for clients of ours; a user's own program may know more settings than they do.
    """
    found: dict[Kind, ClientFile] = {}
    for path in paths:
        file = read(Path(path), strict=strict)
        if file.kind in found:
            raise _refused(
                f"{found[file.kind].path} and {path} are both for the {file.kind}",
                "give one file for the producer and one for the consumer",
            )
        found[file.kind] = file
    return {kind: found.get(kind, ClientFile(kind)) for kind in Kind}


def read(path: Path, *, strict: bool = True) -> ClientFile:
    """One file, each of its settings checked."""
    with open(path, "rb") as source:
        data = source.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise _refused(f"{path} is larger than {FILE_BYTES_MAX} bytes: no file of settings")
    try:
        text = data.decode("utf-8")
        entries = list(parse_properties(text))
    except (UnicodeDecodeError, ConfigError) as error:
        raise _refused(f"{path}: {error}") from None
    kind = _kind_of(path, entries)
    settings, put_aside = _sorted_out(path, kind, entries, strict=strict)
    return ClientFile(kind, path, text, settings, put_aside)


def _kind_of(path: Path, entries: list[Property]) -> Kind:
    """Which client a file is for: most of its telling keys decide, then its name."""
    telling = dict.fromkeys(Kind, 0)
    for entry in entries:
        kinds = [kind for kind in Kind if _belongs(kind, entry.key)]
        if len(kinds) == 1:
            telling[kinds[0]] += 1
    if telling[Kind.PRODUCER] != telling[Kind.CONSUMER]:
        return max(Kind, key=lambda kind: telling[kind])
    named = [kind for kind in Kind if kind in path.name.lower()]
    if len(named) == 1:
        return named[0]
    for entry in entries:
        if not any(_belongs(kind, entry.key) for kind in Kind) and not _is_put_aside(entry.key):
            raise _refused(f"{path}:{entry.line}: {_unknown(entry.key)}")
    raise _refused(
        f"cannot tell whether {path} is for a producer or for a consumer",
        "call it producer.properties or consumer.properties",
    )


_ONLY_ONE_HAS: Final = {
    "transactional.id": Kind.PRODUCER,
    "transaction.timeout.ms": Kind.PRODUCER,
    "key.serializer": Kind.PRODUCER,
    "value.serializer": Kind.PRODUCER,
    "partitioner.class": Kind.PRODUCER,
    "key.deserializer": Kind.CONSUMER,
    "value.deserializer": Kind.CONSUMER,
}


def _unknown(key: str) -> str:
    """The complaint about a key that neither client has, with the best advice of both."""
    complaints = []
    for kind in Kind:
        try:
            parse(kind.table, {key: ""})
        except SettingsError as error:
            complaints.append(str(error))
    return max(complaints, key=len)


def _belongs(kind: Kind, key: str) -> bool:
    if key in _ONLY_ONE_HAS:
        return _ONLY_ONE_HAS[key] is kind
    return is_known(kind.table, key)


def _sorted_out(
    path: Path, kind: Kind, entries: list[Property], *, strict: bool
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The settings that our client takes, checked, and the keys that were put aside."""
    settings: dict[str, str] = {}
    put_aside: list[str] = []
    for entry in entries:
        if _is_put_aside(entry.key) or not (strict or is_known(kind.table, entry.key)):
            put_aside.append(entry.key)
            continue
        try:
            _check(kind, entry)
        except SettingsError as error:
            raise _refused(f"{path}:{entry.line}: {error}") from None
        settings[entry.key] = entry.value
    return settings, tuple(dict.fromkeys(put_aside))


def _check(kind: Kind, entry: Property) -> None:
    if entry.key in _NOT_HERE:
        raise SettingsError(f"`{entry.key}`: {_NOT_HERE[entry.key]}")
    if not _belongs(kind, entry.key) and _belongs(kind.other, entry.key):
        raise SettingsError(f"`{entry.key}` is a {kind.other}'s setting in a file for the {kind}")
    parse(kind.table, {entry.key: entry.value})


def _is_put_aside(key: str) -> bool:
    return key in _PUT_ASIDE or key.startswith(_PUT_ASIDE_PREFIXES)


def overridden(
    files: Mapping[Kind, ClientFile], pairs: Mapping[str, str]
) -> dict[Kind, ClientFile]:
    """The files with `-X key=value` settings on top, each for every client that has the key."""
    found = dict(files)
    for key, value in pairs.items():
        kinds = [kind for kind in Kind if is_known(kind.table, key)]
        try:
            for kind in kinds or [Kind.PRODUCER]:  # nobody has it: the error names the nearest
                _check(kind, Property(0, key, value))
                file = found[kind]
                text = f"{file.text.rstrip()}\n{key}={value}\n"
                settings = {**file.settings, key: value}
                found[kind] = replace(file, text=text, settings=settings)
        except SettingsError as error:
            raise _refused(f"-X {key}={value}: {error}") from None
    return found


def _refused(message: str, hint: str | None = None) -> CommandError:
    return CommandError(message, Exit.USAGE, hint)
