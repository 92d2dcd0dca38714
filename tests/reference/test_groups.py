"""The classic group protocol answers as Apache Kafka does, in every version, right and wrong."""

from __future__ import annotations

from typing import Any

import pytest
from tests.reference.group_steps import SESSION_MS, Stage, joining, leaving, play
from tests.reference.pair import Pair
from tests.waiting import eventually

from tidemill.wire.apis import APIS, ApiKey
from tidemill.wire.messages.api_versions import ApiVersionsRequest
from tidemill.wire.messages.group_admin import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from tidemill.wire.messages.groups import (
    HeartbeatRequest,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)

SUBSCRIPTION = b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"
"""A consumer's metadata: version 0, the topic t, no more. Kafka fails on what it cannot parse."""


def versions(key: ApiKey) -> range:
    return range(APIS[key].min_version, APIS[key].max_version + 1)


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
def test_join_alone(pair: Pair, name: str, version: int) -> None:
    def scenario(stage: Stage) -> None:
        join = ApiKey.JOIN_GROUP
        stage.ask("no group", join, version, joining(""))
        stage.ask("short session", join, version, joining(name, session_ms=5_999))
        stage.ask("long session", join, version, joining(name, session_ms=1_800_001))
        stage.ask("no protocols", join, version, joining(name, protocols={}))
        stage.ask("no protocol type", join, version, joining(name, protocol_type=""))
        stage.ask("unknown member", join, version, joining(f"{name}-x", member_id="nobody"))
        first = stage.join("first", version, joining(name))
        again = joining(name, member_id=first.member_id)
        stage.ask("again, before sync", join, version, again)
        stage.ask("describe", ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(groups=[name]))
        stage.ask("unknown id", join, version, joining(name, member_id="nobody"))
        other = {"roundrobin": b"x"}
        stage.ask("other protocol", join, version, joining(name, protocols=other))
        stage.ask("other type", join, version, joining(name, protocol_type="connect"))
        changed = joining(name, member_id=first.member_id, protocols={"range": b"new"})
        stage.ask("leader with other metadata", join, version, changed)

    play(pair, scenario)


@pytest.mark.parametrize("version", versions(ApiKey.SYNC_GROUP))
def test_sync(pair: Pair, name: str, version: int) -> None:
    def scenario(stage: Stage) -> None:
        joined = stage.join("join", 5, joining(name))

        def sync(step: str, **changes: Any) -> None:
            assigned = SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"mine")
            fields: dict[str, Any] = {
                "group_id": name, "generation_id": joined.generation_id,
                "member_id": joined.member_id, "assignments": [assigned],
            }  # fmt: skip
            if version >= 5:
                fields |= {"protocol_type": "consumer", "protocol_name": "range"}
            fields |= changes
            stage.ask(step, ApiKey.SYNC_GROUP, version, SyncGroupRequest(**fields))

        sync("no group", group_id="")
        sync("unknown group", group_id=f"{name}-x")
        sync("unknown member", member_id="nobody")
        sync("wrong generation", generation_id=7)
        sync("negative generation", generation_id=-1)
        if version >= 3:
            sync("unknown instance", group_instance_id="nobody")
        if version >= 5:
            sync("wrong type", protocol_type="connect")
            sync("wrong name", protocol_name="roundrobin")
            sync("null type", protocol_type=None)
            sync("null name", protocol_name=None)
        sync("right")
        sync("again", assignments=[])
        sync("wrong generation when stable", generation_id=7)

    play(pair, scenario)


def test_sync_for_strangers(pair: Pair, name: str) -> None:
    """Assignments for members that are not there are dropped; missing ones are empty."""

    def scenario(stage: Stage) -> None:
        joined = stage.join("join", 5, joining(name))
        stranger = SyncGroupRequestAssignment(member_id="stranger", assignment=b"mine")
        stage.ask("sync", ApiKey.SYNC_GROUP, 3,
                  SyncGroupRequest(group_id=name, generation_id=joined.generation_id,
                                   member_id=joined.member_id, assignments=[stranger]))  # fmt: skip
        stage.ask("describe", ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(groups=[name]))

    play(pair, scenario)


@pytest.mark.parametrize("version", versions(ApiKey.HEARTBEAT))
def test_heartbeat(pair: Pair, name: str, version: int) -> None:
    def scenario(stage: Stage) -> None:
        def beat(step: str, group: str, generation: int, member: str, **more: Any) -> None:
            request = HeartbeatRequest(
                group_id=group, generation_id=generation, member_id=member, **more
            )
            stage.ask(step, ApiKey.HEARTBEAT, version, request)

        joined = stage.join("join", 5, joining(name))
        beat("before sync", name, joined.generation_id, joined.member_id)
        beat("no group", "", 1, "x")
        beat("unknown group", f"{name}-x", 1, "x")
        beat("unknown member", name, 1, "x")
        beat("empty member", name, 1, "")
        beat("wrong generation", name, 9, joined.member_id)
        beat("negative generation", name, -1, joined.member_id)
        if version >= 3:
            beat("unknown instance", name, 1, joined.member_id, group_instance_id="i")
        stage.ask("leave", ApiKey.LEAVE_GROUP, 3, leaving(name, MemberIdentity(
            member_id=joined.member_id)))  # fmt: skip
        beat("after leaving", name, joined.generation_id, joined.member_id)

    play(pair, scenario)


@pytest.mark.parametrize("version", versions(ApiKey.LEAVE_GROUP))
def test_leave(pair: Pair, name: str, version: int) -> None:
    def scenario(stage: Stage) -> None:
        member, _ = stage.stable_member(name)

        def leave(step: str, group: str, *members: str) -> None:
            if version >= 3:
                request = leaving(group, *(MemberIdentity(member_id=each) for each in members))
            else:
                request = LeaveGroupRequest(group_id=group, member_id=members[0])
            stage.ask(step, ApiKey.LEAVE_GROUP, version, request)

        leave("no group", "", member)
        leave("unknown group", f"{name}-x", member)
        leave("unknown member", name, "nobody")
        leave("empty member", name, "")
        if version >= 3:
            leave("nobody", name)
            leave("two, one unknown", name, "nobody", member)
        else:
            leave("right", name, member)
        leave("again", name, member)
        stage.ask("describe", ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(groups=[name]))

    play(pair, scenario)


def test_pending_member_leaves(pair: Pair, name: str) -> None:
    def scenario(stage: Stage) -> None:
        asked = stage.ask("asked back", ApiKey.JOIN_GROUP, 5, joining(name))
        gone = leaving(name, MemberIdentity(member_id=asked.member_id))
        stage.ask("leave", ApiKey.LEAVE_GROUP, 3, gone)
        stage.ask("leave again", ApiKey.LEAVE_GROUP, 3, gone)
        late = joining(name, member_id=asked.member_id)
        stage.ask("join too late", ApiKey.JOIN_GROUP, 5, late)
        stage.ask("describe", ApiKey.DESCRIBE_GROUPS, 6, DescribeGroupsRequest(groups=[name]))

    play(pair, scenario)


@pytest.mark.parametrize("version", [5, 8, 9])
def test_static_member(pair: Pair, name: str, version: int) -> None:
    """A static member's return, its former self's requests, and what they are told."""

    def scenario(stage: Stage) -> None:
        member, generation = stage.stable_member(name, version, instance_id="one")

        def beat(step: str, member_id: str, instance: str | None) -> None:
            request = HeartbeatRequest(
                group_id=name, generation_id=generation, member_id=member_id,
                group_instance_id=instance,
            )  # fmt: skip
            stage.ask(step, ApiKey.HEARTBEAT, 4, request)

        beat("well", member, "one")
        back = stage.ask("back", ApiKey.JOIN_GROUP, version, joining(name, instance_id="one"))
        beat("old id with instance", member, "one")
        beat("old id without", member, None)
        beat("new id", back.member_id, "one")
        beat("unknown instance", back.member_id, "two")
        old = joining(name, member_id=member, instance_id="one")
        stage.ask("old joins", ApiKey.JOIN_GROUP, version, old)
        sync = SyncGroupRequest(
            group_id=name, generation_id=generation, member_id=member, group_instance_id="one"
        )
        stage.ask("old syncs", ApiKey.SYNC_GROUP, 3, sync)
        sync.member_id = back.member_id
        stage.ask("new syncs", ApiKey.SYNC_GROUP, 3, sync)
        stage.ask("describe", ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(groups=[name]))
        stage.ask("old leaves", ApiKey.LEAVE_GROUP, 3, leaving(name, MemberIdentity(
            member_id=member, group_instance_id="one")))  # fmt: skip
        stage.ask("unknown instance leaves", ApiKey.LEAVE_GROUP, 3, leaving(name, MemberIdentity(
            group_instance_id="two")))  # fmt: skip
        stage.ask("removed by instance", ApiKey.LEAVE_GROUP, 3, leaving(name, MemberIdentity(
            group_instance_id="one")))  # fmt: skip
        stage.ask("in the end", ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(groups=[name]))

    play(pair, scenario)


def test_static_member_with_other_protocols(pair: Pair, name: str) -> None:
    """A return that changes the chosen protocol starts a rebalance."""

    def scenario(stage: Stage) -> None:
        both = {"range": b"a", "roundrobin": b"b"}
        stage.stable_member(name, 5, instance_id="one", protocols=both)
        other = {"roundrobin": b"b"}
        stage.ask("back", ApiKey.JOIN_GROUP, 5, joining(name, instance_id="one", protocols=other))
        stage.ask("describe", ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(groups=[name]))

    play(pair, scenario)


@pytest.mark.parametrize("version", [2, 5, 7, 9])
def test_two_members(pair: Pair, name: str, version: int) -> None:
    """A second member joins a stable group: who waits, who is told what."""

    def scenario(stage: Stage) -> None:
        join = ApiKey.JOIN_GROUP
        both = {"range": b"1", "roundrobin": b"1"}
        first, generation = stage.stable_member(name, version, protocols=both)
        second = stage.line()
        asked = joining(name, protocols={"roundrobin": b"2"})
        second.send(join, version, asked)
        if version >= 4:
            answer = second.receive()
            stage.note("second asked back", join, version, answer)
            asked.member_id = answer.member_id
            second.send(join, version, asked)
        assert not second.has_answer(0.3)
        beat = HeartbeatRequest(group_id=name, generation_id=generation, member_id=first)
        stage.ask("first is told", ApiKey.HEARTBEAT, 4, beat)
        sync = SyncGroupRequest(group_id=name, generation_id=generation, member_id=first)
        stage.ask("sync while preparing", ApiKey.SYNC_GROUP, 3, sync)
        stage.ask("preparing", ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(groups=[name]))
        rejoined = stage.ask(
            "first rejoins", join, version, joining(name, member_id=first, protocols=both)
        )
        joined = second.receive()
        stage.note("second joined", join, version, joined)
        sync = SyncGroupRequest(
            group_id=name, generation_id=joined.generation_id, member_id=joined.member_id
        )
        second.send(ApiKey.SYNC_GROUP, 3, sync)
        assert not second.has_answer(0.2)
        plan = [
            SyncGroupRequestAssignment(member_id=each, assignment=data)
            for each, data in ((first, b"for one"), (joined.member_id, b"for two"))
        ]
        sync = SyncGroupRequest(
            group_id=name, generation_id=rejoined.generation_id, member_id=first, assignments=plan
        )
        stage.ask("leader syncs", ApiKey.SYNC_GROUP, 3, sync)
        stage.note("second synced", ApiKey.SYNC_GROUP, 3, second.receive())
        follower = joining(name, member_id=joined.member_id, protocols={"roundrobin": b"2"})
        second.send(join, version, follower)
        stage.note("follower joins again", join, version, second.receive())

    play(pair, scenario)


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_GROUPS))
def test_describe_groups(pair: Pair, name: str, version: int) -> None:
    def scenario(stage: Stage) -> None:
        def describe(step: str, *groups: str) -> None:
            for operations in (False, True) if version >= 3 else (False,):
                request = DescribeGroupsRequest(
                    groups=list(groups), include_authorized_operations=operations
                )
                stage.ask(f"{step} {operations}", ApiKey.DESCRIBE_GROUPS, version, request)

        describe("none")
        describe("unknown", f"{name}-x")
        joined = stage.join("join", 5, joining(name, protocols={"range": SUBSCRIPTION}))
        describe("completing", name)
        assigned = SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"mine")
        stage.ask("sync", ApiKey.SYNC_GROUP, 3, SyncGroupRequest(
            group_id=name, generation_id=joined.generation_id, member_id=joined.member_id,
            assignments=[assigned]))  # fmt: skip
        describe("stable", name)
        describe("twice", name, name)
        stage.ask("leave", ApiKey.LEAVE_GROUP, 3, leaving(name, MemberIdentity(
            member_id=joined.member_id)))  # fmt: skip
        describe("empty", name)

    play(pair, scenario)


@pytest.mark.parametrize("version", versions(ApiKey.LIST_GROUPS))
def test_list_groups(pair: Pair, name: str, version: int) -> None:
    def scenario(stage: Stage) -> None:
        stage.stable_member(f"{name}-stable", protocol_type="connect")
        stage.join("completing", 5, joining(f"{name}-completing"))
        stage.ask("asked back", ApiKey.JOIN_GROUP, 5, joining(f"{name}-pending"))

        def answered(states: list[str], types: list[str]) -> Any:
            request = ListGroupsRequest(states_filter=states, types_filter=types)
            answer = stage.peer.ask(ApiKey.LIST_GROUPS, version, request)
            answer.groups = sorted(
                (group for group in answer.groups if group.group_id.startswith(f"{name}-")),
                key=lambda group: group.group_id,
            )
            return answer

        def listed(step: str, states: list[str], types: list[str]) -> None:
            stage.note(step, ApiKey.LIST_GROUPS, version, answered(states, types))

        # Kafka lists what is committed, and answers the last join before that.
        eventually(lambda: len(answered([], []).groups) == 3, "all three are listed")
        listed("all", [], [])
        if version >= 4:
            listed("stable", ["Stable"], [])
            listed("in capitals", ["STABLE", "empty"], [])
            listed("unknown state", ["Sleeping"], [])
        if version >= 5:
            listed("classic", [], ["classic"])
            listed("consumer", [], ["Consumer"])
            listed("unknown type", [], ["orbit"])
            listed("one known, one not", [], ["orbit", "Classic"])
            listed("both filters", ["Stable"], ["CLASSIC"])

    play(pair, scenario)


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_GROUPS))
def test_delete_groups(pair: Pair, name: str, version: int) -> None:
    def scenario(stage: Stage) -> None:
        def delete(step: str, *groups: str) -> None:
            request = DeleteGroupsRequest(groups_names=list(groups))
            stage.ask(step, ApiKey.DELETE_GROUPS, version, request)

        delete("none")
        delete("unknown", f"{name}-x")
        member, _ = stage.stable_member(name)
        delete("not empty", name)
        stage.ask("leave", ApiKey.LEAVE_GROUP, 3, leaving(name, MemberIdentity(member_id=member)))
        delete("empty", name)
        delete("again", name)
        stage.ask("gone", ApiKey.DESCRIBE_GROUPS, 6, DescribeGroupsRequest(groups=[name]))

    play(pair, scenario)


def test_session_ends(pair: Pair, name: str) -> None:
    """rule J6: a member that does not report for its session timeout is out."""

    def scenario(stage: Stage) -> None:
        stage.stable_member(name, session_ms=6_000)
        request = DescribeGroupsRequest(groups=[name])

        def is_out() -> bool:
            return not stage.peer.ask(ApiKey.DESCRIBE_GROUPS, 5, request).groups[0].members

        eventually(is_out, "the member is out")
        stage.ask("after", ApiKey.DESCRIBE_GROUPS, 5, request)

    play(pair, scenario)


def test_generation_counts_on(pair: Pair, name: str) -> None:
    """A group that was empty for a while goes on with the next generation."""

    def scenario(stage: Stage) -> None:
        member, _ = stage.stable_member(name)
        stage.ask("leave", ApiKey.LEAVE_GROUP, 3, leaving(name, MemberIdentity(member_id=member)))
        stage.stable_member(name)

    play(pair, scenario)


def test_votes_for_protocols(pair: Pair, name: str) -> None:
    """Of the protocols that all members have, the one that most put first; ties by hash order."""

    def scenario(stage: Stage) -> None:
        offered = {"sticky": b"", "range": b"", "roundrobin": b"", "zzz": b""}
        stage.join("one", 5, joining(name, protocols=offered, session_ms=SESSION_MS))

    play(pair, scenario)


def test_unknown_versions_are_advertised_alike(pair: Pair) -> None:
    """The advertised ranges are those of the reference (see the API versions test for all)."""
    request = ApiVersionsRequest(client_software_name="x", client_software_version="1")
    kafka, tidemill = pair.both(ApiKey.API_VERSIONS, 4, request)
    theirs = {each.api_key: (each.min_version, each.max_version) for each in kafka.api_keys}
    ours = {each.api_key: (each.min_version, each.max_version) for each in tidemill.api_keys}
    for key in (8, 9, 10, 11, 12, 13, 14, 15, 16, 42, 47, 68, 69):
        assert ours.get(key) == theirs[key], key
