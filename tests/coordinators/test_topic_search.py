"""Looking for a pattern's topics: right in the end, and never long at a time."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

import pytest
from tests.broker.harness import connect, running_broker
from tests.coordinators.group_bench import Bench, BenchMember

from tidemill.coordinators import topic_search
from tidemill.coordinators.regex import RegexError
from tidemill.coordinators.result import CoordinatorRecord
from tidemill.coordinators.topic_search import SEARCHES_MAX, TopicSearch
from tidemill.errors import ErrorCode
from tidemill.image import EMPTY_IMAGE, ClusterImage, PartitionImage, TopicImage, with_topics
from tidemill.testing.clock import ManualClock
from tidemill.types import BrokerId, LeaderEpoch, PartitionIndex
from tidemill.wire.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest
from tidemill.wire.messages.topics import CreatableTopic

WORST = "(.?){440}"
"""About as large as a pattern may be, and every name keeps all of its states busy."""
TOO_LARGE = "([^" + "".join(chr(0x4E00 + i) for i in range(990)) + "]?){999}"
MANY = [f"team{i % 37:02d}.orders.{i:06d}.v1" for i in range(10_000)]


def image_of(names: Iterable[str], before: ClusterImage = EMPTY_IMAGE) -> ClusterImage:
    one = BrokerId(1)
    only = (PartitionImage(PartitionIndex(0), one, LeaderEpoch(0), (one,), (one,)),)
    first = 10**9 + len(before.topics)
    topics = [TopicImage(n, UUID(int=first + i), only) for i, n in enumerate(names)]
    return with_topics(before, topics)


def find_all(search: TopicSearch, clock: ManualClock, pattern: str, image: ClusterImage) -> int:
    """How often one has to ask until the answer is there, 20 ms apart; it must be right."""
    for asked in range(1, 10_000):
        found = search.find(pattern, image.topics)
        if found is not None:
            assert found == {name for name in image.topics if re.fullmatch(pattern, name)}
            return asked
        clock.advance(20)
    raise AssertionError("it never ends")


def test_few_topics_are_found_at_once() -> None:
    clock = ManualClock()
    assert find_all(TopicSearch(clock), clock, "team0.*", image_of(MANY[:500])) == 1


def test_many_are_found_in_slices_and_then_remembered() -> None:
    clock = ManualClock()
    search, image = TopicSearch(clock), image_of(MANY)
    assert find_all(search, clock, "team0.*", image) > 3
    assert find_all(search, clock, "team0.*", image) == 1


def test_only_new_names_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    search, image = TopicSearch(clock), image_of(MANY)
    find_all(search, clock, "team0.*", image)
    looked_at: list[str] = []
    [only] = search._searches.values()
    match = only._regex.fullmatch

    def noted(name: str) -> bool:
        looked_at.append(name)
        return match(name)

    monkeypatch.setattr(only._regex, "fullmatch", noted)
    clock.advance(1_000)
    image = image_of(["team01.new", "other"], image)
    assert find_all(search, clock, "team0.*", image) == 1
    assert sorted(looked_at) == ["other", "team01.new"]


def test_topics_may_come_and_go_while_it_looks() -> None:
    clock = ManualClock()
    search, image = TopicSearch(clock), image_of(MANY)
    assert search.find("team0.*", image.topics) is None
    image = image_of([*MANY[5_000:], "team01.new"])
    find_all(search, clock, "team0.*", image)
    clock.advance(1_000)
    find_all(search, clock, "team0.*", image_of(MANY[9_000:]))


def test_all_patterns_share_one_allowance() -> None:
    clock = ManualClock()
    search, image = TopicSearch(clock), image_of(MANY)
    search.find(".*a", image.topics)
    for number in range(SEARCHES_MAX * 2):
        assert search.find(f".*{number}", image.topics) is None
    assert len(search._searches) == SEARCHES_MAX
    looked_at = [s._known.difference(s._waiting) for s in search._searches.values()]
    assert sum(map(bool, looked_at)) <= 2


def test_searches_that_were_given_up_make_room() -> None:
    clock = ManualClock()
    search, image = TopicSearch(clock), image_of(MANY)
    for number in range(SEARCHES_MAX):
        search.find(f".*{number}x", image.topics)
    clock.advance(topic_search.ABANDONED_MS + 1)
    find_all(search, clock, "team1.*", image)


def test_a_bad_pattern_is_refused_even_when_there_is_no_room() -> None:
    search, image = TopicSearch(ManualClock()), image_of(MANY)
    for number in range(SEARCHES_MAX):
        search.find(f".*{number}x", image.topics)
    with pytest.raises(RegexError):
        search.find("(", image.topics)


def test_the_worst_pattern_takes_little_at_a_time() -> None:
    """Each turn takes milliseconds; the bound leaves room for a busy machine."""
    clock = ManualClock()
    search, image = TopicSearch(clock), image_of(MANY)
    turns = []
    for _ in range(50):
        began = time.thread_time()
        search.find(WORST, image.topics)
        turns.append(time.thread_time() - began)
        clock.advance(20)
    assert sorted(turns)[len(turns) // 2] < 0.05


# --- groups ---------------------------------------------------------------------------------------


def wait(bench: Bench) -> None:
    for _ in range(100):
        bench.clock.advance(20)
        bench.pass_time(0)


def settle(member: BenchMember) -> None:
    for _ in range(3):
        member.beat()
        member.reconcile()


def test_a_group_hears_of_its_topics_once_they_are_found() -> None:
    bench = Bench()
    bench.image = image_of(MANY)
    member = BenchMember(bench, "a", regex="team0.*\\.00000.\\.v1")
    member.beat()
    assert bench.group.resolved == {}
    epoch = bench.group.group_epoch
    wait(bench)
    [found] = bench.group.resolved.values()
    assert found == set(MANY[:10])
    settle(member)
    assert {tp.topic for tp in member.partitions} == found
    assert bench.group.group_epoch == epoch + 1


def test_a_member_keeps_what_it_has_until_its_new_pattern_is_resolved() -> None:
    bench = Bench()
    bench.image = image_of(MANY)
    member = BenchMember(bench, "a", [MANY[7]])
    settle(member)
    had, epoch = set(member.partitions), bench.group.group_epoch
    assert had
    member.topics, member.regex, member.unsure = [], "team0.*\\.00000.\\.v1", True
    settle(member)
    assert set(member.partitions) == had
    assert bench.group.group_epoch == epoch
    wait(bench)
    settle(member)
    assert {tp.topic for tp in member.partitions} == set(MANY[:10])


def test_an_epoch_that_was_not_written_is_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.image = image_of(["orders"])
    member = BenchMember(bench, "a", regex="orders.*")
    settle(member)
    bench.image = image_of(["orders.eu"], bench.image)
    lost: list[CoordinatorRecord] = []
    epoch = member.epoch
    with monkeypatch.context() as patched:
        patched.setattr(bench, "replay", lost.extend)
        member.beat()
    assert lost
    member.epoch = epoch
    settle(member)
    assert bench.group.resolved == {"orders.*": frozenset({"orders", "orders.eu"})}


# --- a broker -------------------------------------------------------------------------------------


async def _late_ms(during: float) -> float:
    """How late the loop was at worst in this time."""
    worst, end = 0.0, time.monotonic() + during
    while time.monotonic() < end:
        began = time.monotonic()
        await asyncio.sleep(0.005)
        worst = max(worst, time.monotonic() - began - 0.005)
    return worst * 1_000


def _join(member: str, pattern: str) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group_id="g", member_id=member, member_epoch=0, rebalance_timeout_ms=30_000,
        subscribed_topic_regex=pattern, topic_partitions=[],
    )  # fmt: skip


async def test_no_pattern_stops_the_broker(tmp_path: Path) -> None:
    settings = {"offsets.topic.num.partitions": "1"}
    async with running_broker(tmp_path, settings) as server, connect(server.port) as client:
        topics = [CreatableTopic(name=n, num_partitions=1, replication_factor=1) for n in MANY[:60]]
        await server.controller.create_topics(topics)
        await client.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
        await client.ask(_join("first", "none"), 1)
        baseline_ms = await _late_ms(1)
        lateness = asyncio.create_task(_late_ms(2))
        refused = await client.ask(_join("large", TOO_LARGE), 1)
        taken = await client.ask(_join("worst", WORST), 1)
        assert await lateness < 10 * baseline_ms + 250
    assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "it is too large" in refused.error_message
    assert taken.error_code == ErrorCode.NONE
