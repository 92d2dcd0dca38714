"""Proposals for new ISRs, of many partitions at once, as AlterPartition carries them (v3).

A leader of hundreds of partitions that loses a follower has as many proposals in the same moment:
they travel in one request. Whatever the answer leaves out has an unknown outcome (rule C5).
"""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.errors import ErrorCode
from tidemill.image import LeaderRecovery
from tidemill.replication.isr import IsrAnswer, IsrProposal
from tidemill.replication.session import TopicIdPartition
from tidemill.types import BrokerEpoch, BrokerId, LeaderEpoch, PartitionEpoch, TopicId
from tidemill.wire.messages.isr import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    PartitionData,
    PartitionDataResult,
    TopicData,
)

PROPOSALS_PER_REQUEST_MAX = 1_000
"""More of them wait for the next request: none may take the controller for long."""


def alter_partition_request(
    broker_id: BrokerId,
    broker_epoch: BrokerEpoch,
    proposals: Mapping[TopicIdPartition, IsrProposal],
) -> AlterPartitionRequest:
    """One request with all these proposals, at most `PROPOSALS_PER_REQUEST_MAX`."""
    topics: dict[TopicId, TopicData] = {}
    for (topic_id, index), proposal in proposals.items():
        topic = topics.get(topic_id)
        if topic is None:
            topic = topics[topic_id] = TopicData(topic_id=topic_id)
        topic.partitions.append(_partition(index, proposal))
    return AlterPartitionRequest(
        broker_id=broker_id, broker_epoch=broker_epoch, topics=list(topics.values())
    )


def _partition(index: int, proposal: IsrProposal) -> PartitionData:
    return PartitionData(
        partition_index=index,
        leader_epoch=proposal.leader_epoch,
        partition_epoch=proposal.partition_epoch,
        new_isr_with_epochs=[
            BrokerState(broker_id=member.broker_id, broker_epoch=member.broker_epoch)
            for member in proposal.members
        ],
        # A leader serves only what it has recovered; proposing says so (KIP-704).
        leader_recovery_state=int(LeaderRecovery.RECOVERED),
    )


def alter_partition_answers(
    response: AlterPartitionResponse, proposals: Mapping[TopicIdPartition, IsrProposal]
) -> dict[TopicIdPartition, IsrAnswer]:
    """The answer to each proposal; a failure of the whole request is the answer to all."""
    code = _code(response.error_code) if response.error_code else ErrorCode.UNKNOWN_SERVER_ERROR
    answers = dict.fromkeys(proposals, IsrAnswer(code))
    if not response.error_code:
        for topic in response.topics:
            for result in topic.partitions:
                key = TopicIdPartition(topic.topic_id, result.partition_index)
                if key in answers:
                    answers[key] = _answer(result)
    return answers


def _answer(result: PartitionDataResult) -> IsrAnswer:
    return IsrAnswer(
        _code(result.error_code),
        LeaderEpoch(result.leader_epoch),
        PartitionEpoch(result.partition_epoch),
        tuple(map(BrokerId, result.isr)),
    )


def _code(number: int) -> ErrorCode:
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
