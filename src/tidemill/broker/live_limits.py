"""Limits that settings put on connections and disks, kept current while the broker runs."""

from __future__ import annotations

from tidemill.broker.listener import UNLIMITED, ConnectionCaps
from tidemill.broker.patience import Limits
from tidemill.broker.process import half_of_file_limit
from tidemill.config import BrokerConfig, Source
from tidemill.storage.manager import LogManager

_CONNECTION_KEYS = (
    "socket.request.max.bytes",
    "connections.max.idle.ms",
    "connection.handshake.timeout.ms",
    "connection.partial.frame.timeout.ms",
)
_CAP_KEYS = (
    "max.connections",
    "max.connections.per.ip",
    "max.connections.per.ip.overrides",
    "max.connection.creation.rate",
)
_STORAGE_KEYS = ("log.disk.reserve.bytes", "producer.id.expiration.ms")


class LiveLimits:
    """Objects that others hold on to, and that are changed in place when a setting changes."""

    def __init__(self, config: BrokerConfig) -> None:
        self.connection = Limits(0, 0, 0, 0)
        self.caps = ConnectionCaps(UNLIMITED, UNLIMITED, {})
        self._config = config
        self._read_connection()
        self._read_caps()
        config.subscribe(_CONNECTION_KEYS, lambda changed: self._read_connection())
        config.subscribe(_CAP_KEYS, lambda changed: self._read_caps())

    def _read_connection(self) -> None:
        config, limits = self._config, self.connection
        limits.request_bytes_max = config.int("socket.request.max.bytes")
        limits.idle_ms = config.int("connections.max.idle.ms")
        limits.handshake_ms = config.int("connection.handshake.timeout.ms")
        limits.frame_ms = config.int("connection.partial.frame.timeout.ms")

    def _read_caps(self) -> None:
        config, caps = self._config, self.caps
        caps.total = min(config.int("max.connections"), half_of_file_limit())
        caps.per_address = config.int("max.connections.per.ip")
        caps.new_per_second = config.int("max.connection.creation.rate")
        caps.per_address_overrides = _overrides(config.str("max.connections.per.ip.overrides"))

    def apply_to(self, logs: LogManager) -> None:
        """Set the logs' limits, now and with every change."""
        self._read_storage(logs)
        self._config.subscribe(_STORAGE_KEYS, lambda changed: self._read_storage(logs))

    def _read_storage(self, logs: LogManager) -> None:
        config = self._config
        logs.producer_expiration_ms = config.int("producer.id.expiration.ms")
        reserve_bytes = config.int("log.disk.reserve.bytes")
        is_wanted = config.source("log.disk.reserve.bytes") is not Source.DEFAULT
        for log_dir in logs.dirs:
            log_dir.keep_in_reserve(reserve_bytes, is_wanted=is_wanted)


def _overrides(text: str) -> dict[str, int]:
    """`HOST:COUNT,HOST:COUNT` as a mapping; what does not parse is left out."""
    pairs = (pair.rpartition(":") for pair in text.split(",") if pair.strip())
    return {
        host.strip(): int(count) for host, _, count in pairs if host and count.strip().isdigit()
    }
