"""Proposals for new ISRs on their way to the controller: together, in order, until answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast
from uuid import UUID

from tests.store.helpers import until

from tidemill.broker.isr_updates import IsrUpdates
from tidemill.errors import ApiError, ErrorCode
from tidemill.replication.isr import IsrAnswer, IsrMember, IsrProposal
from tidemill.replication.partition import Partition
from tidemill.types import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    PartitionEpoch,
    TopicPartition,
)
from tidemill.wire.messages.isr import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    PartitionDataResult,
    TopicDataResult,
)

TOPIC_ID = UUID(int=7)


class Leader:
    """A partition with a proposal under way."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.answers: list[IsrAnswer | None] = []
        self.wants = True
        member = IsrMember(BrokerId(1), BrokerEpoch(10))
        self.proposal = IsrProposal(
            LeaderEpoch(1), PartitionEpoch(2), (member,), frozenset[BrokerId]()
        )

    def propose(self, updates: IsrUpdates) -> None:
        partition = SimpleNamespace(
            topic_id=TOPIC_ID,
            topic_partition=TopicPartition("t", self.index),
            wants=lambda proposal: self.wants and proposal is self.proposal,
        )
        updates.propose(cast(Partition, partition), self.proposal, self.answers.append)


class Boss:
    """Answers as `behave` says; None is no answer at all."""

    def __init__(self) -> None:
        self.requests: list[list[int]] = []
        self.behave: Callable[[], ErrorCode | None] = lambda: ErrorCode.NONE

    async def __call__(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        await asyncio.sleep(0)
        asked = [each.partition_index for each in request.topics[0].partitions]
        self.requests.append(asked)
        code = self.behave()
        if code is None:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT)
        if code is ErrorCode.NOT_CONTROLLER:
            return AlterPartitionResponse(error_code=code)
        results = [
            PartitionDataResult(partition_index=index, error_code=code, partition_epoch=3)
            for index in asked
        ]
        topic = TopicDataResult(topic_id=TOPIC_ID, partitions=results)
        return AlterPartitionResponse(topics=[topic])


def updates_to(boss: Boss) -> IsrUpdates:
    return IsrUpdates(BrokerId(1), lambda: BrokerEpoch(10), boss)


async def test_proposals_of_one_turn_travel_together() -> None:
    boss = Boss()
    updates = updates_to(boss)
    leaders = [Leader(index) for index in range(3)]
    for leader in leaders:
        leader.propose(updates)
    await until(lambda: all(leader.answers for leader in leaders))
    assert boss.requests == [[0, 1, 2]]
    for leader in leaders:
        assert [answer and answer.code for answer in leader.answers] == [ErrorCode.NONE]


async def test_what_nobody_knows_is_said_and_sent_again() -> None:
    """Rule C5: the same proposal, until there is an answer."""
    boss = Boss()
    replies = iter([None, ErrorCode.NOT_CONTROLLER, ErrorCode.NONE])
    boss.behave = lambda: next(replies)
    leader = Leader(0)
    leader.propose(updates_to(boss))
    await until(lambda: len(leader.answers) == 3)
    assert leader.answers[:2] == [None, None]
    assert leader.answers[2] is not None
    assert boss.requests == [[0]] * 3


async def test_a_proposal_that_nobody_wants_any_more_is_dropped() -> None:
    """The leadership it belongs to is over, or an image has settled it."""
    boss = Boss()
    boss.behave = lambda: None
    leader = Leader(0)
    updates = updates_to(boss)
    leader.propose(updates)
    await until(lambda: len(boss.requests) == 1)
    leader.wants = False
    await asyncio.sleep(0.15)
    assert len(boss.requests) == 1
    boss.behave = lambda: ErrorCode.NONE
    other = Leader(1)
    other.propose(updates)
    await until(lambda: bool(other.answers))
    assert boss.requests[-1] == [1]


async def test_a_refusal_is_an_answer() -> None:
    boss = Boss()
    boss.behave = lambda: ErrorCode.INELIGIBLE_REPLICA
    leader = Leader(0)
    leader.propose(updates_to(boss))
    await until(lambda: bool(leader.answers))
    [answer] = leader.answers
    assert answer is not None
    assert answer.code is ErrorCode.INELIGIBLE_REPLICA
    await asyncio.sleep(0.1)
    assert len(boss.requests) == 1
