"""Producer states on disk: `<offset>.snapshot` holds the state after everything below the offset.

Kafka's format: version int16 = 1, CRC-32C of all that follows (uint32), then an array (int32 count)
of producer id int64, epoch int16, last sequence int32, last offset int64, offset delta int32,
timestamp int64, coordinator epoch int32 and first offset of the open transaction int64. That keeps
one batch per producer of the five that a retry may repeat, so a producer could be refused after a
restart. We append all five after the array, under the same CRC: Kafka ignores such a tail. After
them comes when we heard of each producer that is silent, for a restart is no sign of life.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from tidemill.errors import TidemillError
from tidemill.storage.disk_errors import FileMissingError
from tidemill.storage.files import Files, replace_file
from tidemill.storage.producer_state import NO_OFFSET, BatchMeta, ProducerEntry
from tidemill.storage.segment import offset_name
from tidemill.wire.batch import crc32c

SNAPSHOT = ".snapshot"

_VERSION = 1
_WINDOW_MAGIC = b"TMW1"
_HEARD_MAGIC = b"TMH1"
_head = struct.Struct(">hI")
_count = struct.Struct(">i")
_producer = struct.Struct(">qhiqiqiq")
_window = struct.Struct(">qb")
_heard = struct.Struct(">qq")
_batch = struct.Struct(">iqiq")


class BadSnapshotError(TidemillError):
    """A snapshot that is torn or damaged; an older one and a replay take its place."""


def format_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    producers = list(entries)
    body = [_count.pack(len(producers))]
    body += [_format_producer(entry) for entry in producers]
    windows = [_format_window(entry) for entry in producers if entry.batches]
    if windows:
        body += [_WINDOW_MAGIC, _count.pack(len(windows)), *windows]
    heard = [
        _heard.pack(entry.producer_id, entry.heard_ms) for entry in producers if entry.was_silent
    ]
    if heard:
        body += [_HEARD_MAGIC, _count.pack(len(heard)), *heard]
    data = b"".join(body)
    return _head.pack(_VERSION, crc32c(data)) + data


def _format_producer(entry: ProducerEntry) -> bytes:
    last = entry.batches[-1] if entry.batches else BatchMeta(-1, -1, 0, -1)
    return _producer.pack(
        entry.producer_id,
        entry.epoch,
        last.last_sequence,
        last.last_offset,
        last.offset_delta,
        entry.last_timestamp,
        entry.coordinator_epoch,
        entry.current_txn_first_offset,
    )


def _format_window(entry: ProducerEntry) -> bytes:
    packed = b"".join(_batch.pack(*batch) for batch in entry.batches)
    return _window.pack(entry.producer_id, len(entry.batches)) + packed


def parse_snapshot(data: bytes) -> list[ProducerEntry]:
    """The producers of a snapshot; raises `BadSnapshotError` unless every byte is as written."""
    if len(data) < _head.size + _count.size:
        raise BadSnapshotError(f"a snapshot of {len(data)} bytes")
    version, crc = _head.unpack_from(data)
    if version != _VERSION or crc32c(data[_head.size :]) != crc:
        raise BadSnapshotError(f"snapshot version {version} or its checksum is wrong")
    try:
        entries, end = _parse_producers(data)
        end = _parse_windows(data, end, entries)
        _parse_heard(data, end, entries)
    except struct.error as error:
        raise BadSnapshotError(f"a snapshot that ends early: {error}") from None
    return list(entries.values())


def _parse_producers(data: bytes) -> tuple[dict[int, ProducerEntry], int]:
    (count,) = _count.unpack_from(data, _head.size)
    position = _head.size + _count.size
    entries: dict[int, ProducerEntry] = {}
    if count < 0 or count * _producer.size > len(data) - position:
        raise BadSnapshotError(f"a snapshot of {count} producers in {len(data)} bytes")
    for _ in range(count):
        fields = _producer.unpack_from(data, position)
        producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, txn_first = (
            fields
        )
        position += _producer.size
        batches = [BatchMeta(sequence, offset, delta, timestamp)] if offset != NO_OFFSET else []
        entries[producer_id] = ProducerEntry(
            producer_id, epoch, batches, coordinator_epoch, timestamp, txn_first
        )
    return entries, position


def _parse_windows(data: bytes, position: int, entries: dict[int, ProducerEntry]) -> int:
    if data[position : position + len(_WINDOW_MAGIC)] != _WINDOW_MAGIC:
        return position
    position += len(_WINDOW_MAGIC)
    (count,) = _count.unpack_from(data, position)
    position += _count.size
    for _ in range(count):
        producer_id, batch_count = _window.unpack_from(data, position)
        position += _window.size
        batches = []
        for _ in range(batch_count):
            batches.append(BatchMeta(*_batch.unpack_from(data, position)))
            position += _batch.size
        if producer_id in entries:
            entries[producer_id].batches = batches
    return position


def _parse_heard(data: bytes, position: int, entries: dict[int, ProducerEntry]) -> None:
    """Of whom nothing is said, who wrote shortly before or is from an older snapshot, we hear at
    the next look."""
    if data[position : position + len(_HEARD_MAGIC)] != _HEARD_MAGIC:
        return
    position += len(_HEARD_MAGIC)
    (count,) = _count.unpack_from(data, position)
    position += _count.size
    for _ in range(count):
        producer_id, heard_ms = _heard.unpack_from(data, position)
        position += _heard.size
        entry = entries.get(producer_id)
        if entry is not None:
            entry.was_silent, entry.heard_ms = True, heard_ms


def write_snapshot(files: Files, directory: str, offset: int, data: bytes) -> None:
    """Write `<offset>.snapshot` durably."""
    replace_file(files, directory, offset_name(offset) + SNAPSHOT, data)


def snapshot_path(directory: str, offset: int) -> str:
    return f"{directory}/{offset_name(offset)}{SNAPSHOT}"


def load_newest(
    files: Files, directory: str, offsets: set[int], at_most: int
) -> tuple[int, list[ProducerEntry]] | None:
    """The newest good snapshot up to `at_most`; damaged ones go, from `offsets`, too (rule G5)."""
    for offset in sorted(offsets, reverse=True):
        if offset > at_most:
            continue
        path = snapshot_path(directory, offset)
        try:
            return offset, parse_snapshot(files.read_file(path))
        except BadSnapshotError:
            files.unlink(path)
            offsets.discard(offset)
        except FileMissingError:
            offsets.discard(offset)
    return None
