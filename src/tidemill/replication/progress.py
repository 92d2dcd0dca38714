"""What a leader knows of one follower, and whether that follower keeps up.

A follower speaks only by fetching: the offset that it asks for says that it has everything below
(rule B3). From that and from the leader's own end at the time, `FollowerProgress` tells since when
the follower has lagged (rule C1), and from that whether it is in sync (rule C2).

All times are monotonic milliseconds: a step of the wall clock must not move anybody out of the ISR.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemill.errors import ApiError, ErrorCode
from tidemill.storage.log import Log
from tidemill.types import BrokerEpoch, BrokerId

UNKNOWN_OFFSET = -1
NO_BROKER_EPOCH = BrokerEpoch(-1)


def countable_end(log: Log) -> int:
    """The end of what this replica may claim to have: under `ack`, what a power cut cannot take.

    A leader counts its own log by it, and a follower reports no more than it (rules E6 and E7).
    """
    return log.flushed_offset if log.config.flush_policy == "ack" else log.log_end_offset


class FetchPosition(NamedTuple):
    """What a follower's fetch says of its log.

    Make one only of a fetch whose offset and last epoch the leader's log agrees with: the end of a
    log that has taken another turn acknowledges nothing.
    """

    fetch_offset: int
    log_start_offset: int
    broker_epoch: BrokerEpoch


class FollowerProgress:
    """One follower, as its leader sees it in the present leader epoch (rule C1)."""

    __slots__ = (
        "broker_epoch",
        "broker_id",
        "last_caught_up_ms",
        "last_fetch_ms",
        "leader_end_at_last_fetch",
        "log_end_offset",
        "log_start_offset",
    )

    def __init__(self, broker_id: BrokerId, *, in_sync_since_ms: int | None) -> None:
        """Nothing is known of it but, if it is in the ISR, that it has caught up before (A7)."""
        self.broker_id = broker_id
        self.log_end_offset = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET
        self.leader_end_at_last_fetch = UNKNOWN_OFFSET
        self.last_fetch_ms: int | None = None
        self.last_caught_up_ms = in_sync_since_ms
        self.broker_epoch = NO_BROKER_EPOCH

    def __repr__(self) -> str:
        return f"FollowerProgress({self.broker_id}, end={self.log_end_offset})"

    @property
    def has_fetched(self) -> bool:
        """Whether it has been heard of in this leader epoch."""
        return self.last_fetch_ms is not None

    def record_fetch(self, position: FetchPosition, leader_end: int, now_ms: int) -> None:
        """Take in a fetch; `leader_end` is the leader's end as it was before the read (rule B3).

        A fetch that an earlier incarnation of the broker sent says nothing about this one, whose
        log may have lost its tail since (rule A3).
        """
        if position.broker_epoch < self.broker_epoch:
            raise ApiError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {self.broker_id} has restarted since it sent this fetch",
            )
        caught_up_ms = self._caught_up_by(position.fetch_offset, leader_end, now_ms)
        if caught_up_ms is not None:
            self.last_caught_up_ms = max(caught_up_ms, self.last_caught_up_ms or caught_up_ms)
        self.log_end_offset = position.fetch_offset
        self.log_start_offset = position.log_start_offset
        self.leader_end_at_last_fetch = max(leader_end, self.leader_end_at_last_fetch)
        self.last_fetch_ms = now_ms
        self.broker_epoch = position.broker_epoch

    def _caught_up_by(self, offset: int, leader_end: int, now_ms: int) -> int | None:
        """When it had all that the leader had: now, at its last fetch, or not in between."""
        if offset >= leader_end:
            return now_ms
        if self.has_fetched and offset >= self.leader_end_at_last_fetch:
            return self.last_fetch_ms
        return None

    def is_in_sync(self, leader_end: int, now_ms: int, lag_max_ms: int) -> bool:
        """Whether it has all there is, or had it not long ago (rule C2)."""
        if self.log_end_offset == leader_end:
            return True
        caught_up_ms = self.last_caught_up_ms
        return caught_up_ms is not None and now_ms - caught_up_ms <= lag_max_ms
