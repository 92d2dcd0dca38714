"""Topics to copy and what became of them, for tests of `mirror` and `repartition`."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

from tidemill.client import Admin, Consumer, Producer
from tidemill.client.admin_types import NewTopic, OffsetSpec
from tidemill.client.consumer_types import ConsumerRecord
from tidemill.client.errors import ClientError
from tidemill.client.partitioner import positive_hash
from tidemill.copying import jobs, reading
from tidemill.copying.checkpoints import content_of
from tidemill.errors import ErrorCode
from tidemill.types import TopicPartition


def quiet(text: str) -> None:
    """Jobs tell; tests do not listen."""


async def create(bootstrap: str, name: str, partitions: int, **configs: str) -> None:
    """With as many replicas as the brokers give a topic by default."""
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


def flat(parts: dict[int, list[Any]]) -> list[Any]:
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


async def mirror_once(east: str, west: str, *topics: str, prefix: str = "") -> jobs.Mirrored:
    done = jobs.Mirrored()
    settings = jobs.MirrorSettings(jobs.Place(east), jobs.Place(west), topics, prefix, once=True)
    await jobs.mirror(settings, quiet, done)
    return done


# --- a producer that is handed over ---------------------------------------------------------------


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
    wrong = {
        key: (numbers[key], count)
        for key, count in counts.items()
        if numbers[key] != list(range(count))
    }
    assert wrong == {}, f"what came, and how many were sent: {wrong}"
    assert numbers.keys() == counts.keys()
