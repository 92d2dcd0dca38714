"""`tidemill consume -g GROUP`: read as a member of a group, and commit what was printed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from tidemill.cli import formats, offsets
from tidemill.cli.exits import CommandError, Exit
from tidemill.errors import ApiError
from tidemill.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.client import Consumer, ConsumerRecord

POLL_RECORDS_MAX = 5_000
POLL_TIMEOUT_MS = 500


def reset_policy(offset: str) -> str:
    """Where a group begins that has committed nothing: `--offset` can only say start or end."""
    span = offsets.parse(offset, 0)
    if span == offsets.Range(offsets.START):
        return "earliest"
    if span == offsets.Range(offsets.END):
        return "latest"
    raise CommandError(
        f"a group goes on where it stopped, so --offset is start or end, not {offset!r}",
        Exit.USAGE,
        hint="move the group with `tidemill group seek`",
    )


def step_back(consumer: Consumer, records: Sequence[ConsumerRecord]) -> None:
    """These were polled and could not be printed: the group is to read them again."""
    firsts = {(r.topic, r.partition): r.offset for r in reversed(records)}
    mine = consumer.assignment()
    for partition, offset in firsts.items():
        if partition in mine:
            consumer.seek(TopicPartition(*partition), offset)


class GroupRun:
    """One run: print what comes until there is enough, or with `exit_at_end` no more."""

    def __init__(
        self, consumer: Consumer, show: formats.Formatter, num: int | None, *, exit_at_end: bool
    ) -> None:
        self._consumer = consumer
        self._show = show
        self._num = num
        self._exit_at_end = exit_at_end
        self._ends: dict[TopicPartition, int] = {}
        self._unprinted: Sequence[ConsumerRecord] = ()
        self.messages = 0

    async def go(self, topics: Sequence[str], *, regex: bool) -> None:
        if regex:
            self._consumer.subscribe(pattern="|".join(f"(?:{topic})" for topic in topics))
        else:
            self._consumer.subscribe(topics)
        try:
            while not self._enough() and not await self._at_end():
                room = POLL_RECORDS_MAX if self._num is None else self._num - self.messages
                await self._print_some(min(room, POLL_RECORDS_MAX))
        finally:
            # What was polled is printed, and that holds after Ctrl-C, too; or else we go back.
            step_back(self._consumer, self._unprinted)
            with suppress(ApiError):
                await self._consumer.commit()

    def _enough(self) -> bool:
        return self._num is not None and self.messages >= self._num

    async def _print_some(self, limit: int) -> None:
        records = await self._consumer.poll(max_records=limit, timeout_ms=POLL_TIMEOUT_MS)
        self._unprinted = records
        first = self.messages + 1
        lines = b"".join(self._show(record, first + n) for n, record in enumerate(records))
        write: Callable[[bytes], int] = sys.stdout.buffer.write
        write(lines)
        if records:
            sys.stdout.buffer.flush()
        self.messages += len(records)
        self._unprinted = ()

    async def _at_end(self) -> bool:
        """Whether everything that was there when we got our partitions is printed."""
        mine = self._consumer.assignment()
        if not self._exit_at_end or not mine:
            return False
        new = mine - self._ends.keys()
        if new:
            self._ends |= await self._consumer.end_offsets(new)
        for tp in mine:
            if await self._consumer.position(tp) < self._ends[tp]:
                return False
        return True
