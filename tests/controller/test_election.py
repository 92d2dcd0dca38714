"""Elections: one order of choice whatever the occasion, and nobody who may lack records."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest
from tests.controller.partitions import applied, broker, cluster, ids, only, partition, policy

from tidemill.controller.changes import PartitionChange
from tidemill.controller.election import ElectionPolicy, elect, next_state, was_unclean
from tidemill.controller.isr_changes import judge
from tidemill.controller.liveness import broker_unfenced, brokers_failed, controlled_shutdown
from tidemill.controller.preferred import elect_leaders, moves_back
from tidemill.controller.reassignment import alter_reassignments
from tidemill.controller.topics import new_partitions
from tidemill.image import ClusterImage, LeaderRecovery, PartitionImage
from tidemill.types import NO_BROKER, BrokerId
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
    TopicPartitions,
)

RECOVERING = LeaderRecovery.RECOVERING
SAFE = ElectionPolicy(min_isr=2)


class Case(NamedTuple):
    """An occasion for an election: the partition before, who lives, and who leads then."""

    occasion: str
    before: PartitionImage
    alive: tuple[int, ...]
    leader: int
    isr: tuple[int, ...]
    new_epoch: bool = True


# The in-sync sets are out of order on purpose: the assignment's order alone decides.
TABLE = {
    "new: the first replica leads": Case(
        "new", partition([3, 1, 2]), (1, 2, 3), 3, (3, 1, 2), new_epoch=False
    ),
    "new: the first of those alive leads": Case(
        "new", partition([3, 1, 2]), (1, 2), 1, (1, 2), new_epoch=False
    ),
    "failed: the first replica in sync follows": Case(
        "failed", partition([1, 2, 3], [3, 2, 1], 1), (2, 3), 2, (3, 2)
    ),
    "failed: one that is not in sync is passed over": Case(
        "failed", partition([1, 2, 3], [3, 1], 1), (2, 3), 3, (3,)
    ),
    "failed: a follower's death moves no leadership": Case(
        "failed", partition([1, 2, 3], [3, 2, 1], 2), (2, 3), 2, (3, 2), new_epoch=False
    ),
    "failed: nobody is left": Case("failed", partition([1, 2, 3], [1]), (2, 3), NO_BROKER, ()),
    "returned: the only one in sync leads again": Case(
        "returned", partition([3, 1], [], elr=[1], last_known=[1]), (1, 3), 1, (1,)
    ),
    "returned: the first eligible in assignment order": Case(
        "returned", partition([3, 2, 1], [], elr=[1, 2]), (1, 2), 2, (2,)
    ),
    "returned: the eligible that is still away is passed over": Case(
        "returned", partition([3, 2, 1], [], elr=[2, 1]), (1, 3), 1, (1,)
    ),
    "shutdown: the first replica in sync takes over": Case(
        "shutdown", partition([1, 2, 3], [3, 1, 2], 1), (1, 2, 3), 2, (3, 2)
    ),
    "shutdown: with nobody else the partition goes offline": Case(
        "shutdown", partition([1, 2], [1]), (1, 2), NO_BROKER, ()
    ),
    "reassigned: the first target in sync, when the leader leaves": Case(
        "reassigned",
        partition([4, 3, 1], [1, 3], 1, adding=[4], removing=[1]),
        (1, 3, 4),
        4,
        (3, 4),
    ),
    "reassigned: the leader that stays goes on, in a new epoch": Case(
        "reassigned",
        partition([4, 3, 1], [1, 3], 3, adding=[4], removing=[1]),
        (1, 3, 4),
        3,
        (3, 4),
    ),
    "shrunk: the first of the replicas that stay": Case(
        "shrunk", partition([1, 3, 2], [2, 3, 1], 1), (1, 2, 3), 3, (2, 3)
    ),
    "preferred: back to the first replica": Case(
        "preferred", partition([1, 2, 3], [3, 2, 1], 3), (1, 2, 3), 1, (3, 2, 1)
    ),
    "automatic: back to the first replica": Case(
        "automatic", partition([1, 2, 3], [3, 2, 1], 3), (1, 2, 3), 1, (3, 2, 1)
    ),
    "asked: the first live replica, as unclean was asked for": Case(
        "asked", partition([1, 2, 3], [], elr=[1]), (3, 2), 2, (2,)
    ),
}


@pytest.mark.parametrize("case", TABLE.values(), ids=TABLE.keys())
def test_whatever_the_occasion_the_first_live_replica_in_sync_leads(case: Case) -> None:
    """Rules A1, A10, C8, K1, K4: assignment order decides on every occasion."""
    after = occur(case)
    assert (after.leader, set(after.isr)) == (case.leader, set(case.isr))
    if case.occasion != "new":
        assert after.leader_epoch == case.before.leader_epoch + case.new_epoch
        assert after.partition_epoch == case.before.partition_epoch + 1


def occur(case: Case) -> PartitionImage:
    before = case.before
    image = cluster(case.alive, [before])
    match case.occasion:
        case "new":
            registered = [broker(b, fenced=b not in case.alive) for b in before.replicas]
            return new_partitions(cluster(registered), 0, [before.replicas])[0]
        case "failed":
            return only(brokers_failed(image, ids([1]), policy()))
        case "returned":
            return only(broker_unfenced(image, BrokerId(1), policy(2)))
        case "shutdown":
            return only(controlled_shutdown(image, BrokerId(1), policy()))
        case "reassigned":
            return only(propose(image, before, [1, 3, 4]))
        case "shrunk":
            return only(reassign(image, [3, 2]))
        case "automatic":
            return only(moves_back(image, policy()))
        case "preferred" | "asked":
            request = ElectLeadersRequest(
                election_type=int(case.occasion == "asked"),
                topic_partitions=[TopicPartitions(topic="t", partitions=[0])],
            )
            return only(elect_leaders(image, request, policy())[1])
    raise AssertionError(case.occasion)


def propose(
    image: ClusterImage, before: PartitionImage, members: list[int]
) -> list[PartitionChange]:
    proposal = PartitionData(
        partition_index=0,
        leader_epoch=before.leader_epoch,
        partition_epoch=before.partition_epoch,
        new_isr_with_epochs=[BrokerState(broker_id=b, broker_epoch=b * 100) for b in members],
    )
    request = AlterPartitionRequest(
        broker_id=before.leader,
        broker_epoch=before.leader * 100,
        topics=[TopicData(topic_id=image.topics["t"].topic_id, partitions=[proposal])],
    )
    return judge(image, request, policy())[1]


def reassign(image: ClusterImage, target: list[int]) -> list[PartitionChange]:
    request = AlterPartitionReassignmentsRequest(
        topics=[
            ReassignableTopic(
                name="t", partitions=[ReassignablePartition(partition_index=0, replicas=target)]
            )
        ]
    )
    return alter_reassignments(image, request, policy())[1]


def alive(*broker_ids: int) -> frozenset[int]:
    return frozenset(broker_ids)


def test_a_partition_that_is_led_well_needs_no_election() -> None:
    state = partition([1, 2, 3], [2, 1], leader=2)
    assert elect(state, alive(1, 2).__contains__, SAFE) is None
    moved = elect(state, alive(1, 2).__contains__, SAFE, preferred=True)
    assert moved is not None
    assert moved.leader == 1
    # The preferred replica is away: the leader that is stays.
    assert elect(state, alive(2, 3).__contains__, SAFE, preferred=True) is None


def shrink(
    state: PartitionImage, isr: list[int], rules: ElectionPolicy = SAFE, *distrusted: int
) -> PartitionImage:
    """The next state with these in sync and alive."""
    after = next_state(
        state,
        replace(state, isr=ids(isr)),
        frozenset(isr).__contains__,
        rules,
        distrusted=frozenset(ids(distrusted)),
    )
    assert after is not None
    return after


def test_members_that_leave_a_small_set_stay_eligible() -> None:
    """Rule F2: eligible = previous in-sync and eligible, less those in sync."""
    three = partition([1, 2, 3])
    two = shrink(three, [2, 3])
    assert two.elr == ()  # Two in sync can commit more: who left may lack that.
    one = shrink(two, [3])
    assert (one.isr, one.elr) == ((3,), (2,))
    none = shrink(one, [])
    assert (none.leader, none.isr, none.elr) == (NO_BROKER, (), (2, 3))
    assert none.last_known_elr == (3,)


def test_eligible_are_forgotten_when_enough_are_in_sync() -> None:
    """Rule F2: from then on records are committed that they do not have."""
    state = partition([1, 2, 3], [3], elr=[2])
    assert shrink(state, [3, 1]).elr == ()


def test_the_last_replica_standing_that_lost_its_tail_does_not_lead_the_others() -> None:
    """Rule F1: it leaves the in-sync set, and the eligible one, which is complete, leads."""
    last = partition([1, 2, 3], [3], elr=[2])
    lossy = shrink(last, [], SAFE, 3)
    assert (lossy.leader, lossy.isr, lossy.elr) == (NO_BROKER, (), (2,))
    assert elect(lossy, alive(3, 1).__contains__, SAFE) is None
    after = elect(lossy, alive(2, 3).__contains__, SAFE)
    assert after is not None
    assert (after.leader, after.isr, after.recovery) == (2, (2,), LeaderRecovery.RECOVERED)


def test_one_replica_alone_is_eligible_and_leads_again_when_it_is_back() -> None:
    """Rule F2: the smallest set that counts is never larger than the assignment (rule B2)."""
    alone = shrink(partition([1]), [])
    assert (alone.leader, alone.elr) == (NO_BROKER, (1,))
    back = elect(alone, alive(1).__contains__, SAFE)
    assert back is not None
    assert (back.leader, back.isr, back.elr, back.last_known_elr) == (1, (1,), (), ())
    assert back.leader_epoch == alone.leader_epoch + 1


def test_an_elected_eligible_alone_makes_the_others_stale_where_one_is_enough() -> None:
    """Rule F2: with a minimum of one it commits alone, so nobody else stays eligible."""
    state = partition([1, 2], [], elr=[1, 2], last_known=[1])
    one = elect(state, alive(1).__contains__, ElectionPolicy(min_isr=1))
    two = elect(state, alive(1).__contains__, SAFE)
    assert one is not None
    assert two is not None
    assert (one.elr, two.elr) == ((), (2,))


def test_the_last_known_leader_leads_only_when_nobody_is_known_to_be_complete() -> None:
    """Rule F2: and the policy can forbid it."""
    lost = partition([1, 2, 3], [], last_known=[3])
    everyone = alive(1, 2, 3).__contains__
    after = elect(lost, everyone, SAFE)
    assert after is not None
    assert (after.leader, after.isr, after.recovery) == (3, (3,), RECOVERING)
    assert after.last_known_elr == ()
    assert was_unclean(lost, after)
    assert elect(lost, everyone, replace(SAFE, last_known_leader=False)) is None
    assert elect(lost, alive(1, 2).__contains__, SAFE) is None
    assert elect(replace(lost, elr=ids([2])), alive(3).__contains__, SAFE) is None


def test_an_unclean_election_is_opt_in_and_leaves_its_mark() -> None:
    """Rule A10: in sync is the new leader alone, and it is recovering."""
    lost = partition([1, 2, 3], [], elr=[1], last_known=[1])
    some = alive(2, 3).__contains__
    assert elect(lost, some, SAFE) is None
    after = elect(lost, some, replace(SAFE, unclean_allowed=True))
    assert after is not None
    assert (after.leader, after.isr, after.elr, after.recovery) == (2, (2,), (), RECOVERING)
    assert was_unclean(lost, after)
    # The mark stays until the leader says that it is over, whoever leads then.
    grown = next_state(after, replace(after, isr=ids([2, 3])), some, SAFE)
    assert grown is not None
    follower = next_state(grown, replace(grown, isr=ids([3])), alive(3).__contains__, SAFE)
    assert follower is not None
    assert (follower.leader, follower.recovery) == (3, RECOVERING)
    assert not was_unclean(grown, follower)


def test_an_unclean_election_is_the_last_resort() -> None:
    """Rule A10: as long as somebody complete lives, allowing it changes nothing."""
    allowed = replace(SAFE, unclean_allowed=True)
    state = partition([1, 2, 3], [], elr=[3])
    after = elect(state, alive(1, 2, 3).__contains__, allowed)
    assert after is not None
    assert (after.leader, after.recovery) == (3, LeaderRecovery.RECOVERED)


def test_what_changes_nothing_is_no_change() -> None:
    """Rule C5: the same members in another order are the same set."""
    state = partition([1, 2, 3], [2, 1], leader=2)
    same = replace(state, isr=ids([1, 2]))
    assert next_state(state, same, alive(1, 2).__contains__, SAFE) is None


def test_a_change_is_signed_by_the_controller_that_made_it() -> None:
    image = cluster([1, 2], [partition([1, 2])])
    change = brokers_failed(image, ids([1]), policy())
    assert only(change).controller_epoch == image.controller_epoch
    assert applied(image, change).partition("t", 0) == only(change)
