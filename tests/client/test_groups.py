"""Membership in groups against real brokers: the same expectations of Tidemill and of Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tidemill.client import Admin, ClientError, Consumer, ConsumerRecord, Producer, blocking
from tidemill.client.admin_types import AlterOp, ConfigResource, NewTopic, ResourceType
from tidemill.client.group_offsets import OffsetAndMetadata
from tidemill.errors import ErrorCode
from tidemill.testing.process import BrokerProcess
from tidemill.types import TopicPartition

CLASSIC: list[dict[str, Any]] = [
    {"partition_assignment_strategy": "range"},
    {"partition_assignment_strategy": "roundrobin"},
    {"partition_assignment_strategy": "sticky"},
    {"partition_assignment_strategy": "cooperative-sticky"},
]
NEWER: list[dict[str, Any]] = [
    {"group_protocol": "consumer"},
    {"group_protocol": "consumer", "group_remote_assignor": "range"},
]
ANY = [CLASSIC[0], CLASSIC[3], NEWER[0]]


QUICK = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.assignment.interval.ms": "0",
}


@pytest.fixture(scope="module")
def tidemill_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker whose groups do not take their time."""
    with BrokerProcess(tmp_path_factory.mktemp("group-broker") / "data", QUICK) as broker:
        yield broker


def name_of(settings: Any) -> str:
    return "-".join(str(value) for value in settings.values())


pytestmark = pytest.mark.timeout(120)

DRAIN_MS = 30_000
"""More than commits in the background ever take."""


async def create(bootstrap: str, topic: str, partitions: int) -> None:
    async with Admin(bootstrap) as admin:
        (await admin.create_topics([NewTopic(topic, partitions, 1)])).raise_first()
        group = ConfigResource(ResourceType.GROUP, group_of(topic))
        often = AlterOp.set("consumer.heartbeat.interval.ms", "200")
        (await admin.alter_configs({group: [often]})).raise_first()


def group_of(topic: str) -> str:
    """A test's group; where it has several topics, they differ after the dot."""
    return f"group-of-{topic.partition('.')[0]}"


async def fill(bootstrap: str, topic: str, count: int, start: int = 0) -> None:
    async with Producer(bootstrap, partitioner="round-robin") as producer:
        for number in range(start, start + count):
            producer.send_soon(topic, b"%d" % number)


def member(bootstrap: str, topic: str, **settings: Any) -> Consumer:
    given: dict[str, Any] = {
        "group_id": group_of(topic),
        "auto_offset_reset": "earliest",
        "heartbeat_interval_ms": 200,
        "session_timeout_ms": 6_000,
    }
    return Consumer(bootstrap, **given | settings)


class Journal:
    """A listener that remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, frozenset[int]]] = []

    def _note(self, what: str, partitions: set[TopicPartition]) -> None:
        self.told.append((what, frozenset(tp.partition for tp in partitions)))

    async def on_assigned(self, partitions: set[TopicPartition]) -> None:
        self._note("assigned", partitions)

    def on_revoked(self, partitions: set[TopicPartition]) -> None:
        self._note("revoked", partitions)

    def on_lost(self, partitions: set[TopicPartition]) -> None:
        self._note("lost", partitions)

    def changes(self) -> list[tuple[str, frozenset[int]]]:
        """What was told of partitions; a round may also end with none."""
        return [each for each in self.told if each[1]]


async def poll_until(
    done: Callable[[], bool], *consumers: Consumer, timeout_s: float = 40
) -> list[ConsumerRecord]:
    """Poll all of them, in turn, until it is so."""
    records: list[ConsumerRecord] = []
    async with asyncio.timeout(timeout_s):
        while not done():
            for consumer in consumers:
                records += await consumer.poll(timeout_ms=50)
    return records


def shares(*consumers: Consumer) -> list[int]:
    return sorted(len(consumer.assignment()) for consumer in consumers)


def disjoint(*consumers: Consumer) -> bool:
    every = [tp for consumer in consumers for tp in consumer.assignment()]
    return len(every) == len(set(every))


@pytest.mark.parametrize("settings", CLASSIC + NEWER, ids=name_of)
async def test_members_share_a_topic_and_lose_nothing(
    bootstrap: str, topic: str, settings: dict[str, Any]
) -> None:
    await create(bootstrap, topic, 4)
    await fill(bootstrap, topic, 200)
    journal = Journal()
    async with member(bootstrap, topic, **settings) as first:
        first.subscribe([topic], listener=journal)
        values = [r.value for r in await poll_until(lambda: shares(first) == [4], first)]
        assert journal.told[0] == ("assigned", frozenset(range(4)))
        async with member(bootstrap, topic, **settings) as second:
            second.subscribe([topic])
            joint = await poll_until(lambda: shares(first, second) == [2, 2], first, second)
            assert disjoint(first, second)
            await fill(bootstrap, topic, 200, start=200)
            values += [r.value for r in joint]

            def all_there() -> bool:
                return len(set(values)) == 400

            async with asyncio.timeout(30):
                while not all_there():
                    for consumer in (first, second):
                        values += [r.value for r in await consumer.poll(timeout_ms=50)]
        await poll_until(lambda: shares(first) == [4], first)
        positions = {tp: await first.position(tp) for tp in first.assignment()}
        assert sum(positions.values()) == 400
    assert sorted(set(values)) == sorted(b"%d" % n for n in range(400))
    assert len(values) == 400, "an orderly rebalance repeats nothing"
    assert any(what == "revoked" for what, _ in journal.told)
    cooperative = settings != CLASSIC[0] and settings != CLASSIC[1] and settings != CLASSIC[2]
    if cooperative:
        assert all(len(parts) < 4 for what, parts in journal.told[:-1] if what == "revoked")


@pytest.mark.parametrize("settings", ANY, ids=name_of)
async def test_a_group_goes_on_where_it_stopped(
    bootstrap: str, topic: str, settings: dict[str, Any]
) -> None:
    await create(bootstrap, topic, 1)
    await fill(bootstrap, topic, 10)
    tp = TopicPartition(topic, 0)
    async with member(bootstrap, topic, **settings) as consumer:
        consumer.subscribe([topic])
        async for record in consumer:
            if record.offset == 5:
                break  # In the middle of what one poll returned: 5 is not done.
    async with member(bootstrap, topic, **settings) as consumer:
        assert await consumer.committed(tp) == {tp: OffsetAndMetadata(5, leader_epoch=0)}
        consumer.subscribe([topic])
        async for record in consumer:
            assert record.offset == 5
            break


@pytest.mark.parametrize("settings", ANY, ids=name_of)
async def test_commits_by_hand(bootstrap: str, topic: str, settings: dict[str, Any]) -> None:
    await create(bootstrap, topic, 2)
    await fill(bootstrap, topic, 10)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    heard: list[Any] = []
    async with member(bootstrap, topic, enable_auto_commit=False, **settings) as consumer:
        consumer.subscribe([topic])
        await poll_until(lambda: shares(consumer) == [2], consumer)
        await consumer.commit({first: OffsetAndMetadata(3, "note")})
        assert await consumer.committed(first, second) == {
            first: OffsetAndMetadata(3, "note"),
            second: None,
        }
        consumer.commit_soon({second: 4}, lambda offsets, error: heard.append((offsets, error)))
        await consumer._grouped().drain(DRAIN_MS)
        assert heard == [({second: OffsetAndMetadata(4)}, None)]
    async with member(bootstrap, topic, **settings) as consumer:
        found = await consumer.committed(first, second)
        assert [at.offset for at in found.values() if at] == [3, 4]


async def test_an_automatic_commit_covers_what_earlier_polls_returned(
    bootstrap: str, topic: str
) -> None:
    await create(bootstrap, topic, 1)
    await fill(bootstrap, topic, 10)
    tp = TopicPartition(topic, 0)
    async with member(bootstrap, topic, auto_commit_interval_ms=0) as consumer:
        consumer.subscribe([topic])
        got: list[ConsumerRecord] = []
        async with asyncio.timeout(30):
            while not got:
                got = await consumer.poll(4, timeout_ms=500)
        await consumer._grouped().drain(DRAIN_MS)
        found = (await consumer.committed(tp))[tp]
        assert found is None or found.offset == 0
        await consumer.poll(1, timeout_ms=500)
        await consumer._grouped().drain(DRAIN_MS)
        assert await consumer.committed(tp) == {tp: OffsetAndMetadata(4, leader_epoch=0)}


async def test_assigned_partitions_begin_where_the_group_committed(
    bootstrap: str, topic: str
) -> None:
    await create(bootstrap, topic, 1)
    await fill(bootstrap, topic, 10)
    tp = TopicPartition(topic, 0)
    async with member(bootstrap, topic, enable_auto_commit=False) as consumer:
        consumer.assign([tp])
        assert await consumer.position(tp) == 0
        await consumer.commit({tp: 7})
    async with member(bootstrap, topic, enable_auto_commit=False) as consumer:
        consumer.assign([tp])
        assert [r.offset for r in await consumer.poll(timeout_ms=5000)] == [7, 8, 9]


@pytest.mark.parametrize("settings", ANY, ids=name_of)
async def test_patterns(bootstrap: str, topic: str, settings: dict[str, Any]) -> None:
    await create(bootstrap, f"{topic}.a", 1)
    await create(bootstrap, f"{topic}.b", 2)
    async with member(bootstrap, topic, metadata_max_age_ms=500, **settings) as consumer:
        consumer.subscribe(pattern=rf"{topic}\.[a-c]")
        await poll_until(lambda: shares(consumer) == [3], consumer)
        await create(bootstrap, f"{topic}.c", 1)
        await poll_until(lambda: shares(consumer) == [4], consumer)


@pytest.mark.parametrize("settings", ANY, ids=name_of)
async def test_wanting_something_else(bootstrap: str, topic: str, settings: dict[str, Any]) -> None:
    other = f"{topic}.other"
    await create(bootstrap, topic, 1)
    await create(bootstrap, other, 1)
    async with member(bootstrap, topic, **settings) as consumer:
        consumer.subscribe([topic])
        await poll_until(lambda: shares(consumer) == [1], consumer)
        consumer.subscribe([other])
        await poll_until(lambda: consumer.assignment() == {TopicPartition(other, 0)}, consumer)
        assert consumer.subscription() == {other}
        await consumer.unsubscribe()
        assert consumer.assignment() == set()


@pytest.mark.parametrize("settings", ANY, ids=name_of)
async def test_who_does_not_poll_is_out_and_comes_back(
    bootstrap: str, topic: str, settings: dict[str, Any]
) -> None:
    await create(bootstrap, topic, 2)
    journal = Journal()
    async with (
        member(bootstrap, topic, max_poll_interval_ms=1500, **settings) as lazy,
        member(bootstrap, topic, **settings) as busy,
    ):
        lazy.subscribe([topic], listener=journal)
        await poll_until(lambda: shares(lazy) == [2], lazy)
        busy.subscribe([topic])
        await poll_until(lambda: shares(lazy, busy) == [1, 1], lazy, busy)
        await poll_until(lambda: shares(busy) == [2], busy)
        await poll_until(lambda: shares(lazy, busy) == [1, 1], lazy, busy)
    assert "lost" in [what for what, _ in journal.told]


@pytest.mark.parametrize("settings", ANY, ids=name_of)
async def test_a_static_member_restarts_without_a_rebalance(
    bootstrap: str, topic: str, settings: dict[str, Any]
) -> None:
    await create(bootstrap, topic, 4)
    journal = Journal()
    settings = {**settings, "session_timeout_ms": 30_000}  # Nobody is away for so long.
    async with member(bootstrap, topic, group_instance_id="one", **settings) as stays:
        stays.subscribe([topic], listener=journal)
        async with member(bootstrap, topic, group_instance_id="two", **settings) as goes:
            goes.subscribe([topic])
            await poll_until(lambda: shares(stays, goes) == [2, 2], stays, goes)
            # The other one may have its share while the last round has not ended for this one.
            await poll_until(lambda: epoch(stays) == epoch(goes), stays, goes)
            had, told, epoch_then = goes.assignment(), journal.changes(), epoch(stays)
        async with member(bootstrap, topic, group_instance_id="two", **settings) as back:
            back.subscribe([topic])
            await poll_until(lambda: len(back.assignment()) == 2, stays, back)
            assert back.assignment() == had
            assert epoch(stays) == epoch(back) == epoch_then
            assert journal.changes() == told


def epoch(consumer: Consumer) -> int:
    """The generation, or epoch, in which a member is."""
    assert consumer._member is not None
    return consumer._member.identity().epoch


async def test_a_listener_may_seek_and_its_error_reaches_the_user(
    bootstrap: str, topic: str
) -> None:
    await create(bootstrap, topic, 1)
    await fill(bootstrap, topic, 5)

    class Seeker(Journal):
        async def on_assigned(self, partitions: set[TopicPartition]) -> None:
            consumer.seek(TopicPartition(topic, 0), 3)
            raise KeyError("mine")

    async with member(bootstrap, topic) as consumer:
        consumer.subscribe([topic], listener=Seeker())
        with pytest.raises(KeyError, match="mine"):
            await poll_until(lambda: False, consumer)
        assert [r.offset for r in await consumer.poll(timeout_ms=5000)] == [3, 4]


async def test_what_cannot_be_mended_is_raised(bootstrap: str, topic: str) -> None:
    await create(bootstrap, topic, 1)
    async with member(bootstrap, topic, session_timeout_ms=5) as consumer:
        consumer.subscribe([topic])
        with pytest.raises(ClientError, match="INVALID_SESSION_TIMEOUT"):
            await poll_until(lambda: False, consumer)
    settings = {"group_protocol": "consumer", "group_remote_assignor": "nonsense"}
    async with member(bootstrap, topic, **settings) as consumer:
        consumer.subscribe([topic])
        with pytest.raises(ClientError, match="UNSUPPORTED_ASSIGNOR"):
            await poll_until(lambda: False, consumer)


async def test_a_late_commit_is_refused(bootstrap: str, topic: str) -> None:
    await create(bootstrap, topic, 1)
    async with member(bootstrap, topic) as consumer, member(bootstrap, topic) as outsider:
        consumer.subscribe([topic])
        await poll_until(lambda: shares(consumer) == [1], consumer)
        with pytest.raises(ClientError, match="were not committed"):
            await outsider.commit({TopicPartition(topic, 0): 1})


async def test_what_does_not_go_together(bootstrap: str, topic: str) -> None:
    async with Consumer(bootstrap) as loner:
        with pytest.raises(ValueError, match=r"group\.id"):
            loner.subscribe([topic])
        with pytest.raises(ValueError, match=r"group\.id"):
            await loner.commit()
    async with member(bootstrap, topic) as consumer:
        with pytest.raises(ValueError, match="one of the two"):
            consumer.subscribe()
        consumer.subscribe(topic)
        assert consumer.subscription() == {topic}
        with pytest.raises(ValueError, match="unsubscribe"):
            consumer.assign([(topic, 0)])


def test_the_blocking_twin_in_a_group(bootstrap: str, topic: str) -> None:
    asyncio.run(create(bootstrap, topic, 2))
    asyncio.run(fill(bootstrap, topic, 20))
    settings: dict[str, Any] = {"group_id": topic, "auto_offset_reset": "earliest"}
    with blocking.Consumer(bootstrap, **settings) as consumer:
        consumer.subscribe([topic])
        seen = set()
        for record in consumer:
            seen.add(record.value)
            if len(seen) == 20:
                break
        consumer.commit()
        found = consumer.committed()
        assert sum(at.offset for at in found.values() if at) == 19
        assert consumer.subscription() == {topic}
        consumer.unsubscribe()


async def read(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    records: list[ConsumerRecord] = []
    async with asyncio.timeout(40):
        while len(records) < count:
            records += await consumer.poll(timeout_ms=50)
    return records


async def make_again(bootstrap: str, topic: str) -> None:
    async with Admin(bootstrap) as admin:
        (await admin.delete_topics([topic])).raise_first()
    await create(bootstrap, topic, 1)


@pytest.mark.parametrize("settings", ANY, ids=name_of)
async def test_a_topic_that_is_made_again_is_read_from_its_beginning(
    bootstrap: str, topic: str, settings: dict[str, Any]
) -> None:
    """Positions and commits of the topic that was deleted mean nothing in the new one."""
    await create(bootstrap, topic, 1)
    await fill(bootstrap, topic, 10)
    partition = TopicPartition(topic, 0)
    quick = {"metadata_max_age_ms": 500, "auto_commit_interval_ms": 100}
    quick |= {"allow_auto_create_topics": False}  # Else it would make the topic again itself.
    async with member(bootstrap, topic, **settings, **quick) as consumer:
        consumer.subscribe([topic])
        await read(consumer, 10)
        await consumer.commit()
        await make_again(bootstrap, topic)
        await fill(bootstrap, topic, 20, start=100)
        records = await read(consumer, 20)
        assert [record.offset for record in records] == list(range(20))
        assert [record.value for record in records] == [b"%d" % n for n in range(100, 120)]
        await consumer.commit()
        committed = (await consumer.committed(partition))[partition]
        assert committed is not None
        assert committed.offset == 20


async def test_a_late_commit_is_not_one_for_the_topic_s_successor(
    bootstrap: str, topic: str
) -> None:
    await create(bootstrap, topic, 1)
    await fill(bootstrap, topic, 5)
    partition = TopicPartition(topic, 0)
    settings: dict[str, Any] = {"group_id": topic, "auto_offset_reset": "earliest"}
    settings |= {"allow_auto_create_topics": False}  # Else it would make the topic again itself.
    async with Consumer(bootstrap, **settings) as consumer:
        consumer.assign([partition])
        await read(consumer, 5)
        late = consumer._committable()
        assert late[partition].topic_id.int
        await make_again(bootstrap, topic)
        with pytest.raises(ClientError) as refused:
            await consumer.commit(late)
        assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_ID
        assert (await consumer.committed(partition))[partition] is None
