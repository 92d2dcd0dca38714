"""`tidemill consume`: records out, in the form one wants."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from tidemill.cli import consume_group, formats, offsets, ranges
from tidemill.cli.command import command
from tidemill.cli.exits import CommandError, Exit
from tidemill.cli.loops import cleaned_up_on_sigterm
from tidemill.cli.options import COMMON, Common, Regex, TopicNames
from tidemill.cli.render import plural, talk
from tidemill.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.client import Admin, Consumer, ConsumerRecord

app = App(name="consume")

POLL_RECORDS_MAX = 5_000
POLL_TIMEOUT_MS = 500
Isolation = Literal["read_uncommitted", "read_committed"]


@command(
    app,
    default=True,
    streams=True,
    examples=[
        "tidemill consume clicks --offset start -e",
        "tidemill consume clicks -o -10 -e -f '%p@%o %k %v\\n'",
        "tidemill consume clicks -o @-1h:end --format json",
        "tidemill consume clicks -p 0 -o 1:3 -n 2",
        "tidemill consume clicks -g audit -n 100 -e",
    ],
)
async def consume(
    *topics: TopicNames,
    offset: Annotated[
        str, Parameter(name=("--offset", "-o"), help="What to read; see `tidemill help offsets`.")
    ] = "start",
    partition: Annotated[
        tuple[int, ...],
        Parameter(
            name=("--partition", "-p"),
            negative=(),
            show_default=False,
            help="Only these partitions.",
        ),
    ] = (),
    num: Annotated[
        int | None, Parameter(name=("--num", "-n", "-c"), help="Stop after so many records.")
    ] = None,
    exit_at_end: Annotated[
        bool,
        Parameter(
            name=("--exit", "-e"),
            negative=(),
            show_default=False,
            help="Stop at the end of the topic.",
        ),
    ] = False,
    template: Annotated[
        str | None,
        Parameter(name=("--template", "-f"), help="Print by format; see `tidemill help formats`."),
    ] = None,
    group: Annotated[
        str | None,
        Parameter(
            name=("--group", "-g"),
            help="Read as a member of this group: go on where it stopped, and commit.",
        ),
    ] = None,
    isolation: Annotated[
        Isolation, Parameter(help="Whether records of open transactions are shown.")
    ] = "read_uncommitted",
    regex: Regex = False,
    common: Common = COMMON,
) -> None:
    """Print records: JSON lines when piped or with --format json, one short line each otherwise."""
    if not topics:
        raise CommandError("name at least one topic", Exit.USAGE)
    if num is not None and num < 0:
        raise CommandError(f"--num must be at least 0, not {num}", Exit.USAGE)
    if group is not None:
        show = _formatter(template, common)
        await _as_member(
            common, group, topics, regex, partition, offset, isolation, num, exit_at_end, show
        )
        return
    span = offsets.parse(offset, int(time.time() * 1000))
    if exit_at_end and span.stop is None:
        span = offsets.Range(span.start, offsets.END)
    show = _formatter(template, common)
    async with common.target.admin() as admin:
        bounds = await _bounds(admin, topics, regex, partition, span)
    settings = {"isolation_level": isolation, "auto_offset_reset": "earliest"}
    async with common.target.consumer(**settings) as consumer:
        await _Run(consumer, bounds, show, num).go()


async def _as_member(
    common: Common,
    group: str,
    topics: Sequence[str],
    regex: bool,
    partition: Sequence[int],
    offset: str,
    isolation: Isolation,
    num: int | None,
    exit_at_end: bool,
    show: formats.Formatter,
) -> None:
    if partition:
        raise CommandError("a group shares out partitions by itself: --partition or --group",
                           Exit.USAGE)  # fmt: skip
    settings = {
        "group_id": group,
        "isolation_level": isolation,
        "auto_offset_reset": consume_group.reset_policy(offset),
    }
    with cleaned_up_on_sigterm():
        async with common.target.consumer(**settings) as consumer:
            run = consume_group.GroupRun(consumer, show, num, exit_at_end=exit_at_end)
            await run.go(topics, regex=regex)


def _formatter(template: str | None, common: Common) -> formats.Formatter:
    if template is not None:
        return formats.compile_format(template)
    if common.format == "json" or (common.format is None and not sys.stdout.isatty()):
        return formats.json_line
    return formats.pretty_line


async def _bounds(
    admin: Admin,
    topics: Sequence[str],
    regex: bool,
    partitions: Sequence[int],
    span: offsets.Range,
) -> dict[TopicPartition, ranges.Bounds]:
    from tidemill.cli.topic import select

    names = await select(admin, topics, regex, internal=True)
    if not names:
        raise CommandError(f"no topic matches {', '.join(topics)}", Exit.NOT_FOUND)
    described = (await admin.describe_topics(names)).raise_first()
    wanted = [tp for name in names for tp in ranges.choose_partitions(described[name], partitions)]
    return await ranges.settle_all(admin, wanted, span)


class _Run:
    """One run: read the wanted ranges, print, stop when every one is done or `num` is reached."""

    def __init__(
        self,
        consumer: Consumer,
        bounds: dict[TopicPartition, ranges.Bounds],
        show: formats.Formatter,
        num: int | None,
    ) -> None:
        self._consumer = consumer
        self._show = show
        self._num = num
        self._stops = {tp: b.stop for tp, b in bounds.items()}
        self._left = {tp for tp, b in bounds.items() if b.stop is None or b.start < b.stop}
        self._starts = {tp: bounds[tp].start for tp in self._left}
        self.messages = 0
        self.bytes = 0

    async def go(self) -> None:
        if not self._left or self._num == 0:
            return
        self._consumer.assign(sorted(self._left))
        for tp, start in self._starts.items():
            self._consumer.seek(tp, start)
        try:
            while self._left and not self._enough():
                records = await self._consumer.poll(
                    max_records=POLL_RECORDS_MAX, timeout_ms=POLL_TIMEOUT_MS
                )
                self._print(records)
                await self._retire()
        except asyncio.CancelledError:
            talk(f"{plural(self.messages, 'message')}, {plural(self.bytes, 'byte')}")
            raise

    def _enough(self) -> bool:
        return self._num is not None and self.messages >= self._num

    def _print(self, records: Sequence[ConsumerRecord]) -> None:
        out: list[bytes] = []
        for record in records:
            stop = self._stops[TopicPartition(record.topic, record.partition)]
            if stop is not None and record.offset >= stop:
                continue
            if self._enough():
                break
            self.messages += 1
            self.bytes += len(record.key or b"") + len(record.value or b"")
            out.append(self._show(record, self.messages))
        if out:
            sys.stdout.buffer.write(b"".join(out))
            sys.stdout.buffer.flush()

    async def _retire(self) -> None:
        """Drop partitions that are read to their stop; a position may pass it without a record
        there, over control records and what compaction took."""
        for tp in list(self._left):
            stop = self._stops[tp]
            if stop is not None and await self._consumer.position(tp) >= stop:
                self._left.discard(tp)
                self._consumer.pause(tp)
