"""A group whose members speak both protocols, under any order of requests, silences and failures.

Whatever happens, no partition is held twice, and a classic member that was told to join again, or
has joined and not asked for its assignment, is out after its rebalance timeout, whatever else it
says. Left alone, the group ends, with no timer.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from tests.coordinators.shard_world import ShardWorld

from tidemill.client.consumer_protocol import (
    Subscription,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from tidemill.coordinators.classic_group import ClassicSettings
from tidemill.coordinators.classic_state import ClassicState
from tidemill.coordinators.consumer_group import GroupState
from tidemill.coordinators.consumer_steps import ConsumerGroupConfig
from tidemill.coordinators.mixed_group import MixedGroup
from tidemill.coordinators.shard import ShardSettings
from tidemill.errors import ErrorCode
from tidemill.types import TopicPartition
from tidemill.wire.messages.consumer_groups import ConsumerGroupHeartbeatRequest, TopicPartitions
from tidemill.wire.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)

SESSION_MS = 10_000
NEWER_SESSION_MS = 15_000
REBALANCE_MS = 20_000
LONG_MS = 10 * 60_000
PARTITIONS = {"t": 3, "u": 2}
EVERYTHING = {TopicPartition(name, n) for name, count in PARTITIONS.items() for n in range(count)}
MEMBERS_MAX = 3
"""Of either kind: with more of them few would do anything in a row."""
WHO = st.integers(0, MEMBERS_MAX - 1)
SETTLE_ROUNDS = 16


@dataclass(eq=False)
class Classic:
    """A classic member as it sees itself; an eager one gives up everything before it joins."""

    instance: str | None
    is_eager: bool
    member_id: str = ""
    generation: int = -1
    owned: set[TopicPartition] = field(default_factory=set)
    plan: list[str] | None = None
    waits: bool = False
    told_ms: int | None = None
    """Since when it is to join again."""
    joined_ms: int | None = None
    """Since when it is to ask for its assignment."""

    def forget(self) -> None:
        self.member_id = ""
        self.told_ms = self.joined_ms = None
        self.lose()

    def lose(self) -> None:
        self.generation, self.owned, self.plan = -1, set(), None


@dataclass(eq=False)
class Newer:
    """A member of the newer protocol as it sees itself."""

    member_id: str
    instance: str | None
    epoch: int = 0
    owned: set[TopicPartition] = field(default_factory=set)
    given: set[TopicPartition] = field(default_factory=set)


class MixedMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        consumer = ConsumerGroupConfig(
            session_timeout_ms=NEWER_SESSION_MS, assignment_interval_ms=1_000
        )
        classic = ClassicSettings(initial_rebalance_delay_ms=0)
        self.world = ShardWorld(ShardSettings(classic=classic, consumer=consumer))
        self.topics = {
            name: self.world.topic(name, number, count)
            for number, (name, count) in enumerate(PARTITIONS.items(), 1)
        }
        self.names = {topic.topic_id: name for name, topic in self.topics.items()}
        self.old: list[Classic] = []
        self.new: list[Newer] = []
        self.seen: object = None
        self.fails = False

    @property
    def now_ms(self) -> int:
        return self.world.clock.monotonic_ms()

    @property
    def group(self) -> Any:
        return self.world.shard.groups.get("g")

    # Members of the classic protocol.

    @initialize(is_eager=st.booleans())
    def begin(self, is_eager: bool) -> None:
        self.come(None, is_eager)
        self.newer_comes(None)

    @precondition(lambda self: len(self.old) < MEMBERS_MAX)
    @rule(instance=st.sampled_from([None, "one"]), is_eager=st.booleans())
    def come(self, instance: str | None, is_eager: bool) -> None:
        member = Classic(instance, is_eager)
        self.old.append(member)
        self.join(member)
        self.sync(member)

    def _old(self, number: int) -> Classic:
        return self.old[number % len(self.old)]

    def _new(self, number: int) -> Newer:
        return self.new[number % len(self.new)]

    @rule(number=WHO)
    def joins(self, number: int) -> None:
        self.join(self._old(number))

    def join(self, member: Classic) -> None:
        if member.waits:
            return
        if member.is_eager:
            member.owned = set()
        subscription = Subscription(tuple(PARTITIONS), owned=frozenset(member.owned))
        protocol = JoinGroupRequestProtocol(
            name="range", metadata=encode_subscription(subscription)
        )
        request = JoinGroupRequest(
            group_id="g", session_timeout_ms=SESSION_MS, rebalance_timeout_ms=REBALANCE_MS,
            member_id=member.member_id, group_instance_id=member.instance,
            protocol_type="consumer", protocols=[protocol],
        )  # fmt: skip
        info = self.world.info("old", 5)
        answers: list[Any] = []

        def joined(answer: Any) -> None:
            if not answers:
                answers.append(answer)
                member.waits = False
                self._joined(member, answer)

        member.waits = True
        self.world.runtime.run(
            0,
            lambda shard: shard.join(request, info, joined),
            lambda _: None,
            lambda code, _: joined(code),
        )
        self.world.wait(1)  # A classic group's first rebalance ends at once, by a timer.
        if answers and getattr(answers[0], "error_code", 0) == ErrorCode.MEMBER_ID_REQUIRED:
            self.join(member)

    def _joined(self, member: Classic, answer: Any) -> None:
        code = _code(answer)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            member.member_id = answer.member_id
        elif code is ErrorCode.NONE:
            member.member_id, member.generation = answer.member_id, answer.generation_id
            leads = answer.leader == answer.member_id and not answer.skip_assignment
            member.plan = [each.member_id for each in answer.members] if leads else None
            member.told_ms, member.joined_ms = None, self.now_ms
        else:
            self._refused(member, code)

    def _refused(self, member: Classic, code: ErrorCode) -> None:
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            member.forget()
        elif code is ErrorCode.ILLEGAL_GENERATION:
            member.lose()
        elif code is ErrorCode.REBALANCE_IN_PROGRESS and member.told_ms is None:
            member.told_ms = self.now_ms

    def sync(self, member: Classic) -> None:
        if member.waits or member.generation < 0:
            return
        request = SyncGroupRequest(
            group_id="g", generation_id=member.generation, member_id=member.member_id,
            group_instance_id=member.instance, assignments=_planned(member.plan or []),
        )  # fmt: skip
        info = self.world.info("old", 5)
        answers: list[Any] = []

        def synced(answer: Any) -> None:
            if not answers:
                answers.append(answer)
                member.waits = False
                if (code := _code(answer)) is not ErrorCode.NONE:
                    self._refused(member, code)
                else:
                    member.owned = set(decode_assignment(answer.assignment))
                    member.joined_ms = None
                    self._check_told(member)

        member.waits = True
        self.world.runtime.run(
            0,
            lambda shard: shard.sync(request, info, synced),
            lambda _: None,
            lambda code, _: synced(code),
        )
        self.world.pump()

    def _check_told(self, member: Classic) -> None:
        """It is told all that is kept for it, whoever coordinates the group now."""
        if isinstance(self.group, MixedGroup):
            held = self.group.members[member.member_id].assigned
            assert member.owned == {
                TopicPartition(self.names[topic], part)
                for topic, parts in held.items()
                for part in parts
            }

    def beat(self, member: Classic) -> None:
        if member.waits or member.generation < 0:
            return
        request = HeartbeatRequest(
            group_id="g", generation_id=member.generation, member_id=member.member_id,
            group_instance_id=member.instance,
        )  # fmt: skip
        (answer,) = self.world.run(lambda shard: shard.heartbeat(request))
        self._refused(member, _code(answer))

    def obey(self, member: Classic) -> None:
        """What a client does that polls: report, and join again if it is told to."""
        self.beat(member)
        if member.generation < 0 or member.told_ms is not None:
            self.join(member)
            self.sync(member)

    @rule(number=WHO)
    def syncs(self, number: int) -> None:
        self.sync(self._old(number))

    @rule(number=WHO)
    def beats(self, number: int) -> None:
        self.beat(self._old(number))

    @rule(number=WHO)
    def obeys(self, number: int) -> None:
        self.obey(self._old(number))

    @rule(number=WHO)
    def leaves(self, number: int) -> None:
        member = self._old(number)
        if not member.waits:
            identity = MemberIdentity(member_id=member.member_id)
            self.world.run(lambda shard: shard.leave("g", [identity]))
            member.forget()

    # Members of the newer protocol.

    @precondition(lambda self: len(self.new) < MEMBERS_MAX)
    @rule(instance=st.sampled_from([None, "one", "two"]))
    def newer_comes(self, instance: str | None) -> None:
        member = Newer(f"newer-{len(self.new)}", instance)
        self.new.append(member)
        self.newer_beat(member)

    @rule(number=WHO, obeys=st.booleans())
    def newer_beats(self, number: int, obeys: bool) -> None:
        member = self._new(number)
        self.newer_beat(member)
        if obeys:
            member.owned = set(member.given)

    def newer_beat(self, member: Newer) -> None:
        joins = member.epoch == 0
        if joins:
            member.owned, member.given = set(), set()
        answer = self._newer(
            member,
            member.epoch,
            rebalance_timeout_ms=REBALANCE_MS if joins else -1,
            subscribed_topic_names=list(PARTITIONS) if joins else None,
            topic_partitions=self._by_id(member.owned),
        )
        if isinstance(answer, ErrorCode):
            return
        if answer.error_code:
            member.epoch, member.owned, member.given = 0, set(), set()
            return
        member.epoch = answer.member_epoch
        if answer.assignment is not None:
            member.given = {
                TopicPartition(self.names[each.topic_id], part)
                for each in answer.assignment.topic_partitions
                for part in each.partitions
            }

    def _newer(self, member: Newer, epoch: int, **said: Any) -> Any:
        request = ConsumerGroupHeartbeatRequest(
            group_id="g", member_id=member.member_id, member_epoch=epoch,
            instance_id=member.instance, **said,
        )  # fmt: skip
        info = self.world.info("new", 1)
        (answer,) = self.world.run(lambda shard: shard.consumer_heartbeat(request, info))
        return answer

    def _by_id(self, owned: set[TopicPartition]) -> list[TopicPartitions]:
        found = []
        for name, topic in self.topics.items():
            parts = sorted(part for each, part in owned if each == name)
            if parts:
                found.append(TopicPartitions(topic_id=topic.topic_id, partitions=parts))
        return found

    @rule(number=WHO, for_a_while=st.booleans())
    def newer_leaves(self, number: int, for_a_while: bool) -> None:
        member = self._new(number)
        if member.epoch > 0:
            self._newer(member, -2 if for_a_while and member.instance else -1)
            member.epoch, member.owned, member.given = 0, set(), set()

    # The world.

    @rule(duration_ms=st.sampled_from([500, 3_000, 8_000]))
    def pass_time(self, duration_ms: int) -> None:
        self.world.wait(duration_ms)

    @rule(joins=st.booleans())
    def time_passes_and_all_report(self, joins: bool) -> None:
        """Nobody's session ends; classic members only report, and ask for what they have."""
        for _ in range(6):
            self.world.wait(4_000)
            for member in self.old:
                self.beat(member)
                if joins:
                    self.sync(member)
            for newer in self.new:
                if newer.epoch > 0:
                    self.newer_beat(newer)
            self.who_does_not_do_as_told_is_out()

    @rule()
    def restart(self) -> None:
        self.world.restart()

    @precondition(lambda self: not self.fails)
    @rule()
    def fail(self) -> None:
        self.fails = True
        self.world.refuse_appends()

    @precondition(lambda self: self.fails)
    @rule()
    def recover(self) -> None:
        self.fails = False
        self.world.refuse_appends(refuse=False)
        self._begin_to_count()

    def _begin_to_count(self) -> None:
        for member in self.old:
            member.told_ms = member.joined_ms = None

    @precondition(lambda self: not self.fails)
    @rule()
    def everybody_settles(self) -> None:
        """Left to do as they are told, the members have everything, and each its own."""
        for _ in range(SETTLE_ROUNDS):
            for member in self.old:
                self.obey(member)
            for member in self.old:
                self.sync(member)
            for newer in self.new:
                if newer.epoch > 0:
                    newer.owned = set(newer.given)
                    self.newer_beat(newer)
                    newer.owned = set(newer.given)
            self.world.wait(1_100)
        if isinstance(self.group, MixedGroup) and self.group.members:
            assert self.group.state is GroupState.STABLE, self.group.members
            assert set(self._owned()) == EVERYTHING

    # What must hold.

    def _owned(self) -> list[TopicPartition]:
        """What members think they have, of those that the group counts as its own."""
        members = self.group.members
        found: list[TopicPartition] = []
        for old in self.old:
            known = members.get(old.member_id)
            if known is not None and old.generation == known.member_epoch:
                found += old.owned
        for new in self.new:
            known = members.get(new.member_id)
            if known is not None and new.epoch in (known.member_epoch, known.previous_epoch):
                found += new.owned
        return found

    @invariant()
    def nothing_is_held_twice(self) -> None:
        if isinstance(self.group, MixedGroup):
            held = Counter(each for m in self.group.members.values() for each in m.holds())
            assert all(count == 1 for count in held.values()), held
            owned = Counter(self._owned())
            assert all(count == 1 for count in owned.values()), owned

    @invariant()
    def who_does_not_do_as_told_is_out(self) -> None:
        group = self.group
        if group is not self.seen or not isinstance(group, MixedGroup):
            self.seen = group  # Another coordinator, or another protocol: the time counts anew.
            self._begin_to_count()
        elif not self.fails:
            for member in self.old:
                for since_ms in (member.told_ms, member.joined_ms):
                    if since_ms is not None and self.now_ms - since_ms >= REBALANCE_MS:
                        assert member.member_id not in group.members

    def teardown(self) -> None:
        self.world.refuse_appends(refuse=False)
        self.world.wait(2 * LONG_MS)
        group = self.group
        assert group is None or group.state in (ClassicState.EMPTY, GroupState.EMPTY)
        assert all(not member.waits for member in self.old)
        assert len(self.world.wheel) == 0


def _planned(member_ids: list[str]) -> list[SyncGroupRequestAssignment]:
    return [
        SyncGroupRequestAssignment(
            member_id=member_id,
            assignment=encode_assignment(sorted(EVERYTHING)[place :: len(member_ids)]),
        )
        for place, member_id in enumerate(member_ids)
    ]


def _code(answer: Any) -> ErrorCode:
    return answer if isinstance(answer, ErrorCode) else ErrorCode(answer.error_code)


MixedMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestMixedGroups = MixedMachine.TestCase
