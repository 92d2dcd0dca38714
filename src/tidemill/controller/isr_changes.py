"""The controller's judgement of AlterPartition: a leader wants another set of replicas in sync.

Pure: `judge` gives the answer and the partitions' next states; the answer holds only if they are
written. An error means that nothing was changed (rule C5), with one exception: NEW_LEADER_ELECTED
tells the leader that its proposal was accepted, completed a reassignment, and that the partition
is now somebody else's.

The comparison of epochs makes each proposal a compare-and-set. A leader that did not hear the
answer proposes the same again; if that is what the state is by then, it is a success.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tidemill.controller.changes import Changes, PartitionChange, PolicyOf
from tidemill.errors import ErrorCode
from tidemill.image import ClusterImage, LeaderRecovery, PartitionImage, TopicImage
from tidemill.types import BrokerId
from tidemill.wire.messages.isr import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    PartitionData,
    PartitionDataResult,
    TopicData,
    TopicDataResult,
)

ANY_INCARNATION = -1
"""The broker epoch in a proposal whose leader does not know it: not compared."""


def judge(
    image: ClusterImage, request: AlterPartitionRequest, policy_of: PolicyOf
) -> tuple[AlterPartitionResponse, list[PartitionChange]]:
    """What to answer to a leader's proposals, and what to write."""
    broker = image.broker(request.broker_id)
    if broker is None or broker.epoch != request.broker_epoch:
        # Another incarnation of that broker has registered since, or none is left (rule A3).
        return AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH), []
    changes = Changes(image, policy_of)
    topics = [_judge_topic(changes, broker.broker_id, topic) for topic in request.topics]
    return AlterPartitionResponse(topics=topics), changes.made


def _judge_topic(changes: Changes, broker_id: BrokerId, request: TopicData) -> TopicDataResult:
    topic = changes.image.topic_by_id(request.topic_id)
    if topic is None:
        code = ErrorCode.UNKNOWN_TOPIC_ID
        results = [_refused(proposal, code) for proposal in request.partitions]
    else:
        results = [_judge_one(changes, broker_id, topic, p) for p in request.partitions]
    return TopicDataResult(topic_id=request.topic_id, partitions=results)


def _judge_one(
    changes: Changes, broker_id: BrokerId, topic: TopicImage, proposal: PartitionData
) -> PartitionDataResult:
    before = topic.partition(proposal.partition_index)
    if before is None:
        return _refused(proposal, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    stale = _epoch_problem(broker_id, before, proposal)
    if stale is ErrorCode.INVALID_UPDATE_VERSION and _has_come_true(before, proposal):
        return _accepted(before)
    problem = (
        stale
        or _members_problem(before, proposal)
        or _eligibility_problem(changes.image, proposal)
        or changes.refusal(topic, before.index)
    )
    if problem is not None:
        return _refused(proposal, problem)
    after = changes.settle(topic, before, _wanted(before, proposal)) or before
    if after.leader != broker_id:
        return _refused(proposal, ErrorCode.NEW_LEADER_ELECTED)
    return _accepted(after)


def _wanted(before: PartitionImage, proposal: PartitionData) -> PartitionImage:
    members = tuple(BrokerId(member.broker_id) for member in _members(proposal))
    recovery = LeaderRecovery(proposal.leader_recovery_state)
    return replace(before, isr=members, recovery=recovery)


def _has_come_true(before: PartitionImage, proposal: PartitionData) -> bool:
    """Whether the state is what the proposal asks for: it was accepted, and the answer lost."""
    members = {member.broker_id for member in _members(proposal)}
    return members == set(before.isr) and proposal.leader_recovery_state == before.recovery


def _epoch_problem(
    broker_id: BrokerId, before: PartitionImage, proposal: PartitionData
) -> ErrorCode | None:
    if (
        proposal.leader_epoch > before.leader_epoch
        or proposal.partition_epoch > before.partition_epoch
    ):
        # The leader has heard of a state that we have not: there is a newer controller.
        return ErrorCode.NOT_CONTROLLER
    if proposal.leader_epoch < before.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if broker_id != before.leader:
        return ErrorCode.INVALID_REQUEST
    if proposal.partition_epoch < before.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    return None


def _members_problem(before: PartitionImage, proposal: PartitionData) -> ErrorCode | None:
    """A set in sync holds distinct replicas, the leader among them, so never nobody (rule C7)."""
    members = [member.broker_id for member in _members(proposal)]
    distinct = set(members)
    if len(distinct) < len(members) or not distinct <= set(before.replicas):
        return ErrorCode.INVALID_REQUEST
    if before.leader not in distinct:
        return ErrorCode.INVALID_REQUEST
    recovering = proposal.leader_recovery_state == LeaderRecovery.RECOVERING
    if not recovering and proposal.leader_recovery_state != LeaderRecovery.RECOVERED:
        return ErrorCode.INVALID_REQUEST
    if recovering and (len(members) > 1 or before.recovery is LeaderRecovery.RECOVERED):
        return ErrorCode.INVALID_REQUEST
    return None


def _eligibility_problem(image: ClusterImage, proposal: PartitionData) -> ErrorCode | None:
    """Members are alive, in the incarnation that the leader saw catch up (rules A3, C3, K1)."""
    for member in _members(proposal):
        broker = image.broker(member.broker_id)
        if broker is None or not broker.alive:
            return ErrorCode.INELIGIBLE_REPLICA
        if member.broker_epoch not in (ANY_INCARNATION, broker.epoch):
            return ErrorCode.INELIGIBLE_REPLICA
    return None


def _members(proposal: PartitionData) -> Sequence[BrokerState]:
    """The proposed set; version 2 names members without their epochs."""
    if proposal.new_isr_with_epochs:
        return proposal.new_isr_with_epochs
    return [BrokerState(broker_id=broker_id) for broker_id in proposal.new_isr]


def _accepted(state: PartitionImage) -> PartitionDataResult:
    return PartitionDataResult(
        partition_index=state.index,
        leader_id=state.leader,
        leader_epoch=state.leader_epoch,
        isr=list(state.isr),
        leader_recovery_state=state.recovery,
        partition_epoch=state.partition_epoch,
    )


def _refused(proposal: PartitionData, code: ErrorCode) -> PartitionDataResult:
    return PartitionDataResult(partition_index=proposal.partition_index, error_code=code)
