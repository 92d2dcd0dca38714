"""Members come, go, fail and change their minds in any order: nothing is ever owned twice."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.coordinators.group_bench import Bench, BenchMember

from tidemill.coordinators.consumer_group import ConsumerGroupConfig, GroupState

TOPICS = ["t", "u", "v"]
NAMES = [f"m{number}" for number in range(5)]
SETTLE_ROUNDS = 12

wanted = st.lists(st.sampled_from(TOPICS), min_size=1, max_size=3, unique=True)


class ConsumerGroupMachine(RuleBasedStateMachine):
    """Rule J8 under every interleaving that hypothesis can think of."""

    @initialize(interval_ms=st.sampled_from([0, 1_000]))
    def begin(self, interval_ms: int) -> None:
        self.bench = Bench(ConsumerGroupConfig(assignment_interval_ms=interval_ms))
        for number, name in enumerate(TOPICS):
            self.bench.topic(name, number + 2)
        self.members: dict[str, BenchMember] = {}

    def _pick(self, data: st.DataObject) -> BenchMember:
        return self.members[data.draw(st.sampled_from(sorted(self.members)))]

    @rule(name=st.sampled_from(NAMES), topics=wanted, static=st.booleans())
    def join(self, name: str, topics: list[str], static: bool) -> None:
        if name in self.members:
            return
        instance = f"instance-{name}" if static else None
        member = BenchMember(self.bench, name, topics, instance_id=instance)
        member.beat()
        if not member.error:
            self.members[name] = member

    @rule(name=st.sampled_from(NAMES), pattern=st.sampled_from(["t|u", ".*", "[uv]", "none"]))
    def join_by_pattern(self, name: str, pattern: str) -> None:
        if name not in self.members:
            self.members[name] = BenchMember(self.bench, name, regex=pattern)
            self.members[name].beat()

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def beat(self, data: st.DataObject) -> None:
        self._pick(data).beat()

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def obey(self, data: st.DataObject) -> None:
        self._pick(data).reconcile()

    @precondition(lambda self: self.members)
    @rule(data=st.data(), topics=wanted)
    def change_subscription(self, data: st.DataObject, topics: list[str]) -> None:
        member = self._pick(data)
        if member.epoch > 0:
            member.regex = None
            member.resubscribe(topics)

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        member = self._pick(data)
        member.leave()
        del self.members[member.member_id]

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        """A static member steps away and comes back under another name; any other starts over."""
        member = self._pick(data)
        if member.instance_id is None or member.epoch <= 0:
            member.epoch = 0
        else:
            member.leave(-2)
            del self.members[member.member_id]
            member.member_id = member.member_id + "'"
            self.members[member.member_id] = member
        member.beat()

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def lose_an_answer(self, data: st.DataObject) -> None:
        member = self._pick(data)
        epoch, given = member.epoch, member.given
        if epoch <= 0:
            return
        member.beat()
        if not member.error:
            member.epoch, member.given, member.unsure = epoch, given, True

    @rule(name=st.sampled_from(TOPICS), more=st.integers(1, 2))
    def grow_a_topic(self, name: str, more: int) -> None:
        topic = self.bench.image.topics.get(name)
        self.bench.topic(name, (len(topic.partitions) if topic else 0) + more)

    @rule(name=st.sampled_from(TOPICS))
    def delete_a_topic(self, name: str) -> None:
        if len(self.bench.image.topics) > 1:
            self.bench.delete(name)

    @rule(duration_ms=st.sampled_from([500, 2_000, 10_000, 46_000]))
    def pass_time(self, duration_ms: int) -> None:
        self.bench.pass_time(duration_ms)
        for member in self.members.values():
            # Who is out of touch for longer than a session gives up by itself.
            if member.member_id not in self.bench.group.members:
                member.epoch, member.owned, member.given = 0, {}, {}

    @rule()
    def move_to_another_broker(self) -> None:
        self.bench.group.on_unloaded()
        loaded = self.bench.reloaded()
        assert loaded.members == self.bench.group.members
        assert loaded.target == self.bench.group.target
        self.bench.group = loaded
        loaded.on_loaded()

    @rule()
    def everybody_settles(self) -> None:
        for _ in range(SETTLE_ROUNDS):
            for member in self.members.values():
                member.beat()
                member.reconcile()
            self.bench.pass_time(1_100)
        if not self.members:
            return
        assert self.bench.group.state is GroupState.STABLE, self.bench.group.members
        self._all_assigned()

    def _all_assigned(self) -> None:
        owned = set().union(*(member.partitions for member in self.members.values()))
        read = {name for name in self.bench.image.topics if self.bench.group.is_subscribed(name)}
        exists = {
            (name, index)
            for name in read
            for index in range(len(self.bench.image.topics[name].partitions))
        }
        assert owned == exists

    @invariant()
    def nothing_is_owned_twice(self) -> None:
        if not hasattr(self, "bench"):
            return
        group = self.bench.group
        current = [
            partition
            for member in self.members.values()
            if (known := group.members.get(member.member_id)) is not None
            and member.epoch in (known.member_epoch, known.previous_epoch)
            for partition in member.partitions
        ]
        twice = [partition for partition, count in Counter(current).items() if count > 1]
        assert not twice
        held = Counter(held for member in group.members.values() for held in member.holds())
        assert all(count == 1 for count in held.values())


ConsumerGroupMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
TestConsumerGroup = ConsumerGroupMachine.TestCase
