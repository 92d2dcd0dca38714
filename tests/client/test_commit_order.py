"""Commits reach the broker in the order in which they were asked for, and before we leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.broker.harness import batch, connect, create_topic, produce, running_broker
from tests.waiting import eventually_async

from tidemill.broker.server import BrokerServer
from tidemill.client import ClientError, Consumer, group_offsets
from tidemill.client.admin_types import Results
from tidemill.client.commits import Commits, Offsets
from tidemill.client.errors import CommitFailedError, from_code
from tidemill.client.group_offsets import Identity, OffsetAndMetadata
from tidemill.errors import ErrorCode
from tidemill.types import TopicPartition

QUICK = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1"}
TP, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)

pytestmark = pytest.mark.timeout(60)


@asynccontextmanager
async def broker(directory: Path, records: int = 0) -> AsyncIterator[BrokerServer]:
    async with running_broker(directory, QUICK) as server:
        await create_topic(server, "t", 1)
        if records:
            async with connect(server.port) as client:
                await produce(client, "t", batch([b"x"] * records))
        yield server


def consumer_of(server: BrokerServer, **settings: Any) -> Consumer:
    given: dict[str, Any] = {"group_id": "g", "auto_offset_reset": "earliest"}
    return Consumer(f"127.0.0.1:{server.port}", **given | settings)


async def committed(consumer: Consumer) -> OffsetAndMetadata | None:
    return (await consumer.committed(TP))[TP]


async def offset_of(consumer: Consumer) -> int | None:
    found = await committed(consumer)
    return None if found is None else found.offset


async def test_a_commit_does_not_overtake_one_in_the_background(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, consumer_of(server) as consumer:
        consumer.assign([TP])
        heard: list[int] = []
        for start in range(0, 50, 10):
            consumer.commit_soon({TP: start + 1}, lambda done, _: heard.append(done[TP].offset))
            consumer.commit_soon({TP: start + 2}, lambda done, _: heard.append(done[TP].offset))
            await consumer.commit({TP: start + 3})
            assert heard[-2:] == [start + 1, start + 2]
            assert await offset_of(consumer) == start + 3


async def test_the_commit_of_a_revoke_waits_for_older_ones(tmp_path: Path) -> None:
    settings = {"max_poll_records": 10, "auto_commit_interval_ms": 100_000}
    async with broker(tmp_path, 100) as server, consumer_of(server, **settings) as consumer:
        consumer.subscribe(["t"])
        while not await consumer.poll(timeout_ms=200):
            pass
        groups = server.groups
        assert groups is not None
        host = groups._runtime._hosts[0]
        host.is_active = False  # The coordinator refuses the first try of the older one.
        consumer.commit_soon()
        await asyncio.sleep(0.05)
        host.is_active = True
        for _ in range(3):
            await consumer.poll(timeout_ms=0)
        member = consumer._member
        assert member is not None
        await member._commit_quietly({TP})
        assert await offset_of(consumer) == 40
        await asyncio.sleep(0.4)
        assert await offset_of(consumer) == 40


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_closing_waits_for_commits_in_the_background(tmp_path: Path, protocol: str) -> None:
    class Late:
        """Commits once more when the partitions go."""

        def on_assigned(self, partitions: set[TopicPartition]) -> None: ...
        def on_lost(self, partitions: set[TopicPartition]) -> None: ...
        def on_revoked(self, partitions: set[TopicPartition]) -> None:
            consumer.commit_soon({TP: 40}, hear)

    heard: list[tuple[int, ClientError | None]] = []

    def hear(done: Offsets, error: ClientError | None) -> None:
        heard.append((done[TP].offset, error))

    settings = {"enable_auto_commit": False, "group_protocol": protocol}
    async with broker(tmp_path) as server:
        async with consumer_of(server, **settings) as consumer:
            consumer.subscribe(["t"], listener=Late())
            while not consumer.assignment():
                await consumer.poll(timeout_ms=200)
            for offset in (10, 20, 30):
                consumer.commit_soon({TP: offset}, hear)
        assert heard == [(10, None), (20, None), (30, None), (40, None)]
        async with consumer_of(server) as another:
            assert await offset_of(another) == 40


async def test_closing_gives_up_commits_that_nobody_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.client.consumer.CLOSE_TIMEOUT_MS", 200)
    heard: list[ClientError | None] = []
    async with broker(tmp_path) as server:
        async with consumer_of(server, enable_auto_commit=False) as consumer:
            consumer.assign([TP])
            await consumer.commit({TP: 1})
            groups = server.groups
            assert groups is not None
            groups._runtime._hosts[0].is_active = False
            consumer.commit_soon({TP: 2}, lambda _, error: heard.append(error))
            waiting = asyncio.create_task(consumer.commit({TP: 3}))
            await asyncio.sleep(0)
        with pytest.raises(ClientError, match="in time"):
            await waiting
        assert [error.code for error in heard if error] == [ErrorCode.REQUEST_TIMED_OUT]
        groups._runtime._hosts[0].is_active = True


async def test_a_commit_carries_the_leader_epoch(tmp_path: Path) -> None:
    async with broker(tmp_path, 10) as server, consumer_of(server) as consumer:
        consumer.assign([TP])
        assert len(await consumer.poll(4, timeout_ms=5_000)) == 4
        await consumer.commit()
        assert await committed(consumer) == OffsetAndMetadata(4, leader_epoch=0)
        assert len(await consumer.poll(timeout_ms=5_000)) == 6
        await consumer.commit()
        assert await committed(consumer) == OffsetAndMetadata(10, leader_epoch=0)


async def test_the_automatic_commit_comes_back_after_one_by_hand(tmp_path: Path) -> None:
    settings = {"auto_commit_interval_ms": 0}
    async with broker(tmp_path, 10) as server, consumer_of(server, **settings) as consumer:
        consumer.assign([TP])
        assert len(await consumer.poll(timeout_ms=5_000)) == 10
        await consumer._grouped().drain(5_000)  # Or else the next poll leaves it to a later one.
        await consumer.poll(timeout_ms=50)
        await consumer._grouped().drain(5_000)
        assert await offset_of(consumer) == 10
        await consumer.commit({TP: 3})
        await consumer.poll(timeout_ms=50)
        await consumer._grouped().drain(5_000)
        assert await offset_of(consumer) == 10


async def test_the_automatic_commit_comes_while_a_poll_waits(tmp_path: Path) -> None:
    """What it waits for may never come, and nothing that is fetched wakes it."""
    settings = {"auto_commit_interval_ms": 500, "fetch_max_wait_ms": 10}
    async with broker(tmp_path, 10) as server, consumer_of(server, **settings) as consumer:
        consumer.assign([TP])
        assert len(await consumer.poll(timeout_ms=5_000)) == 10
        consumer.pause(TP)
        waiting = asyncio.create_task(consumer.poll(timeout_ms=600_000))
        async with consumer_of(server) as another:

            async def is_committed() -> bool:
                return await offset_of(another) == 10

            await eventually_async(is_committed)
        assert not waiting.done()
        waiting.cancel()


# --- when the group moves on while a commit is under way -----------------------------------------


class Moving:
    """A coordinator that finds the first commit out of date; by then we have moved on."""

    def __init__(self, keeps: Iterable[TopicPartition]) -> None:
        self.epoch = 5
        self.assigned = {TP, OTHER}
        self.keeps = set(keeps)
        self.tried: list[tuple[int, set[TopicPartition]]] = []

    def commits(self, monkeypatch: pytest.MonkeyPatch) -> Commits:
        monkeypatch.setattr(group_offsets, "commit", self._answer)
        monkeypatch.setattr("tidemill.client.commits.STALE_PAUSE_MS", 1)
        clock = SimpleNamespace(monotonic_ms=lambda: 0.0)
        settings: Any = SimpleNamespace(group_id="g", auto_commit_interval_ms=5_000)
        cluster: Any = SimpleNamespace(clock=clock)
        commits = Commits(settings, cluster)
        commits.speak_for(lambda: Identity("me", self.epoch), lambda: self.assigned)
        return commits

    async def _answer(
        self, _: object, offsets: Offsets, identity: Identity, **more: object
    ) -> Results[TopicPartition, None]:
        if not offsets:
            return Results()
        self.tried.append((identity.epoch, set(offsets)))
        if identity.epoch == 5:
            self.epoch, self.assigned = 6, self.keeps
            raise from_code(ErrorCode.STALE_MEMBER_EPOCH)
        return Results(dict.fromkeys(offsets))


BOTH = {TP: OffsetAndMetadata(20), OTHER: OffsetAndMetadata(30)}


async def test_who_waits_has_his_commit_tried_again_in_the_next_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moving = Moving(keeps={TP, OTHER})
    await moving.commits(monkeypatch).commit(BOTH)
    assert moving.tried == [(5, {TP, OTHER}), (6, {TP, OTHER})]


@pytest.mark.parametrize("keeps", [{OTHER}, set()])
async def test_what_is_another_s_by_now_is_not_committed(
    monkeypatch: pytest.MonkeyPatch, keeps: set[TopicPartition]
) -> None:
    moving = Moving(keeps)
    with pytest.raises(CommitFailedError):
        await moving.commits(monkeypatch).commit(BOTH)
    assert moving.tried == [(5, {TP, OTHER}), *([(6, keeps)] if keeps else [])]


async def test_a_commit_in_the_background_is_not_tried_in_another_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moving = Moving(keeps={TP, OTHER})
    commits = moving.commits(monkeypatch)
    heard: list[ClientError | None] = []
    commits.commit_soon(BOTH, lambda _, error: heard.append(error))
    await asyncio.wait(commits._pending)
    assert moving.tried == [(5, {TP, OTHER})]
    assert isinstance(heard[0], CommitFailedError)


async def test_who_queued_while_the_group_moved_on_commits_only_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moving = Moving(keeps={OTHER})
    commits = moving.commits(monkeypatch)
    heard: list[ClientError | None] = []
    commits.commit_soon(BOTH, lambda _, error: heard.append(error))
    commits.commit_soon(BOTH, lambda _, error: heard.append(error))
    await asyncio.wait(commits._pending)
    assert moving.tried == [(5, {TP, OTHER}), (6, {OTHER})]
    assert [type(error) for error in heard] == [CommitFailedError, CommitFailedError]
