"""Takes records out of the stock that the fetcher keeps, partition by partition in turn.

A damaged batch is fetched again and its error raised once; so is the error of a partition that
cannot be read, when the others have nothing to give. An error never costs records: what was taken
before it is handed out first, and the error raised by the next call. Who cannot hand out what he
took says `put_back`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from tidemill.client.consumer_types import ConsumerRecord, RawBatch
from tidemill.client.errors import ClientError
from tidemill.client.fetched import check, decode
from tidemill.client.fetcher import Fetcher
from tidemill.client.positions import PartitionState
from tidemill.client.settings import ConsumerSettings

BYTES_PER_TURN = 128 * 1024
TURNS_MAX = 64

Take = Callable[[PartitionState], bool]
"""Takes from one partition; False when that is enough."""


class _Turn(NamedTuple):
    """Something was taken from a partition: where that left it, and where it had stood before."""

    state: PartitionState
    generation: int
    left_at: int | None
    position: int | None
    epoch: int


class _Postponed(NamedTuple):
    """An error that waits until what was taken before it is handed out."""

    error: Exception
    state: PartitionState
    generation: int


class Reader:
    """The assigned partitions of one consumer, in the order in which they have their turn."""

    def __init__(self, settings: ConsumerSettings, fetcher: Fetcher) -> None:
        self.turn: list[PartitionState] = []
        self._settings = settings
        self._fetcher = fetcher
        self._taken_from: list[_Turn] = []
        self._postponed: _Postponed | None = None

    def follow_assignment(self) -> None:
        """The fetcher was given other partitions."""
        self.turn = list(self._fetcher.states.values())

    def move(self, state: PartitionState, how: Callable[[PartitionState], None]) -> None:
        """Go elsewhere in a partition; what was fetched of it ahead leaves the stock."""
        self._fetcher.consumed(state.buffered_bytes)
        how(state)
        self._fetcher.wake()

    def raise_error_of(self, state: PartitionState) -> None:
        """Raise a partition's error once; the next call finds it tried again."""
        error, state.error = state.error, None
        if error is not None:
            self._fetcher.wake()
            raise error

    def go_round(self, take: Take, taken: Sequence[object]) -> int:
        """Let `take` have each partition in turn until it has enough; how many bytes it took."""
        self.handed_out()
        self._raise_postponed()
        before = self._fetcher.buffered_bytes
        try:
            self._take_in_turn(take, taken)
        except BaseException:
            self.put_back()
            raise
        taken_bytes = before - self._fetcher.buffered_bytes
        if taken_bytes:
            self._fetcher.wake()
        return taken_bytes

    def _take_in_turn(self, take: Take, taken: Sequence[object]) -> None:
        for _ in range(len(self.turn)):
            state = self.turn.pop(0)
            self.turn.append(state)
            if state.paused:
                continue
            if state.batches:
                if not self._take(take, taken, state):
                    return
            elif state.error is not None and not taken:
                self.raise_error_of(state)

    def _take(self, take: Take, taken: Sequence[object], state: PartitionState) -> bool:
        generation, position, epoch = state.generation, state.position, state.position_epoch
        try:
            return take(state)
        except Exception as error:
            if not taken:
                raise
            self._postponed = _Postponed(error, state, state.generation)
            return False
        finally:
            self._taken_from.append(_Turn(state, generation, state.position, position, epoch))

    def _raise_postponed(self) -> None:
        """The error that the last round met, unless its place is not read any more."""
        postponed, self._postponed = self._postponed, None
        if postponed is None:
            return
        error, state, generation = postponed
        if self._is_assigned(state) and state.generation == generation:
            raise error

    def handed_out(self) -> None:
        """What the last round took has reached the user: it is his now."""
        for turn in self._taken_from:
            turn.state.dropped.clear()
        self._taken_from.clear()

    def put_back(self) -> None:
        """What the last round took has not reached the user: the next one takes it again."""
        for turn in self._taken_from:
            state, was_sought = turn.state, turn.state.position != turn.left_at
            if was_sought or not self._is_assigned(state):
                continue
            if state.generation == turn.generation:
                self._fetcher.consumed(-state.restock(turn.position, turn.epoch))
            else:
                back = partial(PartitionState.go_back, position=turn.position, epoch=turn.epoch)
                self.move(state, back)
        self.handed_out()

    def _is_assigned(self, state: PartitionState) -> bool:
        return self._fetcher.states.get(state.partition) is state

    def take_records(
        self, state: PartitionState, records: list[ConsumerRecord], limit: int
    ) -> None:
        while state.batches and limit > 0:
            if state.records is None:
                state.records = self._open_first(state)
            part = state.records[state.taken : state.taken + limit]
            records += part
            limit -= len(part)
            state.taken += len(part)
            if state.taken >= len(state.records):
                self._drop_first(state)
            else:
                state.position = part[-1].offset + 1
                state.position_epoch = part[-1].leader_epoch

    def _open_first(self, state: PartitionState) -> list[ConsumerRecord]:
        """Decode the partition's first batch; a damaged one is fetched again."""
        batch = state.batches[0]
        if batch.hidden:
            return []
        try:
            self._check_first(state)
            return decode(
                state.partition,
                batch,
                from_offset=state.position or 0,
                limit_bytes=self._settings.max_batch_decompressed_bytes,
                key_deserializer=self._settings.key_deserializer,
                value_deserializer=self._settings.value_deserializer,
            )
        except ClientError:
            self.move(state, PartitionState.refetch)
            raise

    def take_batches(self, state: PartitionState, batches: list[RawBatch], limit_bytes: int) -> int:
        taken_bytes = 0
        while state.batches and taken_bytes < limit_bytes:
            batch = state.batches[0]
            if not batch.hidden:
                try:
                    self._check_first(state)
                except ClientError:
                    self.move(state, PartitionState.refetch)
                    raise
                start = max(batch.header.base_offset, state.position or 0)
                batches.append(RawBatch(*state.partition, start, batch.header, batch.data))
                taken_bytes += len(batch.data)
            self._drop_first(state)
        return taken_bytes

    def _check_first(self, state: PartitionState) -> None:
        if self._settings.check_crcs:
            check(state.partition, state.batches[0])

    def _drop_first(self, state: PartitionState) -> None:
        self._fetcher.consumed(len(state.batches[0].data))
        state.drop_first()


async def let_others_work(taken_bytes: int) -> None:
    """Give the loop the turns that the network needs to bring as much as was just taken.

    A reader that never has to wait would otherwise keep the fetcher from its sockets.
    """
    for _ in range(min(1 + taken_bytes // BYTES_PER_TURN, TURNS_MAX)):
        await asyncio.sleep(0)
