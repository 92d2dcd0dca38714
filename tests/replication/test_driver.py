"""The task that copies what one leader leads: its turns of the loop, trouble with one of many."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from tests.replication.helpers import OTHER, SELF, World, partition_image, topic_image
from tests.storage.helpers import batch

from tidemill.errors import ApiError, ErrorCode
from tidemill.replication.alignment import StartOver, TruncateTo, after_divergence
from tidemill.replication.driver import LeaderDriver, key_of
from tidemill.replication.follower import FollowerFetcher, FollowerSettings, Status
from tidemill.replication.partition import Partition
from tidemill.replication.throttle import UNLIMITED, Throttle
from tidemill.testing.in_process import until
from tidemill.types import BrokerEpoch
from tidemill.wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tidemill.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

PARTITIONS = 5
EPOCH = 3
BACKOFF_MS = 1_000

AnswerTo = Callable[[int], PartitionData]


class Leader:
    """Answers one fetch as the test says, and no other; its logs are [0, 2)."""

    def __init__(self) -> None:
        self.answer: AnswerTo | None = None
        self.fetches: list[set[int]] = []
        """The partitions that each fetch named; a session names those that changed."""
        self.range_code = 0
        self.gives_up = asyncio.Event()

    async def fetch(self, leader_id: int, request: FetchRequest) -> FetchResponse:
        asked = {one.partition for topic in request.topics for one in topic.partitions}
        self.fetches.append(asked)
        if self.answer is None:
            await self.gives_up.wait()
            self.gives_up.clear()
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT)
        answer, self.answer = self.answer, None
        assert answer is not None
        partitions = [answer(index) for index in sorted(asked)]
        topic = FetchableTopicResponse(topic_id=topic_image().topic_id, partitions=partitions)
        return FetchResponse(session_id=9, responses=[topic])

    async def list_offsets(
        self, leader_id: int, request: ListOffsetsRequest
    ) -> ListOffsetsResponse:
        (topic,) = request.topics
        answers = [
            ListOffsetsPartitionResponse(
                partition_index=one.partition_index,
                error_code=self.range_code,
                offset=2 if one.timestamp == -1 else 0,
            )
            for one in topic.partitions
        ]
        return ListOffsetsResponse(
            topics=[ListOffsetsTopicResponse(name=topic.name, partitions=answers)]
        )


class Copying:
    """A driver and its partitions, each with three records; `turns` counts turns of the loop."""

    def __init__(self) -> None:
        self.world = World()
        led_elsewhere = tuple(
            partition_image(index, leader=OTHER, leader_epoch=EPOCH, replicas=(SELF, OTHER))
            for index in range(PARTITIONS)
        )
        self.world.add(replace(topic_image(), partitions=led_elsewhere))
        self.partitions: list[Partition] = list(self.world.replicas)
        for partition in self.partitions:
            for offset in range(3):
                one = batch(b"v", base_offset=offset, leader_epoch=1)
                partition.log.append_as_follower(one)
        self.leader = Leader()
        fetcher = FollowerFetcher(
            SELF, BrokerEpoch(7), FollowerSettings(backoff_ms=BACKOFF_MS, first_backoff_ms=10)
        )
        throttle = Throttle(self.world.clock, lambda: UNLIMITED)
        self.driver = LeaderDriver(
            SELF, OTHER, fetcher, cast("Any", self.leader), self.world.clock, throttle
        )
        self.turns = 0
        self._counting = asyncio.get_running_loop().create_task(self._count())

    async def _count(self) -> None:
        while True:
            self.turns += 1
            await asyncio.sleep(0)

    def start(self, answer: AnswerTo | None = None) -> None:
        self.leader.answer = answer
        for partition in self.partitions:
            self.driver.follow(partition)
        self.driver.start()

    async def close(self) -> None:
        for task in (self.driver.stop(), self._counting):
            assert task is not None
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def statuses(self) -> list[Status]:
        found = [self.driver.fetcher.get(key_of(partition)) for partition in self.partitions]
        return [state.status for state in found if state is not None]

    def ends(self) -> list[int]:
        return [partition.log.log_end_offset for partition in self.partitions]


@pytest.fixture
async def copying() -> AsyncIterator[Copying]:
    made = Copying()
    yield made
    await made.close()


def diverging(index: int) -> PartitionData:
    """The leader left epoch 1 at offset 2."""
    where = EpochEndOffset(epoch=1, end_offset=2)
    return PartitionData(partition_index=index, high_watermark=2, diverging_epoch=where)


def out_of_range(index: int) -> PartitionData:
    return PartitionData(partition_index=index, error_code=ErrorCode.OFFSET_OUT_OF_RANGE)


def spoil(
    monkeypatch: pytest.MonkeyPatch, what: str, index: int, error: Exception
) -> Callable[[], None]:
    """One method of one partition raises, until what is returned is called."""
    real = getattr(Partition, what)
    is_spoilt = True

    def raises(partition: Partition, *arguments: Any) -> Any:
        if is_spoilt and partition.topic_partition.partition == index:
            raise error
        return real(partition, *arguments)

    def heal() -> None:
        nonlocal is_spoilt
        is_spoilt = False

    monkeypatch.setattr(Partition, what, raises)
    return heal


# Turns of the loop.


@pytest.mark.parametrize("answer", [diverging, out_of_range])
async def test_others_get_their_turn_after_each_cut(
    copying: Copying, answer: AnswerTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 2.L: a cut flushes, and a thousand in one turn would cost the session."""
    in_turns: list[int] = []
    cut = Partition.cut

    def count(partition: Partition, decision: TruncateTo | StartOver) -> bool:
        in_turns.append(copying.turns)
        return cut(partition, decision)

    monkeypatch.setattr(Partition, "cut", count)
    copying.start(answer)
    await until(lambda: copying.ends() == [2] * PARTITIONS)
    assert len(set(in_turns)) == PARTITIONS


async def test_first_cuts_do_not_hold_up_the_image_that_asks_for_them(copying: Copying) -> None:
    """Logs without any epoch are cut to what is committed, in turns as well."""
    for partition in copying.partitions:
        partition.log.leader_epochs.clear()
    copying.start()
    assert copying.ends() == [3] * PARTITIONS
    begun = copying.turns
    await until(lambda: copying.ends() == [0] * PARTITIONS)
    assert copying.turns - begun >= PARTITIONS - 1
    await until(lambda: bool(copying.leader.fetches))
    assert copying.leader.fetches[0] == set(range(PARTITIONS)), "once they are cut"


async def test_a_first_cut_that_fails_comes_before_any_fetch(
    copying: Copying, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule D3: until then nobody can tell whose records these are."""
    heal = spoil(monkeypatch, "cut", 1, RuntimeError("no idea"))
    for partition in copying.partitions:
        partition.log.leader_epochs.clear()
    copying.start()
    await until(lambda: bool(copying.leader.fetches))
    assert copying.leader.fetches == [{0, 2, 3, 4}]
    assert copying.ends() == [0, 3, 0, 0, 0]
    heal()
    copying.leader.gives_up.set()
    await until(lambda: copying.driver.requests == 1)
    copying.world.clock.advance(BACKOFF_MS)
    copying.driver.wake()
    await until(lambda: len(copying.leader.fetches) == 2)
    assert copying.ends() == [0] * PARTITIONS


# Trouble with one.


@pytest.mark.parametrize("answer", [diverging, out_of_range])
async def test_a_defect_in_one_partition_leaves_the_others_alone(
    copying: Copying,
    answer: AnswerTo,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Rules D9 and 2.L: it is said aloud, and tried again after a while."""
    spoil(monkeypatch, "cut", 1, KeyError("a defect"))
    copying.start(answer)
    await until(lambda: len(copying.leader.fetches) == 2)
    assert copying.ends() == [2, 3, 2, 2, 2]
    statuses = copying.statuses()
    assert statuses.pop(1) is Status.DELAYED
    assert set(statuses) == {Status.FETCHING}
    (said,) = [one for one in caplog.records if one.exc_info and one.levelno == logging.ERROR]
    assert "t-1" in said.getMessage()


async def test_a_defect_in_an_append_or_an_advance_stays_with_its_partition(
    copying: Copying, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule D9."""
    records = bytes(batch(b"d", base_offset=3, leader_epoch=EPOCH))

    def answer(index: int) -> PartitionData:
        return PartitionData(
            partition_index=index, high_watermark=3, records=b"" if index == 2 else records
        )

    spoil(monkeypatch, "append_copied", 1, ZeroDivisionError())
    real = Partition.follow_leader

    def fails_for_two(partition: Partition, *arguments: Any) -> None:
        if partition.topic_partition.partition == 2:
            raise TypeError("a defect")
        real(partition, *arguments)

    monkeypatch.setattr(Partition, "follow_leader", fails_for_two)
    copying.start(answer)
    await until(lambda: len(copying.leader.fetches) == 2)
    assert copying.ends() == [4, 3, 3, 4, 4]
    delayed, fetching = Status.DELAYED, Status.FETCHING
    assert copying.statuses() == [fetching, delayed, delayed, fetching, fetching]


async def test_a_defect_while_an_answer_is_judged_stays_with_its_partition(
    copying: Copying, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule D9: whoever was judged before it would wait for a step that nobody does."""
    calls = 0

    def fails_in_the_third(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise IndexError("a defect")
        return after_divergence(*arguments)

    judge = "tidemill.replication.follower.after_divergence"
    monkeypatch.setattr(judge, fails_in_the_third)
    copying.start(diverging)
    await until(lambda: len(copying.leader.fetches) == 2)
    assert copying.ends() == [2, 2, 3, 2, 2]


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, 12_345])
async def test_a_leader_that_does_not_say_what_it_has_is_asked_again(
    copying: Copying, code: int
) -> None:
    """Rule D7; its error may be one that we do not know."""
    copying.leader.range_code = int(code)
    copying.start(out_of_range)
    await until(lambda: set(copying.statuses()) == {Status.DELAYED})
    assert copying.ends() == [3] * PARTITIONS


async def test_a_round_that_breaks_off_leaves_nobody_waiting_for_its_steps(
    copying: Copying, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever still had to be cut is fetched again, and told once more to cut."""

    async def breaks(*arguments: Any) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(LeaderDriver, "_find_ranges", breaks)
    copying.start(out_of_range)
    await until(lambda: copying.driver.requests == 2)
    assert set(copying.statuses()) == {Status.DELAYED}
    copying.world.clock.advance(BACKOFF_MS)
    await until(lambda: len(copying.leader.fetches) == 2)
    assert copying.leader.fetches[1] == set(range(PARTITIONS))
