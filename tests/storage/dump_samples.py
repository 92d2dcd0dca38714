"""Partition directories for the dump tool, the same bytes in every run.

`write_samples` makes three: `plain-0` (record batches and every kind of index, all sound), `old-0`
(message sets v0 and v1) and `damaged-0` (a wrong CRC, a torn tail, indexes that lie). What Apache
Kafka's own tool prints for them is kept in `dump_expected/`; the files are made here, not stored,
because they hold nothing that a compression library could write differently tomorrow.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

from tests.wire.golden_batches import BATCHES

from tidemill.storage.producer_snapshot import format_snapshot
from tidemill.storage.producer_state import BatchMeta, ProducerEntry
from tidemill.wire.batch import TimestampType, stamp, write_crc
from tidemill.wire.control import ControlType, build_marker
from tidemill.wire.records import Record, build_batch

START = "00000000000000000000"
TIME = 1_700_000_000_000


def write_samples(root: Path) -> None:
    _write_plain(root / "plain-0")
    _write_old(root / "old-0")
    _write_damaged(root / "damaged-0")


def golden(name: str, base_offset: int, leader_epoch: int) -> bytes:
    batch = bytearray(BATCHES[name])
    stamp(batch, 0, base_offset, leader_epoch)
    return bytes(batch)


def plain_batches() -> list[bytes]:
    first = [
        Record(0, TIME, b"a", b"one"),
        Record(1, TIME + 5, None, b"two", (("h1", b"x"), ("h2", None))),
        Record(2, TIME + 3, b"c", None),
    ]
    appended = [Record(11 + i, TIME + i, b"k", b"caf\xc3\xa9 \xff") for i in range(2)]
    gaps = [Record(14, TIME + 9000, b"g", b"14"), Record(17, TIME + 9000, b"g", b"17")]
    return [
        build_batch(first, leader_epoch=0),
        golden("java gzip", 3, 0),
        golden("librdkafka lz4", 7, 1),
        build_batch(
            appended,
            base_offset=11,
            timestamp_type=TimestampType.LOG_APPEND_TIME,
            leader_epoch=1,
        ),
        build_marker(
            ControlType.ABORT,
            producer_id=6,
            producer_epoch=0,
            coordinator_epoch=3,
            timestamp=TIME + 8000,
            base_offset=13,
            leader_epoch=1,
        ),
        _with_delete_horizon(build_batch(gaps, base_offset=14, leader_epoch=2)),
    ]


def _with_delete_horizon(batch: bytes) -> bytes:
    changed = bytearray(batch)
    changed[22] |= 0x40
    write_crc(changed, 0, len(changed))
    return bytes(changed)


def _positions(batches: list[bytes]) -> list[int]:
    return [sum(map(len, batches[:index])) for index in range(len(batches))]


def _write_plain(directory: Path) -> None:
    directory.mkdir(parents=True)
    batches = plain_batches()
    at = _positions(batches)
    (directory / f"{START}.log").write_bytes(b"".join(batches))
    (directory / f"{START}.index").write_bytes(
        struct.pack(">iiiiii", 6, at[1], 12, at[3], 17, at[5])
    )
    (directory / f"{START}.timeindex").write_bytes(
        struct.pack(">qiqiqi", TIME + 3000, 6, TIME + 8000, 13, TIME + 9000, 14)
    )
    (directory / f"{START}.txnindex").write_bytes(struct.pack(">hqqqq", 0, 6, 3, 13, 14))
    producers = [
        ProducerEntry(6, 0, [BatchMeta(3, 6, 3, TIME + 3000)], -1, TIME + 3000, 3),
        ProducerEntry(9, 1, [], 2, TIME, -1),
    ]
    (directory / f"{START[:-2]}11.snapshot").write_bytes(format_snapshot(producers))
    (directory / "leader-epoch-checkpoint").write_bytes(b"0\n3\n0 0\n1 7\n2 14\n")


def message(
    offset: int,
    magic: int,
    attributes: int,
    timestamp: int,
    key: bytes | None,
    value: bytes | None,
) -> bytes:
    """One v0 or v1 message."""
    body = struct.pack(">bB", magic, attributes)
    body += struct.pack(">q", timestamp) if magic else b""
    for part in (key, value):
        body += struct.pack(">i", -1) if part is None else struct.pack(">i", len(part)) + part
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def stored_gzip(data: bytes) -> bytes:
    """A gzip member made without compressing: the same in every version of every library."""
    head = bytes.fromhex("1f8b0800000000000000")
    block = b"\x01" + struct.pack("<HH", len(data), len(data) ^ 0xFFFF) + data
    return head + block + struct.pack("<II", zlib.crc32(data), len(data))


def old_messages() -> list[bytes]:
    absolute = b"".join(message(2 + i, 0, 0, 0, b"k%d" % i, b"inner") for i in range(2))
    relative = b"".join(message(i, 1, 0, TIME + i, None, b"inner %d" % i) for i in range(3))
    return [
        message(0, 0, 0, 0, b"key", b"v0"),
        message(1, 0, 0, 0, None, None),
        message(3, 0, 1, 0, None, stored_gzip(absolute)),
        message(4, 1, 0, TIME, b"key", b"v1"),
        message(7, 1, 1, TIME + 2, None, stored_gzip(relative)),
        message(8, 1, 8, TIME + 50, b"key", b"append time"),
        message(11, 1, 9, TIME + 60, None, stored_gzip(relative)),
    ]


def _write_old(directory: Path) -> None:
    directory.mkdir(parents=True)
    messages = old_messages()
    at = _positions(messages)
    (directory / f"{START}.log").write_bytes(b"".join(messages))
    (directory / f"{START}.index").write_bytes(struct.pack(">iiii", 3, at[2], 7, at[4]))
    (directory / f"{START}.timeindex").write_bytes(struct.pack(">qiqi", TIME + 2, 7, TIME + 60, 11))


def _write_damaged(directory: Path) -> None:
    directory.mkdir(parents=True)
    first = build_batch([Record(20 + i, TIME + i, b"k", b"v") for i in range(2)], base_offset=20)
    second = bytearray(build_batch([Record(25, TIME + 9, b"k", b"vvv")], base_offset=25))
    second[-3] ^= 1
    torn = build_batch([Record(26, TIME + 10, b"k", b"v")], base_offset=26)[:-4]
    (directory / f"{START[:-2]}20.log").write_bytes(first + second + torn)
    (directory / f"{START[:-2]}20.index").write_bytes(
        struct.pack(">iiii", 4, len(first), 6, len(first))
    )
    (directory / f"{START[:-2]}20.timeindex").write_bytes(
        struct.pack(">qiqiqi", TIME + 1, 1, TIME + 7, 5, TIME + 3, 5)
    )
