"""`tidemill demo`: a broker, click traffic with a rate you see, a crash, and what came out.

The broker is a real process on a free port with a data directory of its own. Half-way it is killed
with SIGKILL and started again, under load: the summary shows that what went in came out, once.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from tidemill.cli.command import command
from tidemill.cli.exits import CommandError, Exit
from tidemill.cli.options import COMMON, Common
from tidemill.cli.render import human_bytes, talk
from tidemill.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.client import Consumer, Producer
    from tidemill.testing.process import BrokerProcess

app = App(name="demo")

TOPIC = "clicks"
PARTITIONS = 6
PAGES = ("/", "/search", "/product/7", "/product/42", "/cart", "/checkout", "/help")
CATCH_UP_LIMIT_S = 30
SECONDS_MAX = 600


@dataclass(frozen=True, slots=True)
class Page:
    """One page's clicks on both sides of the broker."""

    page: str
    sent: int
    received: int


@dataclass(frozen=True, slots=True)
class Summary:
    """What went in, what came out."""

    sent: int
    acked: int
    received: int
    duplicates: int
    records_per_s: float
    crashes: int
    log_size: str
    pages: list[Page]


@dataclass(slots=True)
class Tally:
    """Counts while the demo runs."""

    sent: Counter[str] = field(default_factory=Counter)
    received: Counter[str] = field(default_factory=Counter)
    seen: set[int] = field(default_factory=set)
    acked: int = 0
    duplicates: int = 0
    all_sent: bool = False

    def receive(self, value: bytes) -> None:
        click = json.loads(value)
        if click["id"] in self.seen:
            self.duplicates += 1
        self.seen.add(click["id"])
        self.received[click["page"]] += 1

    @property
    def agrees(self) -> bool:
        return self.sent == self.received and not self.duplicates


def clicks(seed: int = 7) -> Iterator[tuple[bytes, str, bytes]]:
    """Endless click events: (key, page, value)."""
    chance = random.Random(seed)
    number = 0
    while True:
        user = f"user-{chance.randrange(500)}"
        page = chance.choices(PAGES, weights=range(len(PAGES), 0, -1))[0]
        click = {"id": number, "user": user, "page": page, "ms": chance.randrange(20, 900)}
        yield user.encode(), page, json.dumps(click).encode()
        number += 1


@command(
    app,
    default=True,
    streams=True,
    examples=["tidemill demo --seconds 2", "tidemill demo --seconds 2 --rate 500 --format json"],
)
async def demo(
    *,
    seconds: Annotated[float, Parameter(help="How long to send clicks.")] = 10.0,
    rate: Annotated[int, Parameter(help="Clicks per second.")] = 5_000,
    common: Common = COMMON,
) -> Summary:
    """Run a broker, send click traffic through it, crash it on the way, and compare."""
    if not 0 < seconds <= SECONDS_MAX or rate < 1:
        raise CommandError(f"--seconds is above 0 and at most {SECONDS_MAX}, --rate at least 1")
    from tidemill.testing.process import BrokerProcess

    with tempfile.TemporaryDirectory(prefix="tidemill-demo-") as folder:
        broker = BrokerProcess(Path(folder) / "data")
        begin = time.perf_counter()
        await asyncio.to_thread(broker.start)
        talk(f"broker ready on {broker.bootstrap} after {time.perf_counter() - begin:.2f} s")
        try:
            return await run(broker, seconds, rate)
        finally:
            await asyncio.to_thread(broker.stop)


async def run(broker: BrokerProcess, seconds: float, rate: int) -> Summary:
    """Drive the traffic and the crash; fails unless what went in came out."""
    from tidemill.client import Admin, Consumer, Producer
    from tidemill.client.admin_types import NewTopic

    async with Admin(broker.bootstrap) as admin:
        created = await admin.create_topics([NewTopic(TOPIC, PARTITIONS)])
        created.raise_first()
    tally = Tally()
    async with Producer(broker.bootstrap) as producer, Consumer(broker.bootstrap) as consumer:
        consumer.assign([TopicPartition(TOPIC, index) for index in range(PARTITIONS)])
        consumer.seek_to_beginning(*consumer.assignment())
        begin = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            sending = group.create_task(send(producer, tally, seconds, rate))
            reading = group.create_task(read(consumer, tally))
            showing = group.create_task(show_rates(tally))
            await asyncio.sleep(seconds / 2)
            await crash(broker)
            await sending
            elapsed = time.perf_counter() - begin
            tally.all_sent = True
            await asyncio.wait([reading], timeout=CATCH_UP_LIMIT_S)
            reading.cancel()
            showing.cancel()
    summary = summarise(tally, elapsed, broker.data_dir)
    if not tally.agrees:
        raise CommandError(f"in and out differ: {summary}", Exit.FAILED)
    return summary


async def send(producer: Producer, tally: Tally, seconds: float, rate: int) -> None:
    begin = time.perf_counter()
    source = clicks()
    count = int(seconds * rate)

    def delivered(_: object) -> None:
        tally.acked += 1

    for number in range(count):
        key, page, value = next(source)
        producer.send_soon(TOPIC, value, key=key).add_done_callback(delivered)
        tally.sent[page] += 1
        ahead_s = number / rate - (time.perf_counter() - begin)
        if ahead_s > 0.01:
            await asyncio.sleep(ahead_s)
    await producer.flush()


async def read(consumer: Consumer, tally: Tally) -> None:
    """Read until everything that was sent has come back."""
    while not (tally.all_sent and tally.received.total() >= tally.sent.total()):
        for record in await consumer.poll(timeout_ms=100):
            tally.receive(record.value)


async def show_rates(tally: Tally) -> None:
    before_in = before_out = 0
    while True:
        await asyncio.sleep(1)
        sent, received = tally.sent.total(), tally.received.total()
        talk(f"in {sent - before_in:>7,}/s   out {received - before_out:>7,}/s   {sent:>9,} sent")
        before_in, before_out = sent, received


async def crash(broker: BrokerProcess) -> None:
    talk("SIGKILL to the broker; starting it again on the same data")
    await asyncio.to_thread(broker.kill)
    begin = time.perf_counter()
    await asyncio.to_thread(broker.start)
    talk(f"back after {time.perf_counter() - begin:.2f} s")


def summarise(tally: Tally, elapsed_s: float, data_dir: Path) -> Summary:
    return Summary(
        sent=tally.sent.total(),
        acked=tally.acked,
        received=tally.received.total(),
        duplicates=tally.duplicates,
        records_per_s=tally.sent.total() / elapsed_s,
        crashes=1,
        log_size=human_bytes(sum(path.stat().st_size for path in data_dir.rglob("*.log"))),
        pages=[
            Page(page, tally.sent[page], tally.received[page])
            for page, _ in tally.sent.most_common()
        ],
    )
