"""Checking a partition's directory, file by file, and saying what to do about each problem.

`verify_log` reads every segment and compares on the way: CRCs, offsets that rise from segment to
segment, index entries against the batches they point to, the time index against the timestamps, the
leader-epoch checkpoint against the batches, snapshots and aborted transactions, and all bytes of
closed segments against their checksums, where there are any. It changes nothing. What the next
start of a broker repairs by itself is a `WARNING`; what means lost or wrong data is an `ERROR`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from tidemill.errors import TidemillError, WireError
from tidemill.storage.checkpoint import LEADER_EPOCHS
from tidemill.storage.files import Files
from tidemill.storage.inspect import (
    BatchRow,
    EpochRow,
    FileKind,
    IndexRow,
    InspectError,
    TailRow,
    TimeRow,
    check_index_size,
    dump_epochs,
    dump_index,
    dump_segment,
    dump_snapshot,
    dump_time_index,
    dump_txn_index,
    is_segment_name,
    kind_of,
)
from tidemill.storage.inspect_checksums import compare_all
from tidemill.storage.producer_snapshot import SNAPSHOT
from tidemill.storage.segment import INDEX, LOG, TIME_INDEX, TXN_INDEX, offset_name
from tidemill.wire.batch import OFFSET_DELTA_MAX, BatchHeader

PROBLEMS_MAX: Final = 1000
"""A log that is broken through and through needs no longer list."""

UNFINISHED_SUFFIXES: Final = (".deleted", ".cleaned", ".swap", ".tmp")

_REBUILD: Final = "delete the file while the broker is down: the next start builds it anew"
_RESTORE: Final = (
    "stop the broker, move this directory away and let the partition come back from another "
    "replica, or cut the segment at this position and accept the loss of what follows"
)
_RESEAL: Final = "nothing to do: a running broker writes the checksums anew"
_TORN: Final = "nothing to do: the next start cuts it off, it was never acknowledged as durable"
_EPOCHS: Final = (
    "delete the checkpoint while the broker is down: recovery fills it from the batches"
)


class Severity(Enum):
    """Whether a broker mends a problem by itself."""

    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is not as it should be, where, and what to do about it."""

    severity: Severity
    file: str
    position: int | None
    message: str
    advice: str


@dataclass(slots=True)
class LogReport:
    """What `verify_log` saw."""

    directory: str
    segments: int = 0
    batches: int = 0
    records: int = 0
    old_messages: int = 0
    size_bytes: int = 0
    start_offset: int = -1
    end_offset: int = -1
    problems: list[Problem] = field(default_factory=list)
    problems_left_out: int = 0

    @property
    def is_sound(self) -> bool:
        """No problem that loses or changes data."""
        return all(problem.severity is Severity.WARNING for problem in self.problems)

    def add(
        self, severity: Severity, file: str, position: int | None, message: str, advice: str
    ) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(Problem(severity, file, position, message, advice))
        else:
            self.problems_left_out += 1

    def error(self, file: str, position: int | None, message: str, advice: str) -> None:
        self.add(Severity.ERROR, file, position, message, advice)

    def warn(self, file: str, position: int | None, message: str, advice: str) -> None:
        self.add(Severity.WARNING, file, position, message, advice)


def verify_log(files: Files, directory: str, *, deep: bool = False) -> LogReport:
    """Check one partition's directory; `deep` decodes every record as well."""
    report = LogReport(directory)
    names = sorted(files.listdir(directory))
    bases = [int(name[: -len(LOG)]) for name in names if is_segment_name(name)]
    if not bases:
        report.error(directory, None, "there is no segment here", "name a partition's directory")
        return report
    epochs = _EpochCheck(files, directory, report)
    previous_end = -1
    for base in bases:
        is_last = base == bases[-1]
        check = _SegmentCheck(files, directory, base, report, deep=deep, is_last=is_last)
        previous_end = check.run(previous_end, epochs)
    epochs.finish(previous_end)
    report.end_offset = previous_end
    _check_checksums(files, directory, bases, report)
    _check_other_files(files, directory, names, set(bases), report)
    return report


class _SegmentCheck:
    """One pass over a segment, with its two indexes read alongside."""

    def __init__(
        self,
        files: Files,
        directory: str,
        base: int,
        report: LogReport,
        *,
        deep: bool,
        is_last: bool,
    ) -> None:
        self._files, self._report = files, report
        self._base, self._deep, self._is_last = base, deep, is_last
        self._stem = f"{directory}/{offset_name(base)}"
        self._log = self._stem + LOG

    def run(self, previous_end: int, epochs: _EpochCheck) -> int:
        """Check everything; returns the offset after the segment's last batch."""
        report, end = self._report, max(previous_end, self._base)
        report.segments += 1
        report.size_bytes += self._files.size(self._log)
        if previous_end > self._base:
            report.error(
                self._log,
                0,
                f"the segment before ends at offset {previous_end}, after this one's start",
                _RESTORE,
            )
        if report.start_offset < 0:
            report.start_offset = self._base
        index = _IndexCheck(self._files, self._stem, report, may_lack=self._is_last)
        times = _TimeCheck(self._files, self._stem, report, may_lack=self._is_last)
        for row in dump_segment(self._files, self._log):
            if isinstance(row, TailRow):
                self._tail(row)
                break
            end = self._batch(row, end)
            index.batch(row)
            times.batch(row)
            epochs.batch(row, self._log)
        index.finish()
        times.finish()
        self._transactions(end)
        return end

    def _tail(self, tail: TailRow) -> None:
        message = f"{tail.size_bytes} bytes are no batch: {tail.reason}"
        if self._is_last:
            self._report.warn(self._log, tail.position, message, _TORN)
        else:
            self._report.error(self._log, tail.position, message, _RESTORE)

    def _batch(self, row: BatchRow, end: int) -> int:
        report = self._report
        if row.header is None:
            report.old_messages += 1
        else:
            report.batches += 1
            report.records += row.header.record_count
            self._header(row, row.header)
        if not row.crc_valid:
            message = f"the batch of offset {row.base_offset} does not match its CRC"
            report.error(self._log, row.position, message, _RESTORE)
        elif self._deep:
            self._records(row)
        if row.base_offset < end:
            message = f"offset {row.base_offset} comes after {end - 1}"
            report.error(self._log, row.position, message, _RESTORE)
        return max(end, row.last_offset + 1)

    def _header(self, row: BatchRow, header: BatchHeader) -> None:
        if not 0 <= header.record_count <= header.last_offset_delta + 1:
            message = (
                f"the batch of offset {header.base_offset} counts {header.record_count} records "
                f"in {header.last_offset_delta + 1} offsets"
            )
            self._report.error(self._log, row.position, message, _RESTORE)
        if header.last_offset - self._base > OFFSET_DELTA_MAX:
            message = f"offset {header.last_offset} is too far from the segment's start"
            self._report.error(self._log, row.position, message, _RESTORE)

    def _records(self, row: BatchRow) -> None:
        before = -1
        try:
            for record in row.records():
                if record.offset <= before:
                    raise WireError(f"offset {record.offset} comes after {before}")
                before = record.offset
        except WireError as error:
            message = f"the records of offset {row.base_offset} cannot be read: {error}"
            self._report.error(self._log, row.position, message, _RESTORE)

    def _transactions(self, end: int) -> None:
        path = self._stem + TXN_INDEX
        if not self._files.exists(path):
            return
        before = -1
        try:
            for row in dump_txn_index(self._files, path):
                inside = self._base <= row.last_offset < end
                if not inside or row.first_offset > row.last_offset or row.last_offset <= before:
                    message = f"an aborted transaction of {row.first_offset} to {row.last_offset}"
                    self._report.error(path, None, message + " does not fit the log", _REBUILD)
                before = row.last_offset
        except InspectError as error:
            self._report.error(path, None, str(error), _REBUILD)


class _IndexCheck:
    """Each entry of the offset index must be the start of a batch that ends with its offset."""

    def __init__(self, files: Files, stem: str, report: LogReport, *, may_lack: bool) -> None:
        self._path, self._report = stem + INDEX, report
        self._rows: Iterator[IndexRow] = iter(())
        if _usable(files, self._path, FileKind.INDEX, report, may_lack=may_lack):
            self._rows = dump_index(files, self._path)
        self._previous = IndexRow(-1, -1)
        self._next = self._advance()

    def _advance(self) -> IndexRow | None:
        """The next entry that can be checked, skipping the zeros of a file not closed."""
        for row in self._rows:
            if row.position == 0 and self._previous.position < 0:
                continue
            if row.offset <= self._previous.offset or row.position <= self._previous.position:
                self._report.warn(
                    self._path, None, f"entry {tuple(row)} does not rise above the last", _REBUILD
                )
            self._previous = row
            return row
        return None

    def batch(self, row: BatchRow) -> None:
        while self._next is not None and self._next.position < row.position + row.size_bytes:
            entry = self._next
            if entry.position != row.position:
                self._wrong(entry, "in the middle of a batch")
            elif entry.offset != row.last_offset:
                self._wrong(entry, f"at a batch that ends with offset {row.last_offset}")
            self._next = self._advance()

    def finish(self) -> None:
        while self._next is not None:
            self._wrong(self._next, "after the last batch")
            self._next = self._advance()

    def _wrong(self, entry: IndexRow, where: str) -> None:
        message = f"offset {entry.offset} is indexed at position {entry.position}, {where}"
        self._report.warn(self._path, entry.position, message, _REBUILD)


class _TimeCheck:
    """Entries of the time index must rise, and be the latest timestamp up to their offset."""

    def __init__(self, files: Files, stem: str, report: LogReport, *, may_lack: bool) -> None:
        self._path, self._report = stem + TIME_INDEX, report
        self._rows: Iterator[TimeRow] = iter(())
        if _usable(files, self._path, FileKind.TIME_INDEX, report, may_lack=may_lack):
            self._rows = dump_time_index(files, self._path)
        self._latest = -1
        self._previous = TimeRow(-1, -1)
        self._next = self._advance()

    def _advance(self) -> TimeRow | None:
        for row in self._rows:
            if row.timestamp <= 0 and self._previous.timestamp < 0:
                continue
            if row.timestamp <= self._previous.timestamp or row.offset < self._previous.offset:
                message = f"timestamp {row.timestamp} follows {self._previous.timestamp}"
                self._report.warn(self._path, None, message, _REBUILD)
            self._previous = row
            return row
        return None

    def batch(self, row: BatchRow) -> None:
        self._latest = max(self._latest, row.max_timestamp)
        while self._next is not None and self._next.offset <= row.last_offset:
            if self._next.timestamp != self._latest:
                message = (
                    f"timestamp {self._next.timestamp} is indexed at offset {self._next.offset}, "
                    f"where {self._latest} is the latest"
                )
                self._report.warn(self._path, None, message, _REBUILD)
            self._next = self._advance()

    def finish(self) -> None:
        while self._next is not None:
            message = f"offset {self._next.offset} is after the last batch"
            self._report.warn(self._path, None, message, _REBUILD)
            self._next = self._advance()


def _usable(files: Files, path: str, kind: FileKind, report: LogReport, *, may_lack: bool) -> bool:
    """Whether there is an index to check; the segment being written has none until it is rolled."""
    if not files.exists(path):
        if not may_lack:
            advice = "nothing: the next start builds it anew"
            report.warn(path, None, "the index is missing", advice)
        return False
    try:
        check_index_size(files, path, kind)
    except InspectError as error:
        report.warn(path, None, str(error), _REBUILD)
        return False
    return True


class _EpochCheck:
    """The leader-epoch checkpoint against the epochs that the batches carry."""

    def __init__(self, files: Files, directory: str, report: LogReport) -> None:
        self._path, self._report = f"{directory}/{LEADER_EPOCHS}", report
        self._entries: list[EpochRow] = []
        self._latest = -1
        self._reported: set[int] = set()
        self._is_known = files.exists(self._path)
        if self._is_known:
            self._load(files)
        self._starts = [entry.start_offset for entry in self._entries]

    def _load(self, files: Files) -> None:
        try:
            self._entries = dump_epochs(files, self._path)
        except InspectError as error:
            self._is_known = False
            self._report.warn(self._path, None, str(error), _EPOCHS)
        pairs = zip(self._entries, self._entries[1:], strict=False)
        for before, after in pairs:
            if after.epoch <= before.epoch or after.start_offset < before.start_offset:
                message = f"epoch {after.epoch} at {after.start_offset} follows {tuple(before)}"
                self._report.error(self._path, None, message, _EPOCHS)

    def batch(self, row: BatchRow, log: str) -> None:
        epoch = row.header.partition_leader_epoch if row.header else -1
        if epoch < 0:
            return
        if epoch < self._latest:
            message = f"leader epoch {epoch} comes after {self._latest}"
            self._report.error(log, row.position, message, _RESTORE)
        self._latest = max(self._latest, epoch)
        slot = bisect_right(self._starts, row.base_offset)
        known = self._entries[slot - 1].epoch if slot else -1
        if self._is_known and known != epoch and epoch not in self._reported:
            self._reported.add(epoch)
            message = (
                f"offset {row.base_offset} was written in leader epoch {epoch}, "
                f"the checkpoint says {known if slot else 'nothing'}"
            )
            self._report.error(self._path, None, message, _EPOCHS)

    def finish(self, end_offset: int) -> None:
        for entry in self._entries:
            if entry.start_offset > end_offset:
                message = f"epoch {entry.epoch} starts at {entry.start_offset}, after the end"
                self._report.warn(self._path, None, message, _EPOCHS)


def _check_checksums(files: Files, directory: str, bases: list[int], report: LogReport) -> None:
    for finding in compare_all(files, directory, bases):
        if finding.is_loss:
            report.error(finding.file, finding.position, finding.message, _RESTORE)
        else:
            report.warn(finding.file, finding.position, finding.message, _RESEAL)


def _check_other_files(
    files: Files, directory: str, names: list[str], bases: set[int], report: LogReport
) -> None:
    for name in names:
        path = f"{directory}/{name}"
        if name.endswith(UNFINISHED_SUFFIXES):
            report.warn(path, None, "left over from work that was cut off", "nothing to do")
        elif name.endswith(SNAPSHOT):
            try:
                dump_snapshot(files, path)
            except TidemillError as error:
                report.warn(path, None, str(error), _REBUILD)
        elif kind_of(name) in (FileKind.INDEX, FileKind.TIME_INDEX, FileKind.TXN_INDEX):
            stem = name.partition(".")[0]
            if not stem.isdecimal() or int(stem) not in bases:
                report.warn(path, None, "there is no segment for this index", "delete the file")
