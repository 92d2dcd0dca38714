"""`kafka-consumer-perf-test`: read records as fast as they come and report throughput.

With `--group` it reads as a member: `rebalance.time.ms` is the time spent in rebalances. Without
one it reads all partitions by itself, and that time is the one until the partitions are known.
Bytes are those of keys and values, as Kafka counts them.
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidemill.cli.kafka import common
from tidemill.cli.kafka.common import Options, UsageError, out
from tidemill.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.cli.connect import Target
    from tidemill.client import Consumer

DEPRECATED = (("messages", "--num-records"), ("consumer_config", "--command-config"))
TAIL = ", rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
SUMMARY = "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec"
DETAILED = "time, threadId, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec"
POLL_RECORDS_MAX = 10_000
_JAVA_DATE = (
    ("yyyy", "%Y"),
    ("MM", "%m"),
    ("dd", "%d"),
    ("HH", "%H"),
    ("mm", "%M"),
    ("ss", "%S"),
)


def parser() -> Options:
    p = Options("kafka-consumer-perf-test", "This tool is used to verify the consumer performance.")
    common.address_options(p)
    p.value("topic", "The topic to read.")
    p.value("include", "A regular expression of topics to read.")
    p.value("num-records", "How many records to read.", type=int)
    p.value("messages", "Old spelling of --num-records.", type=int)
    p.value("group", "The group to read as; without one, nothing is committed.")
    p.value("fetch-size", "The most to fetch of one partition.", type=int, default=1_048_576)
    p.flag("from-latest", "Start at the next record, not at the first.")
    p.value("socket-buffer-size", "Accepted; the system sizes socket buffers.", type=int)
    p.value("threads", "Old and without effect.", type=int)
    p.value("num-fetch-threads", "Old and without effect.", type=int)
    p.many("command-property", "key=value for the consumer.")
    p.value("consumer.config", "Old spelling of --command-config.", dest="consumer_config")
    p.flag("print-metrics", "Accepted; this client keeps no metrics to print.")
    p.flag("show-detailed-stats", "A line per reporting interval.")
    p.value("reporting-interval", "Milliseconds between lines.", type=int, default=5000)
    p.value("timeout", "Stop when no record came for so many ms.", type=int, default=10_000)
    p.value("date-format", "How times are printed.", default="yyyy-MM-dd HH:mm:ss:SSS")
    p.flag("hide-header", "Leave the heading out.")
    return p


def main(argv: Sequence[str]) -> int:
    return common.run(argv, parser(), _work, fast_loop=True)


async def _work(options: argparse.Namespace) -> int:
    _check(options)
    for name, instead in DEPRECATED:
        if getattr(options, name):
            written = name.replace("_", ".") if name == "consumer_config" else name
            out(f"Warning: --{written} is deprecated. Use {instead} instead.")
    target = common.target(
        options,
        'Missing required argument "[bootstrap-server]"',
        properties=options.command_property,
        files=[options.consumer_config],
    )
    topics = await _topics(target, options)
    if not options.hide_header:
        out((DETAILED if options.show_detailed_stats else SUMMARY) + TAIL)
        sys.stdout.flush()
    settings: dict[str, object] = {
        "auto_offset_reset": "latest" if options.from_latest else "earliest",
        "max_partition_fetch_bytes": options.fetch_size,
    }
    # Another's group in a file of settings is not to find that a measurement has read for it.
    settings["group_id"] = options.group or ""
    run = _Run(options)
    async with common.for_client(target, "consumer").consumer(**settings) as consumer:
        await run.go(consumer, topics)
    run.finish()
    return 0


def _check(options: argparse.Namespace) -> None:
    if options.topic and options.include:
        raise UsageError("Exactly one of the following arguments is required: [topic], [include]")
    old_spelling = options.old_bootstrap or options.zookeeper
    if not options.topic and not options.include and not old_spelling:
        raise UsageError("Exactly one of the following arguments is required: [topic], [include]")
    if (options.num_records is None) == (options.messages is None):
        raise UsageError(
            "Exactly one of the following arguments is required: [messages], [num-records]"
        )
    options.records = options.num_records if options.num_records is not None else options.messages
    if options.reporting_interval <= 0:
        raise UsageError("Reporting interval must be greater than 0.")
    unknown = re.search("[A-Za-z]", re.sub("yyyy|MM|dd|HH|mm|ss|SSS", "", options.date_format))
    if unknown:
        raise UsageError(
            f"--date-format knows yyyy, MM, dd, HH, mm, ss and SSS, not '{unknown.group()}'"
        )


async def _topics(target: Target, options: argparse.Namespace) -> list[str]:
    if options.topic:
        return [options.topic]
    async with common.for_client(target, "admin").admin() as admin:
        names = sorted(t.name for t in await admin.list_topics())
    if options.include:
        matches = common.topic_filter(options.include)
        return [name for name in names if matches(name)]
    common.err(f"no --topic: reading all of {', '.join(names) or '(there is none)'}")
    return names


class _Run:
    """The reading loop and its figures."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._records = self._bytes = 0
        self._last_records = self._last_bytes = 0
        self._start_ms = self._rebalance_start_ms = self._now_ms()
        self._last_report_ms = self._start_ms
        self._join_ms = self._join_in_window_ms = 0

    @staticmethod
    def _now_ms() -> int:
        return int(time.time() * 1000)

    async def _begin(self, consumer: Consumer, topics: Sequence[str]) -> None:
        if self._options.group:
            consumer.subscribe(topics, listener=self)
            return
        partitions = [
            TopicPartition(t, i) for t in topics for i in await consumer.partitions_for(t)
        ]
        consumer.assign(partitions)
        self.on_assigned(set(partitions))

    def on_assigned(self, partitions: set[TopicPartition]) -> None:
        took_ms = self._now_ms() - self._rebalance_start_ms
        self._join_ms += took_ms
        self._join_in_window_ms += took_ms

    def on_revoked(self, partitions: set[TopicPartition]) -> None:
        self._rebalance_start_ms = self._now_ms()

    def on_lost(self, partitions: set[TopicPartition]) -> None:
        self.on_revoked(partitions)

    async def go(self, consumer: Consumer, topics: Sequence[str]) -> None:
        await self._begin(consumer, topics)
        last_seen_ms = self._now_ms()
        while self._records < self._options.records:
            if self._now_ms() - last_seen_ms > self._options.timeout:
                out(
                    "WARNING: Exiting before consuming the expected number of records: "
                    f"timeout ({self._options.timeout} ms) exceeded. "
                    "You can use the --timeout option to increase the timeout."
                )
                return
            room = min(POLL_RECORDS_MAX, self._options.records - self._records)
            records = await consumer.poll(room, timeout_ms=100)
            if records:
                last_seen_ms = self._now_ms()
                self._records += len(records)
                self._bytes += sum(len(r.key or b"") + len(r.value or b"") for r in records)
                self._report()

    def _report(self) -> None:
        now_ms = self._now_ms()
        took_ms = now_ms - self._last_report_ms
        if took_ms < self._options.reporting_interval:
            return
        if self._options.show_detailed_stats:
            out(self._detail(now_ms, took_ms))
            sys.stdout.flush()
        self._last_report_ms, self._join_in_window_ms = now_ms, 0
        self._last_records, self._last_bytes = self._records, self._bytes

    def _detail(self, now_ms: int, took_ms: int) -> str:
        mb = (self._bytes - self._last_bytes) / 2**20
        count = self._records - self._last_records
        fetch_ms = took_ms - self._join_in_window_ms
        seconds, fetching = took_ms / 1000, fetch_ms / 1000
        return (
            f"{self._date(now_ms)}, 0, {self._bytes / 2**20:.4f}, {_rate(mb, seconds)}, "
            f"{self._records}, {_rate(count, seconds)}, {self._join_in_window_ms}, {fetch_ms}, "
            f"{_rate(mb, fetching)}, {_rate(count, fetching)}"
        )

    def finish(self) -> None:
        """The one line of a run without detailed stats."""
        if self._options.show_detailed_stats:
            return
        end_ms = self._now_ms()
        seconds = (end_ms - self._start_ms) / 1000
        fetch_ms = end_ms - self._start_ms - self._join_ms
        mb = self._bytes / 2**20
        out(
            f"{self._date(self._start_ms)}, {self._date(end_ms)}, {mb:.4f}, {_rate(mb, seconds)}, "
            f"{self._records}, {_rate(self._records, seconds)}, {self._join_ms}, {fetch_ms}, "
            f"{_rate(mb, fetch_ms / 1000)}, {_rate(self._records, fetch_ms / 1000)}"
        )

    def _date(self, timestamp_ms: int) -> str:
        pattern = self._options.date_format
        for java, python in _JAVA_DATE:
            pattern = pattern.replace(java, python)
        moment = datetime.datetime.fromtimestamp(timestamp_ms / 1000)
        return moment.strftime(pattern.replace("SSS", f"{timestamp_ms % 1000:03d}"))


def _rate(amount: float, seconds: float) -> str:
    return f"{amount / seconds:.4f}" if seconds > 0 else "NaN"
