"""A loop that stood still: it is noticed, and the broker leads again only when it still may."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.broker.harness import batch, connect, create_topic, produce

from tidemill.broker.stalls import BEAT_MS, STALL_MS, Stalls
from tidemill.controller import tree
from tidemill.errors import ErrorCode
from tidemill.store.base import Check, Op, SessionExpired, StoreUnavailable
from tidemill.testing.clock import ManualClock
from tidemill.testing.in_process import InProcessCluster, until
from tidemill.timers import TimingWheel

SESSION_MS = 9_000


class Standing:
    """A beat on a clock of the test, and a store that says what it is told to."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.wheel = TimingWheel(self.clock)
        self.told: list[str] = []
        self.answers: list[Exception | None] = []
        self.asked = 0
        self.stalls = Stalls(
            self.clock,
            self.wheel.schedule,
            lambda: SESSION_MS,
            cast("Any", self),
            fence=lambda: self.told.append("fenced"),
            confirmed=lambda: self.told.append("confirmed"),
        )
        self.stalls.start()

    async def multi(self, ops: list[Op]) -> None:
        self.asked += 1
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer

    def stand_still(self, stall_ms: int) -> None:
        self.clock.advance(BEAT_MS + stall_ms)
        self.wheel.advance(self.clock.monotonic_ms())


def test_a_stall_is_measured_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Rule 2.L."""
    standing = Standing()
    for stall_ms in (0, 5, STALL_MS - 1):
        standing.stand_still(stall_ms)
    assert standing.stalls.count == 0
    assert not caplog.records
    standing.stand_still(STALL_MS)
    standing.stand_still(SESSION_MS // 2 - 1)
    assert standing.stalls.count == 2
    assert standing.stalls.longest_ms == SESSION_MS // 2 - 1
    (said,) = caplog.records
    assert f"stood still for {STALL_MS} ms" in said.getMessage()
    assert standing.told == []


async def test_after_half_a_session_nothing_is_led_before_the_store_has_spoken(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Rules A9 and 2.L."""
    standing = Standing()
    standing.answers = [StoreUnavailable("not now"), None]
    standing.stand_still(SESSION_MS // 2)
    assert standing.told == ["fenced"]
    await until(lambda: standing.told == ["fenced", "confirmed"])
    assert standing.asked == 2
    (said,) = [one for one in caplog.records if "stood still" in one.message]
    assert "nothing is led" in said.message


async def test_a_session_that_is_over_is_not_led_in_again() -> None:
    """Rule A9: the store tells everybody; a new registration brings the next image."""
    standing = Standing()
    standing.answers = [SessionExpired("over")]
    standing.stand_still(2 * SESSION_MS)
    await until(lambda: standing.asked == 1)
    await asyncio.sleep(0.01)
    assert standing.told == ["fenced"]
    standing.stalls.stop()
    assert len(standing.wheel) == 0


async def test_a_broker_whose_loop_stood_still_acks_nothing_before_its_session_is_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule A9, with a real loop that hangs, and a store that does not answer at first."""
    async with InProcessCluster(tmp_path, 1) as cluster:
        server = cluster[1]
        await create_topic(server, "t")
        monkeypatch.setattr("tidemill.broker.stalls.CONFIRM_RETRY_S", 0.01)
        monkeypatch.setattr(server.stalls, "_session_timeout_ms", lambda: 1_000)
        answers = asyncio.Event()
        multi = server.store.multi

        async def late(ops: list[Op]) -> Any:
            await answers.wait()
            return await multi(ops)

        monkeypatch.setattr(server.store, "multi", late)
        async with connect(server.port) as client:
            assert (await produce(client, "t", batch([b"a"]))).error_code == 0
            time.sleep(0.8)  # noqa: ASYNC251 - that is the point
            await until(lambda: server.stalls.count == 1)
            refused = await produce(client, "t", batch([b"b"]))
            assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            answers.set()
            partition = server.broker.replicas.get("t", 0)
            assert partition is not None
            await until(lambda: partition.is_leader)
            assert (await produce(client, "t", batch([b"c"]))).base_offset == 1


async def test_an_image_that_comes_before_the_session_is_confirmed_leads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule A9: it may be from before the stall. What it says is done once there is an answer."""
    async with InProcessCluster(tmp_path, 1) as cluster:
        server = cluster[1]
        await create_topic(server, "t")
        monkeypatch.setattr("tidemill.broker.stalls.CONFIRM_RETRY_S", 0.01)
        answers = asyncio.Event()
        multi = server.store.multi

        async def late(ops: list[Op]) -> Any:
            if any(isinstance(op, Check) and op.path == tree.CLUSTER_ID for op in ops):
                await answers.wait()
            return await multi(ops)

        monkeypatch.setattr(server.store, "multi", late)
        server.stalls._prove()
        await create_topic(server, "late")
        await until(lambda: "late" in server.broker.image.topics)
        replicas = server.broker.replicas
        led = [partition for partition in replicas if partition.is_leader]
        assert led == []
        answers.set()
        await until(lambda: sum(partition.is_leader for partition in replicas) == 2)


async def test_a_broker_that_is_registered_anew_leads_without_the_old_sessions_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule A9: the session that was in doubt is over, and so is the doubt."""
    async with InProcessCluster(tmp_path, 2) as cluster:
        server = cluster[2]
        await create_topic(server, "t", partitions=4)

        async def never(ops: list[Op]) -> Any:
            raise SessionExpired("over")

        before = server.controller.broker_epoch
        with monkeypatch.context() as patched:
            patched.setattr(server.stalls, "_store", SimpleNamespace(multi=never))
            server.stalls._prove()
            await asyncio.sleep(0.05)
            assert not any(partition.is_leader for partition in server.broker.replicas)
            await cluster.lose_session(2)
        await until(lambda: server.controller.broker_epoch not in (-1, before))
        await create_topic(server, "later", partitions=4)
        await until(lambda: any(each.is_leader for each in server.broker.replicas))
