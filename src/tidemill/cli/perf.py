"""`tidemill perf`: how fast do records go in, how fast do they come out."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from cyclopts import App, Parameter

from tidemill.cli import workload
from tidemill.cli.command import command
from tidemill.cli.exits import CommandError, Exit
from tidemill.cli.latency import Summary, total_line
from tidemill.cli.options import COMMON, Common, DryRun, TopicName
from tidemill.cli.produce import Acks, Compression, producer_settings
from tidemill.cli.render import Note, talk
from tidemill.types import TopicPartition

app = App(name="perf")

PAYLOADS = 64
"""Distinct values that are sent in turn: enough that a codec does not see one value over and over,
few enough that making them costs nothing."""


@dataclass(frozen=True, slots=True)
class ConsumeReport:
    """What `perf consume` measured."""

    topic: str
    records: int
    mb: float
    seconds: float
    records_per_s: float
    mb_per_s: float


@command(
    app,
    mutates=True,
    fast_loop=True,
    examples=[
        "tidemill perf produce clicks --records 10000 --size 100",
        "tidemill perf produce clicks -n 2000 --throughput 2000 --acks 1 --format json",
    ],
)
async def produce(
    topic: TopicName,
    /,
    *,
    records: Annotated[
        int, Parameter(name=("--records", "-n"), help="How many to send.")
    ] = 1_000_000,
    size: Annotated[int, Parameter(help="Bytes per value.")] = 100,
    throughput: Annotated[float, Parameter(help="Records per second; negative: no limit.")] = -1,
    acks: Acks = "all",
    compression: Compression = "none",
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> Summary | Note | None:
    """Send random records and report throughput and latency."""
    if records < 1 or size < 0:
        raise CommandError("--records must be at least 1 and --size at least 0", Exit.USAGE)
    if dry_run:
        return Note(f"would send {records:,} records of {size} bytes to {topic}", dry_run=True)
    load = workload.ProduceLoad(topic, records, payloads(size), throughput)
    async with common.target.producer(**producer_settings(acks, compression)) as producer:
        report = await workload.produce(producer, load, talk)
    if common.fmt == "json":
        return report.total
    sys.stdout.write(total_line(report.total) + "\n")
    return None


def payloads(size: int) -> Callable[[int], bytes]:
    """Values of capital letters, as Kafka's tool makes them, cycling through a fixed set."""
    source = random.Random(0)
    letters = bytes(range(65, 91))
    values = [bytes(source.choices(letters, k=size)) for _ in range(PAYLOADS)]
    return lambda index: values[index % PAYLOADS]


@command(
    app,
    fast_loop=True,
    examples=[
        "tidemill perf consume clicks --records 5",
        "tidemill perf consume clicks -n 5 --format json",
    ],
)
async def consume(
    topic: TopicName,
    /,
    *,
    records: Annotated[
        int | None, Parameter(name=("--records", "-n"), help="How many to read; default: all.")
    ] = None,
    timeout_s: Annotated[float, Parameter(help="Stop when nothing came for so long.")] = 10.0,
    common: Common = COMMON,
) -> ConsumeReport:
    """Read a topic from its start as fast as it comes and report throughput."""
    if records is not None and records < 1:
        raise CommandError(f"--records must be at least 1, not {records}", Exit.USAGE)
    async with common.target.consumer(auto_offset_reset="earliest") as consumer:
        partitions = [TopicPartition(topic, i) for i in await consumer.partitions_for(topic)]
        if records is None:
            first = await consumer.beginning_offsets(partitions)
            last = await consumer.end_offsets(partitions)
            records = sum(last[p] - first[p] for p in partitions)
        started = time.perf_counter()
        got = await workload.consume(consumer, partitions, records, timeout_s=timeout_s)
        seconds = time.perf_counter() - started
    if got.timed_out:
        talk(f"nothing came for {timeout_s} s; {got.records:,} of {records:,} records were read")
    mb = got.bytes / 2**20
    return ConsumeReport(topic, got.records, mb, seconds, got.records / seconds, mb / seconds)
