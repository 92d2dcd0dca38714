"""Moving replicas: AlterPartitionReassignments and ListPartitionReassignments, as pure functions.

A move goes in three steps (rule C8). Grow: the new replicas are appended to the assignment behind
those that stay, and marked as adding. Catch up: they fetch until the leader takes them into the
in-sync set. Shrink: with the change that makes the last target a member, the replicas marked as
removing leave (`election.complete_reassignment`). Until then cancelling takes the new ones out.

A move may be replaced by another before it is done. A replica that only the first one wanted is
then both adding and removing: it leaves when the second move is done, and also when that is
cancelled, so that cancelling always goes back to the assignment from before the first move.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from tidemill.controller.changes import Changes, PartitionChange, PolicyOf
from tidemill.controller.election import (
    is_reassigning,
    next_state,
    original_replicas,
    target_replicas,
    without,
)
from tidemill.controller.topics import replicas_problem
from tidemill.errors import ApiError, ErrorCode
from tidemill.image import ClusterImage, PartitionImage, TopicImage
from tidemill.types import BrokerId
from tidemill.wire.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopic,
    ReassignableTopicResponse,
)


def alter_reassignments(
    image: ClusterImage, request: AlterPartitionReassignmentsRequest, policy_of: PolicyOf
) -> tuple[AlterPartitionReassignmentsResponse, list[PartitionChange]]:
    """Start, replace or cancel moves: the answer, and the partitions' next states."""
    if not request.topics:
        return AlterPartitionReassignmentsResponse(), []
    changes = Changes(image, policy_of)
    may_resize = request.allow_replication_factor_change
    response = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=may_resize,
        error_message=None,
        responses=[_alter_topic(changes, topic, may_resize) for topic in request.topics],
    )
    return response, changes.made


def _alter_topic(
    changes: Changes, request: ReassignableTopic, may_resize: bool
) -> ReassignableTopicResponse:
    results = []
    for partition in request.partitions:
        code, message = ErrorCode.NONE, None
        try:
            _alter_one(changes, request.name, partition, may_resize)
        except ApiError as error:
            code, message = error.code, error.message
        results.append(
            ReassignablePartitionResponse(
                partition_index=partition.partition_index, error_code=code, error_message=message
            )
        )
    return ReassignableTopicResponse(name=request.name, partitions=results)


def _alter_one(
    changes: Changes, name: str, request: ReassignablePartition, may_resize: bool
) -> None:
    topic, partition = _find(changes.image, name, request.partition_index)
    refusal = changes.refusal(topic, partition.index)
    if refusal is not None:
        problem = "Too many partitions in one request, or this one twice: ask again for the rest."
        raise ApiError(refusal, problem)
    if request.replicas is None:
        _cancel(changes, topic, partition)
    else:
        _check_target(changes.image, partition, request.replicas, may_resize)
        target = tuple(map(BrokerId, request.replicas))
        changes.settle(topic, partition, begin(partition, target))


def _find(image: ClusterImage, name: str, index: int) -> tuple[TopicImage, PartitionImage]:
    topic = image.topics.get(name)
    if topic is None:
        problem = f"Unable to find a topic named {name}."
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, problem)
    partition = topic.partition(index)
    if partition is None:
        problem = f"Unable to find partition {name}:{index}."
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, problem)
    return topic, partition


def _check_target(
    image: ClusterImage, partition: PartitionImage, target: Sequence[int], may_resize: bool
) -> None:
    # A replica that is there may stay though its broker is down; a new one needs a broker.
    problem = replicas_problem({*image.brokers, *partition.replicas}, target)
    if problem is not None:
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)
    factor = len(target_replicas(partition))
    if not may_resize and len(target) != factor:
        problem = f"The replication factor is changed from {factor} to {len(target)}"
        raise ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, problem)


def begin(partition: PartitionImage, target: tuple[BrokerId, ...]) -> PartitionImage:
    """The partition on its way to `target`: both assignments together, the targets first."""
    original = original_replicas(partition)
    superseded = without(partition.adding, target)
    removing = tuple(sorted((*without(original, target), *superseded)))
    return replace(
        partition,
        replicas=(*target, *removing),
        adding=tuple(sorted((*without(target, original), *superseded))),
        removing=removing,
    )


def _cancel(changes: Changes, topic: TopicImage, partition: PartitionImage) -> None:
    if not is_reassigning(partition):
        raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    wanted = _reverted(partition)
    after = next_state(partition, wanted, changes.alive, changes.policy(topic))
    assert after is not None, "a cancelled move changes the assignment"
    lost = not after.isr and not after.elr
    if lost or (partition.has_leader and not after.has_leader):
        problem = (
            f"Unable to revert partition assignment for {topic.name}:{partition.index} because "
            "it would require an unclean leader election."
        )
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)
    changes.add(topic, after)


def _reverted(partition: PartitionImage) -> PartitionImage:
    """The assignment from before the move; what was new is out of every set."""
    return replace(
        partition,
        replicas=original_replicas(partition),
        isr=without(partition.isr, partition.adding),
        last_known_elr=without(partition.last_known_elr, partition.adding),
        adding=(),
        removing=(),
    )


def list_reassignments(
    image: ClusterImage, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """The moves under way, of all topics or of those asked for; what does not move is left out."""
    topics = []
    for name, indexes in _asked(image, request):
        moving = [_listed(image, name, index) for index in indexes]
        found = [partition for partition in moving if partition is not None]
        if found:
            topics.append(OngoingTopicReassignment(name=name, partitions=found))
    return ListPartitionReassignmentsResponse(error_message=None, topics=topics)


def _asked(
    image: ClusterImage, request: ListPartitionReassignmentsRequest
) -> Iterator[tuple[str, Iterable[int]]]:
    if request.topics is None:
        for topic in image.topics.values():
            yield topic.name, range(len(topic.partitions))
    else:
        for asked in request.topics:
            yield asked.name, asked.partition_indexes


def _listed(image: ClusterImage, name: str, index: int) -> OngoingPartitionReassignment | None:
    partition = image.partition(name, index)
    if partition is None or not is_reassigning(partition):
        return None
    return OngoingPartitionReassignment(
        partition_index=index,
        replicas=list(partition.replicas),
        adding_replicas=list(partition.adding),
        removing_replicas=list(partition.removing),
    )
