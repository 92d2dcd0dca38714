"""The broker's settings of replication."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tidemill.replication.follower import FollowerSettings
from tidemill.replication.throttle import UNLIMITED


def _unlimited() -> int:
    return UNLIMITED


@dataclass(frozen=True, slots=True)
class ReplicationSettings:
    """How partitions are copied; the throttles' rates may change at any time."""

    lag_max_ms: int = 30_000
    follower: FollowerSettings = field(default_factory=FollowerSettings)
    leader_throttle_rate: Callable[[], int] = _unlimited
    follower_throttle_rate: Callable[[], int] = _unlimited
    move_rate: Callable[[], int] = _unlimited
    """Bytes per second that moves between log directories may copy."""


DEFAULT_SETTINGS = ReplicationSettings()
