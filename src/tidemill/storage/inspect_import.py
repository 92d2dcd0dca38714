"""Rewriting a partition's directory of message sets v0/v1 (Kafka 0.8 to 0.10) to record batches.

`import_directory` keeps every offset, timestamp, key and value, and the segments' boundaries.
Compressed messages become one batch each with the same codec; runs of plain ones are grouped.
Batches that are v2 already, as an upgraded broker left them, are copied. The new directory appears
under its name only when it is whole and on disk; the old one is only read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tidemill.errors import WireError
from tidemill.storage.checkpoint import LEADER_EPOCHS, format_epochs, write_partition_metadata
from tidemill.storage.files import Files, replace_file
from tidemill.storage.index import OffsetIndex, TimeIndex
from tidemill.storage.inspect import (
    RECORDS_BYTES_MAX,
    BatchRow,
    InspectError,
    TailRow,
    dump_segment,
    is_segment_name,
)
from tidemill.storage.segment import INDEX, LOG, TIME_INDEX, offset_name
from tidemill.types import TopicId
from tidemill.wire import legacy
from tidemill.wire.batch import OFFSET_DELTA_MAX, BatchHeader, read_header, stamp
from tidemill.wire.compression import Codec

GROUP_BYTES: Final = 64 * 1024
GROUP_MESSAGES_MAX: Final = 1000
"""Plain messages that go into one batch; a batch is what readers fetch and check at once."""

INDEX_INTERVAL_BYTES: Final = 4096


@dataclass(slots=True)
class ImportReport:
    """What an import read and wrote."""

    source: str
    target: str
    segments: int = 0
    messages: int = 0
    batches_written: int = 0
    batches_copied: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    start_offset: int = -1
    end_offset: int = -1
    torn_bytes: int = 0
    """Bytes at the end of the last segment that were no whole message."""


def import_directory(
    files: Files,
    source: str,
    target: str,
    *,
    leader_epoch: int = 0,
    topic_id: TopicId | None = None,
    limit_bytes: int = RECORDS_BYTES_MAX,
    dry_run: bool = False,
) -> ImportReport:
    """Write `source`'s messages as record batches to the new directory `target`.

    Raises `InspectError` if the target exists, if a message fails its CRC, or if anything but the
    very end of the log is damaged: an import never drops a message silently. `dry_run` reads and
    converts everything and writes nothing.
    """
    bases = sorted(
        int(name[: -len(LOG)]) for name in files.listdir(source) if is_segment_name(name)
    )
    if not bases:
        raise InspectError(f"{source} holds no segment; name a partition's directory")
    if files.exists(target):
        raise InspectError(f"{target} exists; import into a new directory, or remove that one")
    report = ImportReport(source, target)
    work = f"{target}.import"
    if dry_run:
        for base in bases:
            _read_segment(files, base, report, bases, leader_epoch, limit_bytes, None)
        return report
    _make_empty(files, work)
    for base in bases:
        writer = _SegmentWriter(files, work, base)
        _read_segment(files, base, report, bases, leader_epoch, limit_bytes, writer)
        writer.finish()
    _finish_directory(files, work, report, leader_epoch, topic_id)
    files.replace(work, target)
    files.fsync_dir(target.rpartition("/")[0] or ".")
    return report


def _make_empty(files: Files, work: str) -> None:
    """An earlier import that was cut off may have left its work behind."""
    files.mkdir(work)
    for name in files.listdir(work):
        files.unlink(f"{work}/{name}")


def _finish_directory(
    files: Files, work: str, report: ImportReport, leader_epoch: int, topic_id: TopicId | None
) -> None:
    if topic_id is not None:
        write_partition_metadata(files, work, topic_id)
    epochs = format_epochs([(leader_epoch, report.start_offset)])
    replace_file(files, work, LEADER_EPOCHS, epochs)


def _read_segment(
    files: Files,
    base: int,
    report: ImportReport,
    bases: list[int],
    leader_epoch: int,
    limit_bytes: int,
    writer: _SegmentWriter | None,
) -> None:
    path = f"{report.source}/{offset_name(base)}{LOG}"
    report.segments += 1
    rows = _sound_rows(files, path, report, is_last=base == bases[-1])
    for batch in _batches(rows, report, leader_epoch, limit_bytes):
        header = read_header(batch)
        _check_order(path, header, report, base)
        report.start_offset = header.base_offset if report.end_offset < 0 else report.start_offset
        report.end_offset = header.next_offset
        report.bytes_written += len(batch)
        if writer is not None:
            writer.append(batch, header)


def _check_order(path: str, header: BatchHeader, report: ImportReport, base: int) -> None:
    if header.base_offset < max(report.end_offset, base):
        raise InspectError(
            f"{path}: offset {header.base_offset} comes after {report.end_offset - 1}; "
            "the log was damaged before the import, run a verify on it"
        )
    if header.last_offset - base > OFFSET_DELTA_MAX:
        raise InspectError(f"{path}: offset {header.last_offset} is too far from {base}")


def _sound_rows(
    files: Files, path: str, report: ImportReport, *, is_last: bool
) -> Iterator[BatchRow]:
    """The segment's rows, every CRC checked; only the log's last bytes may be torn."""
    for row in dump_segment(files, path):
        report.bytes_read += row.size_bytes
        if isinstance(row, TailRow):
            if not is_last:
                raise InspectError(f"{path} at byte {row.position}: {row.reason}")
            report.torn_bytes = row.size_bytes
            return
        if not row.crc_valid:
            raise InspectError(
                f"{path} at byte {row.position}: offset {row.base_offset} fails its CRC; "
                "import from another replica"
            )
        yield row


def _batches(
    rows: Iterator[BatchRow], report: ImportReport, leader_epoch: int, limit_bytes: int
) -> Iterator[bytes]:
    """Record batches in order: copied, made of a wrapper, or made of a run of plain messages."""
    run: list[legacy.Message] = []
    run_bytes = 0
    for row in rows:
        message = row.message
        if message is not None and message.codec is Codec.NONE:
            run.append(message)
            run_bytes += row.size_bytes
            if run_bytes < GROUP_BYTES and len(run) < GROUP_MESSAGES_MAX:
                continue
        yield from _converted(run, Codec.NONE, report, leader_epoch)
        run, run_bytes = [], 0
        if message is None:
            yield _copied(row, report, leader_epoch)
        elif message.codec is not Codec.NONE:
            inner = _opened(message, limit_bytes, report)
            yield from _converted(inner, message.codec, report, leader_epoch)
    yield from _converted(run, Codec.NONE, report, leader_epoch)


def _opened(
    wrapper: legacy.Message, limit_bytes: int, report: ImportReport
) -> list[legacy.Message]:
    try:
        return list(legacy.open_message(wrapper, limit_bytes=limit_bytes))
    except WireError as error:
        raise InspectError(
            f"{report.source}: the compressed message with offset {wrapper.offset} "
            f"cannot be read ({error}); import from another replica"
        ) from None


def _converted(
    messages: list[legacy.Message], codec: Codec, report: ImportReport, leader_epoch: int
) -> Iterator[bytes]:
    report.messages += len(messages)
    for run in legacy.split_by_time(messages):
        report.batches_written += 1
        try:
            yield legacy.to_batch(run, codec=codec, leader_epoch=leader_epoch)
        except ValueError as error:
            raise InspectError(
                f"{report.source}: offsets around {run[0].offset} are not in order ({error}); "
                "import from another replica"
            ) from None


def _copied(row: BatchRow, report: ImportReport, leader_epoch: int) -> bytes:
    """A v2 batch with the import's leader epoch: its own belongs to another cluster."""
    report.batches_copied += 1
    batch = bytearray(row.data)
    stamp(batch, 0, row.base_offset, leader_epoch)
    return bytes(batch)


class _SegmentWriter:
    """One new segment with its two indexes."""

    def __init__(self, files: Files, directory: str, base: int) -> None:
        self._files, self._base = files, base
        stem = f"{directory}/{offset_name(base)}"
        self._log = stem + LOG
        self._offsets = OffsetIndex(files, stem + INDEX, empty=True)
        self._times = TimeIndex(files, stem + TIME_INDEX, empty=True)
        self._size = self._since_entry = 0
        self._latest, self._latest_offset = -1, base
        files.write_at(self._log, 0, (b"",))

    def append(self, batch: bytes, header: BatchHeader) -> None:
        if self._since_entry > INDEX_INTERVAL_BYTES:
            self._offsets.append(header.last_offset - self._base, self._size)
            self._times.append(self._latest, self._latest_offset - self._base)
            self._since_entry = 0
        self._files.write_at(self._log, self._size, (batch,))
        self._size += len(batch)
        self._since_entry += len(batch)
        if header.max_timestamp > self._latest:
            self._latest, self._latest_offset = header.max_timestamp, header.last_offset

    def finish(self) -> None:
        """Put everything on disk, the time index closed with the segment's latest timestamp."""
        self._times.append(self._latest, self._latest_offset - self._base)
        self._offsets.write()
        self._times.write()
        for path in (self._offsets.path, self._times.path, self._log):
            self._files.fdatasync(path)
            self._files.close(path)  # The directory gets another name soon.
