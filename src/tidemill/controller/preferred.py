"""Leaders where they belong: back to the preferred replica, by itself or on command.

The preferred leader is the first replica of the assignment, which placement has spread evenly.
After failures leadership sits where it fell; `moves_back` names the partitions that should go back
once a broker leads too few of those that are its own. `elect_leaders` answers ElectLeaders. Both
are pure, and both only ever move to a live replica in sync (rule K4), except for the unclean
election that an operator asks for in so many words.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from enum import IntEnum

from tidemill.controller.changes import Changes, PartitionChange, PolicyOf
from tidemill.controller.election import is_reassigning
from tidemill.errors import ApiError, ErrorCode
from tidemill.image import ClusterImage, PartitionImage, TopicImage
from tidemill.types import BrokerId
from tidemill.wire.messages.reassignments import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

IMBALANCE_PERCENT = 10
"""How many of its own partitions a broker may miss before they are moved back."""

MOVES_PER_ROUND_MAX = 1_000
"""Every move interrupts a partition's producers for a moment: the rest waits for the next round."""


class ElectionType(IntEnum):
    PREFERRED = 0
    UNCLEAN = 1


_MESSAGES = {
    ErrorCode.ELECTION_NOT_NEEDED: "Leader election not needed for topic partition.",
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: "The preferred leader was not available.",
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: (
        "Eligible topic partition leaders are not available."
    ),
    ErrorCode.OPERATION_NOT_ATTEMPTED: (
        "Too many partitions in one request, or this one twice: ask again for the rest."
    ),
}


def moves_back(
    image: ClusterImage,
    policy_of: PolicyOf,
    *,
    imbalance_percent: int = IMBALANCE_PERCENT,
    moves_max: int = MOVES_PER_ROUND_MAX,
) -> list[PartitionChange]:
    """The next states of partitions that go back to their preferred leader."""
    changes = Changes(image, policy_of)
    for broker_id, misplaced in sorted(_misplaced(image, imbalance_percent).items()):
        if not changes.alive(broker_id):
            continue
        for topic, partition in misplaced:
            if len(changes) >= moves_max:
                return changes.made
            if broker_id in partition.isr and not is_reassigning(partition):
                changes.settle(topic, partition, preferred=True)
    return changes.made


def _misplaced(
    image: ClusterImage, imbalance_percent: int
) -> dict[BrokerId, list[tuple[TopicImage, PartitionImage]]]:
    """By preferred leader, the partitions that another leads, where these are too many."""
    owned: dict[BrokerId, int] = defaultdict(int)
    misplaced: dict[BrokerId, list[tuple[TopicImage, PartitionImage]]] = defaultdict(list)
    for topic in image.topics.values():
        for partition in topic.partitions:
            owner = partition.replicas[0]
            owned[owner] += 1
            if partition.leader != owner:
                misplaced[owner].append((topic, partition))
    return {
        owner: partitions
        for owner, partitions in misplaced.items()
        if len(partitions) * 100 > owned[owner] * imbalance_percent
    }


def elect_leaders(
    image: ClusterImage, request: ElectLeadersRequest, policy_of: PolicyOf
) -> tuple[ElectLeadersResponse, list[PartitionChange]]:
    """The answer to ElectLeaders, and the partitions' next states.

    Without a list all partitions are meant, and those that need no election are not listed.
    """
    try:
        election = ElectionType(request.election_type)
    except ValueError:
        problem = f"Unknown election type {request.election_type}"
        raise ApiError(ErrorCode.INVALID_REQUEST, problem) from None
    changes = Changes(image, policy_of)
    if request.topic_partitions is None:
        results = [_elect_all(changes, topic, election) for topic in image.topics.values()]
    else:
        results = [
            _elect_some(changes, named.topic, named.partitions, election)
            for named in request.topic_partitions
        ]
    return ElectLeadersResponse(replica_election_results=results), changes.made


def _elect_all(
    changes: Changes, topic: TopicImage, election: ElectionType
) -> ReplicaElectionResult:
    results = []
    for partition in topic.partitions:
        code = _elect_one(changes, topic, partition, election)
        if code is not ErrorCode.ELECTION_NOT_NEEDED:
            results.append(_result(partition.index, code))
    return ReplicaElectionResult(topic=topic.name, partition_result=results)


def _elect_some(
    changes: Changes, name: str, indexes: Iterable[int], election: ElectionType
) -> ReplicaElectionResult:
    topic = changes.image.topics.get(name)
    results = []
    for index in indexes:
        partition = None if topic is None else topic.partition(index)
        if topic is None or partition is None:
            results.append(_unknown(name, index, topic_exists=topic is not None))
        else:
            results.append(_result(index, _elect_one(changes, topic, partition, election)))
    return ReplicaElectionResult(topic=name, partition_result=results)


def _elect_one(
    changes: Changes, topic: TopicImage, partition: PartitionImage, election: ElectionType
) -> ErrorCode:
    unclean = election is ElectionType.UNCLEAN
    if partition.has_leader and (unclean or partition.leader == partition.replicas[0]):
        return ErrorCode.ELECTION_NOT_NEEDED
    refusal = changes.refusal(topic, partition.index)
    if refusal is not None:
        return refusal
    policy = replace(changes.policy(topic), unclean_allowed=unclean)
    if changes.settle(topic, partition, preferred=not unclean, policy=policy) is not None:
        return ErrorCode.NONE
    if unclean:
        return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    return ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


def _result(index: int, code: ErrorCode) -> PartitionResult:
    return PartitionResult(partition_id=index, error_code=code, error_message=_MESSAGES.get(code))


def _unknown(name: str, index: int, *, topic_exists: bool) -> PartitionResult:
    problem = f"No such partition as {name}-{index}" if topic_exists else f"No such topic as {name}"
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return PartitionResult(partition_id=index, error_code=code, error_message=problem)
