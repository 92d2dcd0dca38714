"""Rows of a partition's files in the words of Kafka's `kafka-dump-log.sh`.

`kafka_dump` prints the given files one after the other, and at the end what does not fit together:
index entries that point elsewhere, timestamps out of order, offsets that do not follow each other.
Those go to the error stream there and here. Runbooks and scripts parse this text, so its wording
is Kafka 4.3's to the letter - `14 is followed by 17` is reported even where compaction made the
gap; `tidemill.storage.inspect_verify` is the one that knows better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from tidemill.errors import WireError
from tidemill.storage.files import Files
from tidemill.storage.inspect import (
    BatchRow,
    FileKind,
    IndexRow,
    InspectError,
    RecordRow,
    SegmentReader,
    TailRow,
    TimeRow,
    base_offset_of,
    check_index_size,
    dump_index,
    dump_segment,
    dump_snapshot,
    dump_time_index,
    dump_txn_index,
    kind_of,
    sibling,
)
from tidemill.storage.producer_state import NO_OFFSET, ProducerEntry
from tidemill.storage.segment import INDEX, LOG
from tidemill.wire.batch import BatchHeader, TimestampType
from tidemill.wire.control import ControlType, decode_control_type, decode_marker
from tidemill.wire.records import Record

Decode = Callable[[bytes], str]


class Line(NamedTuple):
    """A line of output and the stream it belongs to."""

    text: str
    stream: Literal["out", "err"] = "out"


def decode_text(data: bytes) -> str:
    """Bytes as UTF-8; what is not UTF-8 shows as U+FFFD."""
    return data.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """The flags of `kafka-dump-log.sh` that shape its output."""

    deep_iteration: bool = False
    print_data: bool = False
    skip_record_metadata: bool = False
    index_sanity_only: bool = False
    verify_index_only: bool = False
    max_bytes: int | None = None
    key_decoder: Decode = decode_text
    value_decoder: Decode = decode_text

    @property
    def is_deep(self) -> bool:
        return self.deep_iteration or self.print_data


@dataclass(slots=True)
class _Findings:
    """What the dump noticed on its way, printed at the end; lists by file."""

    index_mismatches: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    time_mismatches: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    out_of_order: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    offsets_not_found: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    gaps: dict[str, list[tuple[int, int]]] = field(default_factory=dict)


_FINDINGS_MAX = 100_000
"""Per file and kind; the rest of a thoroughly broken file says nothing new."""


def _note(findings: dict[str, list[tuple[int, int]]], path: str, *pair: int) -> None:
    noted = findings.setdefault(path, [])
    if len(noted) < _FINDINGS_MAX:
        noted.append((pair[0], pair[1]))


def kafka_dump(
    files: Files, paths: Sequence[str], options: DumpOptions, *, cwd: str
) -> Iterator[Line]:
    """All lines for all files; `cwd` makes the absolute paths that the last lines name."""
    findings = _Findings()
    for path in paths:
        yield Line(f"Dumping {path}")
        full = path if path.startswith("/") else f"{cwd}/{path}"
        yield from _dump_file(files, path, full, options, findings)
    yield from _finding_lines(findings)


def _dump_file(
    files: Files, path: str, full: str, options: DumpOptions, findings: _Findings
) -> Iterator[Line]:
    match kind_of(path):
        case FileKind.LOG:
            yield from _log_lines(files, path, full, options, findings)
        case FileKind.INDEX:
            yield from _index_lines(files, path, full, options, findings)
        case FileKind.TIME_INDEX:
            yield from _time_index_lines(files, path, full, options, findings)
        case FileKind.SNAPSHOT:
            yield from _snapshot_lines(files, path)
        case FileKind.TXN_INDEX:
            for row in dump_txn_index(files, path):
                yield Line(
                    f"version: {row.version} producerId: {row.producer_id} "
                    f"firstOffset: {row.first_offset} lastOffset: {row.last_offset} "
                    f"lastStableOffset: {row.last_stable_offset}"
                )
        case _:
            yield Line(f"Ignoring unknown file {path}", "err")


# --- logs ---------------------------------------------------------------------------------------


def _log_lines(
    files: Files, path: str, full: str, options: DumpOptions, findings: _Findings
) -> Iterator[Line]:
    yield Line(f"Log starting offset: {base_offset_of(path)}")
    last_offset = -1
    for row in dump_segment(files, path, max_bytes=options.max_bytes):
        if isinstance(row, TailRow):
            if options.max_bytes is None:
                name = path.rpartition("/")[2]
                yield Line(f"Found {row.size_bytes} invalid bytes at the end of {name}")
            return
        yield Line(batch_line(row))
        if not options.is_deep:
            continue
        try:
            for record in row.records():
                if record.offset != last_offset + 1:
                    _note(findings.gaps, full, last_offset, record.offset)
                last_offset = record.offset
                yield Line(record_line(row, record, options))
        except WireError as error:
            yield Line(f"Records at position {row.position} cannot be read: {error}", "err")


def batch_line(row: BatchRow) -> str:
    """One batch, or one outer message of the old formats."""
    lead = f"offset: {row.last_offset}" if row.header is None else _batch_lead(row.header)
    return (
        f"{lead} position: {row.position} {_time_name(row.timestamp_type)}: {row.max_timestamp} "
        f"size: {row.size_bytes} magic: {row.magic} compresscodec: {_codec_name(row)} "
        f"crc: {row.crc} isvalid: {_bool(row.crc_valid)}"
    )


def _batch_lead(header: BatchHeader) -> str:
    return (
        f"baseOffset: {header.base_offset} lastOffset: {header.last_offset} "
        f"count: {header.record_count} baseSequence: {header.base_sequence} "
        f"lastSequence: {header.last_sequence} producerId: {header.producer_id} "
        f"producerEpoch: {header.producer_epoch} "
        f"partitionLeaderEpoch: {header.partition_leader_epoch} "
        f"isTransactional: {_bool(header.is_transactional)} isControl: {_bool(header.is_control)} "
        f"deleteHorizonMs: {_optional(header.delete_horizon_ms)}"
    )


def record_line(row: BatchRow, record: RecordRow, options: DumpOptions) -> str:
    """One record inside a batch; empty for a control record whose metadata is skipped."""
    is_control = row.header is not None and row.header.is_control
    parts: list[str] = []
    if not options.skip_record_metadata:
        parts.append(_record_metadata(record))
        if is_control:
            parts.append(_control_text(record))
    if options.print_data and not is_control:
        if record.key is not None:
            parts.append(f"key: {options.key_decoder(record.key)}")
        if record.value is not None:
            parts.append(f"payload: {options.value_decoder(record.value)}")
    return "| " + " ".join(parts) if parts else ""


def _record_metadata(record: RecordRow) -> str:
    common = (
        f"offset: {record.offset} {_time_name(record.timestamp_type)}: {record.timestamp} "
        f"keySize: {_size(record.key)} valueSize: {_size(record.value)}"
    )
    if record.crc is not None:
        return f"{common} isValid: {_bool(record.crc_valid)} crc: {record.crc}"
    names = ",".join(name for name, _ in record.headers)
    return f"{common} sequence: {record.sequence} headerKeys: [{names}]"


def _control_text(record: RecordRow) -> str:
    try:
        kind = decode_control_type(record.key)
        marker = decode_marker(Record(record.offset, record.timestamp, record.key, record.value))
    except WireError as error:
        return f"controlType: unreadable ({error})"
    if marker is not None:
        return f"endTxnMarker: {kind.name} coordinatorEpoch: {marker.coordinator_epoch}"
    number = int.from_bytes((record.key or b"")[2:4], "big", signed=True)
    return f"controlType: {ControlType(kind).name}({number})"


def _codec_name(row: BatchRow) -> str:
    try:
        return row.codec.name.lower()
    except WireError:
        return "unknown"


def _time_name(kind: TimestampType | None) -> str:
    if kind is None:
        return "NoTimestampType"
    return "CreateTime" if kind is TimestampType.CREATE_TIME else "LogAppendTime"


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _optional(value: int | None) -> str:
    return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"


# --- indexes ------------------------------------------------------------------------------------


def _index_lines(
    files: Files, path: str, full: str, options: DumpOptions, findings: _Findings
) -> Iterator[Line]:
    if files.size(path) == 0:
        yield Line(f"{path} is empty.")
        return
    check_index_size(files, path, FileKind.INDEX)
    if options.index_sanity_only:
        yield Line(f"{path} passed sanity check.")
        return
    log = SegmentReader(files, sibling(path, LOG))
    for row in dump_index(files, path):
        batch = log.batch_at(row.position)
        found = -1 if batch is None else batch.last_offset
        if found != row.offset:
            _note(findings.index_mismatches, full, row.offset, found)
        if not options.verify_index_only:
            yield Line(f"offset: {row.offset} position: {row.position}")


def _time_index_lines(
    files: Files, path: str, full: str, options: DumpOptions, findings: _Findings
) -> Iterator[Line]:
    check_index_size(files, path, FileKind.TIME_INDEX)
    if options.index_sanity_only:
        yield Line(f"{path} passed sanity check.")
        return
    previous = -1
    lookup = _Lookup(files, path)
    for row in dump_time_index(files, path):
        batch = lookup.batch_with(row.offset)
        found = -1 if batch is None else batch.last_offset
        if batch is None or found != row.offset:
            _note(findings.offsets_not_found, full, row.offset, found)
        else:
            _check_time(findings, full, row, batch, previous)
        if not options.verify_index_only:
            yield Line(f"timestamp: {row.timestamp} offset: {row.offset}")
        previous = row.timestamp


def _check_time(
    findings: _Findings, full: str, row: TimeRow, batch: BatchRow, previous: int
) -> None:
    if batch.max_timestamp != row.timestamp:
        _note(findings.time_mismatches, full, row.timestamp, batch.max_timestamp)
    if previous >= row.timestamp:
        _note(findings.out_of_order, full, row.timestamp, previous)


class _Lookup:
    """Finds the batch that holds an offset; rising offsets read the log once from end to end."""

    def __init__(self, files: Files, time_index_path: str) -> None:
        self._log = SegmentReader(files, sibling(time_index_path, LOG))
        index = sibling(time_index_path, INDEX)
        self._index = iter(dump_index(files, index) if files.exists(index) else ())
        self._ahead: IndexRow | None = next(self._index, None)
        self._asked = self._position = 0
        self._is_past_end = False

    def batch_with(self, offset: int) -> BatchRow | None:
        """The first batch from the nearest known place on that ends at or after `offset`."""
        if offset < self._asked:
            self._position, self._is_past_end = 0, False
        self._asked = offset
        while self._ahead is not None and self._ahead.offset <= offset:
            self._position = max(self._position, self._ahead.position)
            self._ahead = next(self._index, None)
        if self._is_past_end:
            return None
        for row in self._log.rows(self._position):
            if isinstance(row, TailRow):
                break
            if row.last_offset >= offset:
                self._position = row.position
                return row
        self._is_past_end = True
        return None


def _snapshot_lines(files: Files, path: str) -> Iterator[Line]:
    try:
        producers = dump_snapshot(files, path)
    except InspectError as error:
        yield Line(str(error), "err")
        return
    for producer in producers:
        yield Line(_producer_line(producer))


def _producer_line(producer: ProducerEntry) -> str:
    first = producer.current_txn_first_offset
    text = (
        f"producerId: {producer.producer_id} producerEpoch: {producer.epoch} "
        f"coordinatorEpoch: {producer.coordinator_epoch} "
        f"currentTxnFirstOffset: {_optional(None if first == NO_OFFSET else first)} "
        f"lastTimestamp: {producer.last_timestamp}"
    )
    if producer.batches:
        last = producer.batches[-1]
        text += (
            f" firstSequence: {last.first_sequence} lastSequence: {last.last_sequence} "
            f"lastOffset: {last.last_offset} offsetDelta: {last.offset_delta} "
            f"timestamp: {last.timestamp}"
        )
    return text


# --- what does not fit --------------------------------------------------------------------------


def _finding_lines(findings: _Findings) -> Iterator[Line]:
    for path, pairs in findings.index_mismatches.items():
        yield Line(f"Mismatches in :{path}", "err")
        for indexed, found in reversed(pairs):  # Kafka prints the last one first.
            yield Line(f"  Index offset: {indexed}, log offset: {found}", "err")
    for path, pairs in findings.time_mismatches.items():
        yield Line(f"Found timestamp mismatch in :{path}", "err")
        for indexed, found in pairs:
            yield Line(f"  Index timestamp: {indexed}, log timestamp: {found}", "err")
    for path, pairs in findings.out_of_order.items():
        yield Line(f"Found out of order timestamp in :{path}", "err")
        for indexed, before in pairs:
            text = f"  Index timestamp: {indexed}, Previously indexed timestamp: {before}"
            yield Line(text, "err")
    for path, pairs in findings.offsets_not_found.items():
        yield Line(f"The following indexed offsets are not found in :{path}", "err")
        for indexed, found in pairs:
            yield Line(f"Indexed offset: {indexed}, found log offset: {found}", "err")
    for path, pairs in findings.gaps.items():
        yield Line(f"Non-consecutive offsets in {path}", "err")
        for before, after in pairs:
            yield Line(f"  {before} is followed by {after}", "err")
