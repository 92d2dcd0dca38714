"""JoinGroup: v0-9. SyncGroup: v0-5. Heartbeat: v0-4. LeaveGroup: v0-5.

Behaviour: the classic group protocol; `coordinators/classic_group.py` is its state machine.
JoinGroup and SyncGroup wait for the other members. A heartbeat that finds its group still loading
is answered as if all were well, so that a coordinator's move costs nobody his membership.
Version notes: JoinGroup v1 rebalance timeout, v4 MEMBER_ID_REQUIRED (KIP-394), v5 static members
(KIP-345), v7 protocol type, v9 skips the assignment of a static leader that came back (KIP-814).
LeaveGroup v3 removes many members at once (KIP-345), by instance id too.
Deviations: a member that is removed while its SyncGroup waits, or that repeats a JoinGroup while
the first one waits, has the waiting one answered at once; Kafka lets it time out. A group keeps at
most 10,000 ids that were handed out and not used. A member that finds no room in a rebalance is not
waited for; Kafka waits for the rebalance timeout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.broker.deferred import Deferred
from tidemill.broker.dispatch import RequestContext, handles
from tidemill.broker.group_requests import ask, ask_late, request_info
from tidemill.coordinators.classic_group import join_error, sync_error
from tidemill.errors import ErrorCode
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupResponse,
)

if TYPE_CHECKING:
    from tidemill.broker.context import Broker

_PROTOCOL_NULLABLE_FROM = 7
_PROTOCOL_REQUIRED_FROM = 5
_BATCHED_LEAVE_FROM = 3


@handles(ApiKey.JOIN_GROUP, 0, 9)
def join_group(
    broker: Broker, context: RequestContext, request: JoinGroupRequest
) -> JoinGroupResponse | Deferred[JoinGroupResponse]:
    refused = _refuse_join(broker, request)
    if refused is not ErrorCode.NONE:
        return _fit(join_error(refused, request.member_id), context)
    info = request_info(broker, context)
    answer: Deferred[JoinGroupResponse] = Deferred()
    ask_late(
        broker,
        request.group_id,
        lambda shard, reply: shard.join(request, info, reply),
        lambda code, _: join_error(code, request.member_id),
    ).listen(lambda response: answer.complete(_fit(response, context)))
    return answer


def _refuse_join(broker: Broker, request: JoinGroupRequest) -> ErrorCode:
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    settings = broker.groups.settings.classic
    lowest, highest = settings.min_session_timeout_ms, settings.max_session_timeout_ms
    if not lowest <= request.session_timeout_ms <= highest:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    return ErrorCode.NONE


def _fit(response: JoinGroupResponse, context: RequestContext) -> JoinGroupResponse:
    """Old versions have no null for a protocol that is not there."""
    if response.protocol_name is None and context.version < _PROTOCOL_NULLABLE_FROM:
        response.protocol_name = ""
    return response


@handles(ApiKey.SYNC_GROUP, 0, 5)
def sync_group(
    broker: Broker, context: RequestContext, request: SyncGroupRequest
) -> SyncGroupResponse | Deferred[SyncGroupResponse]:
    if context.version >= _PROTOCOL_REQUIRED_FROM and None in (
        request.protocol_type,
        request.protocol_name,
    ):
        return sync_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if not request.group_id:
        return sync_error(ErrorCode.INVALID_GROUP_ID)
    info = request_info(broker, context)
    return ask_late(
        broker,
        request.group_id,
        lambda shard, reply: shard.sync(request, info, reply),
        lambda code, _: sync_error(code),
    )


@handles(ApiKey.HEARTBEAT, 0, 4)
def heartbeat(
    broker: Broker, context: RequestContext, request: HeartbeatRequest
) -> HeartbeatResponse | Deferred[HeartbeatResponse]:
    if not request.group_id:
        return HeartbeatResponse(error_code=int(ErrorCode.INVALID_GROUP_ID))
    return ask(broker, request.group_id, lambda shard: shard.heartbeat(request), _heartbeat_error)


def _heartbeat_error(code: ErrorCode, message: str | None) -> HeartbeatResponse:
    if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        return HeartbeatResponse()
    return HeartbeatResponse(error_code=int(code))


@handles(ApiKey.LEAVE_GROUP, 0, 5)
def leave_group(
    broker: Broker, context: RequestContext, request: LeaveGroupRequest
) -> LeaveGroupResponse | Deferred[LeaveGroupResponse]:
    if not request.group_id:
        return LeaveGroupResponse(error_code=int(ErrorCode.INVALID_GROUP_ID))
    is_batched = context.version >= _BATCHED_LEAVE_FROM
    leaving = request.members if is_batched else [MemberIdentity(member_id=request.member_id)]
    answer = ask(
        broker,
        request.group_id,
        lambda shard: shard.leave(request.group_id, leaving),
        lambda code, _: LeaveGroupResponse(error_code=int(code)),
    )
    if is_batched:
        return answer
    single: Deferred[LeaveGroupResponse] = Deferred()
    answer.listen(lambda response: single.complete(_single(response)))
    return single


def _single(response: LeaveGroupResponse) -> LeaveGroupResponse:
    """Old versions have one member and one error."""
    code = response.error_code or response.members[0].error_code
    return LeaveGroupResponse(error_code=code)
