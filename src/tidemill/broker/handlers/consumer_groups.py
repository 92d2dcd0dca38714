"""ConsumerGroupHeartbeat: v0-1. ConsumerGroupDescribe: v0-1.

Behaviour: groups of the newer protocol (KIP-848); `coordinators/consumer_group.py` is the state
machine. The heartbeat is its only request: it joins, reports, and leaves. Offered while
`group.coordinator.rebalance.protocols` has `consumer` in it.
Version notes: v1 of the heartbeat brings the client's own member id and regular expressions; v1 of
the description says which protocol a member uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.broker.deferred import Deferred
from tidemill.broker.dispatch import RequestContext, handles
from tidemill.broker.group_requests import all_of, ask, finished, request_info
from tidemill.broker.handlers.group_admin import GROUP_OPERATIONS
from tidemill.broker.handlers.lookup import NOT_ASKED
from tidemill.coordinators.heartbeat_checks import check_heartbeat
from tidemill.coordinators.result import Result
from tidemill.coordinators.shard import GroupShard
from tidemill.errors import ApiError, ErrorCode
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedGroup,
)

if TYPE_CHECKING:
    from tidemill.broker.context import Broker


def _is_offered(broker: Broker) -> bool:
    return "consumer" in broker.config.list("group.coordinator.rebalance.protocols")


@handles(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1)
def consumer_group_heartbeat(
    broker: Broker, context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse | Deferred[ConsumerGroupHeartbeatResponse]:
    if not _is_offered(broker):
        return _heartbeat_error(ErrorCode.UNSUPPORTED_VERSION, None)
    try:
        check_heartbeat(request, context.version, broker.groups.settings.consumer.assignors)
    except ApiError as error:
        return _heartbeat_error(error.code, error.message)
    info = request_info(broker, context)
    return ask(
        broker,
        request.group_id,
        lambda shard: shard.consumer_heartbeat(request, info),
        _heartbeat_error,
    )


def _heartbeat_error(code: ErrorCode, message: str | None) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=int(code), error_message=message)


@handles(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1, is_heavy=True)
def consumer_group_describe(
    broker: Broker, context: RequestContext, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse | Deferred[ConsumerGroupDescribeResponse]:
    operations = GROUP_OPERATIONS if request.include_authorized_operations else NOT_ASKED
    if not _is_offered(broker):
        code = int(ErrorCode.UNSUPPORTED_VERSION)
        refused = [DescribedGroup(group_id=each, error_code=code) for each in request.group_ids]
        return ConsumerGroupDescribeResponse(groups=refused)
    parts = [_describe(broker, group_id, operations) for group_id in request.group_ids]
    return all_of(parts, lambda groups: ConsumerGroupDescribeResponse(groups=groups))


def _describe(broker: Broker, group_id: str, operations: int) -> Deferred[DescribedGroup]:
    def operation(shard: GroupShard) -> Result[DescribedGroup]:
        described = shard.consumer_group(group_id).describe(broker.image)
        described.authorized_operations = operations
        for member in described.members:
            member.subscribed_topic_regex = member.subscribed_topic_regex or ""
        return Result(described)

    if not group_id:
        return finished(
            DescribedGroup(group_id=group_id, error_code=int(ErrorCode.INVALID_GROUP_ID))
        )
    return ask(
        broker,
        group_id,
        operation,
        lambda code, message: DescribedGroup(
            group_id=group_id, error_code=int(code), error_message=message
        ),
    )
