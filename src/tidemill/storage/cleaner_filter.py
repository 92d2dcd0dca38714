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
            kept = _Selection()
            kept.body += body
            for span in iter_spans(body, header):
                kept.note(span)
            return self._rewritten(header, kept, self._horizon_ms)
        return Kept(original, header)

    # Records

    def _data(self, original: memoryview, header: BatchHeader) -> Kept | None:
        body = records_body(original, 0, header, limit_bytes=DECOMPRESSED_BYTES_MAX)
        kept = self._select(body, header)
        self.stats.records_kept += kept.count
        if not kept.count:
            return self._emptied(header) if self._must_stay(header) else None
        needs_horizon = kept.has_tombstone and not header.has_delete_horizon
        if kept.count == header.record_count and not needs_horizon:
            return Kept(original, header)
        return self._rewritten(header, kept, self._horizon_ms if needs_horizon else None)

    def _select(self, body: bytes, header: BatchHeader) -> _Selection:
        """The records that stay."""
        horizon_ms = header.delete_horizon_ms
        drops_tombstones = horizon_ms is not None and horizon_ms <= self._now_ms
        base_offset, latest = header.base_offset, self._offsets.latest_offset
        last_offset_of = self._offsets.get
        kept = _Selection()
        start = end = 0  # The stretch of records that stay one after the other.
        for span in iter_spans(body, header):
            offset = base_offset + span.offset_delta
            if offset <= latest:
                if span.key is None or offset < last_offset_of(span.key):
                    continue
                if drops_tombstones and not span.has_value:
                    continue
            if span.start != end:
                kept.body += body[start:end]
                start = span.start
            end = span.end
            kept.note(span)
        kept.body += body[start:end]
        return kept

    def _rewritten(self, header: BatchHeader, kept: _Selection, horizon_ms: int | None) -> Kept:
        """The batch with these records only, under a new delete horizon if there is one."""
        base = header.base_timestamp
        max_timestamp = header.max_timestamp
        if header.timestamp_type is TimestampType.CREATE_TIME:
            max_timestamp = base + kept.timestamp_delta_max
        changed = header._replace(max_timestamp=max_timestamp, record_count=kept.count)
        body = kept.body
        if horizon_ms is not None:
            body = _moved(kept.body, changed, base - horizon_ms)
            changed = changed._replace(
                attributes=header.attributes | DELETE_HORIZON_BIT, base_timestamp=horizon_ms
            )
        return _packed(changed, compress(header.codec, body))


class _Selection:
    """Records that stay, as bytes: a batch may have millions, and a list of them would tell."""

    __slots__ = ("body", "count", "has_tombstone", "timestamp_delta_max")

    def __init__(self) -> None:
        self.body = bytearray()
        self.count = 0
        self.has_tombstone = False
        self.timestamp_delta_max = -(2**63)

    def note(self, span: RecordSpan) -> None:
        """One more stays, whoever takes its bytes."""
        self.count += 1
        self.has_tombstone |= not span.has_value
        if span.timestamp_delta > self.timestamp_delta_max:
            self.timestamp_delta_max = span.timestamp_delta


def _moved(body: bytearray, header: BatchHeader, shift: int) -> bytearray:
    """The same records for a base timestamp that lies `shift` earlier."""
    source, moved = bytes(body), bytearray()
    for span in iter_spans(source, header):
        moved += rebased(source, span, span.timestamp_delta + shift)
    return moved


def _packed(header: BatchHeader, body: bytes) -> Kept:
    data = pack_batch(header, body)
    return Kept(data, header._replace(batch_length=len(data) - LOG_OVERHEAD_BYTES))
