"""Who leads a partition next, who is in sync with it, and who else could lead without loss.

Every change of a partition's state goes through `next_state`: a broker that died, a leader's
proposal of another in-sync set, a step of a reassignment, an election on command. It is given the
state as it is and the state that is wanted, and answers with the whole next state: a reassignment
that can end has ended, the eligible replicas are right, somebody leads if anybody may, and the
epochs have grown (rule A1). It is the only place where a leader is chosen.

The order of choice (rules A10, F2), always along the assignment and never along the in-sync set:

1. the leader that is, as long as it may lead; with `preferred` the first replica goes before it;
2. the first live replica in sync;
3. where nobody is in sync: the first live eligible replica. Eligible are those that left the
   in-sync set while it was too small for the high watermark to move, so they lack nothing;
4. where nobody is eligible either: the last known leader, if the policy says so;
5. if the policy allows unclean elections: any live replica. Records may be lost by 4 and 5; the
   new leader alone is in sync, and the state says that it is recovering;
6. nobody: the partition is offline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, replace

from tidemill.image import LeaderRecovery, PartitionImage
from tidemill.invariant import invariant
from tidemill.types import NO_BROKER, BrokerId, LeaderEpoch, PartitionEpoch

Alive = Callable[[BrokerId], bool]
"""Whether a broker may lead: registered, not fenced, not shutting down."""

NOBODY: frozenset[BrokerId] = frozenset()


@dataclass(frozen=True, slots=True)
class ElectionPolicy:
    """What a topic's settings say about its elections.

    `min_isr` is `min.insync.replicas`; it counts at most as many as there are replicas.
    `last_known_leader` lets the last leader lead again when nobody is known to be complete: the
    way back for a partition whose only replica was killed. As in Kafka, it is always allowed;
    docs/decisions/0007 says what that may cost, and when.
    """

    min_isr: int = 1
    unclean_allowed: bool = False
    last_known_leader: bool = True


def elect(
    partition: PartitionImage, alive: Alive, policy: ElectionPolicy, *, preferred: bool = False
) -> PartitionImage | None:
    """The partition with the leader that it should have, or None if it has that one already."""
    return next_state(partition, partition, alive, policy, preferred=preferred)


def next_state(
    before: PartitionImage,
    wanted: PartitionImage,
    alive: Alive,
    policy: ElectionPolicy,
    *,
    preferred: bool = False,
    distrusted: Set[BrokerId] = NOBODY,
) -> PartitionImage | None:
    """The state after `before` in which `wanted` has come true; None if that changes nothing.

    `wanted` is `before` with other replicas, in-sync set, moves or recovery; its leader and epochs
    are those of `before`. `distrusted` are brokers that may have lost what they had: they are not
    eligible, whatever they were. The partition epoch grows by one, as the version of the
    partition's node in the store does with the one write of this change.
    """
    after = complete_reassignment(wanted)
    after = _with_eligible(before, after, policy, distrusted)
    after = _with_leader(after, alive, policy, preferred)
    if len(after.isr) >= effective_min_isr(after, policy):
        after = replace(after, elr=())
    if set(after.isr) == set(before.isr):
        after = replace(after, isr=before.isr)
    if after == before:
        return None
    _check(after)
    return replace(
        after,
        leader_epoch=LeaderEpoch(before.leader_epoch + _starts_leader_epoch(before, after)),
        partition_epoch=PartitionEpoch(before.partition_epoch + 1),
    )


def effective_min_isr(partition: PartitionImage, policy: ElectionPolicy) -> int:
    """How many must be in sync for the high watermark to move (rule B2)."""
    return min(policy.min_isr, len(partition.replicas))


def was_unclean(before: PartitionImage, after: PartitionImage) -> bool:
    """Whether this change made a leader of a replica that may lack committed records.

    One that joined the ISR with this very change, as at the end of a move, lacks nothing.
    """
    is_new = after.has_leader and after.leader != before.leader
    complete = {*before.isr, *before.elr}
    recovering = after.recovery is LeaderRecovery.RECOVERING
    return is_new and recovering and after.leader not in complete


def is_reassigning(partition: PartitionImage) -> bool:
    return bool(partition.adding or partition.removing)


def target_replicas(partition: PartitionImage) -> tuple[BrokerId, ...]:
    """The replicas that a partition will have when the move under way is done."""
    return without(partition.replicas, partition.removing)


def original_replicas(partition: PartitionImage) -> tuple[BrokerId, ...]:
    """The replicas that a partition goes back to when the move under way is cancelled."""
    return without(partition.replicas, partition.adding)


def without(brokers: Iterable[BrokerId], gone: Iterable[BrokerId]) -> tuple[BrokerId, ...]:
    """`brokers` in their order, less those `gone`."""
    left_out = frozenset(gone)
    return tuple(broker for broker in brokers if broker not in left_out)


def complete_reassignment(wanted: PartitionImage) -> PartitionImage:
    """End the move under way if all of its targets are in sync (rule C8)."""
    if not is_reassigning(wanted):
        return wanted
    target = target_replicas(wanted)
    if not set(target) <= set(wanted.isr):
        return wanted
    in_sync = without(wanted.isr, wanted.removing)
    return replace(wanted, replicas=target, isr=in_sync, adding=(), removing=())


def _with_eligible(
    before: PartitionImage,
    wanted: PartitionImage,
    policy: ElectionPolicy,
    distrusted: Set[BrokerId],
) -> PartitionImage:
    """Keep note of who left the in-sync set while nothing more could be committed (rule F2)."""
    if len(wanted.isr) >= effective_min_isr(wanted, policy):
        return replace(wanted, elr=())
    complete = {*before.isr, *before.elr}.difference(wanted.isr, distrusted)
    return replace(wanted, elr=tuple(r for r in wanted.replicas if r in complete))


def _with_leader(
    wanted: PartitionImage, alive: Alive, policy: ElectionPolicy, preferred: bool
) -> PartitionImage:
    leader = _complete_leader(wanted, alive, preferred)
    if leader is not None:
        return _led_by(wanted, leader)
    leader = _lossy_leader(wanted, alive, policy)
    if leader is not None:
        recovering = LeaderRecovery.RECOVERING
        return replace(
            wanted, leader=leader, isr=(leader,), elr=(), last_known_elr=(), recovery=recovering
        )
    last_known = (wanted.leader,) if wanted.has_leader else ()
    return replace(wanted, leader=NO_BROKER, last_known_elr=wanted.last_known_elr or last_known)


def _complete_leader(wanted: PartitionImage, alive: Alive, preferred: bool) -> BrokerId | None:
    """A leader that has every committed record: in sync, or eligible if nobody is in sync."""
    complete = wanted.isr or wanted.elr
    candidates = [r for r in wanted.replicas if r in complete and alive(r)]
    if preferred and candidates and candidates[0] == wanted.replicas[0]:
        return candidates[0]
    if wanted.leader in candidates:
        return wanted.leader
    return candidates[0] if candidates else None


def _led_by(wanted: PartitionImage, leader: BrokerId) -> PartitionImage:
    """`leader` leads; one of the eligible is alone in sync and the others stay eligible."""
    in_sync = wanted.isr or (leader,)
    eligible = without(wanted.elr, (leader,))
    return replace(wanted, leader=leader, isr=in_sync, elr=eligible, last_known_elr=())


def _lossy_leader(wanted: PartitionImage, alive: Alive, policy: ElectionPolicy) -> BrokerId | None:
    if policy.last_known_leader and not wanted.isr and not wanted.elr:
        last = wanted.last_known_elr[0] if len(wanted.last_known_elr) == 1 else NO_BROKER
        if last in wanted.replicas and alive(last):
            return last
    if policy.unclean_allowed:
        return next((r for r in wanted.replicas if alive(r)), None)
    return None


def _starts_leader_epoch(before: PartitionImage, after: PartitionImage) -> bool:
    """Another leader starts an epoch; so does the leader who goes on with fewer replicas, so that
    a replica which is gone cannot take part any more (rule C8)."""
    return after.leader != before.leader or not set(before.replicas) <= set(after.replicas)


def _check(after: PartitionImage) -> None:
    context = {"state": after}
    invariant(bool(after.replicas), "a partition has replicas", **context)
    invariant(set(after.isr) <= set(after.replicas), "in sync are replicas", **context)
    invariant(set(after.elr) <= set(after.replicas), "eligible are replicas", **context)
    invariant(not set(after.elr) & set(after.isr), "eligible are not in sync", **context)
    invariant(not after.has_leader or after.leader in after.isr, "leaders are in sync", **context)
