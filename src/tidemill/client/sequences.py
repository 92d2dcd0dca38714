"""How an idempotent producer numbers its batches: a pure state machine, no I/O.

A partition's leader accepts a batch only if its first sequence number follows the last one, and
recognises the last five batches when they come again. So a batch keeps its number through all
retries, retries go out in order, and while one is unsettled only four newer ones go out, those
included that are acknowledged by now: a fifth would push it out of the leader's memory. Where a
number is lost for good, the partition starts anew: with a higher epoch, from sequence 0, after
everything on its way has come back.

Under another number a leader does not recognise a batch. So one that may have been written keeps
its own until it is known to be lost: when a batch before it was given up, it is still sent as it
was, and either it is acknowledged or the leader misses what came before, which proves that nothing
of the rest was written. Only then is the rest numbered anew.

The proof fails where the batch that was given up is at large: sent over a connection that broke,
it may still be on its way, and then closes the gap for what was sent behind it. Of those the ones
that are at large too may be written at any time, until the leader has seen the next epoch: no
number is right for them, so they are given up as well, their fate unknown (`adrift`).

`Identity` is the producer's id and epoch, `Sequences` the numbering of one partition.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tidemill.client.batches import NO_SEQUENCE, Batch
from tidemill.errors import ErrorCode
from tidemill.invariant import invariant

SEQUENCE_COUNT = 2**31
EPOCH_MAX = 2**15 - 1
WINDOW_BATCHES = 5
"""So many batches of one producer and partition a leader remembers."""

FORGOTTEN = frozenset(
    {
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)
"""Errors after which no number of the present epoch will be accepted."""


def after(sequence: int, count: int) -> int:
    """The sequence number `count` further on; they start again at 0 after 2**31 - 1."""
    return (sequence + count) % SEQUENCE_COUNT


class Identity:
    """Who the brokers think we are; `known` is False until they told, and when it is used up."""

    __slots__ = ("epoch", "producer_id")

    def __init__(self) -> None:
        self.producer_id = -1
        self.epoch = -1

    @property
    def known(self) -> bool:
        return self.producer_id >= 0

    def assign(self, producer_id: int, epoch: int) -> None:
        self.producer_id, self.epoch = producer_id, epoch

    def forget(self) -> None:
        self.producer_id = self.epoch = -1

    def bump(self) -> None:
        """Go on under a new epoch, or with a new id when the epochs are used up."""
        if self.epoch >= EPOCH_MAX:
            self.forget()
        else:
            self.epoch += 1


class Sequences:
    """The numbering of one partition."""

    __slots__ = (
        "_gap_may_close",
        "_has_gap",
        "_last_acked",
        "_next",
        "_restart",
        "_turns",
        "epoch",
        "in_flight",
        "producer_id",
    )

    def __init__(self) -> None:
        self.producer_id = -1
        self.epoch = -1
        self.in_flight: list[Batch] = []
        self._next = 0
        self._last_acked = NO_SEQUENCE
        self._turns = 0
        """How many batches were sent, each counted once."""
        self._restart = False
        """Nothing of what waits was written: number it anew."""
        self._has_gap = False
        """A number was given up: no more are given in this epoch, but those given count."""
        self._gap_may_close = False
        """What was given up is at large."""

    def _needs_identity(self, waiting: Iterable[Batch]) -> bool:
        """Whether what waits can be numbered only after the identity is settled."""
        if self.producer_id < 0 or self._restart:
            return True
        return self._has_gap and not any(batch.maybe_written for batch in waiting)

    def may_send(self, batch: Batch) -> bool:
        """Whether `batch`, the first that waits, may go out now."""
        if len(self.in_flight) >= WINDOW_BATCHES:
            return False
        # A leader that knows nothing of us takes any number as the first, so until one batch is
        # acknowledged a second must not be under way: if the first failed, they would swap places.
        if self._restart or self._has_gap or self._last_acked == NO_SEQUENCE:
            return not self.in_flight
        if batch.base_sequence == NO_SEQUENCE:
            oldest = min((other.turn for other in self.in_flight), default=self._turns)
            return self._turns - oldest < WINDOW_BATCHES
        # A repeated batch waits until all before it are settled; what follows waits behind it.
        return not any(other.order < batch.order for other in self.in_flight)

    def prepare(self, identity: Identity, waiting: Collection[Batch]) -> bool:
        """Adopt the identity where that is due; False if there is none to adopt yet.

        After a restart the batches in `waiting` that had numbers get new ones when they are sent.
        """
        if not self._needs_identity(waiting):
            return True
        invariant(not self.in_flight, "a partition starts anew with batches on their way")
        same = (self.producer_id, self.epoch) == (identity.producer_id, identity.epoch)
        if same and identity.known:
            identity.bump()
        if not identity.known:
            return False
        self.producer_id, self.epoch = identity.producer_id, identity.epoch
        self._next, self._last_acked = 0, NO_SEQUENCE
        self._restart = self._has_gap = self._gap_may_close = False
        for batch in waiting:
            batch.base_sequence = batch.turn = NO_SEQUENCE
            batch.maybe_written = batch.at_large = False  # Not under the number that it gets.
        return True

    def sent(self, batch: Batch) -> None:
        """Number the batch unless it has its number, and count it as on its way."""
        if batch.base_sequence == NO_SEQUENCE:
            batch.base_sequence = self._next
            self._next = after(self._next, batch.record_count)
        if batch.turn == NO_SEQUENCE:
            batch.turn = self._turns
            self._turns += 1
        self.in_flight.append(batch)

    def returned(self, batch: Batch) -> None:
        """An answer came, or none will."""
        if batch in self.in_flight:
            self.in_flight.remove(batch)

    def acknowledged(self, batch: Batch) -> None:
        self._last_acked = after(batch.base_sequence, batch.record_count - 1)

    def out_of_order(self, batch: Batch, waiting: Iterable[Batch]) -> None:
        """The leader misses something before `batch`.

        That is no wonder while an earlier batch is on its way again; if this is the very next one,
        numbers were lost, and the partition starts anew.
        """
        expected = 0 if self._last_acked == NO_SEQUENCE else after(self._last_acked, 1)
        earlier = any(other.order < batch.order for other in (*self.in_flight, *waiting))
        if batch.base_sequence == expected or not earlier:
            self._restart = True

    def forgotten(self) -> None:
        """The leader does not know us, or knows a newer epoch: number everything anew."""
        self._restart = True

    def adrift(self, waiting: Iterable[Batch]) -> list[Batch]:
        """Those that can neither keep their number nor be given another."""
        if not (self._restart and self._gap_may_close):
            return []
        return [batch for batch in waiting if batch.at_large]

    def came_apart(self, batch: Batch) -> None:
        """`batch` is sent in parts from now on, which are not recognised if it is there whole."""
        self._gap_may_close |= batch.maybe_written

    def gave_up(self, batch: Batch) -> None:
        """`batch` failed for good; what is numbered after it must not be.

        Call it again if the batch was on its way then, and is at large since.
        """
        if batch.base_sequence == NO_SEQUENCE:
            return
        self._gap_may_close |= batch.at_large
        last = after(batch.base_sequence, batch.record_count) == self._next
        is_clean = not (batch.maybe_written or self._restart or self._has_gap)
        if last and is_clean and not self.in_flight:
            self._next = batch.base_sequence
        else:
            self._has_gap = True
