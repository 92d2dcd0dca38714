"""`kafka-producer-perf-test`: send records as fast as asked and report throughput and latency."""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Callable, Sequence

from tidemill.cli import latency, workload
from tidemill.cli.connect import parse_pairs
from tidemill.cli.kafka import common
from tidemill.cli.kafka.common import Options, ToolError, UsageError, out
from tidemill.cli.perf import payloads

DEPRECATED = {
    "producer_props": ("producer-props", "command-property"),
    "producer_config": ("producer.config", "command-config"),
}


def parser() -> Options:
    p = Options("kafka-producer-perf-test", "This tool is used to verify the producer performance.")
    common.address_options(p)
    p.value("topic", "Produce to this topic.")
    p.value("num-records", "How many records to send.", type=int)
    p.value("record-size", "Bytes per record.", type=int)
    p.value("payload-file", "A file of UTF-8 payloads, one of which is picked per record.")
    p.value("payload-delimiter", "What ends a payload in the file.", default="\\n")
    p.flag("payload-monotonic", "Payloads are growing integers.")
    p.value("throughput", "Records per second; -1: no limit.", type=float)
    p.value("producer-props", "Old spelling of --command-property.", nargs="+", default=[])
    p.value("command-property", "key=value for the producer.", nargs="+", default=[])
    p.value("producer.config", "Old spelling of --command-config.", dest="producer_config")
    p.flag("print-metrics", "Accepted; this client keeps no metrics to print.")
    p.value("transactional-id", "Not supported yet.")
    p.value("transaction-duration-ms", "Not supported yet.")
    p.value("warmup-records", "Leave so many out of the steady-state line.", type=int, default=0)
    p.value("reporting-interval", "Milliseconds between lines.", type=int, default=5000)
    return p


def main(argv: Sequence[str]) -> int:
    return common.run(argv, parser(), _work, fast_loop=True)


async def _work(options: argparse.Namespace) -> int:
    payload = _check(options)
    for name, (written, instead) in DEPRECATED.items():
        if getattr(options, name):
            out(
                f"Option --{written} has been deprecated and will be removed in a future version. "
                f"Use --{instead} instead."
            )
    given = parse_pairs([*options.producer_props, *options.command_property], "a property")
    if given.get("acks", "all") not in ("all", "-1"):
        given.setdefault("enable.idempotence", "false")
    target = common.target(
        options,
        "At least one of --bootstrap-server, --command-property, --producer-props, "
        "--producer.config or --command-config must be specified.",
        properties=[f"{key}={value}" for key, value in given.items()],
        files=[options.producer_config],
    )
    load = workload.ProduceLoad(
        options.topic,
        options.num_records,
        payload,
        options.throughput,
        options.warmup_records,
        options.reporting_interval / 1000,
    )
    if options.warmup_records:
        out(
            f"Warmup first {options.warmup_records} records. Steady state results will print "
            "after the complete test summary."
        )
    client = common.for_client(target, "producer")
    async with client.producer() as producer:
        report = await workload.produce(producer, load, _window)
    out(latency.total_line(report.total))
    if report.steady is not None:
        line = latency.total_line(report.steady)
        out(line.replace("records sent", "steady state records sent"))
    return 0


def _window(line: str) -> None:
    out(line)
    sys.stdout.flush()


def _check(options: argparse.Namespace) -> Callable[[int], bytes]:
    for name in ("topic", "num-records", "throughput"):
        if getattr(options, name.replace("-", "_")) is None:
            raise UsageError(f"{parser().prog}: error: argument --{name} is required")
    ways = [options.record_size is not None, bool(options.payload_file), options.payload_monotonic]
    if sum(ways) != 1:
        raise UsageError(
            f"{parser().prog}: error: exactly one of --record-size, --payload-file and "
            "--payload-monotonic is required"
        )
    if options.num_records < 1:
        raise ToolError("--num-records should be greater than zero.")
    if options.transactional_id or options.transaction_duration_ms:
        raise ToolError("transactions are not supported by this tool yet")
    if options.payload_monotonic:
        return lambda index: str(index).encode()
    if options.payload_file:
        return _from_file(options.payload_file, options.payload_delimiter)
    if options.record_size <= 0:
        raise ToolError("--record-size should be greater than zero.")
    return payloads(options.record_size)


def _from_file(path: str, delimiter: str) -> Callable[[int], bytes]:
    """One of the file's payloads at random, the same ones in every run."""
    mark = delimiter.replace("\\n", "\n").encode()
    out(f"Reading payloads from: {os.path.abspath(path)}")
    try:
        with open(path, "rb") as file:
            values = [part for part in file.read().split(mark) if part]
    except OSError:
        raise ToolError("File does not exist or empty file provided.") from None
    if not values:
        raise ToolError("File does not exist or empty file provided.")
    out(f"Number of records read: {len(values)}")
    source = random.Random(0)
    return lambda index: values[source.randrange(len(values))]
