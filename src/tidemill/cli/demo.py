"""`tidemill demo`: three brokers, a web site's clicks, a crash, and what Spark makes of it all.

The brokers are real processes on free ports with data of their own. The site-activity pipeline
reads the clicks on Spark and writes its tables and its report; half-way a broker is killed with
SIGKILL. The summary counts on both sides: what went in came out, once.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from cyclopts import App, Parameter

from tidemill.cli.command import command
from tidemill.cli.demo_clicks import PARTITIONS, TOPIC, Site
from tidemill.cli.demo_outlets import PIPELINE, Check, ConsumerOutlet, Outlet, SparkOutlet
from tidemill.cli.exits import CommandError, Exit
from tidemill.cli.options import COMMON, Common
from tidemill.cli.render import QUIET, talk
from tidemill.clock import SystemClock
from tidemill.spark import needs

if TYPE_CHECKING:
    from tidemill.testing.cluster import ProcessCluster

app = App(name="demo")

BROKERS = 3
DOWN_S = 2.0
"""How long the broker that was killed stays away."""
SECONDS_MAX = 60
LIMIT_S = 150
"""When all has to have come out: with the time it takes to clean up, within three minutes."""
RATE_MAX = 20_000
SAME_LINE_EVERY = 10
"""A line that says nothing new is shown only so often."""


class Traffic(NamedTuple):
    """How many clicks there are to be."""

    seconds: float
    rate: int

    @property
    def shown(self) -> str:
        return f"{self.rate:,}/s for {self.seconds:g} s"


@dataclass(frozen=True, slots=True)
class Summary:
    """What went in, what came out."""

    clicks_sent: int
    clicks_per_s: float
    killed: str
    agrees: bool
    counts: list[Check]
    report: str | None = field(default=None, metadata=QUIET)
    seconds: float = 0.0

    @property
    def exit_code(self) -> Exit:
        return Exit.OK if self.agrees else Exit.FAILED


@command(
    app,
    default=True,
    streams=True,
    examples=[
        "tidemill demo --seconds 5 --report today.html",
        "tidemill demo --seconds 2 --rate 500 --no-spark --format json",
    ],
)
async def demo(
    *,
    seconds: Annotated[float, Parameter(help="How long to send clicks.")] = 30.0,
    rate: Annotated[int, Parameter(help="Clicks per second.")] = 1_000,
    spark: Annotated[bool, Parameter(help="Run the pipeline; a consumer reads otherwise.")] = True,
    report: Annotated[Path, Parameter(help="Where the pipeline's report is left.")] = Path(
        "tidemill-demo.html"
    ),
    limit: Annotated[int, Parameter(help="When to give up, in seconds from the start.")] = LIMIT_S,
    common: Common = COMMON,
) -> Summary:
    """Run three brokers, a web site's clicks and a Spark pipeline; kill one; count both sides.

    It ends by itself, takes everything away but the report, and exits with 0 only if what went in
    came out. Without Spark a consumer takes the pipeline's place.
    """
    if not 0 < seconds <= SECONDS_MAX or not 1 <= rate <= RATE_MAX:
        raise CommandError(
            f"--seconds is above 0 and at most {SECONDS_MAX}, --rate 1 to {RATE_MAX:,}", Exit.USAGE
        )
    from tidemill.testing.cluster import ProcessCluster

    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tidemill-demo-", ignore_cleanup_errors=True) as folder:
        (Path(folder) / "brokers").mkdir()
        async with ProcessCluster(Path(folder) / "brokers", BROKERS) as cluster:
            talk(f"{BROKERS} brokers ready after {time.monotonic() - begin:.1f} s")
            talk(f"look: tidemill -b {cluster.bootstrap} topic describe {TOPIC}")
            outlet = choose_outlet(cluster.bootstrap, Path(folder), spark)
            try:
                summary = await run(cluster, outlet, Traffic(seconds, rate), begin + limit, report)
            finally:
                await outlet.stop()
    if not summary.agrees and time.monotonic() > begin + limit:
        talk(
            f"not everything was out after {limit} s. If this machine has other work to do "
            f"(load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores), a larger --limit helps"
        )
    return replace(summary, seconds=time.monotonic() - begin)


def choose_outlet(bootstrap: str, folder: Path, wanted: bool) -> Outlet:
    """Spark where it is wanted and can run; what is missing is said."""
    if not wanted:
        return ConsumerOutlet(bootstrap)
    lacking = needs.missing()
    if lacking is not None:
        talk(f"{lacking.what}, so a consumer reads the clicks instead; for Spark, {lacking.remedy}")
        return ConsumerOutlet(bootstrap)
    outlet = SparkOutlet(bootstrap, folder)
    talk(f"look: tidemill -b {bootstrap} group describe {PIPELINE}.visits")
    talk(f"look: {outlet.page} (Spark's own page, once it is up)")
    return outlet


async def run(
    cluster: ProcessCluster, outlet: Outlet, traffic: Traffic, deadline: float, report: Path
) -> Summary:
    """Drive the traffic and the crash, and compare."""
    from tidemill.client import Admin, Producer
    from tidemill.client.admin_types import NewTopic

    async with Admin(cluster.bootstrap) as admin:
        created = await admin.create_topics([NewTopic(TOPIC, PARTITIONS, BROKERS)])
        created.raise_first()
    clock = SystemClock()
    async with Producer(cluster.bootstrap) as producer:
        site = Site(producer, clock.now_ms)
        await site.send_the_day_so_far()
        talk(f"{site.ledger.sent:,} clicks of the day so far; now {traffic.shown}")
        outlet.start()
        async with shown(site, outlet):
            killed, per_s = await through_a_crash(cluster, site, traffic)
            talk(f"all {site.ledger.sent:,} are acked; waiting until they are out, too")
            await outlet.caught_up(site.ledger, deadline)
            await site.send_the_end()
            counts = await outlet.settle(site.ledger, deadline)
    left = None
    if isinstance(outlet, SparkOutlet):
        today = datetime.fromtimestamp(clock.now_ms() / 1000, UTC).date()
        left = outlet.write_report(report, today)
    return Summary(
        clicks_sent=site.ledger.sent,
        clicks_per_s=per_s,
        killed=f"broker {killed}, for {DOWN_S:g} s",
        agrees=all(each.equal for each in counts) and site.ledger.acked == site.ledger.sent,
        counts=counts,
        report=left,
    )


async def through_a_crash(
    cluster: ProcessCluster, site: Site, traffic: Traffic
) -> tuple[int, float]:
    """The clicks of now, and half-way the death of a leader; its number, and clicks per second."""
    sending = asyncio.create_task(site.send_now(traffic.seconds, traffic.rate))
    try:
        await asyncio.sleep(traffic.seconds / 2)
        victim = await cluster.leader_of(TOPIC, 0)
        talk(f"SIGKILL to broker {victim}, the leader of {TOPIC}-0; the others go on")
        await cluster.kill(victim)
        await asyncio.sleep(DOWN_S)
        await cluster.start(victim)
        talk(f"broker {victim} is back")
        return victim, await sending
    finally:
        sending.cancel()


@asynccontextmanager
async def shown(site: Site, outlet: Outlet) -> AsyncIterator[None]:
    """A line per second: what goes in, what comes out."""

    async def show() -> None:
        before, last = site.ledger.sent, ""
        for second in itertools.count():
            await asyncio.sleep(1)
            sent = site.ledger.sent
            line = f"in {sent - before:>7,}/s   {sent:>9,} sent   {outlet.seen()}"
            if line != last or second % SAME_LINE_EVERY == 0:
                talk(line)
            before, last = sent, line

    showing = asyncio.create_task(show())
    try:
        yield
    finally:
        showing.cancel()
