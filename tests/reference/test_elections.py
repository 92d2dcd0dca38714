"""Every decision about a partition's next state, beside that of Apache Kafka's own controller.

Kafka's `PartitionChangeBuilder` decides the same question as `next_state`. Partitions live through
random events here, each decided by both. Two differences are meant. Kafka ends a move when its new
replicas are in sync, Tidemill when all targets are (`waits_longer`). And Kafka keeps brokers
eligible that hold no replica any more, or that a leader alone has left behind where the minimum
in sync is one (`alike` passes over those).
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pytest
from tests.controller.partitions import ids, partition
from tests.reference.kafka import java_command, kafka_jars, unavailable_reason

from tidemill.controller.election import (
    NOBODY,
    ElectionPolicy,
    effective_min_isr,
    is_reassigning,
    next_state,
    original_replicas,
    target_replicas,
    without,
)
from tidemill.controller.reassignment import begin
from tidemill.image import LeaderRecovery, PartitionImage
from tidemill.types import BrokerId

SOURCE = Path(__file__).with_name("NextState.java")
BROKERS = ids(range(1, 7))
LIVES, EVENTS = 150, 40
JVM_TIMEOUT_S = 100

pytestmark = pytest.mark.skipif(
    kafka_jars() is None, reason=f"NO REFERENCE: no Apache Kafka jars: {unavailable_reason()}"
)


@dataclass(frozen=True, slots=True)
class Question:
    before: PartitionImage
    wanted: PartitionImage
    alive: frozenset[BrokerId]
    policy: ElectionPolicy
    preferred: bool = False
    distrusted: frozenset[BrokerId] = NOBODY

    def ours(self) -> PartitionImage | None:
        return next_state(
            self.before,
            self.wanted,
            self.alive.__contains__,
            self.policy,
            preferred=self.preferred,
            distrusted=self.distrusted,
        )

    def line(self) -> str:
        """The question as `NextState.java` reads it."""
        before, wanted = self.before, self.wanted
        election = "UNCLEAN" if self.policy.unclean_allowed else "ONLINE"
        words = [
            *shown(before),
            *map(listed, (wanted.replicas, wanted.isr, wanted.adding, wanted.removing)),
            int(wanted.recovery),
            listed(sorted(self.alive)),
            listed(self.distrusted),
            effective_min_isr(wanted, self.policy),
            int(self.policy.last_known_leader),
            "PREFERRED" if self.preferred else election,
        ]
        return " ".join(map(str, words))

    def waits_longer(self) -> bool:
        """Whether the new replicas of a move are in sync, and not all of its targets."""
        wanted = self.wanted
        staying = set(without(wanted.isr, wanted.removing))
        return (
            is_reassigning(wanted)
            and set(wanted.adding) <= staying
            and not set(target_replicas(wanted)) <= staying
        )


def listed(brokers: Iterable[int]) -> str:
    return ",".join(map(str, brokers)) or "-"


def shown(state: PartitionImage) -> list[str | int]:
    sets = (state.replicas, state.isr, state.elr, state.last_known_elr)
    return [
        *map(listed, (*sets, state.adding, state.removing)),
        state.leader,
        int(state.recovery),
        state.leader_epoch,
        state.partition_epoch,
    ]


def read(before: PartitionImage, answer: str) -> PartitionImage | None:
    if answer == "none":
        return None
    words = answer.split(" ")
    lists = [[] if word == "-" else [int(n) for n in word.split(",")] for word in words[:6]]
    leader, recovery, leader_epoch, partition_epoch = map(int, words[6:])
    return partition(
        lists[0],
        lists[1],
        leader,
        index=before.index,
        elr=lists[2],
        last_known=lists[3],
        adding=lists[4],
        removing=lists[5],
        recovery=LeaderRecovery(recovery),
        leader_epoch=leader_epoch,
        partition_epoch=partition_epoch,
    )


def a_life(random: Random) -> list[Question]:
    """What happens to one partition, each event deciding on the state that the last one left."""
    state = partition(random.sample(BROKERS, random.randint(1, 4)))
    alive = frozenset(BROKERS)
    questions = []
    for _ in range(EVENTS):
        alive = alive ^ frozenset(random.sample(BROKERS, random.choice((0, 0, 1))))
        policy = ElectionPolicy(random.randint(1, 3), unclean_allowed=random.random() < 0.05)
        question = an_event(random, state, alive, policy)
        questions.append(question)
        state = question.ours() or state
    return questions


def an_event(
    random: Random, state: PartitionImage, alive: frozenset[BrokerId], policy: ElectionPolicy
) -> Question:
    living = tuple(broker for broker in state.isr if broker in alive)
    match random.choice(("fail", "fail", "grow", "shrink", "elect", "prefer", "distrust", "move")):
        case "fail":
            return Question(state, replace(state, isr=living), alive, policy)
        case "grow" if state.has_leader and state.leader in alive:
            joining = tuple(b for b in state.replicas if b in alive and b not in state.isr)
            some = random.sample(joining, random.randint(0, len(joining)))
            wanted = replace(state, isr=(*living, *some), recovery=LeaderRecovery.RECOVERED)
            return Question(state, wanted, alive, policy)
        case "shrink" if state.has_leader and state.leader in alive:
            kept = tuple(b for b in living if b == state.leader or random.random() < 0.5)
            return Question(state, replace(state, isr=kept), alive, policy)
        case "prefer":
            strict = replace(policy, unclean_allowed=False)
            return Question(state, state, alive, strict, preferred=True)
        case "distrust":
            lossy = frozenset(random.sample(state.replicas, 1))
            wanted = replace(state, isr=without(state.isr, lossy))
            return Question(state, wanted, alive - lossy, policy, distrusted=lossy)
        case "move":
            return Question(state, a_move(random, state), alive, policy)
    return Question(state, state, alive, policy)


def a_move(random: Random, state: PartitionImage) -> PartitionImage:
    """A move, or the end of the one under way where that leaves somebody in sync."""
    if not is_reassigning(state):
        return begin(state, tuple(random.sample(BROKERS, random.randint(1, 4))))
    left = without(state.isr, state.adding)
    if not left:
        return state
    return replace(state, replicas=original_replicas(state), isr=left, adding=(), removing=())


def alike(state: PartitionImage | None, question: Question) -> PartitionImage:
    """A decision without what is meant to differ; one that changes nothing is the state before.

    Kafka takes another order of the eligible, which it keeps in no order, for a change.
    """
    before = in_order(question.before, question)
    if state is None:
        return before
    after = in_order(state, question)
    same = replace(after, partition_epoch=before.partition_epoch) == before
    return before if same else after


def in_order(state: PartitionImage, question: Question) -> PartitionImage:
    enough = len(state.isr) >= effective_min_isr(state, question.policy)
    eligible = () if enough else tuple(b for b in state.replicas if b in state.elr)
    return replace(
        state,
        isr=tuple(sorted(state.isr)),
        elr=eligible,
        controller_epoch=question.before.controller_epoch,
    )


def test_every_decision_is_kafkas() -> None:
    """Rules A1, A10, C8, F2, F3, K4."""
    random = Random(431)
    questions = [question for _ in range(LIVES) for question in a_life(random)]
    answers = subprocess.run(
        java_command(str(SOURCE)),
        input="".join(question.line() + "\n" for question in questions),
        capture_output=True,
        text=True,
        timeout=JVM_TIMEOUT_S,
        check=True,
    ).stdout.splitlines()
    compared = changed = 0
    for question, answer in zip(questions, answers, strict=True):
        if question.waits_longer():
            continue
        kafka = alike(read(question.before, answer), question)
        ours = alike(question.ours(), question)
        assert ours == kafka, question
        compared += 1
        changed += question.ours() is not None
    assert compared > len(questions) * 0.9
    assert changed > len(questions) * 0.3
