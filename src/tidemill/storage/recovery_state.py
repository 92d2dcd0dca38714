"""What a log knows beside its batches, read from them: leader epochs, producers, transactions.

A start and a truncation bring all of that in line with the batches that are left (rules D8 and G5).
What a damaged batch would have said is not known; the others are taken as if it were not there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from tidemill.errors import WireError
from tidemill.storage.epochs import LeaderEpochCache
from tidemill.storage.files import Files
from tidemill.storage.producer_snapshot import load_newest
from tidemill.storage.producer_state import ProducerStates
from tidemill.storage.scan import walk_headers
from tidemill.storage.segment import Segment
from tidemill.storage.txn_index import AbortedTransaction
from tidemill.wire.batch import HEADER_BYTES, BatchHeader, read_header
from tidemill.wire.control import EndTransactionMarker, read_marker

_log = logging.getLogger(__name__)

# --- leader epochs -------------------------------------------------------------------------------


def complete_epochs(
    files: Files,
    segments: list[Segment],
    epochs: LeaderEpochCache,
    start_offset: int,
    end_offset: int,
) -> None:
    """Learn from the batches what the checkpoint does not say, or no longer (rule D1).

    It may be lost or damaged, or may have forgotten the epochs of records that a DeleteRecords hid
    and a crash brought back. What a truncation took out of it may not have been written down, and
    batches of an older epoch been copied since. One that contradicts the last batch otherwise is
    not believed at all.
    """
    if start_offset >= end_offset:
        return
    last = _last_batch(files, segments[-1])
    if last is not None and epochs.epoch_for(last.base_offset) > last.partition_leader_epoch:
        epochs.truncate_epochs_after(last.partition_leader_epoch)
    if last is not None and epochs.epoch_for(last.base_offset) != last.partition_leader_epoch:
        _log.error("the leader epochs beside %s are wrong: it says others", segments[-1].log_path)
        epochs.clear()
    known = epochs.entries
    until = known[0][1] if known else end_offset
    if until <= start_offset:
        return
    epochs.clear()
    for segment in from_offset(segments, start_offset):
        if segment.base_offset >= until:
            break
        if not _note_epochs(files, segment, epochs, start_offset, until):
            break
    for epoch, begin in known:
        epochs.note(epoch, begin)


def _last_batch(files: Files, active: Segment) -> BatchHeader | None:
    """The one that says what its epoch is, if there is one."""
    try:
        last = active.last_batch(files.pread)
    except WireError:
        return None  # Damage in the batches is no fault of the checkpoint.
    if last is None or last[1].partition_leader_epoch < 0:
        return None
    return last[1]


def _note_epochs(
    files: Files, segment: Segment, epochs: LeaderEpochCache, start: int, until: int
) -> bool:
    """Take in the epochs of one segment's batches; False when they do not know theirs."""
    for _, header in _sound_headers(files, segment, _start_of(files, segment, start)):
        if header.next_offset <= start:
            continue
        if header.partition_leader_epoch < 0:
            return False
        if header.base_offset >= until:
            break
        epochs.note(header.partition_leader_epoch, max(header.base_offset, start))
    return True


# --- producers -----------------------------------------------------------------------------------


def rebuild_producers(
    files: Files,
    directory: str,
    segments: list[Segment],
    producers: ProducerStates,
    snapshots: set[int],
    *,
    start_offset: int,
    end_offset: int,
    snapshot_max: int,
    txn_from: int,
) -> None:
    """Load the newest snapshot up to `snapshot_max` and replay what the log holds after it.

    Aborted transactions whose markers lie at or after `txn_from` are indexed anew.
    """
    newest = load_newest(files, directory, snapshots, snapshot_max)
    if newest is None:
        producers.reset((), start_offset)
    else:
        producers.reset(newest[1], newest[0])
    begin = producers.map_end_offset
    for segment in from_offset(segments, txn_from):
        segment.txn_index.truncate(txn_from)
        _drop_torn_aborts(files, segment)
    if begin >= end_offset:
        return
    for segment in from_offset(segments, begin):
        _replay_segment(files, segment, producers, begin, txn_from)


def _drop_torn_aborts(files: Files, segment: Segment) -> None:
    """Forget the last aborted transactions if their markers are not where they say.

    What was not flushed is about markers from the recovery point on, and is indexed anew. But an
    entry of which a power cut left some bytes may seem to be about an earlier offset.
    """
    while entries := segment.txn_index.entries():
        last = entries[-1]
        try:
            position = segment.locate(last.last_offset, files.pread)
            header = _header_at(files, segment, position)
        except WireError:
            return  # Damage is no fault of the index.
        if header is not None and _is_marker_of(last, header):
            return
        segment.txn_index.truncate(last.last_offset)


def _is_marker_of(aborted: AbortedTransaction, header: BatchHeader) -> bool:
    is_theirs = header.is_control and header.producer_id == aborted.producer_id
    return is_theirs and header.base_offset == aborted.last_offset


def _header_at(files: Files, segment: Segment, position: int) -> BatchHeader | None:
    if position > segment.size - HEADER_BYTES:
        return None
    return read_header(files.pread(segment.log_path, position, HEADER_BYTES))


def from_offset(segments: list[Segment], offset: int) -> list[Segment]:
    return [
        segment
        for slot, segment in enumerate(segments)
        if slot + 1 == len(segments) or segments[slot + 1].base_offset > offset
    ]


def _replay_segment(
    files: Files, segment: Segment, producers: ProducerStates, begin: int, txn_from: int
) -> None:
    start = _start_of(files, segment, begin)
    for position, header in _sound_headers(files, segment, start):
        if header.next_offset <= begin:
            continue  # One that DeleteRecords cut into still says what its producer did.
        if not header.is_control:
            producers.apply(header, header.base_offset)
            continue
        marker = _marker_at(files, segment, position, header)
        if marker is None:
            continue
        completed = producers.apply_marker(header, header.base_offset, marker)
        if completed is not None and completed.is_aborted and header.base_offset >= txn_from:
            segment.txn_index.append(producers.aborted_entry(completed))


def _start_of(files: Files, segment: Segment, offset: int) -> int:
    """Where to begin to look for batches from `offset` on; earlier ones may come first."""
    try:
        return segment.locate(offset, files.pread)
    except WireError:
        return 0


def _sound_headers(files: Files, segment: Segment, start: int) -> Iterator[tuple[int, BatchHeader]]:
    """The batches from `start` on, less those that a damaged header hides.

    The way back is an index entry that its batch agrees with, as for reads (see `damage.py`).
    """
    position, end = start, segment.size
    while position < end:
        reason = "a batch that is longer than its file"
        try:
            for at, header in walk_headers(files.pread, segment.log_path, position, end):
                position = at + header.size_bytes
                yield at, header
        except WireError as error:
            reason = str(error)
        if position >= end:
            return
        resume = _indexed_after(files, segment, position)
        _log.error(
            "%s is damaged at byte %d (%s): what the next %d bytes say is not known",
            segment.log_path,
            position,
            reason,
            resume - position,
        )
        position = resume


def _indexed_after(files: Files, segment: Segment, position: int) -> int:
    """The position of the next batch that the index knows; the segment's end if there is none."""
    for relative, at in segment.offset_index.entries_from(position + 1):
        try:
            header = _header_at(files, segment, at)
        except WireError:
            continue
        if header is None:
            break
        if header.last_offset == segment.base_offset + relative:
            return at
    return segment.size


def _marker_at(
    files: Files, segment: Segment, position: int, header: BatchHeader
) -> EndTransactionMarker | None:
    data = files.pread(segment.log_path, position, header.size_bytes)
    try:
        return read_marker(data, 0, header)
    except WireError as error:
        _log.error("%s has a damaged marker at byte %d: %s", segment.log_path, position, error)
        return None
