"""Every setting of every client, once: its type, default, bounds and meaning.

A setting may be written Kafka's way (`"linger.ms"`) or Python's (`linger_ms`), as a value or as
text (what a command line has). An unknown one is an error that names the nearest known one.

Start at `parse`; `CommonSettings` and its heirs are the table.
"""

# ruff: noqa: RUF009 - `_setting` is a field specifier: it returns `field(...)`, never a value
from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar, get_args, get_type_hints

from tidemill.client.errors import SettingsError
from tidemill.client.offset_reset import BY_DURATION, duration_ms

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
DEFAULT_PORT = 9092

_DOC = "doc"
_LOW = "low"
_HIGH = "high"
_CHOICES = "choices"
_ALIASES = "aliases"


def _setting(
    default: Any,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] | None = None,
    aliases: tuple[str, ...] = (),
) -> Any:
    """One row of the table."""
    metadata = {_DOC: doc, _LOW: low, _HIGH: high, _CHOICES: choices, _ALIASES: aliases}
    if isinstance(default, (list, dict)):
        raise TypeError("a default must be immutable")
    return field(default=default, metadata=metadata)


Serializer = Callable[[str, Any], bytes | None]
"""Turns (topic, value) into the bytes to send; None stays a null (a tombstone)."""

Deserializer = Callable[[str, bytes | None], Any]
"""Turns (topic, bytes) back into a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonSettings:
    """What every client has."""

    bootstrap_servers: tuple[str, ...] = _setting(
        (), "Brokers to ask first, host:port each.", aliases=("metadata.broker.list", "broker.list")
    )
    client_id: str = _setting("tidemill", "Our name in the brokers' logs and quotas.")
    client_rack: str = _setting("", "Where we are, so that a near replica may serve us.")
    security_protocol: str = _setting(
        "PLAINTEXT", "How to talk to brokers.", choices=("PLAINTEXT",)
    )
    request_timeout_ms: int = _setting(
        30_000, "How long to wait for an answer.", low=1, high=INT32_MAX
    )
    default_api_timeout_ms: int = _setting(
        60_000, "How long a call may take with all its retries.", low=1, high=INT32_MAX
    )
    retry_backoff_ms: int = _setting(100, "The first pause before a retry.", low=0, high=INT32_MAX)
    retry_backoff_max_ms: int = _setting(
        1_000, "The longest pause before a retry.", low=0, high=INT32_MAX
    )
    reconnect_backoff_ms: int = _setting(
        50, "The first pause before connecting again.", low=0, high=INT32_MAX
    )
    reconnect_backoff_max_ms: int = _setting(
        1_000, "The longest pause before connecting again.", low=0, high=INT32_MAX
    )
    socket_connection_setup_timeout_ms: int = _setting(
        10_000, "How long connecting may take.", low=1, high=INT32_MAX
    )
    connections_max_idle_ms: int = _setting(
        540_000, "Close a connection that nobody used for so long; -1: never.", low=-1
    )
    metadata_max_age_ms: int = _setting(
        300_000, "Ask again who leads what after so long.", low=1, high=INT32_MAX
    )
    metadata_recovery_strategy: str = _setting(
        "rebootstrap",
        "What to do when no known broker answers.",
        choices=("rebootstrap", "none"),
    )
    max_response_bytes: int = _setting(
        128 * 1024 * 1024,
        "The largest answer we accept; a larger one closes the connection.",
        low=1024,
        high=INT32_MAX,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminSettings(CommonSettings):
    """An admin client needs no more than the common ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings(CommonSettings):
    """How records are batched, sent and repeated."""

    acks: str = _setting(
        "all",
        "Who must have a record before it counts as sent: 0 nobody, 1 the leader, all in sync.",
        choices=("all", "-1", "0", "1"),
    )
    enable_idempotence: bool = _setting(
        True, "Number the batches so that a retry is never written twice or out of order."
    )
    linger_ms: float = _setting(
        5.0,
        "How long `send_soon` waits for company in a batch. An awaited `send` does not linger "
        "unless this is set explicitly.",
        low=0,
        high=INT32_MAX,
    )
    batch_size: int = _setting(16_384, "Close a batch at so many bytes.", low=0, high=INT32_MAX)
    compression_type: str = _setting(
        "none",
        "How batches are compressed.",
        choices=("none", "gzip", "snappy", "lz4", "zstd"),
        aliases=("compression.codec",),
    )
    compression_gzip_level: int = _setting(-1, "gzip's level; -1: its default.", low=-1, high=9)
    compression_lz4_level: int = _setting(9, "lz4's level.", low=1, high=17)
    compression_zstd_level: int = _setting(3, "zstd's level.", low=-131_072, high=22)
    max_in_flight_requests_per_connection: int = _setting(
        5, "Requests under way per broker.", low=1, high=INT32_MAX, aliases=("max.in.flight",)
    )
    retries: int = _setting(
        INT32_MAX, "How often a batch is sent again, within `delivery.timeout.ms`.", low=0
    )
    delivery_timeout_ms: int = _setting(
        120_000, "A record fails if it was not acknowledged for so long.", low=1, high=INT32_MAX
    )
    max_request_size: int = _setting(
        1_048_576, "The largest request, and so the largest record.", low=1, high=INT32_MAX
    )
    buffer_memory: int = _setting(
        33_554_432, "Bytes of records that may wait to be sent.", low=1, high=INT64_MAX
    )
    max_block_ms: int = _setting(
        60_000, "How long `send` waits for room or for a topic to appear.", low=0
    )
    partitioner: Any = _setting(
        None,
        "Where a record goes: None (by key, else sticky), `round-robin`, or "
        "a callable(topic, key, value, partition_count) -> partition.",
        aliases=("partitioner.class",),
    )
    partitioner_ignore_keys: bool = _setting(False, "Spread keyed records, too.")
    partitioner_adaptive_partitioning_enable: bool = _setting(
        True, "Give slower brokers fewer of the records without a key."
    )
    key_serializer: Serializer | None = _setting(None, "callable(topic, key) -> bytes.")
    value_serializer: Serializer | None = _setting(None, "callable(topic, value) -> bytes.")
    interceptors: Any = _setting(
        (), "Objects with `on_send` and `on_delivery`.", aliases=("interceptor.classes",)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings(CommonSettings):
    """How records are fetched and handed out."""

    fetch_min_bytes: int = _setting(
        1, "A broker answers when it has so many bytes, or when the wait is over.", low=0
    )
    fetch_max_wait_ms: int = _setting(500, "How long a broker may wait for them.", low=0)
    fetch_max_bytes: int = _setting(
        52_428_800, "The most one answer should hold.", low=0, high=INT32_MAX
    )
    max_partition_fetch_bytes: int = _setting(
        1_048_576, "The most one answer should hold of one partition.", low=0, high=INT32_MAX
    )
    prefetch_max_bytes: int = _setting(
        32 * 1024 * 1024, "Stop fetching ahead when so many bytes wait for `poll`.", low=1
    )
    max_poll_records: int = _setting(500, "The most `poll` returns unless told.", low=1)
    max_batch_decompressed_bytes: int = _setting(
        256 * 1024 * 1024, "Refuse a batch that grows beyond this.", low=1024, high=INT32_MAX
    )
    isolation_level: str = _setting(
        "read_uncommitted",
        "Whether records of open and aborted transactions are seen.",
        choices=("read_uncommitted", "read_committed"),
    )
    auto_offset_reset: str = _setting(
        "latest",
        "Where to go when there is no position, or none that exists.",
        choices=("earliest", "latest", BY_DURATION, "error", "none"),
    )
    group_id: str = _setting("", "The group to read as a member of, and to commit offsets for.")
    group_instance_id: str | None = _setting(
        None, "Names this member across restarts: it comes back to its partitions."
    )
    group_protocol: str = _setting(
        "classic",
        "How the group agrees on who reads what: members do it, or the broker does.",
        choices=("classic", "consumer"),
    )
    group_remote_assignor: str | None = _setting(
        None, "With `group.protocol=consumer`: the broker's assignor, `uniform` or `range`."
    )
    partition_assignment_strategy: str = _setting(
        "range,cooperative-sticky",
        "With `group.protocol=classic`: range, roundrobin, sticky, cooperative-sticky; best first.",
    )
    session_timeout_ms: int = _setting(
        45_000, "A member that the broker has not heard of for so long is out.", low=1
    )
    heartbeat_interval_ms: int = _setting(
        3_000, "How often a member of a classic group reports.", low=1
    )
    max_poll_interval_ms: int = _setting(
        300_000, "A member that does not poll for so long leaves the group.", low=1, high=INT32_MAX
    )
    enable_auto_commit: bool = _setting(True, "Commit, while polling, what earlier polls returned.")
    auto_commit_interval_ms: int = _setting(5_000, "How often that is done.", low=0, high=INT32_MAX)
    check_crcs: bool = _setting(True, "Check each batch's checksum.")
    allow_auto_create_topics: bool = _setting(True, "Let brokers create a topic that we ask for.")
    key_deserializer: Deserializer | None = _setting(None, "callable(topic, bytes) -> key.")
    value_deserializer: Deserializer | None = _setting(None, "callable(topic, bytes) -> value.")
    interceptors: Any = _setting((), "Objects with `on_consume`.", aliases=("interceptor.classes",))


_REMOVED: Mapping[str, str] = {
    "producer.type": "nothing: every producer is asynchronous, `linger.ms` is the waiting",
    "request.required.acks": "acks",
    "queue.buffering.max.ms": "linger.ms",
    "queue.buffering.max.messages": "buffer.memory",
    "batch.num.messages": "batch.size",
    "message.send.max.retries": "retries",
    "serializer.class": "value.serializer",
    "key.serializer.class": "key.serializer",
    "zookeeper.connect": "bootstrap.servers",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "block.on.buffer.full": "max.block.ms",
}

S = TypeVar("S", bound=CommonSettings)


def parse(kind: type[S], given: Mapping[str, object], bootstrap: object = None) -> S:
    """Settings of `kind` from what a user wrote, each value checked and converted."""
    names = _names(kind)
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for name, raw in given.items():
        key = _dotted(name)
        row = names.get(key)
        if row is None:
            raise SettingsError(_unknown(name, names))
        if row in values:
            raise SettingsError(f"setting `{name}` is given twice")
        values[row] = _convert(kind, row, hints[row], raw)
    if bootstrap is not None:
        values["bootstrap_servers"] = _addresses(bootstrap)
    return kind(**values)


def is_explicit(given: Mapping[str, object], name: str) -> bool:
    """Whether the user wrote this setting, in either spelling."""
    return any(_dotted(written) == _dotted(name) for written in given)


def is_known(kind: type[CommonSettings], name: str) -> bool:
    """Whether this kind of client has such a setting."""
    return _dotted(name) in _names(kind)


def describe(kind: type[CommonSettings]) -> list[tuple[str, object, str]]:
    """(Kafka's name, default, meaning) of each setting, for help texts."""
    return [(_dotted(f.name), f.default, f.metadata[_DOC]) for f in fields(kind)]


def _dotted(name: str) -> str:
    return name.replace("_", ".")


def _names(kind: type[CommonSettings]) -> dict[str, str]:
    names: dict[str, str] = {}
    for row in fields(kind):
        names[_dotted(row.name)] = row.name
        names.update(dict.fromkeys(row.metadata[_ALIASES], row.name))
    return names


def _unknown(name: str, names: Mapping[str, str]) -> str:
    key = _dotted(name)
    if key in _REMOVED:
        return f"setting `{name}` was removed from Kafka; use {_REMOVED[key]}"
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.6)
    advice = f"; did you mean `{near[0]}`?" if near else ""
    return f"unknown setting `{name}`{advice}"


def _convert(kind: type[CommonSettings], row: str, hint: Any, raw: object) -> Any:
    if row == "bootstrap_servers":
        return _addresses(raw)
    metadata = next(f.metadata for f in fields(kind) if f.name == row)
    name = _dotted(row)
    value = _as_type(name, hint, raw)
    choices = metadata[_CHOICES]
    if choices is not None:
        value = _choose(name, value, choices)
    low, high = metadata[_LOW], metadata[_HIGH]
    if low is not None and value < low:
        raise SettingsError(f"`{name}` must be at least {low}, not {value}")
    if high is not None and value > high:
        raise SettingsError(f"`{name}` must be at most {high}, not {value}")
    return value


def _with_duration(name: str, value: str) -> str:
    try:
        duration_ms(value[len(BY_DURATION) :])
    except ValueError as error:
        raise SettingsError(f"`{name}`: {error}") from error
    return value


def _choose(name: str, value: str, choices: Sequence[str]) -> str:
    for choice in choices:
        if choice.lower() == value.lower() and choice != BY_DURATION:
            return choice
    if BY_DURATION in choices and value.lower().startswith(BY_DURATION):
        return _with_duration(name, value)
    raise SettingsError(f"`{name}` must be one of {', '.join(choices)}, not {value!r}")


def _as_type(name: str, hint: Any, raw: object) -> Any:
    """`raw` as the type of its row; text is parsed, anything else must fit already."""
    if hint is bool:
        return _as_bool(name, raw)
    if hint in (int, float):
        return _as_number(name, hint, raw)
    if hint is str:
        return ",".join(map(str, raw)) if isinstance(raw, (list, tuple)) else str(raw)
    if hint == str | None:
        return None if raw is None else str(raw)
    if hint is not Any and raw is not None and get_args(hint) and not callable(raw):
        raise SettingsError(f"`{name}` must be a callable, not {raw!r}")
    return raw


def _as_bool(name: str, raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    text = str(raw).strip().lower()
    if text not in ("true", "false"):
        raise SettingsError(f"`{name}` must be true or false, not {raw!r}")
    return text == "true"


def _as_number(name: str, hint: type[int] | type[float], raw: object) -> float:
    if isinstance(raw, bool) or not isinstance(raw, (int, float, str)):
        raise SettingsError(f"`{name}` must be a number, not {raw!r}")
    try:
        return hint(raw)
    except ValueError:
        raise SettingsError(f"`{name}` must be a number, not {raw!r}") from None


def _addresses(raw: object) -> tuple[str, ...]:
    parts = raw.split(",") if isinstance(raw, str) else raw
    if not isinstance(parts, Sequence) or not all(isinstance(part, str) for part in parts):
        raise SettingsError(f"brokers are given as 'host:port,host:port', not {raw!r}")
    addresses = tuple(part.strip() for part in parts if part.strip())
    if not addresses:
        raise SettingsError("no broker address given; write for example '127.0.0.1:9092'")
    for address in addresses:
        split_address(address)
    return addresses


def split_address(address: str) -> tuple[str, int]:
    """`host:port`, `host` (port 9092) or `[v6]:port` as a pair."""
    host, port = address, str(DEFAULT_PORT)
    if address.startswith("["):
        host, _, rest = address[1:].partition("]")
        port = rest.removeprefix(":") or port
    elif address.count(":") == 1:
        host, _, port = address.partition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise SettingsError(f"{address!r} is no address; write host:port, as in 127.0.0.1:9092")
    return host, int(port)
