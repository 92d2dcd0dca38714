"""The newer group protocol, heartbeat by heartbeat (rule J8), and every refusal by its code."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.coordinators.group_bench import Bench, BenchMember, settle

from tidemill.coordinators.consumer_group import ConsumerGroupConfig, GroupState
from tidemill.errors import ApiError, ErrorCode
from tidemill.types import TopicPartition
from tidemill.wire.messages.consumer_groups import ConsumerGroupHeartbeatRequest

NO_DELAY = ConsumerGroupConfig(assignment_interval_ms=0)


def tp(*partitions: int, topic: str = "t") -> set[TopicPartition]:
    return {TopicPartition(topic, partition) for partition in partitions}


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.topic("t", 4)
    return made


def test_the_first_member_gets_everything_at_once(bench: Bench) -> None:
    member = BenchMember(bench, "a", ["t"])
    answer = member.beat()
    assert (answer.member_id, answer.member_epoch) == ("a", 2)
    assert answer.heartbeat_interval_ms == 5_000
    member.reconcile()
    assert member.partitions == tp(0, 1, 2, 3)
    assert bench.group.state == GroupState.STABLE.value
    assert member.beat().assignment is None


def test_a_partition_is_revoked_before_it_is_assigned(bench: Bench) -> None:
    """Rule J8: a partition waits until its member says that it let go."""
    first, second = BenchMember(bench, "a", ["t"]), BenchMember(bench, "b", ["t"])
    settle(first, rounds=2)
    second.beat()
    second.reconcile()
    assert second.epoch == 3
    assert second.partitions == set()
    told = first.beat()
    assert (told.member_epoch, len(first.given)) == (2, 1)
    assert bench.group.state == GroupState.RECONCILING.value
    second.beat()
    assert second.given == {}
    first.reconcile()
    assert first.beat().member_epoch == 3
    second.beat()
    second.reconcile()
    assert first.partitions | second.partitions == tp(0, 1, 2, 3)
    assert len(first.partitions) == len(second.partitions) == 2
    assert bench.group.state == GroupState.STABLE.value


def test_a_member_that_does_not_give_back_in_time_is_fenced(bench: Bench) -> None:
    first, second = BenchMember(bench, "a", ["t"]), BenchMember(bench, "b", ["t"])
    settle(first, rounds=2)
    second.beat()
    for _ in range(3):
        first.beat()  # It hears that it shall give back, and does not.
        second.beat()
        bench.pass_time(20_000)
    assert first.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    settle(second, rounds=2)
    assert second.partitions == tp(0, 1, 2, 3)


def test_a_silent_member_is_dropped_after_its_session(bench: Bench) -> None:
    first, second = BenchMember(bench, "a", ["t"]), BenchMember(bench, "b", ["t"])
    settle(first, second)
    for _ in range(5):
        bench.pass_time(10_000)
        second.beat()
    assert list(bench.group.members) == ["b"]
    settle(second, rounds=2)
    assert second.partitions == tp(0, 1, 2, 3)


def test_leaving_frees_the_partitions(bench: Bench) -> None:
    first, second = BenchMember(bench, "a", ["t"]), BenchMember(bench, "b", ["t"])
    settle(first, second)
    answer = first.leave()
    assert (answer.error_code, answer.member_epoch) == (0, -1)
    settle(second, rounds=2)
    assert second.partitions == tp(0, 1, 2, 3)
    second.leave()
    assert bench.group.state is GroupState.EMPTY
    assert not bench.timers.due


def test_a_lost_answer_does_no_harm(bench: Bench) -> None:
    first, second = BenchMember(bench, "a", ["t"]), BenchMember(bench, "b", ["t"])
    settle(first, second)
    second.leave()
    before = first.epoch
    first.beat()
    first.epoch = before  # The answer that moved it on never came.
    assert first.beat().error_code == 0
    assert first.epoch == before + 1


def test_epochs_fence(bench: Bench) -> None:
    member = BenchMember(bench, "a", ["t"])
    settle(member, rounds=2)
    member.epoch = 9
    assert member.beat().error_code == ErrorCode.FENCED_MEMBER_EPOCH
    settle(member, rounds=1)
    other = BenchMember(bench, "b", ["t"])
    settle(member, other)
    member.epoch -= 1
    member.owned = {topic: {0, 1, 2, 3} for topic in member.given}
    assert member.beat().error_code == ErrorCode.FENCED_MEMBER_EPOCH


def test_a_member_may_start_over(bench: Bench) -> None:
    member = BenchMember(bench, "a", ["t"])
    settle(member, rounds=2)
    member.epoch = 0
    settle(member, rounds=1)
    assert member.partitions == tp(0, 1, 2, 3)


# --- topics ---------------------------------------------------------------------------------------


def test_new_partitions_and_deleted_topics_are_noticed(bench: Bench) -> None:
    member = BenchMember(bench, "a", ["t", "later"])
    settle(member, rounds=2)
    bench.topic("t", 6)
    settle(member, rounds=2)
    assert member.partitions == tp(*range(6))
    bench.topic("later", 1)
    settle(member, rounds=2)
    assert member.partitions == tp(*range(6)) | tp(0, topic="later")
    bench.delete("t")
    settle(member, rounds=3)
    assert member.partitions == tp(0, topic="later")
    bench.topic("unrelated", 1)
    epoch = member.epoch
    settle(member, rounds=2)
    assert member.epoch == epoch


def test_changing_the_subscription(bench: Bench) -> None:
    bench.topic("u", 2)
    member = BenchMember(bench, "a", ["t"])
    settle(member, rounds=2)
    member.resubscribe(["u"])
    member.reconcile()
    settle(member, rounds=2)
    assert member.partitions == tp(0, 1, topic="u")


def test_subscribing_by_pattern(bench: Bench) -> None:
    bench.topic("orders.eu", 1)
    member = BenchMember(bench, "a", regex=r"orders\..*")
    settle(member, rounds=2)
    assert member.partitions == tp(0, topic="orders.eu")
    bench.topic("orders.us", 1)
    settle(member, rounds=2)
    assert member.partitions == tp(0, topic="orders.eu") | tp(0, topic="orders.us")
    assert bench.group.is_subscribed("orders.us")
    assert not bench.group.is_subscribed("t")
    member.leave()
    assert bench.group.resolved == {}


def test_the_assignment_waits_for_its_interval() -> None:
    bench = Bench(replace(NO_DELAY, assignment_interval_ms=1_000))
    bench.topic("t", 4)
    first, second = BenchMember(bench, "a", ["t"]), BenchMember(bench, "b", ["t"])
    settle(first, rounds=1)
    second.beat()
    assert bench.group.state == GroupState.ASSIGNING.value
    assert bench.group.assignment_epoch == 2
    bench.pass_time(1_000)
    assert bench.group.assignment_epoch == 3
    settle(first, second, rounds=3)
    assert bench.group.state == GroupState.STABLE.value


def test_what_is_given_up_goes_at_once_even_when_the_assignment_waits() -> None:
    bench = Bench(replace(NO_DELAY, assignment_interval_ms=60_000))
    bench.topic("t", 2)
    bench.topic("u", 2)
    member = BenchMember(bench, "a", ["t", "u"])
    settle(member, rounds=2)
    member.resubscribe(["u"])
    member.reconcile()
    settle(member, rounds=2)
    assert member.partitions == tp(0, 1, topic="u")


def test_most_members_choose_the_assignor(bench: Bench) -> None:
    members = [BenchMember(bench, name, ["t"], assignor="range") for name in "ab"]
    members.append(BenchMember(bench, "c", ["t"], assignor="uniform"))
    settle(*members)
    assert bench.group.assignor == "range"
    assert bench.group.describe(bench.image).assignor_name == "range"


# --- static members -------------------------------------------------------------------------------


def test_a_static_member_restarts_without_a_rebalance(bench: Bench) -> None:
    first = BenchMember(bench, "a", ["t"], instance_id="i1")
    second = BenchMember(bench, "b", ["t"], instance_id="i2")
    settle(first, second)
    had, epoch = second.partitions, bench.group.group_epoch
    assert second.leave(-2).member_epoch == -2
    settle(first, rounds=3)
    back = BenchMember(bench, "b2", ["t"], instance_id="i2")
    settle(back, first, rounds=3)
    assert back.partitions == had
    assert bench.group.group_epoch == epoch
    assert bench.group.state == GroupState.STABLE.value
    assert set(bench.group.members) == {"a", "b2"}
    assert second.beat().error_code == ErrorCode.UNRELEASED_INSTANCE_ID


def test_a_static_member_that_stays_away_is_dropped(bench: Bench) -> None:
    first = BenchMember(bench, "a", ["t"])
    second = BenchMember(bench, "b", ["t"], instance_id="i2")
    settle(first, second)
    second.leave(-2)
    for _ in range(5):
        bench.pass_time(10_000)
        settle(first, rounds=2)
    assert first.partitions == tp(0, 1, 2, 3)
    assert bench.group.static_member("i2") is None


def test_instance_ids_fence(bench: Bench) -> None:
    owner = BenchMember(bench, "a", ["t"], instance_id="i")
    settle(owner, rounds=2)
    thief = BenchMember(bench, "b", ["t"], instance_id="i")
    assert thief.beat().error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    thief.epoch = 1
    assert thief.beat().error_code == ErrorCode.FENCED_INSTANCE_ID
    assert thief.leave(-2).error_code == ErrorCode.FENCED_INSTANCE_ID
    thief.instance_id = "unknown"
    thief.epoch = 1
    assert thief.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID


# --- refusals -------------------------------------------------------------------------------------

JOIN: dict[str, Any] = {
    "group_id": "g",
    "member_id": "a",
    "rebalance_timeout_ms": 1000,
    "subscribed_topic_names": ["t"],
    "topic_partitions": [],
}
REFUSED: list[tuple[dict[str, Any], ErrorCode, str]] = [
    ({"member_id": ""}, ErrorCode.INVALID_REQUEST, "MemberId can't be empty."),
    ({"group_id": " "}, ErrorCode.INVALID_REQUEST, "GroupId can't be empty."),
    ({"instance_id": ""}, ErrorCode.INVALID_REQUEST, "InstanceId can't be empty."),
    ({"rack_id": ""}, ErrorCode.INVALID_REQUEST, "RackId can't be empty."),
    ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST, "RebalanceTimeoutMs must be"),
    ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST, "TopicPartitions must be empty"),
    ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST, "Either SubscribedTopicNames"),
    ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST, "InstanceId can't be null."),
    ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST, "MemberEpoch is invalid."),
    ({"member_epoch": 5}, ErrorCode.UNKNOWN_MEMBER_ID, "Member a is not a member of group g."),
    ({"member_epoch": -1}, ErrorCode.UNKNOWN_MEMBER_ID, "Member a is not a member of group g."),
    ({"server_assignor": "x"}, ErrorCode.UNSUPPORTED_ASSIGNOR, "ServerAssignor x is not supported"),
    ({"subscribed_topic_regex": "("}, ErrorCode.INVALID_REGULAR_EXPRESSION, "`(` is not a valid"),
]


@pytest.mark.parametrize(("change", "code", "words"), REFUSED, ids=lambda value: str(value)[:40])
def test_bad_heartbeats(bench: Bench, change: dict[str, Any], code: ErrorCode, words: str) -> None:
    answer = bench.send(ConsumerGroupHeartbeatRequest(**JOIN | change))
    assert answer.error_code == code
    assert words in (answer.error_message or "")
    assert not bench.group.members
    assert not bench.log


def test_a_full_group_takes_nobody(bench: Bench) -> None:
    small = Bench(replace(NO_DELAY, max_size=1))
    small.topic("t", 1)
    first = BenchMember(small, "a", ["t"])
    first.beat()
    assert BenchMember(small, "b", ["t"]).beat().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert first.beat().error_code == 0


def test_an_old_client_is_given_an_id(bench: Bench) -> None:
    answer = bench.send(ConsumerGroupHeartbeatRequest(**JOIN | {"member_id": ""}), version=0)
    assert answer.error_code == 0
    assert len(answer.member_id or "") == 22


def test_who_may_commit(bench: Bench) -> None:
    bench.group.check_commit("", -1)
    first, second = BenchMember(bench, "a", ["t"]), BenchMember(bench, "b", ["t"])
    settle(first, rounds=2)
    topic = bench.image.topics["t"].topic_id
    kept = (topic, 0)
    settle(first, second)
    bench.group.check_commit("a", first.epoch, [kept])
    held = [(topic, p) for p in bench.group.members["a"].assigned[topic]]
    bench.group.check_commit("a", 2, held)  # Older, but it has had them since then.
    cases: list[tuple[str, int, list[Any], ErrorCode]] = [
        ("", -1, [], ErrorCode.UNKNOWN_MEMBER_ID),
        ("x", 1, [], ErrorCode.UNKNOWN_MEMBER_ID),
        ("a", first.epoch + 1, held, ErrorCode.STALE_MEMBER_EPOCH),
        ("a", 2, [], ErrorCode.STALE_MEMBER_EPOCH),
        ("b", 2, [(topic, p) for p in range(4)], ErrorCode.STALE_MEMBER_EPOCH),
    ]
    for member_id, epoch, partitions, code in cases:
        with pytest.raises(ApiError) as caught:
            bench.group.check_commit(member_id, epoch, partitions)
        assert caught.value.code is code
    bench.group.check_fetch(None, -1)
    with pytest.raises(ApiError):
        bench.group.check_fetch("a", 1)
    with pytest.raises(ApiError):
        bench.group.check_delete()


def test_the_description(bench: Bench) -> None:
    member = BenchMember(bench, "a", ["t"])
    settle(member, rounds=2)
    described = bench.group.describe(bench.image)
    assert (described.group_state, described.group_epoch, described.assignment_epoch) == (
        "Stable",
        2,
        2,
    )
    (shown,) = described.members
    assert (shown.member_id, shown.client_id, shown.member_epoch) == ("a", "client", 2)
    assert shown.assignment == shown.target_assignment
    assert shown.assignment.topic_partitions[0].topic_name == "t"
    assert shown.member_type == 1


def test_another_broker_loads_the_same_group(bench: Bench) -> None:
    first = BenchMember(bench, "a", ["t"], instance_id="i")
    second = BenchMember(bench, "b", regex="t")
    settle(first, second)
    BenchMember(bench, "c", ["t"]).beat()
    first.beat()
    loaded = bench.reloaded()
    for name in ("members", "target", "resolved", "group_epoch", "assignment_epoch", "state"):
        assert getattr(loaded, name) == getattr(bench.group, name), name
    assert loaded.static_member("i") == bench.group.members["a"]
    bench.timers.due.clear()
    loaded.on_loaded()
    assert len([key for key in bench.timers.due if "session" in key[0]]) == 3
    loaded.on_unloaded()
    assert not bench.timers.due


def test_deleting_leaves_nothing(bench: Bench) -> None:
    settle(BenchMember(bench, "a", regex="t"), rounds=2)
    bench.replay(bench.group.deletion_records())
    latest = {repr(record.key): record.value for record in bench.log}
    assert set(latest.values()) == {None}


def test_a_member_at_rest_gives_up_at_once_what_it_does_not_want_any_more() -> None:
    """Rule J8: others may have it before the next assignment, which waits for its interval."""
    bench = Bench(replace(NO_DELAY, assignment_interval_ms=60_000))
    bench.topic("t", 2)
    bench.topic("u", 2)
    first, second = BenchMember(bench, "a", ["t", "u"]), BenchMember(bench, "b", ["t"])
    settle(first, second, rounds=2)
    bench.pass_time(30_000)
    settle(first, second, rounds=2)
    bench.pass_time(30_001)
    settle(first, second, rounds=2)
    assert bench.group.state == "Stable"
    first.resubscribe(["t"])
    assert bench.group.assignment_epoch < bench.group.group_epoch
    first.reconcile()
    settle(first, rounds=2)
    assert not {each for each in first.partitions if each.topic == "u"}
