"""A membership whose background work ends: nothing is read as if it were still ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.broker.harness import batch, connect, create_topic, produce, running_broker

from tidemill.broker.server import BrokerServer
from tidemill.client import Consumer, ConsumerRecord
from tidemill.client.errors import ClientError
from tidemill.errors import ErrorCode
from tidemill.types import TopicPartition
from tidemill.wire.messages.groups import (
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
)

QUICK = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "50",
    "group.consumer.heartbeat.interval.ms": "200",
}
TP = TopicPartition("t", 0)
JOIN_VERSION = 5

pytestmark = pytest.mark.timeout(60)


class Journal:
    """A listener that remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def on_assigned(self, partitions: set[TopicPartition]) -> None:
        self.told.append("assigned")

    def on_revoked(self, partitions: set[TopicPartition]) -> None:
        self.told.append("revoked")

    def on_lost(self, partitions: set[TopicPartition]) -> None:
        self.told.append("lost")


@asynccontextmanager
async def broker(directory: Path) -> AsyncIterator[BrokerServer]:
    async with running_broker(directory, QUICK) as server:
        await create_topic(server, "t", 1)
        yield server


def member(server: BrokerServer, **settings: Any) -> Consumer:
    given: dict[str, Any] = {
        "group_id": "g",
        "auto_offset_reset": "earliest",
        "session_timeout_ms": 3_000,
        "heartbeat_interval_ms": 50,
    }
    return Consumer(f"127.0.0.1:{server.port}", **given | settings)


async def join(consumer: Consumer) -> None:
    async with asyncio.timeout(20):
        while not consumer.assignment():
            await consumer.poll(timeout_ms=50)


async def poll_on(consumer: Consumer) -> None:
    async with asyncio.timeout(20):
        while True:
            await consumer.poll(timeout_ms=100)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_any_error_in_the_background_loses_everything_and_stays(
    tmp_path: Path, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken() -> None:
        raise RuntimeError("a mistake of ours")

    journal = Journal()
    async with broker(tmp_path) as server, member(server, group_protocol=protocol) as consumer:
        consumer.subscribe(["t"], listener=journal)
        await join(consumer)
        background = consumer._member
        with monkeypatch.context() as patched:
            patched.setattr(background, "_beat", broken)
            if protocol == "consumer":  # A classic member would give all up before it beats.
                background._changed.set()  # type: ignore[union-attr]
            for _ in range(3):
                with pytest.raises(RuntimeError, match="a mistake of ours"):
                    await poll_on(consumer)
                assert consumer.assignment() == set()
        assert journal.told[-1] == "lost"
        consumer.subscribe(["t"], listener=journal)
        await join(consumer)
        assert journal.told[-1] == "assigned"


async def test_a_listener_that_raises_does_not_keep_what_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Raises(Journal):
        def on_lost(self, partitions: set[TopicPartition]) -> None:
            raise KeyError("mine")

    async def broken() -> None:
        raise RuntimeError("a mistake of ours")

    async with broker(tmp_path) as server, member(server) as consumer:
        consumer.subscribe(["t"], listener=Raises())
        await join(consumer)
        monkeypatch.setattr(consumer._member, "_beat", broken)
        with pytest.raises(KeyError, match="mine"):
            await poll_on(consumer)
        assert consumer.assignment() == set()
        with pytest.raises(RuntimeError, match="a mistake of ours"):
            await consumer.poll(timeout_ms=100)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
async def test_a_leader_survives_a_member_that_it_cannot_understand(
    tmp_path: Path, strategy: str
) -> None:
    def request(member_id: str) -> JoinGroupRequest:
        return JoinGroupRequest(
            group_id="g",
            session_timeout_ms=500,
            rebalance_timeout_ms=5_000,
            member_id=member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name=strategy, metadata=b"\xff")],
        )

    settings = {"partition_assignment_strategy": strategy}
    async with (
        broker(tmp_path) as server,
        connect(server.port) as stranger,
        connect(server.port) as writer,
        member(server, **settings) as consumer,
    ):
        consumer.subscribe(["t"])
        await join(consumer)
        generation = consumer._member.identity().epoch  # type: ignore[union-attr]
        member_id = (await stranger.ask(request(""), JOIN_VERSION)).member_id
        stranger.send(request(member_id), JOIN_VERSION)
        async with asyncio.timeout(20):
            while consumer._member.identity().epoch == generation:  # type: ignore[union-attr]
                assert await consumer.poll(timeout_ms=50) == []
        await join(consumer)
        await produce(writer, "t", batch([b"late"]))
        got: list[ConsumerRecord] = []
        async with asyncio.timeout(20):
            while not got:
                got = await consumer.poll(timeout_ms=200)
        assert [record.value for record in got] == [b"late"]


async def beating(consumer: Consumer) -> Any:
    """The classic member behind a consumer, once it has an assignment."""
    await join(consumer)
    return consumer._member


async def test_who_was_thrown_out_while_he_was_to_give_up_comes_back(tmp_path: Path) -> None:
    """A rebalance began and the user did not poll until the member had to leave.

    What was lost meanwhile was noticed too late, the next assignment was never taken up, and the
    member stayed in the group with partitions that nobody read.
    """
    async with (
        broker(tmp_path) as server,
        member(server, max_poll_interval_ms=1_000) as first,
        member(server) as second,
    ):
        first.subscribe(["t"])
        busy = await beating(first)
        second.subscribe(["t"])
        async with asyncio.timeout(20):
            while not (busy._work and busy._lost):  # Told to give up, and then that it is out.
                await second.poll(timeout_ms=20)
        await second.close()
        async with connect(server.port) as writer:
            await produce(writer, "t", batch([b"late"]))
        records: list[ConsumerRecord] = []
        async with asyncio.timeout(20):
            while not records:
                records += await first.poll(timeout_ms=200)
        assert len(records) == 1


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_long_poll_counts_as_polling(tmp_path: Path, protocol: str) -> None:
    """Nobody leaves the group while his user waits in `poll` for more than the interval."""
    journal = Journal()
    settings: dict[str, Any] = {"max_poll_interval_ms": 2_000, "group_protocol": protocol}
    settings |= {"session_timeout_ms": 30_000}  # Nobody is to be out for another reason.
    async with broker(tmp_path) as server, member(server, **settings) as consumer:
        consumer.subscribe(["t"], listener=journal)
        await join(consumer)
        consumer.pause()  # Nothing is fetched, so nothing wakes the poll.
        await consumer.poll(timeout_ms=4_500)
        await consumer.poll(timeout_ms=0)
        assert journal.told == ["assigned"]


async def test_a_member_that_closes_while_it_joins_leaves(tmp_path: Path) -> None:
    """Else its place, of which it never heard, would stay taken for a session."""
    async with broker(tmp_path) as server:
        consumer = member(server, group_protocol="consumer")
        await consumer.start()
        consumer.subscribe(["t"])
        group = None
        async with asyncio.timeout(20):
            while group is None or not group.members:
                await asyncio.sleep(0)
                shard = server.groups._runtime.shard(0)
                group = None if shard is None else shard.groups.get("g")
        await consumer.close()
        assert not group.members


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_who_is_fenced_by_its_own_instance_stops_reading(
    tmp_path: Path, protocol: str
) -> None:
    """Rule J2: another process has the name and the partitions; the first one must not go on."""
    journal = Journal()
    static = {"group_instance_id": "one", "group_protocol": protocol}
    async with broker(tmp_path) as server, member(server, **static) as first:
        first.subscribe(["t"], listener=journal)
        await join(first)
        async with member(server, **static | {"group_protocol": "classic"}) as second:
            second.subscribe(["t"])
            await join(second)
            with pytest.raises(ClientError) as fenced:
                await poll_on(first)
            assert fenced.value.code is ErrorCode.FENCED_INSTANCE_ID
            assert first.assignment() == set()
            assert journal.told[-1] == "lost"
            assert second.assignment() == {TP}


async def test_what_a_heartbeat_of_the_last_generation_is_told_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was on its way while the member joined again: nothing of the new assignment is lost."""
    async with broker(tmp_path) as server, member(server) as consumer:
        consumer.subscribe(["t"])
        background: Any = await beating(consumer)
        for task in background._tasks:
            task.cancel()
        background._beating = True
        joined_again = False

        async def late(request: Any, *_: Any, **__: Any) -> HeartbeatResponse:
            if joined_again:
                background._generation += 1
            return HeartbeatResponse(error_code=int(ErrorCode.ILLEGAL_GENERATION))

        monkeypatch.setattr(background.coordinator, "ask_once", late)
        with pytest.raises(ClientError):
            await background._beat()
        joined_again = True
        await background._beat()


async def test_what_is_lost_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a group that is empty by now even an outsider's commit would be taken."""
    async with broker(tmp_path) as server, member(server) as consumer:
        consumer.subscribe(["t"])
        background: Any = await beating(consumer)
        commits = []

        async def commit(offsets: Any, **_: Any) -> None:
            commits.append(offsets)

        monkeypatch.setattr(background._host, "commit", commit)
        await background._give_up({TP}, lost=True)
        assert commits == []
