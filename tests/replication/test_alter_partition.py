"""ISR proposals on their way to the controller and back."""

from __future__ import annotations

from uuid import UUID

from tests.replication.helpers import partition_image

from tidemill.errors import ErrorCode
from tidemill.replication.alter_partition import (
    alter_partition_answers,
    alter_partition_request,
)
from tidemill.replication.isr import IsrAnswer, IsrMember, IsrProposal, IsrState, Settled
from tidemill.replication.session import TopicIdPartition
from tidemill.types import BrokerEpoch, BrokerId, LeaderEpoch, PartitionEpoch
from tidemill.wire import codec
from tidemill.wire.messages.isr import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    PartitionDataResult,
    TopicDataResult,
)

A, B = TopicIdPartition(UUID(int=1), 0), TopicIdPartition(UUID(int=1), 1)
C = TopicIdPartition(UUID(int=2), 0)


def proposal() -> tuple[IsrState, IsrProposal]:
    image = partition_image(replicas=(0, 1, 2), isr=(0, 1), leader_epoch=3, partition_epoch=8)
    state = IsrState(image)
    members = tuple(IsrMember(BrokerId(one), BrokerEpoch(20 + one)) for one in (0, 1, 2))
    return state, state.propose(members)


def test_proposals_of_many_partitions_share_a_request() -> None:
    """Rules A3 and C5: both epochs are the condition, and each member is named by incarnation."""
    _, one = proposal()
    request = alter_partition_request(BrokerId(0), BrokerEpoch(20), {A: one, B: one, C: one})
    sent = codec.decode(AlterPartitionRequest, 3, codec.encode(request, 3))
    assert (sent.broker_id, sent.broker_epoch) == (0, 20)
    assert [(topic.topic_id, len(topic.partitions)) for topic in sent.topics] == [
        (A.topic_id, 2),
        (C.topic_id, 1),
    ]
    partition = sent.topics[0].partitions[1]
    assert (partition.partition_index, partition.leader_epoch, partition.partition_epoch) == (
        1,
        3,
        8,
    )
    members = [(one.broker_id, one.broker_epoch) for one in partition.new_isr_with_epochs]
    assert members == [(0, 20), (1, 21), (2, 22)]


def test_each_proposal_gets_its_own_answer() -> None:
    """Rule C5: what the answer leaves out has an unknown outcome."""
    state, one = proposal()
    done = PartitionDataResult(
        partition_index=0, leader_id=0, leader_epoch=3, isr=[0, 1, 2], partition_epoch=9
    )
    stale = PartitionDataResult(partition_index=1, error_code=int(ErrorCode.INVALID_UPDATE_VERSION))
    strange = PartitionDataResult(partition_index=7, error_code=1234)
    response = AlterPartitionResponse(
        topics=[TopicDataResult(topic_id=A.topic_id, partitions=[done, stale, strange])]
    )
    received = codec.decode(AlterPartitionResponse, 3, codec.encode(response, 3))
    answers = alter_partition_answers(received, {A: one, B: one, C: one})
    assert answers[A] == IsrAnswer(
        ErrorCode.NONE,
        LeaderEpoch(3),
        PartitionEpoch(9),
        (BrokerId(0), BrokerId(1), BrokerId(2)),
    )
    assert [answers[key].code for key in (B, C)] == [
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ]
    assert state.settle(one, answers[C]) is Settled.RETRY
    assert state.settle(one, answers[A]) is Settled.DONE
    assert state.committed == {0, 1, 2}


def test_a_request_that_failed_as_a_whole_failed_for_all() -> None:
    """Rule C5."""
    _, one = proposal()
    for number, code in [(41, ErrorCode.NOT_CONTROLLER), (4321, ErrorCode.UNKNOWN_SERVER_ERROR)]:
        answers = alter_partition_answers(
            AlterPartitionResponse(error_code=number), {A: one, C: one}
        )
        assert answers == {A: IsrAnswer(code), C: IsrAnswer(code)}
