"""Opening a log's directory, after a clean stop or after a crash.

After a clean stop nothing is scanned: the end is found from the last index entry, and the snapshot
of the producers is complete. After a crash everything from the recovery point on is checked batch
by batch, indexes and producers are rebuilt, the log is cut at the first bad batch and later
segments go (rules E3, E4). So it takes as long as the unflushed tail is, not as the log is. A bad
batch below the recovery point is not torn but damaged, and cuts nothing off if another follows.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from tidemill.errors import WireError
from tidemill.storage.bulk_sync import Unsynced
from tidemill.storage.checkpoint import LEADER_EPOCHS, PARTITION_METADATA
from tidemill.storage.checksums import CHECKSUMS
from tidemill.storage.damage import Damage
from tidemill.storage.epochs import LeaderEpochCache
from tidemill.storage.files import Files
from tidemill.storage.producer_snapshot import SNAPSHOT, snapshot_path
from tidemill.storage.producer_state import ProducerStates
from tidemill.storage.recovery_damage import damage_ahead
from tidemill.storage.recovery_state import complete_epochs, rebuild_producers
from tidemill.storage.recovery_swap import finish_swaps, is_numbered, offset_of
from tidemill.storage.scan import scan_batches
from tidemill.storage.segment import (
    CLEANED,
    DELETED,
    INDEX_SUFFIXES,
    LOG,
    RELATIVE_OFFSET_MAX,
    UNINDEXED_BYTES_MAX,
    Segment,
)
from tidemill.wire.batch import HEADER_BYTES, BatchHeader, read_header

_log = logging.getLogger(__name__)

WIDE_GAP = RELATIVE_OFFSET_MAX // 2
"""Fewer offsets than this are in any batch, so a gap that no segment can hold is wider."""


@dataclass(slots=True)
class Loaded:
    """What opening a directory found, and what the log starts from."""

    segments: list[Segment]
    epochs: LeaderEpochCache
    producers: ProducerStates
    snapshots: set[int]
    log_start_offset: int
    log_end_offset: int
    flushed_offset: int
    scanned_bytes: int = 0
    """How much a crash made recovery look at."""
    truncated_bytes: int = 0
    """How much of the tail was torn and is gone."""
    damage: list[Damage] = field(default_factory=list)
    """What was durable and is not what was written any more; it is kept, and not served."""
    unsynced: Unsynced = field(init=False)
    """What has to be flushed before the log may serve and its end be checkpointed."""


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """What is known about a log before its directory is looked at."""

    was_clean: bool
    recovery_point: int = 0
    log_start_offset: int = 0
    allows_gaps: bool = False
    """Whether compaction may have taken records from the end of a segment above it, too: nobody
    knows how far it came."""
    index_interval_bytes: int = 4096
    now_ms: int = 0


def load(files: Files, directory: str, options: OpenOptions) -> Loaded:
    """Open the directory; the log serves once what `unsynced` names has been flushed."""
    names = _tidy(files, directory)
    segments = _open_segments(files, directory, names, options.now_ms)
    epochs = LeaderEpochCache(files, directory)
    epochs.load()
    epochs_on_disk = epochs.entries
    loaded = Loaded(
        segments=segments,
        epochs=epochs,
        producers=ProducerStates(),
        snapshots={offset_of(name) for name in names if is_numbered(name, SNAPSHOT)},
        log_start_offset=max(options.log_start_offset, segments[0].base_offset if segments else 0),
        log_end_offset=0,
        flushed_offset=0,
    )
    loaded.unsynced = Unsynced(directory, epochs)
    is_known = options.was_clean and _end_is_known(files, loaded, options.recovery_point)
    if not segments:
        _begin_empty(files, directory, loaded, options.now_ms)
    elif not is_known:
        _recover(files, loaded, options)
    if loaded.log_end_offset < loaded.log_start_offset:
        _restart_at_log_start(files, directory, loaded, options.now_ms)
    _settle(files, directory, loaded, options)
    if not is_known:
        loaded.unsynced.epochs_changed = loaded.epochs.entries != epochs_on_disk
    return loaded


# --- what lies in the directory ------------------------------------------------------------------


def _tidy(files: Files, directory: str) -> list[str]:
    """Remove what a crash left half done; the names that are then there."""
    names = files.listdir(directory)
    changed = finish_swaps(files, directory, names)
    for name in files.listdir(directory) if changed else names:
        leftover = name.endswith((DELETED, CLEANED, ".tmp")) and name[:1].isdigit()
        if leftover or (name.startswith(f"{LEADER_EPOCHS}.") and name.endswith(".tmp")):
            files.unlink(f"{directory}/{name}")
            changed = True
    names = files.listdir(directory) if changed else names
    logs = {offset_of(name) for name in names if is_numbered(name, LOG)}
    # The last segment is open again: it will grow, and get checksums when it is closed.
    closed = logs - {max(logs, default=0)}
    for name in names:
        is_orphan = is_numbered(name, *INDEX_SUFFIXES) and offset_of(name) not in logs
        if is_orphan or (is_numbered(name, CHECKSUMS) and offset_of(name) not in closed):
            files.unlink(f"{directory}/{name}")
            changed = True
    return files.listdir(directory) if changed else names


def is_ours(name: str) -> bool:
    """Whether a file of this name in a partition's directory may be a log's."""
    stem, dot, _ = name.partition(".")
    is_numbered = bool(dot) and len(stem) == 20 and stem.isdigit()
    if name.startswith(f"{LEADER_EPOCHS}.") and name.endswith(".tmp"):
        return True
    return is_numbered or name.removesuffix(".tmp") in (PARTITION_METADATA, LEADER_EPOCHS)


def _open_segments(files: Files, directory: str, names: list[str], now_ms: int) -> list[Segment]:
    bases = sorted(offset_of(name) for name in names if is_numbered(name, LOG))
    segments, present = [], set(names)
    for base in bases:
        segment = Segment(files, directory, base, size=0, created_ms=now_ms)
        segment.size = files.size(segment.log_path)
        segment.note_missing_indexes(present)
        segments.append(segment)
    return segments


def _begin_empty(files: Files, directory: str, loaded: Loaded, now_ms: int) -> None:
    """A directory without segments: a new partition, or one that lost everything."""
    offset = loaded.log_start_offset
    segment = Segment(files, directory, offset, size=-1, created_ms=now_ms)
    segment.create()
    loaded.segments.append(segment)
    loaded.log_end_offset = loaded.flushed_offset = offset


def _restart_at_log_start(files: Files, directory: str, loaded: Loaded, now_ms: int) -> None:
    """All that is left lies below the log's start: it was deleted before the crash."""
    for segment in loaded.segments:
        segment.delete_files()
    for offset in loaded.snapshots:
        files.unlink(snapshot_path(directory, offset))
    loaded.snapshots.clear()
    loaded.damage.clear()
    loaded.segments.clear()
    loaded.epochs.clear()
    loaded.unsynced.names_changed = True
    _begin_empty(files, directory, loaded, now_ms)


# --- the end of the log --------------------------------------------------------------------------


def _end_is_known(files: Files, loaded: Loaded, recovery_point: int) -> bool:
    """After a clean stop: read the last batch, and believe it if the checkpoint agrees."""
    if not loaded.segments:
        return False
    active = loaded.segments[-1]
    try:
        last = active.last_batch(files.pread)
    except WireError:
        return False
    end_offset, end_position = active.base_offset, 0
    if last is not None:
        end_offset, end_position = last[1].next_offset, last[0] + last[1].size_bytes
    if end_offset != recovery_point or end_position != active.size:
        return False
    loaded.log_end_offset = loaded.flushed_offset = end_offset
    active.note_sealed()
    return True


def _recover(files: Files, loaded: Loaded, options: OpenOptions) -> None:
    """Check every segment from the recovery point on; cut the log at the first bad batch."""
    segments = loaded.segments
    first = _first_to_check(segments, options.recovery_point)
    for slot in range(first, len(segments)):
        segment = segments[slot]
        limit = segments[slot + 1].base_offset if slot + 1 < len(segments) else None
        point = options.recovery_point if slot == first else 0
        end_offset, is_whole = _recover_segment(files, loaded, segment, point, limit, options)
        loaded.log_end_offset = end_offset
        has_gap = limit is not None and _is_hole(end_offset, limit, options)
        if not is_whole or has_gap:
            loaded.truncated_bytes += _drop_after(segments, slot)
            _report_cut(loaded, options.recovery_point)
            _cut_off(files, loaded.unsynced.directory, segment)
            break
    for segment in segments[first:-1]:
        segment.seal()
    loaded.flushed_offset = loaded.log_end_offset
    has_sealed = len(segments) - first > 1
    if has_sealed or loaded.truncated_bytes or loaded.log_end_offset != options.recovery_point:
        _note_tail(loaded.unsynced, segments[first:])
    else:
        # Nothing is missing, but a cut that was under way may be in memory only.
        loaded.unsynced.paths += [segments[-1].log_path, segments[-1].txn_index.path]


def _is_hole(begin: int, end: int, options: OpenOptions) -> bool:
    """Whether the offsets that are missing between two segments were lost in the crash.

    Compaction leaves gaps, too, but only below the recovery point. A segment only ever begins
    behind a gap, instead of where the last ended, if that is too wide for 32 bits: so wide a gap is
    not what a crash leaves.
    """
    if options.allows_gaps or end <= options.recovery_point:
        return False
    return 0 < end - begin < WIDE_GAP


def _report_cut(loaded: Loaded, recovery_point: int) -> None:
    """A torn tail is what a crash leaves; more than that is a fault of the disk."""
    directory, end_offset = loaded.unsynced.directory, loaded.log_end_offset
    if end_offset < recovery_point:
        _log.error(
            "%s is cut at offset %d: offsets up to %d were durable and cannot be read (%d bytes)",
            directory,
            end_offset,
            recovery_point - 1,
            loaded.truncated_bytes,
        )
    else:
        _log.info(
            "%s is cut at offset %d: %d bytes after it were not written whole",
            directory,
            end_offset,
            loaded.truncated_bytes,
        )


def _first_to_check(segments: list[Segment], recovery_point: int) -> int:
    """The segment of the last record that was flushed. Where that is the last of its segment, the
    next one may have begun just before the crash: the indexes were not flushed then."""
    first = 0
    for slot, segment in enumerate(segments):
        if segment.base_offset < recovery_point:
            first = slot
    return first


def _recover_segment(
    files: Files,
    loaded: Loaded,
    segment: Segment,
    recovery_point: int,
    limit: int | None,
    options: OpenOptions,
) -> tuple[int, bool]:
    """Scan one segment; its end offset, and whether all of it was good."""
    start, offset = segment.indexed(files.pread).by_offset(recovery_point)
    whole_size = segment.size
    segment.restart_indexes(start, max(offset, segment.base_offset))
    segment.reset_end(start)
    offset = _take_batches(files, loaded, segment, offset, whole_size, limit, options)
    while segment.size < whole_size and offset < recovery_point:
        damage = damage_ahead(files, segment, offset, whole_size, recovery_point)
        if damage is None:
            break
        _log.error("%s is damaged: %s", segment.log_path, damage)
        loaded.damage.append(damage)
        segment.size, offset = damage.end, damage.next_offset
        _index_next(files, segment)
        offset = _take_batches(files, loaded, segment, offset, whole_size, limit, options)
    loaded.scanned_bytes += segment.size - start
    if segment.size == whole_size:
        return offset, True
    loaded.truncated_bytes += whole_size - segment.size
    return offset, False


def _take_batches(
    files: Files,
    loaded: Loaded,
    segment: Segment,
    offset: int,
    whole_size: int,
    limit: int | None,
    options: OpenOptions,
) -> int:
    """Take in the sound batches from the segment's end on; the offset after the last of them."""
    for batch in scan_batches(files, segment.log_path, segment.size, whole_size):
        header = batch.header
        if not _fits(header, segment, offset, limit):
            break
        offset = header.next_offset
        loaded.epochs.note(header.partition_leader_epoch, header.base_offset)
        segment.note_batch(
            header.base_offset,
            header.last_offset,
            header.size_bytes,
            header.max_timestamp,
            options.index_interval_bytes,
        )
    return offset


def _index_next(files: Files, segment: Segment) -> None:
    """The batch after damage is always in the index: nobody finds it by walking there."""
    header = read_header(files.pread(segment.log_path, segment.size, HEADER_BYTES))
    segment.offset_index.append(header.last_offset - segment.base_offset, segment.size)


def _fits(header: BatchHeader, segment: Segment, offset: int, limit: int | None) -> bool:
    """Offsets are not under the checksum: they must grow and stay in their segment (E10)."""
    if header.base_offset < offset or header.last_offset_delta < 0:
        return False
    if header.last_offset - segment.base_offset > RELATIVE_OFFSET_MAX:
        return False
    return limit is None or header.last_offset < limit


def _drop_after(segments: list[Segment], slot: int) -> int:
    """What follows a damaged segment cannot be trusted to continue it (rule E4)."""
    dropped = segments[slot + 1 :]
    del segments[slot + 1 :]
    for segment in dropped:
        segment.delete_files()
    return sum(segment.size for segment in dropped)


def _cut_off(files: Files, directory: str, segment: Segment) -> None:
    """Cut the segment, which is the open one again, where its good part ends.

    What came after it goes durably before that: a crash in between must not leave a hole.
    """
    segment.drop_checksums()
    files.fsync_dir(directory)
    files.truncate(segment.log_path, segment.size)
    segment.write_indexes()  # Entries of what is gone must not be met by another recovery.


def _note_tail(unsynced: Unsynced, segments: list[Segment]) -> None:
    """What survived is served from now on, so it must also survive the next crash."""
    unsynced.names_changed = True
    for segment in segments:
        # Reading a short tail once more is cheaper than making two files, ten thousand times. But
        # files that are there must not speak of what is gone.
        is_long = segment.size > UNINDEXED_BYTES_MAX
        if segment.has_unwritten_index and (is_long or segment.has_index_file):
            segment.write_indexes()
        unsynced.paths += [segment.log_path, *segment.index_paths()]


def _settle(files: Files, directory: str, loaded: Loaded, options: OpenOptions) -> None:
    """Bring epochs, snapshots and producers in line with the log that was found."""
    loaded.epochs.truncate_from_end(loaded.log_end_offset)
    loaded.epochs.truncate_from_start(loaded.log_start_offset)
    known = loaded.epochs.entries
    complete_epochs(
        files,
        loaded.segments,
        loaded.epochs,
        loaded.log_start_offset,
        loaded.log_end_offset,
    )
    loaded.unsynced.epochs_changed = loaded.epochs.entries != known
    stale = {offset for offset in loaded.snapshots if offset > loaded.log_end_offset}
    for offset in stale:
        files.unlink(snapshot_path(directory, offset))
    loaded.snapshots -= stale
    loaded.unsynced.names_changed |= bool(stale)
    safe_offset = min(options.recovery_point, loaded.log_end_offset)
    if options.was_clean:
        safe_offset = loaded.log_end_offset
    rebuild_producers(
        files,
        directory,
        loaded.segments,
        loaded.producers,
        loaded.snapshots,
        start_offset=loaded.log_start_offset,
        end_offset=loaded.log_end_offset,
        snapshot_max=safe_offset,
        txn_from=safe_offset,
    )
    for segment in loaded.segments:
        if segment.txn_index.dirty:
            # No later flush would look at an old segment again.
            segment.txn_index.dirty = False
            loaded.unsynced.paths.append(segment.txn_index.path)
            loaded.unsynced.names_changed = True
