"""One term of leadership over a partition: its followers, its ISR, and what is committed.

`Leadership` is made when a replica becomes the leader in a new epoch and thrown away when that
epoch ends, so nothing that was learnt in one term can count in the next (rules A7 and B3). It is
pure: it reads the log, is told what happened, and answers with the high watermark and with
proposals for a new ISR. Somebody else sends those and brings the answers back.

The high watermark is the least end among all that count: the ISR as the controller may see it, and
followers about to join it (rule B1). It only ever rises, and not while too few are in sync (B2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tidemill.errors import ApiError, ErrorCode
from tidemill.image import PartitionImage
from tidemill.invariant import invariant
from tidemill.replication.isr import IsrAnswer, IsrMember, IsrProposal, IsrState, Settled
from tidemill.replication.progress import (
    NO_BROKER_EPOCH,
    UNKNOWN_OFFSET,
    FetchPosition,
    FollowerProgress,
    countable_end,
)
from tidemill.storage.log import Log
from tidemill.types import BrokerEpoch, BrokerId

EpochOf = Callable[[BrokerId], BrokerEpoch | None]
"""The epoch of a broker that is alive, unfenced and not shutting down; None for any other."""


@dataclass(frozen=True, slots=True)
class LeaderSettings:
    """The settings that a leader obeys; they may change within a term."""

    min_insync_replicas: int
    lag_max_ms: int


class Leadership:
    """What the leader of a partition knows and decides, from its election to its end."""

    def __init__(
        self,
        log: Log,
        image: PartitionImage,
        settings: LeaderSettings,
        *,
        broker_epoch: BrokerEpoch,
        epoch_of: EpochOf,
        high_watermark: int,
        now_ms: int,
    ) -> None:
        """Take over in `image.leader_epoch`; the log has begun that epoch already (rule A7)."""
        invariant(image.leader in image.isr, "a leader is in sync", isr=image.isr)
        self.log = log
        self.settings = settings
        self.broker_id = image.leader
        self.isr = IsrState(image)
        self.epoch_start_offset = log.log_end_offset
        self.high_watermark = min(max(high_watermark, log.log_start_offset), log.log_end_offset)
        self.followers: dict[BrokerId, FollowerProgress] = {}
        self._broker_epoch = broker_epoch
        self._epoch_of = epoch_of
        self._replica_count = 0
        self.effective_min_isr = 1
        """`min.insync.replicas`, but never more than there are replicas (rule B2)."""
        self._follow_assignment(image, now_ms)
        self.advance(now_ms)

    def __repr__(self) -> str:
        return f"Leadership({self.log.topic_partition}, epoch={self.isr.leader_epoch})"

    # Metadata.

    def follow_image(self, image: PartitionImage, now_ms: int) -> bool:
        """Take over newer metadata of this term: replicas and ISR; True if there was any."""
        invariant(
            image.leader_epoch == self.isr.leader_epoch,
            "another epoch is another term",
            image=image.leader_epoch,
            ours=self.isr.leader_epoch,
        )
        in_sync_before = self.isr.committed
        if not self.isr.follow_image(image):
            return False
        for broker_id in in_sync_before.difference(image.isr):
            # The controller knows why it is out; what it fetched before does not bring it back,
            # nor is it waited for as one about to join.
            self.followers.pop(broker_id, None)
        self._follow_assignment(image, now_ms)
        self.advance(now_ms)
        return True

    def _follow_assignment(self, image: PartitionImage, now_ms: int) -> None:
        """Know exactly the assigned followers; one that left and came back starts anew (C3)."""
        known, self.followers = self.followers, {}
        self._replica_count = len(image.replicas)
        self._count_min_isr()
        for broker_id in image.replicas:
            if broker_id != self.broker_id:
                since_ms = now_ms if broker_id in image.isr else None
                self.followers[broker_id] = known.get(broker_id) or FollowerProgress(
                    broker_id, in_sync_since_ms=since_ms
                )

    # What followers say.

    def record_fetch(
        self, broker_id: BrokerId, position: FetchPosition, leader_end: int, now_ms: int
    ) -> bool:
        """Take in a follower's fetch; True if the high watermark moved.

        `leader_end` is the log's end before the read that answers the fetch. A replica that is not
        assigned may be ahead of our news: it is told to come back and is not noted (rule A5).
        """
        follower = self.followers.get(broker_id)
        if follower is None:
            raise ApiError(
                ErrorCode.UNKNOWN_LEADER_EPOCH, f"broker {broker_id} is no replica as far as known"
            )
        has_moved = position.fetch_offset != follower.log_end_offset
        follower.record_fetch(position, leader_end, now_ms)
        return has_moved and self.advance(now_ms)

    # Commitment.

    def _count_min_isr(self) -> None:
        self.effective_min_isr = min(self.settings.min_insync_replicas, max(1, self._replica_count))

    @property
    def has_enough_in_sync(self) -> bool:
        """Whether acks=all may append, and the high watermark may move (rules B2 and B9)."""
        return len(self.isr.committed) >= self.effective_min_isr

    @property
    def may_have_enough_in_sync(self) -> bool:
        """Whether an acks=all append that is committed may be acked (the second look of B9)."""
        return len(self.isr.maximal) >= self.effective_min_isr

    @property
    def knows_high_watermark(self) -> bool:
        """Whether the high watermark has reached all that earlier terms may have committed.

        Before that it may be lower than what clients have seen, so it is not told (rule B5).
        """
        return self.high_watermark >= self.epoch_start_offset

    @property
    def low_watermark(self) -> int:
        """What no live replica has any more: the least log start among them; -1 if unknown."""
        starts = [
            follower.log_start_offset
            for broker_id, follower in self.followers.items()
            if self._epoch_of(broker_id) is not None
        ]
        return min([self.log.log_start_offset, *starts])

    def advance(self, now_ms: int) -> bool:
        """Raise the high watermark as far as it goes; True if it moved.

        Call it after appends and flushes; what followers and the controller say does by itself.
        """
        if not self.has_enough_in_sync:
            return False
        end = countable_end(self.log)
        if self.followers:
            end = self._committed_end(end, now_ms)
        if end <= self.high_watermark:
            return False
        self.high_watermark = end
        return True

    def _committed_end(self, end: int, now_ms: int) -> int:
        maximal = self.isr.maximal
        for broker_id in maximal:
            if broker_id != self.broker_id:
                follower = self.followers.get(broker_id)
                end = min(end, follower.log_end_offset if follower else UNKNOWN_OFFSET)
        for broker_id, follower in self.followers.items():
            if (
                follower.log_end_offset < end
                and broker_id not in maximal
                and self._is_about_to_join(follower, now_ms)
            ):
                end = follower.log_end_offset
        return end

    def _is_about_to_join(self, follower: FollowerProgress, now_ms: int) -> bool:
        """Whether to wait for it: a fast partition would otherwise outrun it for ever (B1)."""
        end, lag_max_ms = self.log.log_end_offset, self.settings.lag_max_ms
        return follower.is_in_sync(end, now_ms, lag_max_ms) and self._is_eligible(follower)

    # The ISR.

    def _is_eligible(self, follower: FollowerProgress) -> bool:
        """Whether the incarnation that fetched is the one that is alive (rules A3 and C3)."""
        return follower.has_fetched and self._epoch_of(follower.broker_id) == follower.broker_epoch

    def may_expand(self, broker_id: BrokerId) -> bool:
        """Whether the follower may join the ISR: every condition of rule C3."""
        follower = self.followers.get(broker_id)
        if follower is None or self.isr.pending is not None or broker_id in self.isr.committed:
            return False
        end = follower.log_end_offset
        return (
            end >= self.high_watermark
            and end >= self.epoch_start_offset
            and self._is_eligible(follower)
        )

    def propose_expand(self, broker_id: BrokerId) -> IsrProposal | None:
        """A proposal to take the follower in, if it may join; call it after each of its fetches."""
        if not self.may_expand(broker_id):
            return None
        return self._propose(self.isr.committed | {broker_id})

    def shrink_candidates(self, now_ms: int) -> frozenset[BrokerId]:
        """Members of the ISR that have lagged for too long (rule C2); never the leader (C7)."""
        end, lag_max_ms = self.log.log_end_offset, self.settings.lag_max_ms
        return frozenset(
            broker_id
            for broker_id, follower in self.followers.items()
            if broker_id in self.isr.committed and not follower.is_in_sync(end, now_ms, lag_max_ms)
        )

    def propose_shrink(self, now_ms: int) -> IsrProposal | None:
        """A proposal without those that lag, if any; to be asked for every half `lag_max_ms`."""
        if self.isr.pending is not None:
            return None
        lagging = self.shrink_candidates(now_ms)
        return self._propose(self.isr.committed - lagging) if lagging else None

    def _propose(self, isr: Iterable[BrokerId]) -> IsrProposal:
        return self.isr.propose(tuple(self._member(broker_id) for broker_id in sorted(isr)))

    def _member(self, broker_id: BrokerId) -> IsrMember:
        if broker_id == self.broker_id:
            # A session that was lost and begun anew within the term has another epoch.
            epoch = self._epoch_of(broker_id)
            return IsrMember(broker_id, self._broker_epoch if epoch is None else epoch)
        follower = self.followers.get(broker_id)
        return IsrMember(broker_id, follower.broker_epoch if follower else NO_BROKER_EPOCH)

    def settle(self, proposal: IsrProposal, answer: IsrAnswer, now_ms: int) -> Settled:
        """Judge the controller's answer, and look at the high watermark again (C5, C6)."""
        settled = self.isr.settle(proposal, answer)
        self.advance(now_ms)
        return settled

    def reconfigure(self, settings: LeaderSettings, now_ms: int) -> None:
        self.settings = settings
        self._count_min_isr()
        self.advance(now_ms)
