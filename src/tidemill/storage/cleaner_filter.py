"""What compaction keeps of one batch, and the batch that is left of it.

Offsets never change (rule I4): a batch keeps its base offset, its last offset, its codec, its epoch
and its producer's numbers, whatever is taken from it. Records are copied as bytes. Only a delete
horizon touches them: it takes the place of the base timestamp, so each record's delta is rewritten.
Start at `BatchFilter.apply`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tidemill.storage.cleaner_map import OffsetMap
from tidemill.storage.cleaner_txns import TransactionTracker
from tidemill.storage.producer_state import ProducerEntry
from tidemill.storage.txn_index import AbortedTransaction
from tidemill.storage.validate import DECOMPRESSED_BYTES_MAX
from tidemill.wire.batch import (
    DELETE_HORIZON_BIT,
    LOG_OVERHEAD_BYTES,
    BatchHeader,
    TimestampType,
    pack_batch,
)
from tidemill.wire.compression import compress
from tidemill.wire.control import read_marker
from tidemill.wire.record_spans import RecordSpan, iter_spans, rebased
from tidemill.wire.records import records_body

_CODEC_MASK: Final = 0x07
_NO_TIMESTAMP: Final = -1


class LastRecord(NamedTuple):
    """What has to stay in the log so that a producer's state can be read from it (rule I2)."""

    last_data_offset: int
    """-1 when the producer's last entry is a marker: then the marker's epoch has to stay."""
    epoch: int


def last_records(producers: Sequence[ProducerEntry]) -> dict[int, LastRecord]:
    """By producer id, what each active producer last wrote."""
    return {
        entry.producer_id: LastRecord(
            entry.batches[-1].last_offset if entry.batches else -1, entry.epoch
        )
        for entry in producers
    }


@dataclass(slots=True)
class FilterStats:
    """What one pass has read and kept."""

    records_read: int = 0
    records_kept: int = 0


class Kept(NamedTuple):
    """What is left of a batch: bytes to write and the header they begin with."""

    data: bytes | memoryview
    header: BatchHeader


class BatchFilter:
    """Judges the batches of one log in order, for one pass."""

    def __init__(
        self,
        offsets: OffsetMap,
        transactions: TransactionTracker,
        producers: Mapping[int, LastRecord],
        *,
        upper_offset: int,
        now_ms: int,
        delete_retention_ms: int,
    ) -> None:
        self.stats = FilterStats()
        self._offsets = offsets
        self._transactions = transactions
        self._producers = producers
        self._upper_offset = upper_offset
        self._now_ms = now_ms
        self._horizon_ms = now_ms + delete_retention_ms
        self.retained_aborted: list[AbortedTransaction] = []
        """Aborted transactions whose markers stay; whoever writes the segment takes them out."""

    def apply(self, data: memoryview, position: int, header: BatchHeader) -> Kept | None:
        """What stays of the batch at `position`; None when nothing does."""
        self.stats.records_read += header.record_count
        original = data[position : position + header.size_bytes]
        if header.is_control:
            return self._control(original, header)
        if self._transactions.reads_data(header):
            return self._emptied(header) if self._must_stay(header) else None
        return self._data(original, header)

    # Which batches stay, even when they are empty

    def _must_stay(self, header: BatchHeader) -> bool:
        """Whether the batch stays for what its header alone says (rules I2 and I4)."""
        if header.next_offset == self._upper_offset:
            return True  # The last of the range: without it the log could seem to end earlier.
        last = self._producers.get(header.producer_id) if header.producer_id >= 0 else None
        if last is None:
            return False
        if last.last_data_offset >= 0:
            return header.last_offset == last.last_data_offset
        return header.is_control and header.producer_epoch == last.epoch

    def _emptied(self, header: BatchHeader) -> Kept:
        bare = header._replace(
            attributes=header.attributes & ~(_CODEC_MASK | DELETE_HORIZON_BIT),
            base_timestamp=_NO_TIMESTAMP,
            record_count=0,
        )
        return _packed(bare, b"")

    # Markers

    def _control(self, original: memoryview, header: BatchHeader) -> Kept | None:
        marker = read_marker(original, 0, header) if header.record_count else None
        is_orphan, aborted = self._transactions.reads_marker(header, marker)
        if aborted is not None:
            self.retained_aborted.append(aborted)
        horizon_ms = header.delete_horizon_ms
        is_due = horizon_ms is not None and horizon_ms <= self._now_ms
        if is_orphan and (is_due or not header.record_count):
            return self._emptied(header) if self._must_stay(header) else None
        self.stats.records_kept += header.record_count
        if is_orphan and horizon_ms is None:
            body = records_body(original, 0, header, limit_bytes=DECOMPRESSED_BYTES_MAX)
            return self._rewritten(header, body, list(iter_spans(body, header)), self._horizon_ms)
        return Kept(original, header)

    # Records

    def _data(self, original: memoryview, header: BatchHeader) -> Kept | None:
        body = records_body(original, 0, header, limit_bytes=DECOMPRESSED_BYTES_MAX)
        kept, has_tombstone = self._select(body, header)
        self.stats.records_kept += len(kept)
        if not kept:
            return self._emptied(header) if self._must_stay(header) else None
        needs_horizon = has_tombstone and not header.has_delete_horizon
        if len(kept) == header.record_count and not needs_horizon:
            return Kept(original, header)
        return self._rewritten(header, body, kept, self._horizon_ms if needs_horizon else None)

    def _select(self, body: bytes, header: BatchHeader) -> tuple[list[RecordSpan], bool]:
        """The records that stay, and whether a tombstone is among them."""
        horizon_ms = header.delete_horizon_ms
        drops_tombstones = horizon_ms is not None and horizon_ms <= self._now_ms
        base_offset, latest = header.base_offset, self._offsets.latest_offset
        last_offset_of = self._offsets.get
        kept: list[RecordSpan] = []
        has_tombstone = False
        for span in iter_spans(body, header):
            offset = base_offset + span.offset_delta
            if offset <= latest:
                if span.key is None or offset < last_offset_of(span.key):
                    continue
                if drops_tombstones and not span.has_value:
                    continue
            has_tombstone |= not span.has_value
            kept.append(span)
        return kept, has_tombstone

    def _rewritten(
        self,
        header: BatchHeader,
        body: bytes,
        kept: Sequence[RecordSpan],
        horizon_ms: int | None,
    ) -> Kept:
        """The batch with these records only, under a new delete horizon if there is one."""
        base = header.base_timestamp
        max_timestamp = header.max_timestamp
        if header.timestamp_type is TimestampType.CREATE_TIME:
            max_timestamp = base + max(span.timestamp_delta for span in kept)
        attributes, new_base = header.attributes, base
        if horizon_ms is None:
            new_body = b"".join([body[span.start : span.end] for span in kept])
        else:
            attributes, new_base = attributes | DELETE_HORIZON_BIT, horizon_ms
            shift = base - horizon_ms
            new_body = b"".join(
                [rebased(body, span, span.timestamp_delta + shift) for span in kept]
            )
        changed = header._replace(
            attributes=attributes,
            base_timestamp=new_base,
            max_timestamp=max_timestamp,
            record_count=len(kept),
        )
        return _packed(changed, compress(header.codec, new_body))


def _packed(header: BatchHeader, body: bytes) -> Kept:
    data = pack_batch(header, body)
    return Kept(data, header._replace(batch_length=len(data) - LOG_OVERHEAD_BYTES))
