"""The broker's settings of replication, as its replicas are given them."""

from __future__ import annotations

from collections.abc import Callable

from tidemill.config import BrokerConfig
from tidemill.replication.follower import FollowerSettings
from tidemill.replication.settings import ReplicationSettings
from tidemill.replication.throttle import UNLIMITED

FIRST_BACKOFF_MS = 20
"""What a follower hears before its leader does is an error for a moment only."""


def replication_settings(config: BrokerConfig) -> ReplicationSettings:
    backoff_ms = config.int("replica.fetch.backoff.ms")
    return ReplicationSettings(
        lag_max_ms=config.int("replica.lag.time.max.ms"),
        follower=FollowerSettings(
            max_wait_ms=config.int("replica.fetch.wait.max.ms"),
            min_bytes=config.int("replica.fetch.min.bytes"),
            partition_max_bytes=config.int("replica.fetch.max.bytes"),
            response_max_bytes=config.int("replica.fetch.response.max.bytes"),
            backoff_ms=backoff_ms,
            first_backoff_ms=min(FIRST_BACKOFF_MS, backoff_ms),
        ),
        leader_throttle_rate=_rate(config, "leader.replication.throttled.rate"),
        follower_throttle_rate=_rate(config, "follower.replication.throttled.rate"),
        move_rate=_rate(config, "replica.alter.log.dirs.io.max.bytes.per.second"),
    )


def _rate(config: BrokerConfig, key: str) -> Callable[[], int]:
    """A rate that exists only while somebody has set it."""
    return lambda: UNLIMITED if config.text(key) is None else config.int(key)
