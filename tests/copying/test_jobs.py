"""Mirror and repartition against real brokers: killed in the middle, with producers at work."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.helpers import environment
from tests.cli.ups import eventually

from tidemill.client import Admin, Consumer, Producer
from tidemill.client.admin_types import ConfigResource, NewTopic, OffsetSpec
from tidemill.client.consumer_types import ConsumerRecord
from tidemill.client.errors import ClientError
from tidemill.client.partitioner import positive_hash
from tidemill.copying import jobs, reading, store
from tidemill.copying.checkpoints import content_of
from tidemill.copying.routes import Route, by_key, same_partition
from tidemill.copying.topics import CopyError
from tidemill.errors import ErrorCode
from tidemill.testing.process import BrokerProcess
from tidemill.types import TopicPartition


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    here = tmp_path_factory.mktemp("copying")
    with BrokerProcess(here / "east") as east, BrokerProcess(here / "west") as west:
        yield east.bootstrap, west.bootstrap


def quiet(text: str) -> None:
    """Jobs tell; tests do not listen."""


async def create(bootstrap: str, name: str, partitions: int, **configs: str) -> None:
    dotted = {key.replace("_", "."): value for key, value in configs.items()}
    async with Admin(bootstrap) as admin:
        topic = NewTopic(name, partitions, configs=dotted)
        (await admin.create_topics([topic])).raise_first()


async def read_all(bootstrap: str, name: str) -> dict[int, list[ConsumerRecord]]:
    """A topic's records by partition."""
    async with Admin(bootstrap) as admin, Consumer(bootstrap) as consumer:
        described = (await admin.describe_topics([name])).raise_first()[name]
        places = [TopicPartition(name, each.index) for each in described.partitions]
        ends = await reading.latest(admin, places)
        starts = await admin.list_offsets(dict.fromkeys(places, OffsetSpec.EARLIEST))
        found = {}
        for place, first in starts.raise_first().items():
            records = await reading.read_range(consumer, place, first.offset, ends[place])
            found[place.partition] = records
        return found


def _flat(parts: dict[int, list[Any]]) -> list[Any]:
    return [each for part in parts.values() for each in part]


def contents(records: dict[int, list[ConsumerRecord]]) -> dict[int, list[Any]]:
    return {index: [content_of(each) for each in part] for index, part in records.items()}


async def produce(bootstrap: str, name: str, start: int, count: int) -> None:
    """Numbered records: with and without keys, values and headers, of all times."""
    async with Producer(bootstrap) as producer:
        await producer.partitions_for(name)
        for number in range(start, start + count):
            producer.send_soon(
                name,
                None if number % 10 == 9 else f"value-{number}".encode(),
                key=f"key-{number % 17}".encode() if number % 10 else None,
                headers=(("n", str(number).encode()), ("n", None)) if number % 3 else (),
                timestamp_ms=1_700_000_000_000 + number,
            )
        await producer.flush()


def command(module: str, *words: str) -> subprocess.Popen[bytes]:
    """`tidemill pipeline mirror|repartition` in a process of its own, to be killed."""
    program = f"from tidemill.cli.{module} import app; app(result_action='return_value')"
    return subprocess.Popen(
        [sys.executable, "-c", program, *words],
        env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


async def mirror_once(east: str, west: str, *topics: str, prefix: str = "") -> jobs.Mirrored:
    done = jobs.Mirrored()
    settings = jobs.MirrorSettings(jobs.Place(east), jobs.Place(west), topics, prefix, once=True)
    await jobs.mirror(settings, quiet, done)
    return done


async def test_a_mirror_has_the_same_records_settings_and_positions(
    brokers: tuple[str, str],
) -> None:
    east, west = brokers
    await create(east, "kept", 3, retention_ms="-1")
    await produce(east, "kept", 0, 300)
    first = TopicPartition("kept", 0)
    async with Admin(east) as admin:
        (await admin.delete_records({first: 20})).raise_first()
        (await admin.alter_group_offsets("readers", {first: 50})).raise_first()
    done = await mirror_once(east, west, "kept")
    originals, copies = await read_all(east, "kept"), await read_all(west, "kept")
    assert contents(copies) == contents(originals)
    assert done.records == sum(map(len, originals.values()))
    async with Admin(west) as admin:
        offsets = (await admin.list_group_offsets("readers")).raise_first()
        resource = ConfigResource.topic("kept")
        settings = (await admin.describe_configs([resource])).raise_first()[resource]
    moved = offsets[first]
    assert moved is not None
    assert moved.offset == 30, "the first 20 records were gone before the mirror began"
    assert settings["retention.ms"].value == "-1"


async def test_a_mirror_that_is_killed_goes_on_where_it_stopped(brokers: tuple[str, str]) -> None:
    """Again and again, while a producer writes: in the end nothing is missing and nothing twice."""
    east, west = brokers
    await create(east, "killed", 2)
    chance = random.Random(5)
    for start in range(0, 4_000, 1_000):
        process = command("mirror", "killed", "--from", east, "-b", west)
        await produce(east, "killed", start, 1_000)
        await asyncio.sleep(0.8 + chance.random())  # Python starts, and a crash comes at any time.
        end(process)
    resumed = await mirror_once(east, west, "killed")
    assert resumed.records < 4_000, "the killed ones have done nothing"
    assert contents(await read_all(west, "killed")) == contents(await read_all(east, "killed"))


@pytest.mark.parametrize(("kind", "route"), [("mirror", same_partition), ("spread", by_key(3))])
async def test_a_crash_between_records_and_their_checkpoint_copies_nothing_twice(
    brokers: tuple[str, str], monkeypatch: pytest.MonkeyPatch, kind: str, route: Route
) -> None:
    """The target then holds what no checkpoint speaks of; new records come in meanwhile."""
    east, west = brokers
    name = f"torn-{kind}"
    await create(east, name, 3)
    await create(west, name, 3)
    await produce(east, name, 0, 200)

    def crash(*_: object) -> None:
        raise ConnectionAbortedError

    async with jobs.clients(jobs.Place(east), jobs.Place(west)) as use:
        copier = await jobs._open(use, name, [(name, name, route)])
        with monkeypatch.context() as patch:
            patch.setattr(store, "keep", crash)
            with pytest.raises(ConnectionAbortedError):
                await copier.step(5_000)
        held = sum(map(len, (await read_all(west, name)).values()))
        assert held > 0
        await produce(east, name, 200, 100)
        resumed = await jobs._open(use, name, [(name, name, route)])
        while await resumed.step(1_000):
            pass
        assert sum(copy.copied for copy in resumed.copies) == 300 - held
    originals, copies = await read_all(east, name), await read_all(west, name)
    assert sorted(_flat(contents(copies)), key=repr) == sorted(_flat(contents(originals)), key=repr)


async def test_a_mirror_grows_with_its_original(brokers: tuple[str, str]) -> None:
    from tidemill.client.admin_types import NewPartitions

    east, west = brokers
    await create(east, "growing", 1)
    await produce(east, "growing", 0, 50)
    await mirror_once(east, west, "growing")
    async with Admin(east) as admin:
        (await admin.create_partitions({"growing": NewPartitions(3)})).raise_first()
    await produce(east, "growing", 50, 200)
    await mirror_once(east, west, "growing")
    assert contents(await read_all(west, "growing")) == contents(await read_all(east, "growing"))


async def test_a_second_writer_is_noticed(brokers: tuple[str, str]) -> None:
    east, west = brokers
    await create(east, "alone", 1)
    await produce(east, "alone", 0, 10)
    async with jobs.clients(jobs.Place(east), jobs.Place(west)) as use:
        await create(west, "alone", 1)
        copier = await jobs._open(use, "test", [("alone", "alone", lambda record: 0)])
        assert await copier.step(5_000) == 10
        await produce(west, "alone", 0, 1)
        await produce(east, "alone", 10, 10)
        with pytest.raises(CopyError, match="somebody else writes to it"):
            await copier.step(5_000)


async def test_a_target_with_records_of_unknown_origin_is_refused(brokers: tuple[str, str]) -> None:
    east, west = brokers
    await create(east, "strange", 1)
    await create(west, "strange", 1)
    await produce(west, "strange", 0, 1)
    with pytest.raises(CopyError, match="holds records already"):
        await mirror_once(east, west, "strange")


async def test_one_cluster_needs_a_prefix(brokers: tuple[str, str]) -> None:
    east, _ = brokers
    await create(east, "self", 1)
    await produce(east, "self", 0, 5)
    with pytest.raises(CopyError, match="one cluster"):
        await mirror_once(east, east, "self")
    assert (await mirror_once(east, east, "self", prefix="copy.")).records == 5


# --- repartition ---------------------------------------------------------------------------------


class LiveProducer:
    """Writes numbered records of many keys, one after the other, and changes topics when told."""

    def __init__(self, bootstrap: str, old: str, new: str, keys: int) -> None:
        self._bootstrap = bootstrap
        self._topics = [old, new]
        self._handed_over = asyncio.Event()
        self._ending = False
        self.next = dict.fromkeys((f"key-{n}".encode() for n in range(keys)), 0)
        self.refused = 0
        self.written_to_new = 0

    async def run(self) -> None:
        async with Producer(self._bootstrap) as producer:
            topic = self._topics[0]
            while not (self._ending and self.written_to_new >= len(self.next)):
                for key, number in self.next.items():
                    topic = await self._send(producer, topic, key, str(number).encode())
                    self.next[key] = number + 1
                    self.written_to_new += topic == self._topics[1]

    async def _send(self, producer: Producer, topic: str, key: bytes, value: bytes) -> str:
        try:
            await producer.send(topic, value, key=key)
        except ClientError as error:
            if error.code is not ErrorCode.MESSAGE_TOO_LARGE:
                raise
            self.refused += 1
            await self._handed_over.wait()
            topic = self._topics[1]
            await producer.send(topic, value, key=key)
        return topic

    def hand_over(self) -> None:
        self._handed_over.set()

    def end(self) -> None:
        self._ending = True


def check_keys(records: dict[int, list[ConsumerRecord]], counts: dict[bytes, int]) -> None:
    """Each key in one partition, the one producers choose; its records once and in order."""
    numbers: dict[bytes, list[int]] = defaultdict(list)
    for index, part in records.items():
        for each in part:
            assert positive_hash(each.key) % len(records) == index
            numbers[each.key].append(int(each.value))
    assert numbers == {key: list(range(count)) for key, count in counts.items()}


async def test_a_topic_is_handed_over_under_a_live_producer(brokers: tuple[str, str]) -> None:
    """Killed while copying, resumed, sealed, finished: no loss, no reordering within a key."""
    east, _ = brokers
    await create(east, "old", 2)
    live = LiveProducer(east, "old", "new", keys=40)
    writing = asyncio.ensure_future(live.run())
    for _ in range(2):
        process = command("repartition", "old", "new", "-p", "8", "-b", east)
        await asyncio.sleep(1.5)
        end(process)
    done = jobs.Repartitioned()
    place = jobs.Place(east)
    settings = jobs.RepartitionSettings(place, "old", "new", 8, hand_over=True)
    await jobs.repartition(settings, quiet, done)
    assert done.handed_over
    assert 0 < done.refused_ms < 60_000
    live.hand_over()
    live.end()
    await asyncio.wait_for(writing, 60)
    assert live.refused == 1
    check_keys(await read_all(east, "new"), live.next)


async def test_a_groups_backlog_moves_and_what_it_has_read_does_not(
    brokers: tuple[str, str],
) -> None:
    east, _ = brokers
    await create(east, "backlog", 2)
    await produce(east, "backlog", 0, 400)
    positions = {TopicPartition("backlog", 0): 100, TopicPartition("backlog", 1): 60}
    async with Admin(east) as admin:
        (await admin.alter_group_offsets("slow", positions)).raise_first()
    done = jobs.Repartitioned()
    settings = jobs.RepartitionSettings(
        jobs.Place(east), "backlog", "backlog-6", 6, group="slow", once=True
    )
    await jobs.repartition(settings, quiet, done)
    originals = await read_all(east, "backlog")
    left = [
        content_of(each)
        for index, part in originals.items()
        for each in part
        if each.offset >= positions[TopicPartition("backlog", index)]
    ]
    copies = [
        each for part in contents(await read_all(east, "backlog-6")).values() for each in part
    ]
    assert sorted(copies, key=repr) == sorted(left, key=repr)


async def test_a_group_with_members_is_not_moved(brokers: tuple[str, str]) -> None:
    east, _ = brokers
    await create(east, "busy", 1)
    async with Consumer(east, group_id="busy-readers") as consumer:
        consumer.subscribe(["busy"])
        await consumer.poll(timeout_ms=5_000)
        settings = jobs.RepartitionSettings(
            jobs.Place(east), "busy", "busy-2", 2, group="busy-readers", once=True
        )
        with pytest.raises(CopyError, match="has members"):
            await jobs.repartition(settings, quiet, jobs.Repartitioned())


def test_the_command_says_what_it_did(brokers: tuple[str, str], tmp_path: Path) -> None:
    """As a user runs it; a sealed topic refuses records, and the new one has them all."""
    from tests.cli.helpers import quick

    east, _ = brokers
    asyncio.run(create(east, "sold", 1))
    quick("produce", "sold", "-K:", "-b", east, stdin="a:1\nb:2\n")
    process = command("repartition", "sold", "sold-4", "-p", "4", "--hand-over", "-y", "-b", east)
    assert process.wait(60) == 0
    assert quick("produce", "sold", "-b", east, stdin="late\n").status != 0
    eventually(lambda: "2" in quick("consume", "sold-4", "-o", "start", "-e", "-b", east).out)
