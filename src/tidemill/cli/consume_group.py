"""`tidemill consume -g GROUP`: read as a member of a group, and commit what was printed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from tidemill.cli import formats, offsets
from tidemill.cli.exits import CommandError, Exit
from tidemill.errors import ApiError

if TYPE_CHECKING:
    from tidemill.client import Consumer
    from tidemill.types import TopicPartition

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
            # All that was polled is printed: that holds after Ctrl-C, too.
            with suppress(ApiError):
                await self._consumer.commit()

    def _enough(self) -> bool:
        return self._num is not None and self.messages >= self._num

    async def _print_some(self, limit: int) -> None:
        records = await self._consumer.poll(max_records=limit, timeout_ms=POLL_TIMEOUT_MS)
        first = self.messages + 1
        self.messages += len(records)
        write: Callable[[bytes], int] = sys.stdout.buffer.write
        write(b"".join(self._show(record, first + n) for n, record in enumerate(records)))
        if records:
            sys.stdout.buffer.flush()

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
