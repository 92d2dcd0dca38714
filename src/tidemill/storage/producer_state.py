"""What a partition remembers about each producer, so that a retry is never stored twice.

`ProducerStates.check` judges a batch before it is appended and changes nothing; `apply` takes in a
batch that is in the log (rule G4). Replay after a crash and followers only apply. The same entries
carry the open transaction of each producer, from which the last stable offset follows (rule H9).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tidemill.errors import ApiError, ErrorCode
from tidemill.storage.txn_index import AbortedTransaction
from tidemill.wire.batch import SEQUENCE_MAX, TRANSACTIONAL_BIT, BatchHeader
from tidemill.wire.control import EndTransactionMarker

BATCHES_KEPT = 5
"""A client has at most this many batches in flight, so only these can come again (rule G1)."""

PRODUCER_IDS_MAX = 100_000
NO_SEQUENCE = -1
NO_OFFSET = -1


class BatchMeta(NamedTuple):
    """One remembered batch of a producer."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        """Sequences wrap from 2^31 - 1 to 0."""
        return (self.last_sequence - self.offset_delta) & SEQUENCE_MAX

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


@dataclass(slots=True)
class ProducerEntry:
    """One producer's recent past in one partition."""

    producer_id: int
    epoch: int
    batches: list[BatchMeta] = field(default_factory=list)
    coordinator_epoch: int = -1
    last_timestamp: int = -1
    current_txn_first_offset: int = NO_OFFSET
    was_silent: bool = field(default=False, compare=False)
    """Whether nothing was written since the last look for producers to forget."""
    heard_ms: int = field(default=-1, compare=False)
    """When that look found that it had written."""

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def has_open_transaction(self) -> bool:
        return self.current_txn_first_offset != NO_OFFSET

    def duplicate_of(self, header: BatchHeader) -> BatchMeta | None:
        """The remembered batch that is the same as this one (rule G2)."""
        if header.producer_epoch != self.epoch:
            return None
        last_sequence = header.last_sequence
        for batch in self.batches:
            if (
                batch.last_sequence == last_sequence
                and batch.offset_delta == header.last_offset_delta
            ):
                return batch
        return None


class CompletedTransaction(NamedTuple):
    """A transaction that a marker ended, at `last_offset`."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


class ProducerStates:
    """All producers of one partition, the longest silent one first."""

    __slots__ = ("_entries", "_ongoing", "_unreplicated", "ids_max", "map_end_offset")

    def __init__(self, *, ids_max: int = PRODUCER_IDS_MAX) -> None:
        self.ids_max = ids_max
        self.map_end_offset = 0
        """Everything below this offset has been applied."""
        self._entries: dict[int, ProducerEntry] = {}
        self._ongoing: dict[int, int] = {}
        self._unreplicated: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, producer_id: int) -> ProducerEntry | None:
        return self._entries.get(producer_id)

    def active(self) -> list[ProducerEntry]:
        return list(self._entries.values())

    # Before the append

    def check(self, header: BatchHeader) -> BatchMeta | None:
        """The batch this one repeats, if any; raises when it must not be appended (rule G3)."""
        entry = self._entries.get(header.producer_id)
        if entry is None:
            return None  # No state: expired or deleted with old records, so any sequence is fine.
        if header.producer_epoch == entry.epoch:
            repeated = entry.duplicate_of(header)
            if repeated is not None:
                return repeated
        self._check_epoch(entry, header)
        self._check_sequence(entry, header)
        if entry.has_open_transaction and not header.attributes & TRANSACTIONAL_BIT:
            raise ApiError(
                ErrorCode.INVALID_TXN_STATE,
                f"Expected transactional write from producer with producerId {entry.producer_id}",
            )
        return None

    def _check_epoch(self, entry: ProducerEntry, header: BatchHeader) -> None:
        if header.producer_epoch < entry.epoch:
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"Epoch of producer {entry.producer_id} is {header.producer_epoch}, which is "
                f"smaller than the last seen epoch {entry.epoch}",
            )

    def _check_sequence(self, entry: ProducerEntry, header: BatchHeader) -> None:
        sequence = header.base_sequence
        if header.producer_epoch != entry.epoch:
            if sequence != 0:
                raise ApiError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"Invalid sequence number for new epoch of producer {entry.producer_id}: "
                    f"{header.producer_epoch} (request epoch), {sequence} (seq. number), "
                    f"{entry.epoch} (current producer epoch)",
                )
        elif sequence != (entry.last_sequence + 1) & SEQUENCE_MAX:
            raise ApiError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Out of order sequence number for producer {entry.producer_id}: {sequence} "
                f"(incoming seq. number), {entry.last_sequence} (current end sequence number)",
            )

    # After the append, and on replay

    def apply(self, header: BatchHeader, base_offset: int) -> None:
        """Take in a data batch that is in the log at `base_offset`."""
        producer_id = header.producer_id
        last_offset = base_offset + header.last_offset_delta
        self.map_end_offset = last_offset + 1
        if producer_id < 0:
            return
        entry = self._touch(producer_id, header.producer_epoch)
        batches = entry.batches
        batches.append(
            BatchMeta(
                header.last_sequence, last_offset, header.last_offset_delta, header.max_timestamp
            )
        )
        if len(batches) > BATCHES_KEPT:
            del batches[0]
        entry.last_timestamp = header.max_timestamp
        if header.attributes & TRANSACTIONAL_BIT and not entry.has_open_transaction:
            entry.current_txn_first_offset = base_offset
            self._ongoing[base_offset] = producer_id

    def apply_marker(
        self, header: BatchHeader, base_offset: int, marker: EndTransactionMarker
    ) -> CompletedTransaction | None:
        """Take in a control batch; the transaction it ended, if one was open."""
        entry = self._touch(header.producer_id, header.producer_epoch)
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp = header.max_timestamp
        self.map_end_offset = base_offset + header.last_offset_delta + 1
        first_offset = entry.current_txn_first_offset
        if first_offset == NO_OFFSET:
            return None
        entry.current_txn_first_offset = NO_OFFSET
        self._ongoing.pop(first_offset, None)
        self._unreplicated[first_offset] = base_offset
        return CompletedTransaction(
            header.producer_id, first_offset, base_offset, not marker.is_commit
        )

    def _touch(self, producer_id: int, epoch: int) -> ProducerEntry:
        """The producer's entry, moved to the young end; a new epoch starts afresh."""
        entry = self._entries.pop(producer_id, None)
        if entry is None:
            entry = ProducerEntry(producer_id, epoch)
            if len(self._entries) >= self.ids_max:
                self._evict_oldest()
        elif entry.epoch != epoch:
            entry.epoch = epoch
            entry.batches.clear()
        entry.was_silent = False
        self._entries[producer_id] = entry
        return entry

    def _evict_oldest(self) -> None:
        """Make room (rule G6): the longest silent producer without an open transaction goes."""
        for producer_id, entry in self._entries.items():
            if not entry.has_open_transaction:
                del self._entries[producer_id]
                return

    # Transactions

    def aborted_entry(self, completed: CompletedTransaction) -> AbortedTransaction:
        """The index entry of an aborted transaction, with the stable offset of that moment."""
        others = [first for first in self._unstable() if first != completed.first_offset]
        stable = min(others, default=completed.last_offset + 1)
        return AbortedTransaction(
            completed.producer_id, completed.first_offset, completed.last_offset, stable
        )

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Where the first transaction begins that is open, or whose marker may yet be lost."""
        if not self._ongoing and not self._unreplicated:
            return None
        done = [first for first, last in self._unreplicated.items() if last < high_watermark]
        for first in done:
            del self._unreplicated[first]
        return min(self._unstable(), default=None)

    def _unstable(self) -> list[int]:
        return [*self._ongoing, *self._unreplicated]

    # Housekeeping

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers silent for longer than the limit, open transactions excepted (G6).

        Whoever copies old records writes old timestamps: what counts is when we heard of it, as far
        as that is known, and the timestamps of its records if they are later.
        """
        expired = []
        for entry in self._entries.values():
            if not entry.was_silent:
                entry.was_silent = True
                entry.heard_ms = now_ms
            silent_ms = now_ms - max(entry.heard_ms, entry.last_timestamp)
            if silent_ms >= expiration_ms and not entry.has_open_transaction:
                expired.append(entry.producer_id)
        for producer_id in expired:
            del self._entries[producer_id]
        return len(expired)

    def reset(self, entries: Iterable[ProducerEntry], end_offset: int) -> None:
        """Start over from a snapshot taken at `end_offset`."""
        self._entries = {entry.producer_id: entry for entry in entries}
        self._ongoing = {
            entry.current_txn_first_offset: entry.producer_id
            for entry in self._entries.values()
            if entry.has_open_transaction
        }
        self._unreplicated = {}
        self.map_end_offset = end_offset
