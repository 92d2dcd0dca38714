"""Entries of the active segment's offset index that a power cut left half written.

The index is not flushed while its segment grows, so any of its bytes may be missing after a power
cut, in front of the recovery point as well, where a start makes no entries anew.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.storage.helpers import DIR, TOPIC_ID, TP, batch, fill, manager_on, read_all

from tidemill.storage.index import OFFSET_ENTRY_BYTES, OffsetIndex
from tidemill.storage.indexed import WRONG_ENTRIES_MAX, IndexedBatch, IndexedFile
from tidemill.storage.log import Log
from tidemill.storage.log_config import LogConfig
from tidemill.storage.manager import LogManager
from tidemill.storage.scan import WouldBlockError, walk_headers
from tidemill.storage.segment import UNINDEXED_BYTES_MAX
from tidemill.storage.txn_index import ENTRY_BYTES, AbortedTransaction
from tidemill.testing.disk import CrashDisk
from tidemill.wire.batch import crc_matches, iter_headers
from tidemill.wire.control import ControlType, build_marker

INDEX = f"{DIR}/{TP}/{0:020d}.index"
TIME = 1_700_000_000_000
BATCHES = 180
CONFIG = LogConfig(index_interval_bytes=2_000)


def value_of(offset: int) -> bytes:
    return b"%d " % offset + bytes(60 + 7 * (offset % 13))


def written() -> tuple[CrashDisk, bytes]:
    """A log that was flushed, with a recovery point near its end; and what is in its index."""
    disk = CrashDisk()
    manager = manager_on(disk, config=CONFIG)
    log = manager.create(TP, TOPIC_ID, CONFIG)
    for number in range(BATCHES):
        values = [value_of(4 * number + index) for index in range(4)]
        log.append_as_leader(batch(*values, timestamp=TIME + number), leader_epoch=0)
    log.segments[-1].write_indexes()
    manager.request_flush(log)
    manager.write_checkpoints({TP: log.log_end_offset})
    assert log.size_bytes > UNINDEXED_BYTES_MAX
    return disk, disk.read_file(INDEX)


def torn(index: bytes, entry: int, kept_bytes: int, rest: str) -> bytes:
    """An entry of which only the first bytes came to the disk, and what is there of the others."""
    start = OFFSET_ENTRY_BYTES * entry
    end = start + OFFSET_ENTRY_BYTES
    head = index[: start + kept_bytes] + bytes(OFFSET_ENTRY_BYTES - kept_bytes)
    return head + (index[end:] if rest == "is there" else bytes(len(index) - end))


def started_on(disk: CrashDisk, index: bytes) -> LogManager:
    """What a start after a crash makes of the log with this index."""
    disk.write_at(INDEX, 0, (index,))
    disk.restart()
    return manager_on(disk, config=CONFIG)


def check_reads(log: Log, step: int, max_bytes: int) -> None:
    """From every so many offsets: whole, sound batches, the first with what was asked for."""
    end = log.log_end_offset
    for offset in range(0, end, step):
        data = log.read(offset, max_bytes=max_bytes, upper_offset=end).read_blocking()
        headers = list(iter_headers(data))
        assert headers[0][1].base_offset <= offset <= headers[0][1].last_offset
        assert all(crc_matches(data, position, header) for position, header in headers)
        assert sum(header.size_bytes for _, header in headers) == len(data)


@pytest.mark.parametrize("rest", ["is there", "is missing"])
@pytest.mark.parametrize("kept_bytes", range(1, OFFSET_ENTRY_BYTES))
def test_every_entry_torn_at_every_byte(kept_bytes: int, rest: str) -> None:
    """Rule E4: what is flushed is read, by offset and by time, whatever is left of the index."""
    disk, index = written()
    for entry in range(len(index) // OFFSET_ENTRY_BYTES):
        log = started_on(disk, torn(index, entry, kept_bytes, rest)).logs[TP]
        assert log.log_end_offset == 4 * BATCHES
        check_reads(log, step=3, max_bytes=5000)
        for number in range(0, BATCHES, 5):
            found = log.offset_for_timestamp(TIME + number)
            assert found is not None
            assert found.offset == 4 * number


@pytest.mark.parametrize("kept_bytes", range(1, OFFSET_ENTRY_BYTES))
def test_a_torn_entry_that_becomes_the_last_one(kept_bytes: int) -> None:
    """Rules E4 and D8: the log is cut behind it, stopped in order and started again."""
    for entry in range(2, 32, 7):
        disk, index = written()
        manager = started_on(disk, torn(index, entry, kept_bytes, "is there"))
        log = manager.logs[TP]
        end = int.from_bytes(index[OFFSET_ENTRY_BYTES * entry :][:4]) + 1 + 8
        log.truncate_to(end)
        check_latest(log)
        manager.shutdown({TP: end})
        disk.restart()
        again = manager_on(disk, config=CONFIG).logs[TP]
        assert again.log_end_offset == end
        check_latest(again)
        check_reads(again, step=1, max_bytes=5000)


def check_latest(log: Log) -> None:
    largest = log.max_timestamp()
    assert largest is not None
    assert largest.timestamp == TIME + log.log_end_offset // 4 - 1


@pytest.mark.parametrize("kept_bytes", range(1, OFFSET_ENTRY_BYTES))
def test_records_that_are_batches_themselves(kept_bytes: int) -> None:
    """A log of logs: what is left of an entry points at a batch that is a record's value."""
    disk, inner = CrashDisk(), bytes(batch(b"inner"))
    manager = manager_on(disk, config=CONFIG)
    log = manager.create(TP, TOPIC_ID, CONFIG)
    for number in range(120):
        log.append_as_leader(nesting(inner, log.segments[-1].size, number), leader_epoch=0)
    log.segments[-1].write_indexes()
    manager.request_flush(log)
    manager.write_checkpoints({TP: log.log_end_offset})
    index = disk.read_file(INDEX)
    for entry in range(len(index) // OFFSET_ENTRY_BYTES):
        check_reads(
            started_on(disk, torn(index, entry, kept_bytes, "is there")).logs[TP], 2, max_bytes=5000
        )


def nesting(inner: bytes, position: int, number: int) -> bytearray:
    """A batch for this position of a file, with others inside at each multiple of 256 bytes."""
    for padding in range(256):
        value = bytes(padding) + (inner + bytes(256 - len(inner))) * 4
        data = batch(value, timestamp=TIME + number)
        if (position + bytes(data).index(inner)) % 256 == 0:
            return data
    raise AssertionError


class TestTransactions:
    """The aborted transactions of a segment, the last of which was not flushed, and is torn."""

    AT = f"{DIR}/{TP}/{0:020d}.txnindex"

    def written(self, flushed: int) -> tuple[CrashDisk, bytes, list[AbortedTransaction]]:
        """So many were flushed; one more began before the recovery point, and ended behind it."""
        disk = CrashDisk()
        manager = manager_on(disk)
        log = manager.create(TP, TOPIC_ID, LogConfig())
        for producer_id in range(flushed + 1):
            first = batch(b"t", producer_id=producer_id, epoch=0, sequence=0, transactional=True)
            log.append_as_leader(first, leader_epoch=0)
        for producer_id in range(flushed):
            self.abort(log, producer_id)
        fill(log, 300)
        manager.request_flush(log)
        manager.write_checkpoints({TP: log.log_end_offset})
        fill(log, 10)
        self.abort(log, flushed)
        return disk, disk.read_file(self.AT), log.aborted_transactions(0, log.log_end_offset)

    def abort(self, log: Log, producer_id: int) -> None:
        marker = build_marker(
            ControlType.ABORT,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=1,
            timestamp=TIME,
        )
        log.append_as_leader(bytearray(marker), leader_epoch=0, producer_check=False)

    @pytest.mark.parametrize("flushed", [0, 1, 2])
    @pytest.mark.parametrize("kept_bytes", range(ENTRY_BYTES))
    def test_an_entry_torn_at_every_byte(self, kept_bytes: int, flushed: int) -> None:
        """Rule H10: readers are told of the transactions that were aborted, and of no others."""
        disk, index, aborted = self.written(flushed)
        assert len(aborted) == flushed + 1
        rest = bytes(ENTRY_BYTES - kept_bytes)
        disk.write_at(self.AT, 0, (index[: flushed * ENTRY_BYTES + kept_bytes] + rest,))
        disk.restart()
        log = manager_on(disk).logs[TP]
        assert log.aborted_transactions(0, log.log_end_offset) == aborted

    @pytest.mark.parametrize("flushed", [0, 1, 2])
    @pytest.mark.parametrize("kept_bytes", [0, 25, 26, 33, 34])
    def test_and_its_marker_is_lost(self, kept_bytes: int, flushed: int) -> None:
        disk, index, aborted = self.written(flushed)
        rest = bytes(ENTRY_BYTES - kept_bytes)
        disk.write_at(self.AT, 0, (index[: flushed * ENTRY_BYTES + kept_bytes] + rest,))
        path = f"{DIR}/{TP}/{0:020d}.log"
        *_, last = walk_headers(disk.pread, path, 0, disk.size(path))
        disk.truncate(path, last[0])
        disk.restart()
        log = manager_on(disk).logs[TP]
        assert log.log_end_offset == aborted[-1].last_offset
        assert log.aborted_transactions(0, log.log_end_offset) == aborted[:-1]


def test_an_index_that_is_wrong_from_end_to_end() -> None:
    """Not one of many entries is right: the log is read from its start, and serves."""
    disk, index = written()
    count = len(index) // OFFSET_ENTRY_BYTES
    assert count > WRONG_ENTRIES_MAX
    shifted = b"".join(
        index[8 * slot : 8 * slot + 4] + (int.from_bytes(index[8 * slot + 4 :][:4]) + 1).to_bytes(4)
        for slot in range(count)
    )
    log = started_on(disk, shifted).logs[TP]
    assert [record.value for record in read_all(log)] == [value_of(n) for n in range(4 * BATCHES)]
    check_reads(log, step=1, max_bytes=5000)


class TestIndexedFile:
    """Entries by hand, each of a batch that is there, or not: (last offset, position)."""

    def indexed(self, *entries: tuple[int, int], end: int | None = None) -> IndexedFile:
        """Three batches: offsets 0 to 1, 2 to 5 and 6 to 6."""
        disk = CrashDisk()
        sizes: list[int] = []
        for first, count in ((0, 2), (2, 4), (6, 1)):
            data = batch(*[b"value"] * count, base_offset=first)
            disk.write_at("/log", sum(sizes), (data,))
            sizes.append(len(data))
        self.second, self.third = sizes[0], sizes[0] + sizes[1]
        index = OffsetIndex(disk, "/index", empty=True)
        for offset, position in entries:
            index.append(offset, position)
        index.write()
        size = disk.size("/log") if end is None else end
        return IndexedFile(OffsetIndex(disk, "/index"), disk.pread, "/log", 0, size)

    def setup_method(self) -> None:
        self.indexed()

    def found(self, indexed: IndexedFile) -> list[IndexedBatch]:
        return [indexed.by_offset(6), indexed.by_position(self.third), indexed.last()]

    def test_sound_entries(self) -> None:
        indexed = self.indexed((5, self.second), (6, self.third))
        assert self.found(indexed) == [(self.third, 6)] * 3
        assert indexed.by_offset(5) == (self.second, 2)
        assert indexed.by_offset(4) == (0, 0)
        assert indexed.by_position(self.third - 1) == (self.second, 2)

    def test_one_entry_for_several_batches_as_apache_kafka_writes_them(self) -> None:
        assert self.found(self.indexed((6, self.second))) == [(self.second, 2)] * 3

    @pytest.mark.parametrize("lost", [1, 7])
    def test_a_place_where_no_batch_begins(self, lost: int) -> None:
        indexed = self.indexed((5, self.second), (6, self.third - lost))
        assert self.found(indexed) == [(self.second, 2)] * 3

    def test_a_batch_that_begins_before_the_entry_before(self) -> None:
        """It is none, but the inside of one: batches do not overlap."""
        indexed = self.indexed((5, self.second), (6, self.third))
        again = self.indexed((5, self.second), (6, self.second + 1))
        assert indexed.by_position(self.third) == (self.third, 6)
        assert again.by_position(self.third) == (self.second, 2)

    def test_a_batch_that_begins_behind_the_offset(self) -> None:
        """The offset lost its last bytes: who looks for offset 3 must not begin at 6."""
        assert self.indexed((1, self.second)).by_offset(3) == (0, 0)

    def test_a_batch_behind_the_end(self) -> None:
        """It is there, and does not count: a scan has yet to come to it."""
        indexed = self.indexed((5, self.second), (6, self.third), end=self.third)
        assert self.found(indexed) == [(self.second, 2)] * 3

    def test_bytes_that_are_not_in_memory(self) -> None:
        indexed = replace(self.indexed((5, self.second)), read=lambda *_: None)
        with pytest.raises(WouldBlockError):
            indexed.by_offset(5)
