"""What a partition is given: its topic's settings, and what all partitions of a broker share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.clock import Clock
from tidemill.executor import Executor
from tidemill.image import ReplicaTrouble
from tidemill.replication.channels import IsrChannel
from tidemill.replication.leading import EpochOf
from tidemill.replication.throttle import NONE_THROTTLED, ThrottledReplicas
from tidemill.storage.flusher import OnFlushed
from tidemill.storage.log import Log
from tidemill.storage.log_config import LogConfig
from tidemill.types import BrokerId

if TYPE_CHECKING:
    from tidemill.replication.partition import Partition


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """The topic's settings that a partition obeys."""

    log: LogConfig
    min_insync_replicas: int
    leader_throttled: ThrottledReplicas = NONE_THROTTLED
    follower_throttled: ThrottledReplicas = NONE_THROTTLED


def _nothing(partition: Partition) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the partitions of a broker share: its parts, and whom to tell of what happens."""

    broker_id: BrokerId
    clock: Clock
    executor: Executor
    request_flush: Callable[[Log, OnFlushed | None], None]
    epoch_of: EpochOf
    lag_max_ms: int
    on_moved: Callable[[Partition], object]
    """What can be read or acked has changed."""
    on_flush_failed: Callable[[Partition], object]
    on_trouble: Callable[[Partition, ReplicaTrouble], object] = lambda partition, trouble: None
    """It cannot do its part, and others who are in sync can."""
    on_appended: Callable[[Partition], object] = _nothing
    """A leader with followers has records that they have not."""
    on_led: Callable[[Partition], object] = _nothing
    """It has become the leader of followers."""
    on_copied: Callable[[Partition], object] = _nothing
    """What a follower copied is flushed."""
    isr_channel: Callable[[], IsrChannel | None] = lambda: None
