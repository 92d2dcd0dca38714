"""A partition that leads others: its followers' fetches, the ISR, and the end of a term."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.replication.helpers import OTHER, SELF, World, partition_image, records, topic_image

from tidemill.errors import ApiError, ErrorCode
from tidemill.image import BrokerImage, with_broker, with_topic
from tidemill.replication.channels import OnIsrAnswer
from tidemill.replication.isr import IsrAnswer, IsrProposal
from tidemill.replication.partition import Partition
from tidemill.replication.progress import FetchPosition
from tidemill.types import BrokerEpoch, BrokerId, LeaderEpoch, PartitionEpoch
from tidemill.wire.messages.fetch import FetchRequest, FetchResponse
from tidemill.wire.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse

EPOCHS = {SELF: BrokerEpoch(10), OTHER: BrokerEpoch(20)}
LAG_MAX_MS = 30_000


class Nobody:
    """A link that is never used: these partitions follow nobody."""

    async def fetch(self, leader_id: BrokerId, request: FetchRequest) -> FetchResponse:
        raise AssertionError

    async def list_offsets(
        self, leader_id: BrokerId, request: ListOffsetsRequest
    ) -> ListOffsetsResponse:
        raise AssertionError


class Channel:
    """Keeps proposals until the test answers them."""

    def __init__(self) -> None:
        self.sent: list[tuple[IsrProposal, OnIsrAnswer]] = []

    def propose(self, partition: Partition, proposal: IsrProposal, answered: OnIsrAnswer) -> None:
        assert partition.wants(proposal)
        self.sent.append((proposal, answered))

    def accept(self) -> IsrProposal:
        proposal, answered = self.sent.pop(0)
        epoch = PartitionEpoch(proposal.partition_epoch + 1)
        answered(IsrAnswer(ErrorCode.NONE, proposal.leader_epoch, epoch, proposal.isr))
        return proposal

    def lose(self) -> None:
        self.sent[0][1](None)


class Leading(World):
    """A partition with two replicas that this broker leads."""

    def __init__(self, *, isr: tuple[int, ...] = (SELF, OTHER), min_isr: int = 1) -> None:
        super().__init__(min_insync_replicas=min_isr)
        for broker_id, epoch in EPOCHS.items():
            self.image = with_broker(self.image, BrokerImage(broker_id, epoch, ()))
        self.channel = Channel()
        self.replicas.replicate(Nobody(), self.channel)
        led = partition_image(replicas=(SELF, OTHER), isr=isr)
        self.apply(with_topic(self.image, replace(topic_image(), partitions=(led,))))
        self.partition = self.only()

    def accept(self) -> None:
        """The controller agrees, and its image follows."""
        accepted = self.channel.accept()
        image = partition_image(
            leader_epoch=accepted.leader_epoch,
            partition_epoch=accepted.partition_epoch + 1,
            replicas=(SELF, OTHER),
            isr=accepted.isr,
        )
        self.partition.apply(image)

    def fetch(self, offset: int, broker_id: BrokerId = OTHER) -> None:
        position = FetchPosition(offset, 0, EPOCHS[OTHER])
        end = self.partition.log.log_end_offset
        self.partition.record_follower_fetch(broker_id, position, end)

    def append(self, *values: bytes, acks: int = 1) -> None:
        self.partition.append(records(*values), required_acks=acks)

    def lag(self) -> None:
        """Time passes in which the follower fetches nothing."""
        self.clock.advance(LAG_MAX_MS + 1)
        self.partition.check_lag()


def test_a_followers_fetch_commits_what_it_has() -> None:
    """Rules B1 and B3."""
    world = Leading()
    world.append(b"a", b"b")
    assert world.partition.high_watermark == 0
    world.fetch(1)
    assert world.partition.high_watermark == 1
    world.fetch(2)
    assert world.partition.high_watermark == 2
    assert world.moved[-1] is world.partition


def test_a_replica_that_is_not_assigned_is_told_to_come_back() -> None:
    """Rule A5."""
    world = Leading()
    with pytest.raises(ApiError) as caught:
        world.fetch(0, BrokerId(9))
    assert caught.value.code is ErrorCode.UNKNOWN_LEADER_EPOCH


def test_a_follower_that_has_caught_up_is_proposed_once() -> None:
    """Rules C3 and C4: one change at a time, and the larger set counts from the proposal on."""
    world = Leading(isr=(SELF,))
    world.append(b"a")
    world.fetch(0)
    assert world.channel.sent == []
    world.fetch(1)
    world.fetch(1)
    assert len(world.channel.sent) == 1
    world.append(b"b")
    assert world.partition.high_watermark == 1, "it counts already"
    world.channel.accept()
    assert world.partition.isr == (SELF, OTHER)
    assert world.partition.partition_epoch == 1
    world.fetch(2)
    assert world.partition.high_watermark == 2
    assert world.channel.sent == []


def test_a_follower_that_lags_is_waited_for_until_its_removal_is_confirmed() -> None:
    """Rules C2, C4 and C6."""
    world = Leading()
    world.append(b"a")
    world.lag()
    assert world.partition.high_watermark == 0
    world.partition.check_lag()
    assert len(world.channel.sent) == 1
    world.channel.lose()
    assert world.partition.high_watermark == 0
    world.accept()
    assert world.partition.isr == (SELF,)
    assert world.partition.high_watermark == 1


def test_an_image_that_is_older_than_the_answer_is_ignored() -> None:
    """Rule A1: the answer was newer news."""
    world = Leading(isr=(SELF,))
    world.append(b"a")
    world.fetch(1)
    world.channel.accept()
    world.partition.apply(partition_image(replicas=(SELF, OTHER), isr=(SELF,)))
    assert world.partition.isr == (SELF, OTHER)


def test_an_answer_of_an_earlier_term_changes_nothing() -> None:
    """Rule C5: another leader may have decided otherwise meanwhile."""
    world = Leading()
    world.append(b"a")
    world.lag()
    again = partition_image(
        leader_epoch=1, partition_epoch=5, replicas=(SELF, OTHER), isr=(SELF, OTHER)
    )
    proposal = world.channel.sent[0][0]
    world.partition.apply(again)
    assert not world.partition.wants(proposal)
    world.channel.accept()
    assert world.partition.isr == (SELF, OTHER)
    assert world.partition.high_watermark == 0


def test_a_lost_session_does_not_end_the_term() -> None:
    """Rules A9 and C4: it refuses to lead, and a change under way still counts afterwards."""
    world = Leading(isr=(SELF,))
    world.append(b"a")
    world.fetch(1)
    assert len(world.channel.sent) == 1
    world.replicas.stop_leading()
    with pytest.raises(ApiError) as caught:
        world.append(b"b")
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.partition.apply(partition_image(replicas=(SELF, OTHER), isr=(SELF,)))
    world.append(b"b")
    assert world.partition.high_watermark == 1, "the follower may be in the ISR by now"


def test_acks_all_is_looked_at_twice() -> None:
    """Rule B9: before the append with the agreed ISR, after it with the largest it may be."""
    world = Leading(min_isr=2)
    world.append(b"a", acks=-1)
    world.partition.check_still_enough_in_sync()
    world.lag()
    world.accept()
    with pytest.raises(ApiError) as refused:
        world.append(b"b", acks=-1)
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    with pytest.raises(ApiError) as after:
        world.partition.check_still_enough_in_sync()
    assert after.value.code is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    world.fetch(1)
    assert len(world.channel.sent) == 1
    world.partition.check_still_enough_in_sync()


def test_a_new_leader_knows_the_high_watermark_when_its_followers_have_spoken() -> None:
    """Rule B5."""
    world = Leading()
    world.append(b"a")
    world.partition.apply(
        partition_image(leader=OTHER, leader_epoch=1, partition_epoch=1, replicas=(SELF, OTHER))
    )
    assert world.partition.follows
    world.partition.apply(
        partition_image(
            leader_epoch=2, partition_epoch=2, replicas=(SELF, OTHER), isr=(SELF, OTHER)
        )
    )
    known = [world.partition.knows_high_watermark]
    world.fetch(1)
    known.append(world.partition.knows_high_watermark)
    assert known == [False, True]
    assert world.partition.leader_epoch == LeaderEpoch(2)


def test_whoever_stopped_leading_leads_again_with_the_next_image() -> None:
    """Rule A9: also what the cluster has not touched meanwhile."""
    world = Leading()
    world.replicas.stop_leading()
    assert not world.partition.is_leader
    world.apply(with_broker(world.image, BrokerImage(SELF, BrokerEpoch(99), ())))
    assert world.partition.is_leader
