"""What a heartbeat of the newer protocol must look like before anybody looks at the group.

The order of the checks and their words are Kafka's: clients show them to their users.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.coordinators.consumer_member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerMember,
)
from tidemill.coordinators.reconcile import Reported
from tidemill.errors import ApiError, ErrorCode
from tidemill.wire.messages.consumer_groups import ConsumerGroupHeartbeatRequest

_CLIENT_NAMES_ITSELF_FROM = 1
"""From this version on a client brings its own member id."""


def check_heartbeat(
    request: ConsumerGroupHeartbeatRequest, api_version: int, assignors: Sequence[str]
) -> None:
    """Raise for what no group could answer."""
    epoch = request.member_epoch
    if api_version >= _CLIENT_NAMES_ITSELF_FROM or epoch != JOIN_EPOCH:
        _not_empty(request.member_id, "MemberId")
    _not_empty(request.group_id, "GroupId")
    _not_empty(request.instance_id, "InstanceId")
    _not_empty(request.rack_id, "RackId")
    if epoch == JOIN_EPOCH:
        _check_join(request)
    elif epoch == LEAVE_STATIC_EPOCH:
        if request.instance_id is None:
            raise invalid("InstanceId can't be null.")
    elif epoch < LEAVE_EPOCH:
        raise invalid("MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise ApiError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. "
            f"Supported assignors: {', '.join(assignors)}.",
        )


def _check_join(request: ConsumerGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == -1:
        raise invalid("RebalanceTimeoutMs must be provided in first request.")
    if request.topic_partitions is None or request.topic_partitions:
        raise invalid("TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise invalid(
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
            "(re-)joining."
        )


def check_epoch(member: ConsumerMember, epoch: int, reported: Reported | None) -> None:
    """Raise unless the member is in the epoch it says.

    One behind is right when the answer that moved it on was lost, and it has nothing that it was
    not given. Epoch 0 comes from a member that starts over.
    """
    if epoch == JOIN_EPOCH or epoch == member.member_epoch:
        return
    if epoch > member.member_epoch:
        raise _fenced("greater", epoch, member)
    if epoch != member.previous_epoch or not _has_only_what_it_was_given(member, reported):
        raise _fenced("smaller", epoch, member)


def _has_only_what_it_was_given(member: ConsumerMember, reported: Reported | None) -> bool:
    if reported is None:
        return False
    given = member.assigned
    return all(parts <= given.get(topic, {}).keys() for topic, parts in reported.items())


def _fenced(which: str, epoch: int, member: ConsumerMember) -> ApiError:
    return ApiError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {which} member epoch ({epoch}) than the one known by the "
        f"group coordinator ({member.member_epoch}). The member must abandon all its partitions "
        "and rejoin.",
    )


def _not_empty(value: str | None, name: str) -> None:
    if value is not None and not value.strip():
        raise invalid(f"{name} can't be empty.")


def invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message)
