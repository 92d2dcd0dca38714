"""Looking into a partition's files without a broker: every kind of row they hold, as typed values.

This is the library under `tidemill log` and `kafka-dump-log.sh`:

* here: `dump_segment`, `dump_index`, `dump_time_index`, `dump_txn_index`, `dump_snapshot` and
  `dump_epochs` yield rows of one file each; `kind_of` says which one a path asks for;
* `tidemill.storage.inspect_text.kafka_dump` prints rows as Kafka's own dump tool does;
* `tidemill.storage.inspect_verify.verify_log` checks a directory and says what to do about it;
* `tidemill.storage.inspect_import.import_directory` rewrites v0/v1 directories to record batches.

Everything streams: one batch is in memory at a time, and a length in a damaged file is never
believed beyond `BATCH_BYTES_MAX` or the end of the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from tidemill.errors import TidemillError, WireError
from tidemill.storage.checkpoint import LEADER_EPOCHS, BadCheckpointError, parse_epochs
from tidemill.storage.files import Files
from tidemill.storage.producer_snapshot import SNAPSHOT, BadSnapshotError, parse_snapshot
from tidemill.storage.producer_state import ProducerEntry
from tidemill.storage.segment import INDEX, LOG, TIME_INDEX, TXN_INDEX
from tidemill.wire import legacy
from tidemill.wire.batch import (
    HEADER_BYTES,
    LENGTH_POS,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_POS,
    SEQUENCE_MAX,
    BatchHeader,
    TimestampType,
    crc_matches,
    read_header,
)
from tidemill.wire.compression import Codec
from tidemill.wire.records import Headers, iter_records

BATCH_BYTES_MAX: Final = 128 * 1024 * 1024
"""No broker takes larger batches; a larger length in a file is damage."""

RECORDS_BYTES_MAX: Final = 1024 * 1024 * 1024
"""The ceiling for one batch's records after decompression."""

RECORD_HEADERS_MAX: Final = 1_000_000
"""A record with more was made to fill the memory of whoever reads it; a header takes two bytes."""

CHUNK_BYTES: Final = 1 << 20
_ENTRIES_PER_READ: Final = 64 * 1024
_MINIMUM_BYTES: Final = MAGIC_POS + 1
_offset_entry = struct.Struct(">ii")
_time_entry = struct.Struct(">qi")
_txn_entry = struct.Struct(">hqqqq")
_length = struct.Struct(">i")


class InspectError(TidemillError):
    """A file that cannot be looked into at all; the message says why and what to do."""


class FileKind(Enum):
    """What a file of a partition's directory is, by its name."""

    LOG = LOG
    INDEX = INDEX
    TIME_INDEX = TIME_INDEX
    TXN_INDEX = TXN_INDEX
    SNAPSHOT = SNAPSHOT
    EPOCHS = LEADER_EPOCHS


def kind_of(path: str) -> FileKind | None:
    """The kind of a file; None for one that no dump knows."""
    name = path.rpartition("/")[2]
    if name == LEADER_EPOCHS:
        return FileKind.EPOCHS
    dot = name.rfind(".")
    for kind in FileKind:
        if dot >= 0 and kind.value == name[dot:]:
            return kind
    return None


def base_offset_of(path: str) -> int:
    """The offset that a segment's file is named after."""
    digits = path.rpartition("/")[2].partition(".")[0]
    if not digits.isdecimal():
        raise InspectError(f"{path} is not named after an offset, as segment files are")
    return int(digits)


def is_segment_name(name: str) -> bool:
    """Whether a file is a segment's log: twenty digits and `.log`."""
    digits = name.removesuffix(LOG)
    return digits != name and len(digits) == 20 and digits.isdecimal()


def sibling(path: str, suffix: str) -> str:
    """Another file of the same segment."""
    directory, slash, name = path.rpartition("/")
    return f"{directory}{slash}{name.partition('.')[0]}{suffix}"


# --- segments -----------------------------------------------------------------------------------


class RecordRow(NamedTuple):
    """One record as it lies in the log; v0/v1 messages have a CRC of their own each."""

    offset: int
    timestamp: int
    timestamp_type: TimestampType | None
    key: bytes | None
    value: bytes | None
    headers: Headers
    sequence: int
    crc: int | None
    crc_valid: bool


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A record batch, or an outer v0/v1 message, at a position; exactly one of the two is set."""

    position: int
    data: bytes
    header: BatchHeader | None
    message: legacy.Message | None

    @property
    def magic(self) -> int:
        return MAGIC if self.header else self._old.magic

    @property
    def _old(self) -> legacy.Message:
        if self.message is None:
            raise InspectError("a row is a batch or a message")
        return self.message

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    @property
    def base_offset(self) -> int:
        """The first offset; of an old wrapper only the last one can be seen from outside."""
        return self.header.base_offset if self.header else self._old.offset

    @property
    def last_offset(self) -> int:
        return self.header.last_offset if self.header else self._old.offset

    @property
    def codec(self) -> Codec:
        return self.header.codec if self.header else self._old.codec

    @property
    def crc(self) -> int:
        return self.header.crc if self.header else self._old.crc

    @property
    def crc_valid(self) -> bool:
        return crc_matches(self.data, 0, self.header) if self.header else self._old.crc_valid

    @property
    def timestamp_type(self) -> TimestampType | None:
        return self.header.timestamp_type if self.header else self._old.timestamp_type

    @property
    def max_timestamp(self) -> int:
        return self.header.max_timestamp if self.header else self._old.timestamp

    def records(self, *, limit_bytes: int = RECORDS_BYTES_MAX) -> Iterator[RecordRow]:
        """The records inside; raises `WireError` where they make no sense."""
        if self.header is None:
            return self._old_records(limit_bytes)
        return self._new_records(self.header, limit_bytes)

    def _new_records(self, header: BatchHeader, limit_bytes: int) -> Iterator[RecordRow]:
        first, kind = header.base_sequence, header.timestamp_type
        for record in iter_records(
            self.data, 0, header, limit_bytes=limit_bytes, headers_max=RECORD_HEADERS_MAX
        ):
            sequence = -1
            if first >= 0:
                sequence = (first + record.offset - header.base_offset) & SEQUENCE_MAX
            offset, timestamp, key, value, headers = record
            yield RecordRow(offset, timestamp, kind, key, value, headers, sequence, None, True)

    def _old_records(self, limit_bytes: int) -> Iterator[RecordRow]:
        for each in legacy.open_message(self._old, limit_bytes=limit_bytes, check_crc=False):
            yield RecordRow(
                each.offset,
                each.timestamp,
                each.timestamp_type,
                each.key,
                each.value,
                (),
                -1,
                each.crc,
                each.crc_valid,
            )


class TailRow(NamedTuple):
    """Bytes at the end of a segment, or in its middle, that no batch can be made of."""

    position: int
    size_bytes: int
    reason: str


def dump_segment(
    files: Files, path: str, *, start: int = 0, max_bytes: int | None = None
) -> Iterator[BatchRow | TailRow]:
    """Every batch from position `start` on; a `TailRow` comes last if bytes are left over.

    A wrong CRC does not end it, a length that cannot be right does: nothing tells where the next
    batch begins. With `max_bytes`, a batch that goes beyond simply ends the dump.
    """
    return SegmentReader(files, path, max_bytes=max_bytes).rows(start)


class SegmentReader:
    """Reads batches of one segment through a window that moves on with the questions."""

    def __init__(self, files: Files, path: str, *, max_bytes: int | None = None) -> None:
        size = files.size(path)
        self._files, self._path = files, path
        self._end = size if max_bytes is None else min(size, max_bytes)
        self._is_cut = self._end < size
        self._window_start, self._window = 0, b""

    def rows(self, start: int = 0) -> Iterator[BatchRow | TailRow]:
        """See `dump_segment`."""
        position = max(start, 0)
        while position < self._end:
            try:
                row = self._row_at(position)
            except WireError as error:
                yield TailRow(position, self._end - position, str(error))
                return
            if row is None:
                if not self._is_cut:
                    yield TailRow(position, self._end - position, "a batch is not whole")
                return
            yield row
            position += row.size_bytes

    def batch_at(self, position: int) -> BatchRow | None:
        """The batch that begins at `position`; None if none does."""
        try:
            return self._row_at(position) if 0 <= position < self._end else None
        except WireError:
            return None

    def _row_at(self, position: int) -> BatchRow | None:
        """The batch at `position`, None when it is cut off; raises `WireError` on nonsense."""
        head = self._bytes_at(position, HEADER_BYTES)
        if len(head) < _MINIMUM_BYTES:
            return None
        (length,) = _length.unpack_from(head, LENGTH_POS)
        if not legacy.MESSAGE_BYTES_MIN <= length <= BATCH_BYTES_MAX:
            raise WireError(f"a batch declares a length of {length} bytes")
        size = LOG_OVERHEAD_BYTES + length
        is_old = legacy.is_legacy(head)
        if size > self._end - position or (not is_old and len(head) < HEADER_BYTES):
            return None
        data = self._bytes_at(position, size)
        if is_old:
            return BatchRow(position, data, None, legacy.read_message(data))
        return BatchRow(position, data, read_header(head), None)

    def _bytes_at(self, position: int, length: int) -> bytes:
        """`length` bytes, or fewer at the end."""
        length = min(length, self._end - position)
        begin = position - self._window_start
        if begin < 0 or begin + length > len(self._window):
            wanted = min(max(length, CHUNK_BYTES), self._end - position)
            self._window = self._files.pread(self._path, position, wanted)
            self._window_start, begin = position, 0
        return self._window[begin : begin + length]


# --- the other files ----------------------------------------------------------------------------


class IndexRow(NamedTuple):
    """The batch at `position` ends with `offset`."""

    offset: int
    position: int


class TimeRow(NamedTuple):
    """No record before `offset` is later than `timestamp`."""

    timestamp: int
    offset: int


class TxnRow(NamedTuple):
    """One aborted transaction."""

    version: int
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class EpochRow(NamedTuple):
    """A leader epoch and the first offset written under it."""

    epoch: int
    start_offset: int


def dump_index(files: Files, path: str) -> Iterator[IndexRow]:
    """The entries of an offset index; preallocated zeros after them are left out."""
    base = base_offset_of(path)
    for count, (relative, position) in enumerate(_entries(files, path, _offset_entry)):
        if relative == 0 and count:
            return
        yield IndexRow(base + relative, position)


def dump_time_index(files: Files, path: str) -> Iterator[TimeRow]:
    """The entries of a time index; preallocated zeros after them are left out."""
    base = base_offset_of(path)
    for count, (timestamp, relative) in enumerate(_entries(files, path, _time_entry)):
        if relative == 0 and count:
            return
        yield TimeRow(timestamp, base + relative)


def dump_txn_index(files: Files, path: str) -> Iterator[TxnRow]:
    """The aborted transactions of a segment."""
    for entry in _entries(files, path, _txn_entry):
        row = TxnRow(*entry)
        if row.version != 0:
            raise InspectError(f"{path} has an entry of unknown version {row.version}")
        yield row


def dump_snapshot(files: Files, path: str) -> list[ProducerEntry]:
    """The producers of a snapshot; raises `InspectError` when it is damaged."""
    try:
        return parse_snapshot(files.read_file(path))
    except BadSnapshotError as error:
        raise InspectError(
            f"{path} is damaged ({error}); a broker drops it and replays the log instead"
        ) from None


def dump_epochs(files: Files, path: str) -> list[EpochRow]:
    """The leader epochs of a partition; raises `InspectError` when the file is damaged."""
    try:
        return [EpochRow(*entry) for entry in parse_epochs(files.read_file(path))]
    except BadCheckpointError as error:
        raise InspectError(f"{path} is damaged: {error}") from None


def _entries(files: Files, path: str, entry: struct.Struct) -> Iterator[tuple[int, ...]]:
    """Whole entries, some thousands per read; a torn one at the end is left out."""
    size = files.size(path)
    step = entry.size * _ENTRIES_PER_READ
    for position in range(0, size - size % entry.size, step):
        wanted = min(step, size - size % entry.size - position)
        data = files.pread(path, position, wanted)
        yield from entry.iter_unpack(data[: len(data) - len(data) % entry.size])


def check_index_size(files: Files, path: str, kind: FileKind) -> None:
    """Raise `InspectError` unless the index's size is a whole number of entries."""
    entry_bytes = _offset_entry.size if kind is FileKind.INDEX else _time_entry.size
    size = files.size(path)
    if size % entry_bytes:
        raise InspectError(
            f"Index file {path} is corrupt, found {size} bytes which is neither positive "
            f"nor a multiple of {entry_bytes}."
        )
