"""Groups from outside: list, describe, delete, and their offsets. `Admin` offers these as methods.

A group is known to its coordinator alone, so every broker is asked for a list, and each group's
coordinator for the rest. A group is of the newer protocol or classic; both are described alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tidemill.client import group_offsets
from tidemill.client.admin_types import Results
from tidemill.client.cluster import Cluster
from tidemill.client.connection import Connection
from tidemill.client.consumer_protocol import decode_assignment
from tidemill.client.errors import ClientError, failure_of, from_code
from tidemill.client.group_coordinator import GroupCoordinator
from tidemill.client.group_offsets import OffsetAndMetadata
from tidemill.errors import ErrorCode, WireError
from tidemill.types import TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import consumer_groups, group_admin
from tidemill.wire.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from tidemill.wire.messages.group_admin import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from tidemill.wire.messages.offsets import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)

AT_ONCE_MAX = 16
"""Coordinators asked at the same time."""

_STATES_FROM = 4
_TYPES_FROM = 5
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A line of the list; `state` and `type` are empty where an old broker does not say."""

    group_id: str
    protocol_type: str = ""
    state: str = ""
    type: str = ""


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """One member; `epoch` and `target` only exist in groups of the newer protocol."""

    member_id: str
    client_id: str
    host: str
    assignment: frozenset[TopicPartition]
    instance_id: str | None = None
    epoch: int | None = None
    target: frozenset[TopicPartition] | None = None
    upgraded: bool | None = None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group; `type` is `classic` or `consumer`, `coordinator` the broker that answered."""

    group_id: str
    state: str
    type: str
    protocol_type: str
    assignor: str
    members: tuple[MemberDescription, ...]
    coordinator: str
    coordinator_id: int = -1
    epoch: int | None = None
    target_epoch: int | None = None

    @property
    def is_active(self) -> bool:
        return self.state not in ("Empty", "Dead")


# --- list -----------------------------------------------------------------------------------------


async def list_groups(
    cluster: Cluster, states: Sequence[str] = (), types: Sequence[str] = ()
) -> list[GroupListing]:
    """The groups of all brokers, by name; raises if one broker cannot say."""
    await cluster.fetch_metadata([])
    asked = [_list_of(cluster, node, states, types) for node in cluster.view.nodes]
    found = {listing.group_id: listing for part in await asyncio.gather(*asked) for listing in part}
    return [found[group_id] for group_id in sorted(found)]


async def _list_of(
    cluster: Cluster, node_id: int, states: Sequence[str], types: Sequence[str]
) -> list[GroupListing]:
    connection = await cluster.connection(node_id)
    version = connection.version_of(ApiKey.LIST_GROUPS) or 0
    request = ListGroupsRequest()
    if version >= _STATES_FROM:
        request.states_filter = list(states)
    if version >= _TYPES_FROM:
        request.types_filter = list(types)
    answer: ListGroupsResponse = await connection.request(request)
    if answer.error_code:
        raise failure_of(f"listing the groups of broker {node_id}", answer.error_code)
    return [
        GroupListing(group.group_id, group.protocol_type, group.group_state, group.group_type)
        for group in answer.groups
    ]


# --- describe -------------------------------------------------------------------------------------


async def describe_groups(
    cluster: Cluster, group_ids: Iterable[str]
) -> Results[str, GroupDescription]:
    async def one(group_id: str) -> GroupDescription:
        coordinator = GroupCoordinator(cluster, group_id)
        return await coordinator.call(lambda connection: _describe(cluster, connection, group_id))

    return await _each(group_ids, one)


async def _describe(cluster: Cluster, connection: Connection, group_id: str) -> GroupDescription:
    node = next((n for n in cluster.view.nodes.values() if n.address == connection.address), None)
    where = (str(connection.address), node.node_id if node is not None else -1)
    if connection.version_of(ApiKey.CONSUMER_GROUP_DESCRIBE) is not None:
        request = ConsumerGroupDescribeRequest(group_ids=[group_id])
        answer: ConsumerGroupDescribeResponse = await connection.request(request)
        (group,) = answer.groups
        if group.error_code not in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
            return _newer(group, *where)
    old: DescribeGroupsResponse = await connection.request(DescribeGroupsRequest(groups=[group_id]))
    return _classic(old.groups[0], *where)


def _newer(group: consumer_groups.DescribedGroup, address: str, node_id: int) -> GroupDescription:
    if group.error_code:
        raise from_code(group.error_code, group.error_message)
    return GroupDescription(
        group_id=group.group_id,
        state=group.group_state,
        type="consumer",
        protocol_type="consumer",
        assignor=group.assignor_name,
        members=tuple(_newer_member(member) for member in group.members),
        coordinator=address,
        coordinator_id=node_id,
        epoch=group.group_epoch,
        target_epoch=group.assignment_epoch,
    )


def _newer_member(member: consumer_groups.Member) -> MemberDescription:
    return MemberDescription(
        member_id=member.member_id,
        client_id=member.client_id,
        host=member.client_host,
        assignment=_described(member.assignment),
        instance_id=member.instance_id,
        epoch=member.member_epoch,
        target=_described(member.target_assignment),
        upgraded=None if member.member_type < 0 else member.member_type == 1,
    )


def _described(assignment: consumer_groups.DescribedAssignment) -> frozenset[TopicPartition]:
    return frozenset(
        TopicPartition(topic.topic_name, partition)
        for topic in assignment.topic_partitions
        for partition in topic.partitions
    )


def _classic(group: group_admin.DescribedGroup, address: str, node_id: int) -> GroupDescription:
    if group.error_code:
        raise from_code(group.error_code, group.error_message)
    members = tuple(
        MemberDescription(
            member_id=member.member_id,
            client_id=member.client_id,
            host=member.client_host,
            assignment=_read_assignment(group.protocol_type, member.member_assignment),
            instance_id=member.group_instance_id,
        )
        for member in group.members
    )
    return GroupDescription(
        group_id=group.group_id,
        state=group.group_state,
        type="classic",
        protocol_type=group.protocol_type,
        assignor=group.protocol_data,
        members=members,
        coordinator=address,
        coordinator_id=node_id,
    )


def _read_assignment(protocol_type: str, data: bytes) -> frozenset[TopicPartition]:
    """What consumers agreed on; other kinds of members have a language of their own."""
    if protocol_type != "consumer":
        return frozenset()
    try:
        return decode_assignment(data)
    except WireError:
        return frozenset()


# --- change ---------------------------------------------------------------------------------------


async def delete_groups(cluster: Cluster, group_ids: Iterable[str]) -> Results[str, None]:
    async def one(group_id: str) -> None:
        async def ask(connection: Connection) -> None:
            answer: DeleteGroupsResponse = await connection.request(
                DeleteGroupsRequest(groups_names=[group_id])
            )
            if answer.results[0].error_code:
                raise failure_of(f"group {group_id!r}", answer.results[0].error_code)

        await GroupCoordinator(cluster, group_id).call(ask)

    return await _each(group_ids, one)


async def list_offsets(
    cluster: Cluster, group_id: str, partitions: Iterable[TopicPartition] | None = None
) -> Results[TopicPartition, OffsetAndMetadata | None]:
    return await group_offsets.fetch(GroupCoordinator(cluster, group_id), partitions)


async def alter_offsets(
    cluster: Cluster, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]
) -> Results[TopicPartition, None]:
    """Commit from outside: allowed while the group has no members."""
    await cluster.fetch_metadata(sorted({tp.topic for tp in offsets}))
    given = {tp: OffsetAndMetadata(at) if isinstance(at, int) else at for tp, at in offsets.items()}
    return await group_offsets.commit(GroupCoordinator(cluster, group_id), given)


async def delete_offsets(
    cluster: Cluster, group_id: str, partitions: Iterable[TopicPartition]
) -> Results[TopicPartition, None]:
    """Forget what was committed for these; refused for topics that a member reads."""
    topics: dict[str, OffsetDeleteRequestTopic] = {}
    for name, index in partitions:
        topic = topics.setdefault(name, OffsetDeleteRequestTopic(name=name))
        topic.partitions.append(OffsetDeleteRequestPartition(partition_index=index))

    async def ask(connection: Connection) -> Results[TopicPartition, None]:
        answer: OffsetDeleteResponse = await connection.request(
            OffsetDeleteRequest(group_id=group_id, topics=list(topics.values()))
        )
        if answer.error_code:
            raise failure_of(f"group {group_id!r}", answer.error_code)
        results: Results[TopicPartition, None] = Results()
        for answered in answer.topics:
            for entry in answered.partitions:
                tp = TopicPartition(answered.name, entry.partition_index)
                results[tp] = failure_of(str(tp), entry.error_code) if entry.error_code else None
        return results

    return await GroupCoordinator(cluster, group_id).call(ask)


async def _each(group_ids: Iterable[str], one: Callable[[str], Awaitable[T]]) -> Results[str, T]:
    """The same for each group, some at a time; a failure is the result of that group alone."""
    room = asyncio.Semaphore(AT_ONCE_MAX)

    async def guarded(group_id: str) -> T | ClientError:
        async with room:
            try:
                return await one(group_id)
            except ClientError as error:
                return error

    ids = list(dict.fromkeys(group_ids))
    return Results(zip(ids, await asyncio.gather(*map(guarded, ids)), strict=True))
