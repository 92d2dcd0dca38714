"""A classic group under any order of requests, silences, restarts and failing disks.

Whatever happens, these hold: nobody waits for ever, generations only grow, a stable group's members
were told their own assignments, and what the coordinator forgets in a restart is never what a
member was told of an assignment or a commit.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from tests.coordinators.shard_world import ShardWorld

from tidemill.coordinators.classic_group import ClassicGroup, ClassicSettings
from tidemill.coordinators.classic_state import ClassicState
from tidemill.coordinators.shard import ShardSettings
from tidemill.errors import ErrorCode
from tidemill.wire.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from tidemill.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)

SESSION_MS = 10_000
REBALANCE_MS = 20_000
LONGEST_WAIT_MS = 5 * 60_000 + SESSION_MS


class Client:
    """A member as it sees itself."""

    def __init__(self, instance: str | None) -> None:
        self.instance = instance
        self.member_id = ""
        self.generation = -1
        self.assignment: bytes | None = None
        self.plan: list[str] | None = None
        self.waits_since_ms: int | None = None

    def forget(self) -> None:
        self.member_id, self.generation, self.assignment, self.plan = "", -1, None, None


class ClassicMachine(RuleBasedStateMachine):
    clients = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        classic = ClassicSettings(initial_rebalance_delay_ms=100, max_size=5)
        self.world = ShardWorld(ShardSettings(classic=classic))
        self.world.topic("t", 1)
        self.everyone: list[Client] = []
        self.generation = 0
        self.told: dict[int, dict[str, bytes]] = {}
        self.committed = -1
        self.fails = False

    @rule(target=clients, instance=st.sampled_from([None, None, "one", "two"]))
    def come(self, instance: str | None) -> Client:
        client = Client(instance)
        self.everyone.append(client)
        return client

    @rule(client=clients, version=st.sampled_from([0, 2, 5, 9]), other=st.booleans())
    def join(self, client: Client, version: int, other: bool) -> None:
        if client.waits_since_ms is not None:
            return
        instance = client.instance if version >= 5 else None
        metadata = b"other" if other else b"same"
        request = JoinGroupRequest(
            group_id="g", session_timeout_ms=SESSION_MS, rebalance_timeout_ms=REBALANCE_MS,
            member_id=client.member_id, group_instance_id=instance, protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
        )  # fmt: skip

        def joined(answer: Any) -> None:
            client.waits_since_ms = None
            code = ErrorCode(answer.error_code)
            if code is ErrorCode.MEMBER_ID_REQUIRED:
                client.member_id = answer.member_id
            elif code is ErrorCode.NONE:
                client.member_id, client.generation = answer.member_id, answer.generation_id
                leads = answer.leader == answer.member_id and not answer.skip_assignment
                client.plan = [each.member_id for each in answer.members] if leads else None
            elif code is not ErrorCode.REBALANCE_IN_PROGRESS:
                client.forget()

        info = self.world.info("client", version)
        self._ask(client, lambda shard, reply: shard.join(request, info, reply), joined)

    @rule(client=clients)
    def sync(self, client: Client) -> None:
        if client.waits_since_ms is not None or client.generation < 0:
            return
        plan = client.plan or []
        generation, member_id = client.generation, client.member_id
        request = SyncGroupRequest(
            group_id="g", generation_id=generation, member_id=member_id,
            assignments=[
                SyncGroupRequestAssignment(
                    member_id=each, assignment=f"{generation} {number}".encode()
                )
                for number, each in enumerate(plan)
            ],
        )  # fmt: skip

        def synced(answer: Any) -> None:
            client.waits_since_ms = None
            if answer.error_code == 0:
                client.assignment = answer.assignment
                told = self.told.setdefault(generation, {})
                if member_id in told:
                    assert told[member_id] == answer.assignment, "one generation, one assignment"
                told[member_id] = answer.assignment

        info = self.world.info()
        self._ask(client, lambda shard, reply: shard.sync(request, info, reply), synced)

    def _ask(self, client: Client, operation: Any, hear: Any) -> None:
        answers: list[Any] = []
        client.waits_since_ms = self.world.clock.monotonic_ms()

        def reply(answer: Any) -> None:
            if not answers:
                answers.append(answer)
                hear(answer)

        def failed(code: ErrorCode, _: str | None) -> None:
            if not answers:
                answers.append(code)
                client.waits_since_ms = None

        self.world.runtime.run(0, lambda shard: operation(shard, reply), lambda _: None, failed)
        self.world.pump()

    @rule(client=clients)
    def heartbeat(self, client: Client) -> None:
        request = HeartbeatRequest(
            group_id="g", generation_id=client.generation, member_id=client.member_id
        )
        (answer,) = self.world.run(lambda shard: shard.heartbeat(request))
        if not isinstance(answer, ErrorCode) and answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
            assert client.member_id not in self._members()

    @rule(client=clients, offset=st.integers(0, 1000))
    def commit(self, client: Client, offset: int) -> None:
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        topic = OffsetCommitRequestTopic(name="t", partitions=[partition])
        request = OffsetCommitRequest(
            group_id="g", generation_id_or_member_epoch=client.generation,
            member_id=client.member_id, topics=[topic],
        )  # fmt: skip
        info = self.world.info("c", 8)
        (answer,) = self.world.run(lambda shard: shard.commit(request, info), gather=True)
        if not isinstance(answer, ErrorCode):
            assert not self.fails
            assert answer.topics[0].partitions[0].error_code == 0
            self.committed = offset

    @rule(client=consumes(clients))
    def leave(self, client: Client) -> None:
        leaving = [MemberIdentity(member_id=client.member_id)]
        self.world.run(lambda shard: shard.leave("g", leaving))
        self.everyone.remove(client)

    @rule(duration_ms=st.sampled_from([1, 100, 3_000, 9_999, 10_001, 25_000]))
    def wait(self, duration_ms: int) -> None:
        self.world.wait(duration_ms)

    @rule()
    def restart(self) -> None:
        self.fails = False
        self.world.refuse_appends(refuse=False)
        before = self._group()
        stable = before is not None and before.state is ClassicState.STABLE
        members = {key: m.assignment for key, m in before.members.items()} if before else {}
        self.world.restart()
        for client in self.everyone:
            assert client.waits_since_ms is None, "a restart leaves nobody waiting"
        after = self._group()
        if stable and before is not None:
            assert after is not None
            assert after.generation == before.generation
            assert {key: m.assignment for key, m in after.members.items()} == members

    @rule(fails=st.booleans())
    def disk(self, fails: bool) -> None:
        self.fails = fails
        self.world.refuse_appends(refuse=fails)

    def _group(self) -> ClassicGroup | None:
        found = self.world.shard.groups.get("g")
        assert found is None or isinstance(found, ClassicGroup)
        return found

    def _members(self) -> set[str]:
        group = self._group()
        return set() if group is None else set(group.members)

    @invariant()
    def nobody_waits_for_ever(self) -> None:
        now_ms = self.world.clock.monotonic_ms()
        for client in self.everyone:
            if client.waits_since_ms is not None:
                assert now_ms - client.waits_since_ms <= LONGEST_WAIT_MS

    @invariant()
    def the_group_adds_up(self) -> None:
        group = self._group()
        if group is None:
            return
        assert (group.state is ClassicState.EMPTY) == (not group.members) or (
            group.state is ClassicState.PREPARING_REBALANCE
        )
        assert group.leader_id is None or group.leader_id in group.members
        assert set(group.static_ids.values()) <= set(group.members)
        assert not group.pending_join & group.members.keys()
        assert group.pending_sync <= group.members.keys()
        waiting = [m for m in group.members.values() if m.join_reply is not None]
        assert not waiting or group.state is ClassicState.PREPARING_REBALANCE
        assert group.awaiting_join_count == len(waiting)
        syncing = [m for m in group.members.values() if m.sync_reply is not None]
        assert not syncing or group.state is ClassicState.COMPLETING_REBALANCE

    @invariant()
    def no_commit_is_lost(self) -> None:
        topic = OffsetFetchRequestTopics(name="t", partition_indexes=[0])
        request = OffsetFetchRequestGroup(group_id="g", topics=[topic])
        (answer,) = self.world.run(lambda shard: shard.fetch(request))
        assert answer.topics[0].partitions[0].committed_offset == self.committed

    def teardown(self) -> None:
        """Left alone, the group ends empty, with no timer and nobody waiting."""
        self.world.refuse_appends(refuse=False)
        self.world.wait(2 * LONGEST_WAIT_MS)
        for client in self.everyone:
            assert client.waits_since_ms is None
        group = self._group()
        assert group is None or group.state is ClassicState.EMPTY
        assert group is None or not group.pending_join
        assert len(self.world.wheel) == 0


ClassicMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestClassicGroups = ClassicMachine.TestCase
