"""A term of leadership: the high watermark, and who is proposed for the ISR."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from tests.replication.helpers import partition_image
from tests.storage.helpers import batch, new_log

from tidemill.errors import ApiError, ErrorCode
from tidemill.invariant import InvariantError
from tidemill.replication.isr import IsrAnswer, IsrProposal, Settled
from tidemill.replication.leading import LeaderSettings, Leadership
from tidemill.replication.progress import FetchPosition
from tidemill.storage.log import Log
from tidemill.storage.log_config import FlushPolicy, LogConfig
from tidemill.types import BrokerEpoch, BrokerId, LeaderEpoch, PartitionEpoch

LAG_MAX_MS = 10_000
EPOCH = 3


@dataclass
class Term:
    """A leader, broker 0, with a log of its own and a clock in hand."""

    isr: tuple[int, ...] = (0, 1, 2)
    min_insync_replicas: int = 1
    flush_policy: FlushPolicy = "async"
    replicas: tuple[int, ...] = (0, 1, 2)
    records: int = 0
    high_watermark: int = 0
    now_ms: int = 0
    alive: dict[int, int] = field(default_factory=lambda: {0: 10, 1: 11, 2: 12})
    log: Log = field(init=False)
    leader: Leadership = field(init=False)

    def __post_init__(self) -> None:
        self.log = new_log(LogConfig(flush_policy=self.flush_policy))
        for _ in range(self.records):
            self.log.append_as_leader(batch(b"old"), leader_epoch=0)
        self.log.flush()
        self.log.begin_epoch(EPOCH)
        self.leader = Leadership(
            self.log,
            partition_image(replicas=self.replicas, isr=self.isr, leader_epoch=EPOCH),
            LeaderSettings(self.min_insync_replicas, LAG_MAX_MS),
            broker_epoch=BrokerEpoch(10),
            epoch_of=self._epoch_of,
            high_watermark=self.high_watermark,
            now_ms=self.now_ms,
        )

    def _epoch_of(self, broker_id: BrokerId) -> BrokerEpoch | None:
        epoch = self.alive.get(broker_id)
        return None if epoch is None else BrokerEpoch(epoch)

    def append(self, count: int = 1) -> None:
        for _ in range(count):
            self.log.append_as_leader(batch(b"v"), leader_epoch=EPOCH)
        self.leader.advance(self.now_ms)

    def fetch(self, follower: int, offset: int, broker_epoch: int | None = None) -> bool:
        epoch = BrokerEpoch(10 + follower if broker_epoch is None else broker_epoch)
        position = FetchPosition(offset, 0, epoch)
        end = self.log.log_end_offset
        return self.leader.record_fetch(BrokerId(follower), position, end, self.now_ms)

    def apply(self, *isr: int, partition_epoch: int, replicas: tuple[int, ...] = (0, 1, 2)) -> bool:
        image = partition_image(
            replicas=replicas, isr=isr, leader_epoch=EPOCH, partition_epoch=partition_epoch
        )
        return self.leader.follow_image(image, self.now_ms)

    def confirm(self, proposal: IsrProposal | None) -> Settled:
        assert proposal is not None
        epoch = PartitionEpoch(proposal.partition_epoch + 1)
        answer = IsrAnswer(ErrorCode.NONE, LeaderEpoch(EPOCH), epoch, proposal.isr)
        return self.leader.settle(proposal, answer, self.now_ms)


# The high watermark.


def test_the_high_watermark_is_the_least_end_in_the_isr() -> None:
    """Rule B1."""
    term = Term()
    term.append(5)
    term.fetch(1, 4)
    assert term.leader.high_watermark == 0
    assert term.fetch(2, 3)
    assert term.leader.high_watermark == 3
    assert not term.fetch(1, 5)
    assert term.fetch(2, 5)
    assert term.leader.high_watermark == 5


def test_the_high_watermark_never_falls() -> None:
    """Rule B1: not even when a follower's end does."""
    term = Term()
    term.append(5)
    term.fetch(1, 5)
    term.fetch(2, 5)
    term.fetch(2, 1)
    assert term.leader.high_watermark == 5


def test_a_caught_up_outsider_is_waited_for() -> None:
    """Rule B1: or it would never be able to join a fast partition."""
    term = Term(isr=(0, 1))
    term.append(2)
    term.fetch(2, 2)
    term.append(1)
    term.fetch(1, 3)
    assert term.leader.high_watermark == 2
    term.fetch(2, 3)
    assert term.leader.high_watermark == 3


@pytest.mark.parametrize("change", [{}, {0: 10, 1: 11, 2: 13}])
def test_a_dead_or_restarted_outsider_is_not_waited_for(change: dict[int, int]) -> None:
    """Rules B1 and A3."""
    term = Term(isr=(0, 1))
    term.append(2)
    term.fetch(2, 2)
    term.alive = change
    term.append(1)
    term.fetch(1, 3)
    assert term.leader.high_watermark == 3


def test_the_high_watermark_rests_while_too_few_are_in_sync() -> None:
    """Rule B2."""
    term = Term(isr=(0,), min_insync_replicas=2)
    term.append(3)
    assert (term.leader.high_watermark, term.leader.has_enough_in_sync) == (0, False)
    term.fetch(1, 3)
    proposal = term.leader.propose_expand(BrokerId(1))
    assert not term.leader.has_enough_in_sync
    assert term.leader.may_have_enough_in_sync
    assert term.leader.high_watermark == 0
    term.confirm(proposal)
    assert term.leader.high_watermark == 3


def test_min_isr_is_never_more_than_the_replicas() -> None:
    """Rule B2."""
    term = Term(isr=(0,), replicas=(0,), min_insync_replicas=2)
    term.append(1)
    assert (term.leader.effective_min_isr, term.leader.high_watermark) == (1, 1)


def test_a_new_min_isr_frees_the_high_watermark() -> None:
    """Rule B2."""
    term = Term(isr=(0,), min_insync_replicas=2)
    term.append(1)
    term.leader.reconfigure(LeaderSettings(1, LAG_MAX_MS), term.now_ms)
    assert term.leader.high_watermark == 1


def test_the_leader_counts_its_own_log_when_flushed() -> None:
    """Rule E6: under `ack` a follower may be ahead of what the leader itself may count."""
    term = Term(flush_policy="ack")
    term.append(3)
    term.fetch(1, 3)
    term.fetch(2, 3)
    assert term.leader.high_watermark == 0
    term.log.flush()
    assert term.leader.advance(term.now_ms)
    assert term.leader.high_watermark == 3


def test_nothing_learnt_before_the_term_counts_in_it() -> None:
    """Rules A7 and B3: an ISR member that has not fetched in this epoch holds everything up."""
    term = Term(records=4, high_watermark=2)
    term.fetch(1, 4)
    assert term.leader.high_watermark == 2
    term.fetch(2, 4)
    assert term.leader.high_watermark == 4


def test_the_high_watermark_is_not_told_before_it_is_known() -> None:
    """Rule B5: an earlier leader may have told clients of more."""
    term = Term(records=4, high_watermark=2)
    knew = [term.leader.knows_high_watermark]
    term.append(1)
    for follower, offset in [(1, 5), (2, 3), (2, 4)]:
        term.fetch(follower, offset)
        knew.append(term.leader.knows_high_watermark)
    assert knew == [False, False, False, True]
    assert term.leader.epoch_start_offset == 4


def test_a_pending_member_holds_the_high_watermark_at_once() -> None:
    """Rule C4: the larger set governs, though the follower is no longer waited for otherwise."""
    term = Term(isr=(0, 1))
    term.append(2)
    term.fetch(1, 2)
    term.fetch(2, 2)
    assert term.leader.propose_expand(BrokerId(2)) is not None
    term.now_ms += 2 * LAG_MAX_MS
    term.append(1)
    term.fetch(1, 3)
    assert term.leader.high_watermark == 2


def test_a_leaving_member_holds_the_high_watermark_until_confirmed() -> None:
    """Rules C4 and C6."""
    term = Term()
    term.append(2)
    term.fetch(1, 2)
    term.now_ms += 2 * LAG_MAX_MS
    term.fetch(1, 2)
    proposal = term.leader.propose_shrink(term.now_ms)
    assert proposal is not None
    assert proposal.isr == (0, 1)
    assert not term.leader.advance(term.now_ms)
    assert term.confirm(proposal) is Settled.WAIT
    assert term.leader.high_watermark == 0
    assert term.apply(0, 1, partition_epoch=1)
    assert term.leader.high_watermark == 2


def test_an_image_without_a_member_frees_the_high_watermark() -> None:
    """Rule C6: the controller took a dead broker out by itself."""
    term = Term(isr=(0, 1))
    term.append(2)
    assert term.apply(0, partition_epoch=5)
    assert term.leader.high_watermark == 2


# Followers.


def test_whom_the_controller_took_out_is_not_waited_for_as_one_about_to_join() -> None:
    """Rules B1 and E8: it caught up a moment ago, and may be out for having no room."""
    term = Term()
    term.fetch(1, 0)
    term.fetch(2, 0)
    term.append(2)
    term.fetch(1, 2)
    term.apply(0, 1, partition_epoch=1)
    assert term.leader.high_watermark == 2
    term.fetch(2, 0)
    assert not term.leader.may_expand(BrokerId(2)), "it lacks what is committed by now"
    term.append()
    term.fetch(1, 3)
    assert term.leader.high_watermark == 3


def test_a_stranger_is_told_to_come_back_and_not_noted() -> None:
    """Rule A5."""
    term = Term(replicas=(0, 1), isr=(0, 1))
    with pytest.raises(ApiError) as refused:
        term.fetch(2, 0)
    assert refused.value.code is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert BrokerId(2) not in term.leader.followers


def test_another_leader_epoch_is_another_term() -> None:
    """Rule A7: progress cannot be carried over by mistake."""
    with pytest.raises(InvariantError, match="another term"):
        Term().leader.follow_image(partition_image(leader_epoch=EPOCH + 1), 0)


def test_a_leader_must_be_in_sync() -> None:
    """Rule C7."""
    with pytest.raises(InvariantError, match="in sync"):
        Term(isr=(1, 2))


# Expanding.


def outsider(**change: int) -> Term:
    """Broker 2 is outside, and was in sync with a log of 4 records, 3 of them committed."""
    term = Term(isr=(0, 1), records=4, high_watermark=3)
    term.fetch(2, change.get("offset", 4), change.get("broker_epoch"))
    return term


def test_a_follower_that_has_everything_may_join() -> None:
    """Rule C3."""
    term = outsider()
    proposal = term.leader.propose_expand(BrokerId(2))
    assert proposal is not None
    assert [(one.broker_id, one.broker_epoch) for one in proposal.members] == [
        (0, 10),
        (1, -1),
        (2, 12),
    ]
    assert not term.leader.may_expand(BrokerId(2))


def test_a_follower_below_the_epochs_start_may_not_join() -> None:
    """Rule C3: it has the high watermark, but maybe not all that was committed before."""
    assert not outsider(offset=3).leader.may_expand(BrokerId(2))


def test_a_follower_below_the_high_watermark_may_not_join() -> None:
    """Rule C3."""
    term = outsider()
    term.now_ms += 2 * LAG_MAX_MS
    term.append(3)
    term.fetch(1, 7)
    assert term.leader.high_watermark == 7
    assert not term.leader.may_expand(BrokerId(2))


def test_a_follower_that_was_not_heard_in_this_epoch_may_not_join() -> None:
    """Rule C3."""
    assert not Term(isr=(0, 1)).leader.may_expand(BrokerId(2))


@pytest.mark.parametrize("alive", [{0: 10, 1: 11}, {0: 10, 1: 11, 2: 13}])
def test_a_dead_or_restarted_follower_may_not_join(alive: dict[int, int]) -> None:
    """Rules C3 and A3: fenced, shutting down, or another incarnation than the one that fetched."""
    term = outsider()
    term.alive = alive
    assert not term.leader.may_expand(BrokerId(2))


def test_a_replica_that_left_and_came_back_starts_anew() -> None:
    """Rule C3: what was known of it before it was removed does not let it in."""
    term = outsider()
    term.apply(0, 1, replicas=(0, 1), partition_epoch=4)
    term.apply(0, 1, replicas=(0, 1, 2), partition_epoch=5)
    assert not term.leader.may_expand(BrokerId(2))
    term.fetch(2, 4)
    assert term.leader.may_expand(BrokerId(2))


def test_a_member_is_not_added_again_nor_a_stranger() -> None:
    term = Term()
    term.fetch(1, 0)
    assert not term.leader.may_expand(BrokerId(1))
    assert not term.leader.may_expand(BrokerId(9))


# Shrinking.


def test_laggards_leave_and_the_leader_stays() -> None:
    """Rules C2 and C7."""
    term = Term()
    term.append(2)
    term.now_ms = LAG_MAX_MS + 1
    proposal = term.leader.propose_shrink(term.now_ms)
    assert proposal is not None
    assert proposal.isr == (0,)


def test_members_have_time_after_an_election() -> None:
    """Rule A7."""
    term = Term(now_ms=5_000)
    term.append(2)
    assert term.leader.propose_shrink(5_000 + LAG_MAX_MS) is None
    assert term.leader.shrink_candidates(5_001 + LAG_MAX_MS) == {1, 2}


def test_nobody_leaves_a_quiet_partition() -> None:
    """Rule C2."""
    term = Term()
    term.fetch(1, 0)
    term.fetch(2, 0)
    assert term.leader.propose_shrink(100 * LAG_MAX_MS) is None


def test_no_second_change_while_one_is_under_way() -> None:
    """Rule C4."""
    term = Term(isr=(0, 1))
    term.fetch(2, 0)
    assert term.leader.propose_expand(BrokerId(2)) is not None
    term.append(1)
    assert term.leader.propose_shrink(100 * LAG_MAX_MS) is None
