"""What is known after a trial: what clients were told, what consumers got, what the log holds."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tidemill.client import Admin, Consumer
from tidemill.client.admin_types import OffsetSpec
from tidemill.clock import SystemClock
from tidemill.testing.history import History, Value
from tidemill.types import TopicPartition

READ_TIMEOUT_S = 120.0
POLL_MS = 200
QUIET_S = 15.0
"""Consumers that got nothing for so long get nothing more."""


class Place(NamedTuple):
    """A record as a consumer sees it."""

    partition: int
    offset: int
    value: Value


class Rank(NamedTuple):
    """Which producer sent a record, and as its how-many-th."""

    producer: str
    number: int


def key_of(topic: str, partition: int) -> str:
    """A partition's name in a history."""
    return f"{topic}-{partition}"


@dataclass(slots=True)
class Evidence:
    """What clients did and were told, in one trial."""

    history: History = field(default_factory=lambda: History(SystemClock()))
    acked: Counter[Value] = field(default_factory=Counter)
    ranks: dict[Value, Rank] = field(default_factory=dict)
    """Known where a record says by its value when it was sent; no order is judged without."""
    failed: int = 0
    """Records of which the producer was told that they were not written."""
    delivered: Counter[Place] = field(default_factory=Counter)
    knows_acks: bool = True
    knows_deliveries: bool = True
    values_are_unique: bool = True
    ack_times_ms: list[int] = field(default_factory=list)
    """Or, where nobody says what was acknowledged, when records became visible."""
    longest_read_pause_ms: int = 0
    watched: set[Place] = field(default_factory=set)
    """What a reader of ours saw while the trial ran, where nobody says what was acknowledged."""
    restarts: int = 0
    """How often a user's program had to be started again."""
    notes: list[str] = field(default_factory=list)
    """What a reader of the report should know."""
    _last_read_ms: int | None = None

    def read_now(self, now_ms: int) -> None:
        """Records came to a consumer."""
        if self._last_read_ms is not None:
            pause_ms = now_ms - self._last_read_ms
            self.longest_read_pause_ms = max(self.longest_read_pause_ms, pause_ms)
        self._last_read_ms = now_ms


FinalLog = Mapping[int, list[tuple[int, Value]]]
"""Per partition the records that are there in the end, with their offsets."""


async def read_log(bootstrap: str, topic: str, partitions: int, *, numbers: bool) -> FinalLog:
    """Everything that a topic holds, from its beginning to its end as of now."""
    keys = [TopicPartition(topic, index) for index in range(partitions)]
    async with Admin(bootstrap) as admin:
        asked = await admin.list_offsets(dict.fromkeys(keys, OffsetSpec.LATEST))
        ends = {key: found.offset for key, found in asked.raise_first().items()}
    log: dict[int, list[tuple[int, Value]]] = {key.partition: [] for key in keys}
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(keys)
        consumer.seek_to_beginning(*keys)
        async with asyncio.timeout(READ_TIMEOUT_S):
            while any([await consumer.position(key) < end for key, end in ends.items()]):
                for record in await consumer.poll(timeout_ms=POLL_MS):
                    value = value_of(record.value, numbers=numbers)
                    log[record.partition].append((record.offset, value))
    return log


async def until_delivered(evidence: Evidence, log: FinalLog) -> None:
    """Give consumers time to get everything that is in the log; as long as more comes, that is."""
    wanted = {value for part in log.values() for _, value in part}
    clock = SystemClock()
    got = -1
    news_ms = clock.monotonic_ms()
    while clock.monotonic_ms() - news_ms < QUIET_S * 1000:
        found = {place.value for place in evidence.delivered}
        if wanted <= found:
            return
        if len(found) > got:
            got, news_ms = len(found), clock.monotonic_ms()
        await asyncio.sleep(POLL_MS / 1000)


def value_of(data: bytes | None, *, numbers: bool) -> Value:
    """A record's value as a history has it: the load's are numbers, a program's are text."""
    text = "" if data is None else bytes(data).decode("utf-8", "backslashreplace")
    return int(text) if numbers else text
