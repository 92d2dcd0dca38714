"""The demo's web site: its visitors, what they click, and a ledger of all that was sent.

There is a day so far, and then the clicks of now, at the rate that was asked for; one in a few
hundred is no click at all, as in life. The last clicks are from a while ahead: they tell the
pipeline that all earlier sessions are over, so that it writes them.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tidemill.client import Producer
    from tidemill.client.batches import Delivery

TOPIC = "clicks"
PARTITIONS = 6
PAGES = ("/", "/search", "/product/7", "/product/42", "/cart", "/checkout", "/help")
VISITORS = 2_000
DAY_SO_FAR_MS = 8 * 3_600_000
DAY_SESSIONS = 2_000
CLICKS_PER_SESSION = (1, 12)
BETWEEN_CLICKS_MS = (2_000, 90_000)
BAD_ONE_IN = 400
CLOSING_CLICKS = PARTITIONS
CLOSING_AHEAD_MS = 50 * 60_000
"""More than a session's gap and the watermark's delay, less than brokers refuse."""


class Click(NamedTuple):
    """One click of one visitor."""

    user: str
    page: str
    ms: int
    at_ms: int


@dataclass(slots=True)
class Ledger:
    """What was sent: every click by its id, and every record that is none."""

    ids: set[str] = field(default_factory=set)
    bad: set[bytes] = field(default_factory=set)
    closing: int = 0
    acked: int = 0

    @property
    def sent(self) -> int:
        return len(self.ids) + len(self.bad)

    @property
    def over(self) -> int:
        """Clicks of sessions that are over."""
        return len(self.ids) - self.closing


class Site:
    """Makes clicks and sends them."""

    def __init__(self, producer: Producer, now_ms: Callable[[], int], seed: int = 7) -> None:
        self.ledger = Ledger()
        self._producer = producer
        self._now_ms = now_ms
        self._chance = random.Random(seed)

    async def send_the_day_so_far(self) -> None:
        """In the order of their times, and all of it before anybody reads."""
        for click in sorted(self._past_clicks(), key=lambda click: click.at_ms):
            await self._send(click)
        await self._producer.flush()

    async def send_now(self, seconds: float, rate: int) -> float:
        """Clicks of this moment, as many per second as were asked for; how many there were."""
        begin = time.perf_counter()
        for number in range(int(seconds * rate)):
            if self._chance.randrange(BAD_ONE_IN) == 0:
                await self._send_bad()
            else:
                await self._send(self._click(self._now_ms()))
            ahead_s = number / rate - (time.perf_counter() - begin)
            if ahead_s > 0.01:
                await asyncio.sleep(ahead_s)
        per_s = int(seconds * rate) / (time.perf_counter() - begin)
        await self._producer.flush()
        return per_s

    async def send_the_end(self) -> None:
        """A click in each partition from a while ahead. Everything else has been read by now: what
        came after one of these would be too late for the pipeline."""
        at_ms = self._now_ms() + CLOSING_AHEAD_MS
        for partition in range(CLOSING_CLICKS):
            click = Click(f"late-visitor-{partition}", PAGES[0], 1, at_ms)
            await self._send(click, partition=partition)
            self.ledger.closing += 1
        await self._producer.flush()

    def _past_clicks(self) -> Iterator[Click]:
        until_ms = self._now_ms()
        for _ in range(DAY_SESSIONS):
            # More of them towards now than in the small hours.
            ago = 1 - self._chance.betavariate(3, 1.5)
            at_ms = until_ms - int(ago * DAY_SO_FAR_MS)
            user = self._visitor()
            for _ in range(self._chance.randint(*CLICKS_PER_SESSION)):
                if at_ms > until_ms:
                    break
                yield self._click(at_ms, user)
                at_ms += self._chance.randint(*BETWEEN_CLICKS_MS)

    def _visitor(self) -> str:
        return f"visitor-{self._chance.randrange(VISITORS)}"

    def _click(self, at_ms: int, user: str | None = None) -> Click:
        page = self._chance.choices(PAGES, weights=range(len(PAGES), 0, -1))[0]
        return Click(user or self._visitor(), page, self._chance.randrange(20, 900), at_ms)

    async def _send(self, click: Click, partition: int | None = None) -> None:
        """The record has the click's own time: the pipeline refuses clicks from ahead of it."""
        number = str(len(self.ledger.ids))
        at = datetime.fromtimestamp(click.at_ms / 1000, UTC).isoformat()
        content = {**click._asdict(), "id": number, "at": at}
        del content["at_ms"]
        self.ledger.ids.add(number)
        value = json.dumps(content).encode()
        await self._hand_over(click.user.encode(), value, partition, click.at_ms)

    async def _send_bad(self) -> None:
        """Half of a record, or one of nobody."""
        number = len(self.ledger.bad)
        text = f'{{"id": "bad-{number}", "page": "/"' + ("" if number % 2 else "}")
        self.ledger.bad.add(text.encode())
        await self._hand_over(None, text.encode())

    async def _hand_over(
        self,
        key: bytes | None,
        value: bytes,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        from tidemill.client.errors import BufferFullError

        while True:
            try:
                delivery = self._producer.send_soon(
                    TOPIC, value, key=key, partition=partition, timestamp_ms=timestamp_ms
                )
                break
            except BufferFullError:
                await self._producer.wait_for_room()
        delivery.add_done_callback(self._delivered)

    def _delivered(self, delivery: Delivery) -> None:
        self.ledger.acked += delivery.exception() is None
