"""The pictures on the page about copies: what `mirror` and `repartition` have made of a topic."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from datetime import UTC, datetime

from tests.cli.helpers import tidemill
from tests.copying.copies import create, flat, read_all
from tests.spark.pictures import compare, stacked, table

from tidemill.client import Admin, Producer
from tidemill.client.consumer_types import ConsumerRecord
from tidemill.spark.jobs import charts
from tidemill.types import TopicPartition

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
WHO = ["ada", "bob", "eve", "joe", "kay", "mia", "sam", "tim"]


async def order(producer: Producer, minute: int, key: str | None, value: str | None) -> None:
    await producer.send(
        "orders",
        None if value is None else value.encode(),
        key=None if key is None else key.encode(),
        partition=0 if key is None else None,
        headers=(("from", b"web"),) if minute % 2 else (),
        timestamp_ms=int(NOON.replace(minute=minute).timestamp() * 1000),
    )


def shown(records: dict[int, list[ConsumerRecord]]) -> str:
    names = ["partition", "offset", "key", "value", "headers", "time"]
    return table(names, [row(each) for each in flat(records)])


def row(each: ConsumerRecord) -> list[str]:
    headers = ", ".join(f"{name}: {(value or b'').decode()}" for name, value in each.headers)
    time = datetime.fromtimestamp(each.timestamp_ms / 1000, UTC).strftime("%H:%M")
    texts = ["(none)" if part is None else part.decode() for part in (each.key, each.value)]
    return [str(each.partition), str(each.offset), *texts, headers, time]


async def positions(bootstrap: str, topic: str) -> dict[int, int]:
    async with Admin(bootstrap) as admin:
        found = (await admin.list_group_offsets("billing")).raise_first()
    return {
        place.partition: at.offset for place, at in found.items() if at and place.topic == topic
    }


async def test_what_a_mirror_makes_of_a_topic(brokers: tuple[str, str]) -> None:
    """Records without key, without value, without headers among them; two are deleted already."""
    east, west = brokers
    await create(east, "orders", 2)
    async with Producer(east) as producer:
        for minute, key in enumerate(["ada", "bob", "ada", "eve", "ada"]):
            await order(producer, minute, key, f"order {minute}")
        await order(producer, 5, None, "from nobody")
        await order(producer, 6, "eve", None)
    originals = await read_all(east, "orders")
    long = max(originals, key=lambda index: len(originals[index]))
    async with Admin(east) as admin:
        (await admin.delete_records({TopicPartition("orders", long): 2})).raise_first()
        read = {TopicPartition("orders", long): 3, TopicPartition("orders", 1 - long): 1}
        (await admin.alter_group_offsets("billing", read)).raise_first()
    words = ["orders", "--from", east, "--prefix", "east.", "--once", "-b", west]
    assert (await asyncio.to_thread(tidemill, "pipeline", "mirror", *words)).status == 0
    here, there = await positions(west, "east.orders"), await positions(east, "orders")
    assert here[long] == there[long] - 2
    where = [(f"billing-{index}", there[index], here[index]) for index in sorted(there)]
    drawn = stacked(
        ("there: orders", shown(await read_all(east, "orders"))),
        ("here: east.orders", shown(await read_all(west, "east.orders"))),
        ("where the group goes on", table(["group and partition", "there", "here"], where)),
    )
    compare("mirror", drawn)


async def test_what_repartition_makes_of_a_topic(brokers: tuple[str, str]) -> None:
    _, west = brokers
    await create(west, "orders", 2)
    async with Producer(west) as producer:
        for minute in range(24):
            await order(producer, minute, WHO[minute % 8], str(minute // 8 + 1))
    words = ["orders", "orders-6", "-p", "6", "--hand-over", "--yes", "-b", west]
    assert (await asyncio.to_thread(tidemill, "pipeline", "repartition", *words)).status == 0
    parts: list[tuple[str, str]] = []
    rows: dict[str, list[object]] = defaultdict(list)
    for topic in ("orders", "orders-6"):
        found = await read_all(west, topic)
        counts = [(f"partition {index}", len(part)) for index, part in found.items()]
        parts.append((f"{topic}: records", charts.bars(counts)))
        for key in WHO:
            own = [each for each in flat(found) if each.key == key.encode()]
            (index,) = {each.partition for each in own}
            rows[key] += [index, ", ".join(each.value.decode() for each in own)]
    names = ["key", "was in", "in order", "is in", "in order"]
    parts.append(("each key", table(names, [[key, *cells] for key, cells in rows.items()])))
    compare("repartition", stacked(*parts))
