"""DescribeGroups: v0-6. ListGroups: v0-5. DeleteGroups: v0-2.

Behaviour: groups as an administrator sees them. DescribeGroups knows classic groups only; from v6
on a group that is not there is GROUP_ID_NOT_FOUND, before that it is in the state Dead. ListGroups
lists the groups of this broker of both protocols. DeleteGroups removes groups without members,
with everything they have committed.
Version notes: DescribeGroups v3 authorized operations (KIP-430), v4 static members. ListGroups v4
filter by state (KIP-518), v5 by type (KIP-848).
Deviations: answers come in the order of the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tidemill.broker.deferred import Deferred
from tidemill.broker.dispatch import RequestContext, handles
from tidemill.broker.group_requests import all_of, ask, ask_partition
from tidemill.broker.handlers.lookup import NOT_ASKED
from tidemill.coordinators.classic_group import ClassicGroup
from tidemill.coordinators.classic_state import ClassicState
from tidemill.coordinators.result import Result
from tidemill.coordinators.shard import Group, GroupShard
from tidemill.errors import ErrorCode
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.group_admin import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)

if TYPE_CHECKING:
    from tidemill.broker.context import Broker

GROUP_OPERATIONS = 0b1101_0100_1000
"""All operations on a group: everybody may do everything until there are ACLs."""
_NOT_FOUND_FROM = 6
CLASSIC = "classic"
CONSUMER = "consumer"


@handles(ApiKey.DESCRIBE_GROUPS, 0, 6, is_heavy=True)
def describe_groups(
    broker: Broker, context: RequestContext, request: DescribeGroupsRequest
) -> Deferred[DescribeGroupsResponse]:
    operations = GROUP_OPERATIONS if request.include_authorized_operations else NOT_ASKED
    parts = [
        _describe(broker, group_id, context.version, operations) for group_id in request.groups
    ]
    return all_of(parts, lambda groups: DescribeGroupsResponse(groups=groups))


def _describe(
    broker: Broker, group_id: str, version: int, operations: int
) -> Deferred[DescribedGroup]:
    def operation(shard: GroupShard) -> Result[DescribedGroup]:
        described = _described(shard.classic_group(group_id))
        described.authorized_operations = operations
        return Result(described)

    def failed(code: ErrorCode, message: str | None) -> DescribedGroup:
        answer = DescribedGroup(group_id=group_id)
        if code is ErrorCode.GROUP_ID_NOT_FOUND:
            answer.group_state = ClassicState.DEAD.value
            if version < _NOT_FOUND_FROM:
                answer.authorized_operations = operations
                return answer
            answer.error_message = message
        answer.error_code = int(code)
        return answer

    return ask(broker, group_id, operation, failed)


def _described(group: ClassicGroup) -> DescribedGroup:
    is_stable = group.state is ClassicState.STABLE
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol or "") if is_stable else "",
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(group.protocol) if is_stable else b"",
                member_assignment=member.assignment,
            )
            for member in group.members.values()
        ],
    )


@handles(ApiKey.LIST_GROUPS, 0, 5)
def list_groups(
    broker: Broker, context: RequestContext, request: ListGroupsRequest
) -> Deferred[ListGroupsResponse]:
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}

    def operation(shard: GroupShard) -> Result[ListGroupsResponse]:
        listed = [
            _listed(group) for group in shard.groups.values() if _is_wanted(group, states, types)
        ]
        return Result(ListGroupsResponse(groups=listed))

    return all_of(list(_ask_all(broker, operation)), _joined)


def _ask_all(
    broker: Broker, operation: Callable[[GroupShard], Result[ListGroupsResponse]]
) -> Iterator[Deferred[ListGroupsResponse]]:
    for index in broker.groups.indexes():
        yield ask_partition(
            broker, index, operation, lambda code, _: ListGroupsResponse(error_code=int(code))
        )


def _joined(parts: list[ListGroupsResponse]) -> ListGroupsResponse:
    """All groups; a partition that is still loading makes the list incomplete, and says so."""
    answer = ListGroupsResponse()
    for part in parts:
        if part.error_code == ErrorCode.NOT_COORDINATOR:
            continue
        if part.error_code:
            return ListGroupsResponse(error_code=part.error_code)
        answer.groups += part.groups
    return answer


def _listed(group: Group) -> ListedGroup:
    return ListedGroup(
        group_id=group.group_id,
        protocol_type=_protocol_type(group),
        group_state=group.state.value,
        group_type=_kind(group),
    )


def _protocol_type(group: Group) -> str:
    return (group.protocol_type or "") if isinstance(group, ClassicGroup) else CONSUMER


def _kind(group: Group) -> str:
    return CLASSIC if isinstance(group, ClassicGroup) else CONSUMER


def _is_wanted(group: Group, states: set[str], types: set[str]) -> bool:
    right_state = not states or group.state.value.lower() in states
    return right_state and (not types or _kind(group) in types)


@handles(ApiKey.DELETE_GROUPS, 0, 2)
def delete_groups(
    broker: Broker, context: RequestContext, request: DeleteGroupsRequest
) -> Deferred[DeleteGroupsResponse]:
    parts = [_delete(broker, group_id) for group_id in dict.fromkeys(request.groups_names)]
    return all_of(parts, lambda results: DeleteGroupsResponse(results=results))


def _delete(broker: Broker, group_id: str) -> Deferred[DeletableGroupResult]:
    answer: Deferred[DeletableGroupResult] = Deferred()
    broker.groups.delete(
        group_id,
        lambda _: answer.complete(DeletableGroupResult(group_id=group_id)),
        lambda code, _: answer.complete(
            DeletableGroupResult(group_id=group_id, error_code=int(code))
        ),
    )
    return answer
