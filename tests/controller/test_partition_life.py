"""A partition lives through anything that can happen to it, and whoever leads it is complete.

The model beside the real decisions knows which replica has which of the committed records. It
commits only what the rules let a leader commit, loses the end of a broker's log when that is
killed, and watches every state that the controller decides on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.controller.partitions import applied, broker, cluster, ids

from tidemill.controller import changes, isr_changes
from tidemill.controller.changes import PartitionChange
from tidemill.controller.election import (
    ElectionPolicy,
    effective_min_isr,
    next_state,
    was_unclean,
)
from tidemill.controller.isr_changes import judge
from tidemill.controller.liveness import (
    broker_unfenced,
    brokers_failed,
    controlled_shutdown,
    min_isr_changed,
    take_stock,
    unclean_restart,
)
from tidemill.controller.preferred import elect_leaders, moves_back
from tidemill.controller.reassignment import alter_reassignments
from tidemill.controller.topics import new_partitions
from tidemill.image import (
    LeaderRecovery,
    PartitionImage,
    TopicImage,
    with_broker,
    without_broker,
)
from tidemill.types import BrokerId
from tidemill.wire.messages.isr import (
    AlterPartitionRequest,
    BrokerState,
    PartitionData,
    TopicData,
)
from tidemill.wire.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ReassignablePartition,
    ReassignableTopic,
)

BROKERS = range(1, 6)
broker_ids = st.sampled_from(BROKERS)
assignments = st.lists(broker_ids, min_size=1, max_size=4, unique=True)


class PartitionLife(RuleBasedStateMachine):
    """One partition, five brokers; rules A1, A10, C5, C7, C8, F1, F2, F3, K1 and K4."""

    unclean_allowed = False

    @initialize(replicas=assignments, min_isr=st.integers(1, 3))
    def begin(self, replicas: list[int], min_isr: int) -> None:
        self.min_isr = min_isr
        self.image = cluster(BROKERS)
        first = new_partitions(self.image, 0, [ids(replicas)])
        self.image = cluster(BROKERS, first)
        self.committed = 0
        self.has = dict.fromkeys(BROKERS, 0)
        self.epochs = dict.fromkeys(BROKERS, 100)
        self.down: set[int] = set()

    # What the controller is asked

    def policy_of(self, _: TopicImage) -> ElectionPolicy:
        return ElectionPolicy(self.min_isr, self.unclean_allowed)

    @property
    def state(self) -> PartitionImage:
        return self.image.topics["t"].partitions[0]

    def write(self, changes: list[PartitionChange]) -> None:
        """What every change has to keep."""
        before = self.state
        self.image = applied(self.image, changes)
        after = self.state
        if not changes:
            return
        assert len(changes) == 1
        assert after.partition_epoch == before.partition_epoch + 1
        moved = after.leader != before.leader or set(before.replicas) - set(after.replicas)
        assert after.leader_epoch == before.leader_epoch + bool(moved)
        assert after.replicas
        for outsider in set(BROKERS).difference(after.replicas):
            self.has[outsider] = 0  # Its log is deleted.
        assert set(after.isr) <= set(after.replicas)
        assert set(after.elr) <= set(after.replicas) - set(after.isr)
        assert {*after.adding, *after.removing} <= set(after.replicas)
        if after.has_leader:
            assert after.leader in after.isr
            self.check_leader(before, after)
        elif before.has_leader:
            assert not any(self.alive(b) for b in (after.isr or after.elr))
        if len(after.isr) >= effective_min_isr(after, self.policy_of(self.image.topics["t"])):
            assert after.elr == ()

    def check_leader(self, before: PartitionImage, after: PartitionImage) -> None:
        if was_unclean(before, after):
            last_known = before.last_known_elr == (after.leader,)
            nobody_complete = not before.isr and not before.elr
            assert self.unclean_allowed or (last_known and nobody_complete)
            assert after.recovery is LeaderRecovery.RECOVERING
            assert after.isr == (after.leader,)
            self.committed = self.has[after.leader]
        assert self.has[after.leader] == self.committed, "the leader lacks a committed record"

    def alive(self, broker_id: int) -> bool:
        registered = self.image.broker(broker_id)
        return registered is not None and registered.alive

    # What leaders do

    @precondition(lambda self: self.state.has_leader)
    @rule()
    def commit(self) -> None:
        """Rule B2: nothing is committed while too few are in sync."""
        policy = self.policy_of(self.image.topics["t"])
        if len(self.state.isr) >= effective_min_isr(self.state, policy):
            self.committed += 1
            for member in self.state.isr:
                assert self.has[member] == self.committed - 1
                self.has[member] = self.committed

    @precondition(lambda self: self.state.has_leader)
    @rule(members=st.sets(broker_ids), stale=st.booleans(), lag=st.integers(0, 1))
    def propose(self, members: set[int], stale: bool, lag: int) -> None:
        state = self.state
        isr = sorted(members & set(state.replicas) | {state.leader})
        for member in members & set(state.replicas) - set(state.isr):
            if self.alive(member) and not stale:
                self.has[member] = self.committed  # A member caught up before it was proposed.
        request = AlterPartitionRequest(
            broker_id=state.leader,
            broker_epoch=self.epochs[state.leader],
            topics=[
                TopicData(
                    topic_id=self.image.topics["t"].topic_id,
                    partitions=[
                        PartitionData(
                            partition_index=0,
                            leader_epoch=state.leader_epoch,
                            partition_epoch=state.partition_epoch - lag,
                            new_isr_with_epochs=[
                                BrokerState(broker_id=b, broker_epoch=self.seen(b, stale))
                                for b in isr
                            ],
                        )
                    ],
                )
            ],
        )
        self.write(judge(self.image, request, self.policy_of)[1])

    def seen(self, broker_id: int, stale: bool) -> int:
        """The incarnation that the leader takes a member for, which may be an earlier one."""
        in_sync = broker_id in self.state.isr
        return self.epochs[broker_id] - (stale and not in_sync)

    # What happens to brokers

    @rule(broker_id=broker_ids, loses=st.integers(0, 2), noticed=st.booleans())
    def kill(self, broker_id: int, loses: int, noticed: bool) -> None:
        """Its log's end is lost; it comes back, and cannot prove that it stopped cleanly."""
        if broker_id in self.down:
            return
        self.has[broker_id] = max(self.has[broker_id] - loses, 0)
        if noticed:
            self.lose_session(broker_id)
        changes = unclean_restart(self.image, BrokerId(broker_id), self.policy_of)
        self.leave(broker_id)
        self.write(changes)
        self.register(broker_id)

    @rule(broker_id=broker_ids)
    def stop(self, broker_id: int) -> None:
        if broker_id not in self.down:
            stopping = replace(self.image.brokers[BrokerId(broker_id)], in_controlled_shutdown=True)
            self.image = with_broker(self.image, stopping)
            self.write(controlled_shutdown(self.image, BrokerId(broker_id), self.policy_of))
            self.leave(broker_id)

    @rule(broker_id=broker_ids)
    def lose_session(self, broker_id: int) -> None:
        if broker_id not in self.down:
            changes = brokers_failed(self.image, ids([broker_id]), self.policy_of)
            self.leave(broker_id)
            self.write(changes)

    @rule(gone=st.sets(broker_ids))
    def controller_fails_over(self, gone: set[int]) -> None:
        for broker_id in sorted(gone - self.down):
            self.leave(broker_id)
        self.write(take_stock(self.image, self.policy_of))
        assert take_stock(self.image, self.policy_of) == []

    @rule(broker_id=broker_ids)
    def come_back(self, broker_id: int) -> None:
        if broker_id in self.down:
            self.register(broker_id)

    def leave(self, broker_id: int) -> None:
        self.down.add(broker_id)
        self.image = without_broker(self.image, BrokerId(broker_id))

    def register(self, broker_id: int) -> None:
        self.down.discard(broker_id)
        self.epochs[broker_id] += 1
        fenced = broker(broker_id, fenced=True, epoch=self.epochs[broker_id])
        self.image = with_broker(self.image, fenced)
        changes = broker_unfenced(self.image, BrokerId(broker_id), self.policy_of)
        self.image = with_broker(self.image, replace(fenced, fenced=False))
        self.write(changes)

    # What operators do

    @rule(replicas=st.none() | assignments)
    def reassign(self, replicas: list[int] | None) -> None:
        partitions = [ReassignablePartition(partition_index=0, replicas=replicas)]
        request = AlterPartitionReassignmentsRequest(
            topics=[ReassignableTopic(name="t", partitions=partitions)]
        )
        self.write(alter_reassignments(self.image, request, self.policy_of)[1])
        wanted = set(replicas or ())
        if wanted <= {*self.state.replicas, *self.image.brokers}:
            assert wanted <= set(self.state.replicas)

    @rule(automatic=st.booleans())
    def prefer(self, automatic: bool) -> None:
        if automatic:
            self.write(moves_back(self.image, self.policy_of, imbalance_percent=0))
        else:
            request = ElectLeadersRequest(topic_partitions=None)
            self.write(elect_leaders(self.image, request, self.policy_of)[1])

    @rule(min_isr=st.integers(1, 3))
    def set_min_isr(self, min_isr: int) -> None:
        self.min_isr = min_isr
        self.write(min_isr_changed(self.image, ["t"], self.policy_of))


class UncleanLife(PartitionLife):
    """The same where the topic allows unclean elections: all else still holds (rule A10)."""

    unclean_allowed = True


def live(machine: type[PartitionLife], lives: int, *, shrink: bool = True) -> None:
    phases = [Phase.generate, Phase.shrink] if shrink else [Phase.generate]
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=lives,
            stateful_step_count=40,
            deadline=None,
            database=None,
            phases=phases,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_whoever_leads_a_partition_is_complete() -> None:
    """Rules A1, A10, C5, C7, C8, F1, F2, F3, K1, K4."""
    live(PartitionLife, 150)


def test_all_else_holds_where_unclean_elections_are_allowed() -> None:
    """Rule A10."""
    live(UncleanLife, 50)


@pytest.mark.soak
def test_many_partitions_live_long() -> None:
    """Rules A1, A10, C5, C7, C8, F1, F2, F3, K1, K4."""
    live(PartitionLife, 3_000)
    live(UncleanLife, 1_000)


def trust_everybody(*arguments: Any, **options: Any) -> PartitionImage | None:
    return next_state(*arguments, **{**options, "distrusted": frozenset()})


def keep_eligible(*arguments: Any, **options: Any) -> PartitionImage | None:
    """Who was eligible stays so, though the others commit without it."""
    before, after = arguments[0], next_state(*arguments, **options)
    if after is None:
        return None
    kept = tuple(b for b in before.elr if b in after.replicas and b not in after.isr)
    return replace(after, elr=after.elr or kept)


def elect_anybody(*arguments: Any, **options: Any) -> PartitionImage | None:
    before, wanted, alive, policy = arguments
    return next_state(before, wanted, alive, replace(policy, unclean_allowed=True), **options)


@pytest.mark.parametrize("variant", [trust_everybody, keep_eligible, elect_anybody])
def test_a_wrong_election_is_found(
    variant: Callable[..., PartitionImage | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lives above can fail: rules F3, F2 and A10, each broken on purpose."""
    monkeypatch.setattr(changes, "next_state", variant)
    with pytest.raises(AssertionError):
        live(PartitionLife, 4_000, shrink=False)


def test_a_wrong_member_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule A3 broken on purpose: an earlier incarnation's progress is taken for the present."""
    monkeypatch.setattr(isr_changes, "_eligibility_problem", lambda image, proposal: None)
    with pytest.raises(AssertionError):
        live(PartitionLife, 4_000, shrink=False)
