"""How a follower's log comes to agree with its leader's: where to cut, and from where to go on.

Two logs agree below an offset if the record before it was written in the same leader epoch in both,
for an epoch has one leader, and that wrote each offset once. So a follower compares epochs with its
leader, and cuts off what no leader's log has (rule D3). It never cuts at its high watermark, which
may lag behind what is committed, unless its log knows no epochs at all.

There are two ways to ask. On the usual one every fetch names the epoch of the follower's last
record, and a leader that sees another turn in it says where its own log left that epoch (rule
D5): `diverging` is the leader's half and `after_divergence` the follower's. `Alignment` is the
other way, a question of its own (OffsetForLeaderEpoch) before the first fetch, repeated until both
agree.

Everything here only decides: it reads the log and returns what to do.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.errors import ApiError, ErrorCode
from tidemill.storage.epochs import UNDEFINED
from tidemill.storage.log import Log
from tidemill.types import LeaderEpoch


@dataclass(frozen=True, slots=True)
class TruncateTo:
    """Drop everything from `offset` on.

    Do it even where the log ends there already: it also forgets epochs that left no record.
    """

    offset: int


@dataclass(frozen=True, slots=True)
class StartOver:
    """Drop everything and go on at `offset`: the leader has nothing before it any more."""

    offset: int


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the leader where `epoch` ended in its log."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """Fetch from `offset` on; the record before it is of `last_fetched_epoch`."""

    offset: int
    last_fetched_epoch: int


def next_fetch(log: Log) -> Fetch:
    """The fetch that continues the log as it is."""
    return Fetch(log.log_end_offset, log.leader_epochs.latest)


def begin(log: Log, high_watermark: int) -> TruncateTo | Fetch:
    """The first step under a new leader, who will compare epochs with the first fetch (D5)."""
    if log.leader_epochs.latest == UNDEFINED and log.log_end_offset > high_watermark:
        # Without any epoch nobody can tell whose records these are; the committed ones are safe.
        return TruncateTo(max(high_watermark, log.log_start_offset))
    return next_fetch(log)


def diverging(log: Log, fetch_offset: int, last_fetched_epoch: int) -> tuple[int, int] | None:
    """The leader's half of rule D5: where our log left the follower's, None if it did not.

    Raises OFFSET_OUT_OF_RANGE for an epoch that cannot be placed. A fetch that diverges is neither
    progress nor answered with records.
    """
    if last_fetched_epoch < 0:
        return None
    epoch, end_offset = log.end_offset_for_epoch(last_fetched_epoch)
    if epoch < 0:
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, "the last fetched epoch is not known here")
    if epoch < last_fetched_epoch or end_offset < fetch_offset:
        return epoch, end_offset
    return None


def after_divergence(log: Log, leader_epoch: int, leader_end: int) -> TruncateTo | None:
    """Where to cut, given where the leader's log left the epoch that we asked about (rule D3).

    The leader answers with the largest epoch it knows up to ours. If we do not know that one, we
    cut where our own largest smaller epoch ends, and the next answer will be about that. None if
    nothing would change by it, so that asking again would bring the same answer for ever.
    """
    offset = min(_common_end(log, leader_epoch, leader_end), log.log_end_offset)
    epochs = log.leader_epochs.entries
    if offset == log.log_end_offset and (not epochs or epochs[-1][1] < offset):
        return None
    return TruncateTo(offset)


def _common_end(log: Log, leader_epoch: int, leader_end: int) -> int:
    own_epoch, own_end = log.end_offset_for_epoch(leader_epoch)
    if own_epoch == UNDEFINED:
        # Our last epoch is older than the leader's answer: only its end can tell.
        return leader_end
    if own_epoch != leader_epoch:
        return own_end
    return min(own_end, leader_end)


def after_range(log: Log, leader_start: int, leader_end: int) -> TruncateTo | StartOver | Fetch:
    """What to do when the leader called our fetch out of range (rule D7).

    A leader whose log ends before ours was elected uncleanly. Nothing is ever reset to zero.
    """
    if leader_end < log.log_end_offset:
        return TruncateTo(leader_end)
    if leader_start > log.log_end_offset:
        return StartOver(leader_start)
    return next_fetch(log)


class Alignment:
    """The dialogue by OffsetForLeaderEpoch, for one partition and one leader epoch (rule D3).

    Do what `step` says. After a truncation call `truncated`, after an answer `answered`.
    """

    __slots__ = ("_asked", "_is_last", "_log", "leader_epoch", "step")

    def __init__(self, log: Log, high_watermark: int, leader_epoch: LeaderEpoch) -> None:
        self._log = log
        self._asked = UNDEFINED
        self._is_last = True
        self.leader_epoch = leader_epoch
        self.step: TruncateTo | Ask | Fetch = begin(log, high_watermark)
        if isinstance(self.step, Fetch):
            self._ask()

    def _ask(self) -> None:
        self._asked = self._log.leader_epochs.latest
        self.step = next_fetch(self._log) if self._asked == UNDEFINED else Ask(self._asked)

    def answered(self, asked: int, leader_epoch: LeaderEpoch, epoch: int, end_offset: int) -> bool:
        """Take in the leader's answer to `Ask(asked)`, given in `leader_epoch`; False if stale.

        An answer from another term, or to a question that was overtaken, proves nothing (D4).
        """
        if leader_epoch != self.leader_epoch or self.step != Ask(asked):
            return False
        if end_offset < 0:
            # The leader knows no such epoch, nor one before it: the first fetch will find out.
            self.step = next_fetch(self._log)
            return True
        own_epoch, _ = self._log.end_offset_for_epoch(epoch)
        self._is_last = own_epoch in (epoch, UNDEFINED)
        self.step = after_divergence(self._log, epoch, end_offset) or next_fetch(self._log)
        return True

    def truncated(self) -> None:
        """The log was cut as `step` said."""
        if self._is_last:
            self.step = next_fetch(self._log)
        else:
            self._ask()
