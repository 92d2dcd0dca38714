"""Cutting a log: what runs at the same time, what a crash leaves, what damage does to it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from tests.storage.helpers import (
    TOPIC_ID,
    TP,
    StepExecutor,
    batch,
    fill,
    manager_on,
    read_all,
    values,
)
from tests.storage.scrub_helpers import flip
from tests.waiting import LONG_S

from tidemill.errors import ApiError, ErrorCode
from tidemill.storage.checkpoint import LEADER_EPOCHS, parse_epochs
from tidemill.storage.disk_errors import DiskFullError
from tidemill.storage.files import OsFiles
from tidemill.storage.log import Log
from tidemill.storage.log_config import LogConfig
from tidemill.testing.disk import CrashDisk, PowerCut
from tidemill.wire.batch import HEADER_BYTES, iter_headers
from tidemill.wire.control import ControlType, build_marker

SEGMENTED = LogConfig(segment_bytes=400)
COMPACTED = LogConfig(segment_bytes=400, cleanup_compact=True)
LENGTH_BYTE, MAGIC_BYTE, VALUE_BYTE = 8, 16, 90
"""Places in a batch."""


def append(log: Log, count: int, *, leader_epoch: int = 0, value: bytes = b"v") -> None:
    for _ in range(count):
        log.append_as_leader(batch(value), leader_epoch=leader_epoch)


def epochs_on_disk(disk: CrashDisk, log: Log) -> list[tuple[int, int]]:
    return list(parse_epochs(disk.read_file(f"{log.directory}/{LEADER_EPOCHS}")))


def reopened(disk: CrashDisk, config: LogConfig | None = None) -> Log:
    return manager_on(disk, config=config).logs[TP]


class TestFullDisks:
    @pytest.mark.parametrize("offset", [0, 5], ids=["all of it", "some of it"])
    def test_a_cut_without_room_changes_nothing_and_is_made_later(self, offset: int) -> None:
        """Rule E8: a full disk is no broken one, though a cut must not stop half way."""
        disk = CrashDisk()
        log = manager_on(disk).create(TP, TOPIC_ID, LogConfig())
        append(log, 10)
        before = read_all(log)
        capacity_bytes = disk.capacity_bytes
        disk.capacity_bytes -= disk.space(log.directory).free_bytes
        with pytest.raises(DiskFullError):
            log.truncate_to(offset)
        assert not log.dir.is_offline
        assert read_all(log) == before
        disk.capacity_bytes = capacity_bytes
        log.truncate_to(offset)
        assert log.log_end_offset == offset
        assert not [name for name in disk.listdir(log.directory) if name.endswith(".tmp")]


class TestEpochs:
    @pytest.mark.parametrize("is_cut", [True, False], ids=["records go", "only the epoch goes"])
    def test_a_flush_from_before_a_cut_does_not_bring_epochs_back(self, is_cut: bool) -> None:
        """Rule D8."""
        disk, step = CrashDisk(), StepExecutor()
        manager = manager_on(disk, executor=step)
        log = manager.create(TP, TOPIC_ID, LogConfig())
        append(log, 10, leader_epoch=4)
        manager.request_flush(log)
        step.run_all()
        if is_cut:
            append(log, 5, leader_epoch=5)
        else:
            log.begin_epoch(5)
        manager.request_flush(log)
        log.truncate_to(10)
        step.run_all()
        assert log.leader_epochs.entries == epochs_on_disk(disk, log) == [(4, 0)]
        assert not [name for name in disk.listdir(log.directory) if name.endswith(".tmp")]

    def test_a_flush_and_a_cut_may_write_the_epochs_at_the_same_time(self, tmp_path: Path) -> None:
        files, step = GatedFiles(), StepExecutor()
        manager = manager_on(files, executor=step, dirs=(str(tmp_path / "data"),))
        log = manager.create(TP, TOPIC_ID, LogConfig())
        append(log, 10, leader_epoch=4)
        manager.request_flush(log)
        step.run_all()
        append(log, 5, leader_epoch=5)
        manager.request_flush(log)
        files.is_gated = True
        flush = threading.Thread(target=step.run_all)
        flush.start()
        assert files.reached.wait(LONG_S)
        log.truncate_to(12)
        files.go_on.set()
        flush.join()
        assert log.dir.failure is None
        data = files.read_file(f"{log.directory}/{LEADER_EPOCHS}")
        assert list(parse_epochs(data)) == [(4, 0), (5, 10)]
        manager.shutdown({})


class GatedFiles(OsFiles):
    """Holds a thread back before it flushes leader epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.is_gated = False
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def fdatasync(self, path: str) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        if self.is_gated and LEADER_EPOCHS in path and not is_main:
            self.reached.set()
            assert self.go_on.wait(LONG_S)
        super().fdatasync(path)


class TestCrash:
    @pytest.mark.parametrize(
        ("config", "later"),
        [(SEGMENTED, SEGMENTED), (COMPACTED, COMPACTED), (SEGMENTED, COMPACTED)],
        ids=["deleted", "compacted", "compacted from now on"],
    )
    @pytest.mark.parametrize("cut", ["truncate_to", "truncate_fully_and_start_at"])
    @pytest.mark.parametrize("crash", ["restart", "power_on"])
    def test_a_cut_over_segments_never_leaves_a_hole(
        self, config: LogConfig, later: LogConfig, cut: str, crash: str
    ) -> None:
        """Rule D8: what is left after a crash at any step is one piece.

        Where compaction may have left gaps, no start can tell that something is missing.
        """
        for steps in range(1, 60):
            disk = CrashDisk(Random(steps))
            log = self.flushed(disk, config)
            disk.cut_after(steps)
            try:
                getattr(log, cut)(3)
            except PowerCut:
                pass
            getattr(disk, crash)()
            log = reopened(disk, later)
            offsets = [record.offset for record in read_all(log)]
            assert offsets == list(range(log.log_start_offset, log.log_end_offset)), steps

    def test_a_recovery_that_is_cut_short_leaves_no_hole_either(self) -> None:
        """Rule E4: what follows the torn batch is durably gone before that is cut off."""
        for steps in range(60):
            disk = CrashDisk(Random(steps))
            log = manager_on(disk, config=COMPACTED).create(TP, TOPIC_ID, COMPACTED)
            append(log, 20, value=b"v" * 60)
            log.flush()
            torn = log.segments[1]
            flip(disk, torn.log_path, torn.size - 1, 0x08)
            disk.fdatasync(torn.log_path)
            disk.restart()
            disk.cut_after(steps)
            with suppress(PowerCut):
                manager_on(disk, config=COMPACTED)
            disk.power_on()
            log = reopened(disk, COMPACTED)
            offsets = [record.offset for record in read_all(log)]
            assert offsets == list(range(torn.base_offset + 2)), steps

    def flushed(self, disk: CrashDisk, config: LogConfig) -> Log:
        manager = manager_on(disk, config=config)
        log = manager.create(TP, TOPIC_ID, config)
        append(log, 20, value=b"v" * 60)
        log.flush()
        manager.write_checkpoints({TP: 20})
        return log


class HookedDisk(CrashDisk):
    """Lets something happen after a certain read of a segment, once."""

    reads_left = -1
    meanwhile: Callable[[], object] = staticmethod(lambda: None)

    def arm(self, reads: int, meanwhile: Callable[[], object]) -> None:
        self.reads_left, self.meanwhile = reads, meanwhile

    def pread(self, path: str, position: int, length: int) -> bytes:
        data = super().pread(path, position, length)
        if path.endswith(".log"):
            self.reads_left -= 1
            if not self.reads_left:
                self.meanwhile()
        return data


class TestReaders:
    """Those who began to read before a cut, and go on after it."""

    @pytest.mark.parametrize("reads", [1, 2])
    @pytest.mark.parametrize("offset", [4, 13, 37], ids=["segments", "a segment", "batches"])
    def test_a_time_is_looked_up_again_in_what_is_left(self, reads: int, offset: int) -> None:
        """The batches of before are read at places where others begin by now."""
        disk, config = HookedDisk(), LogConfig(segment_bytes=2600, index_interval_bytes=10_000)
        log = manager_on(disk, config=config).create(TP, TOPIC_ID, config)
        self.fill(log, 40, b"v" * 60)
        after: list[int] = []

        def cut() -> None:
            log.truncate_to(offset)
            self.fill(log, 60 - offset, b"w" * 43)
            after.append(log.log_end_offset)

        disk.arm(reads, cut)
        found = log.offset_for_timestamp(1039)
        assert after == [60]
        assert found == (39, 1039, 0)

    def test_a_view_taken_in_the_middle_of_a_cut_is_stale(self) -> None:
        """A thread may begin when the cut is noted and the bytes are still there."""
        disk = CrashDisk()
        log = manager_on(disk).create(TP, TOPIC_ID, LogConfig())
        self.fill(log, 10, b"v")
        segment, views = log.segments[0], []
        truncate = disk.truncate

        def truncating(path: str, size: int) -> None:
            views.append(log._lookup_view())
            truncate(path, size)

        disk.truncate = truncating  # type: ignore[method-assign]
        segment.truncate(segment.locate(5, disk.pread), 5)
        assert views[0].is_stale

    @pytest.mark.parametrize("way", ["read_now", "read_blocking"])
    def test_a_segment_that_a_cut_removed_is_not_read_from_its_successor(self, way: str) -> None:
        """Another segment has its name by then, and other batches at its positions."""
        log = manager_on(CrashDisk()).create(TP, TOPIC_ID, SEGMENTED)
        append(log, 12, value=b"v" * 60)
        base = log.segments[1].base_offset
        part = log.read(base + 1, max_bytes=1 << 20, upper_offset=12)
        log.truncate_to(1)
        append(log, base - 1, leader_epoch=1)
        log.roll()
        append(log, 1, leader_epoch=1, value=b"w" * 300)
        assert log.segments[1].base_offset == base
        assert getattr(part, way)() == b""

    @pytest.mark.parametrize("way", ["read_now", "read_blocking"])
    def test_a_deleted_topic_is_not_read_from_the_next_of_its_name(self, way: str) -> None:
        """Rule A11: the fetch was under way when the topic was deleted and made again."""
        manager = manager_on(CrashDisk())
        log = manager.create(TP, TOPIC_ID, LogConfig())
        append(log, 12, value=b"v" * 60)
        part = log.read(1, max_bytes=1 << 20, upper_offset=12)
        manager.delete(TP)
        again = manager.create(TP, UUID(int=8), LogConfig())
        append(again, 30, value=b"secret")
        assert getattr(part, way)() == b""

    def fill(self, log: Log, count: int, value: bytes) -> None:
        for offset in range(log.log_end_offset, log.log_end_offset + count):
            log.append_as_leader(batch(value, timestamp=1000 + offset), leader_epoch=0)


class TestProducers:
    def test_starting_over_forgets_every_open_transaction(self) -> None:
        """Rule B6, and after a restart, too."""
        disk = CrashDisk()
        manager = manager_on(disk)
        log = manager.create(TP, TOPIC_ID, LogConfig())
        self.begin_transaction(log)
        log.roll()
        append(log, 1)
        log.flush()
        log.truncate_fully_and_start_at(1000)
        append(log, 1, leader_epoch=1)
        manager.shutdown({TP: 1001})
        log = reopened(disk)
        assert log.log_end_offset == log.last_stable_offset(1001) == 1001
        assert not log.producers.active()

    def test_a_log_that_is_all_below_its_start_forgets_them_too(self) -> None:
        disk = CrashDisk()
        manager = manager_on(disk)
        log = manager.create(TP, TOPIC_ID, LogConfig())
        self.begin_transaction(log)
        log.roll()
        log.flush()
        tail = log.segments[-1].log_path
        append(log, 5)
        log.advance_log_start(6)
        manager.write_checkpoints({TP: 6})
        disk.restart()
        disk.truncate(tail, 0)  # None of these five was flushed.
        log = reopened(disk)
        assert log.log_start_offset == log.log_end_offset == 6
        assert not log.producers.active()

    def test_the_stable_offset_is_never_above_the_high_watermark(self) -> None:
        """Rule H9: a transaction that begins above it does not lift it."""
        log = manager_on(CrashDisk()).create(TP, TOPIC_ID, LogConfig())
        append(log, 5)
        self.begin_transaction(log)
        assert [log.last_stable_offset(mark) for mark in (2, 5, 6)] == [2, 5, 5]

    def test_the_stable_offset_is_never_below_the_log_start(self) -> None:
        """Rule H9: records of the transaction that were deleted hold nobody back."""
        manager = manager_on(CrashDisk())
        log = manager.create(TP, TOPIC_ID, LogConfig())
        self.begin_transaction(log)
        append(log, 5)
        log.advance_log_start(4)
        assert log.last_stable_offset(6) == 4

    def begin_transaction(self, log: Log) -> None:
        records = batch(b"t", producer_id=9, epoch=0, sequence=0, transactional=True)
        log.append_as_leader(records, leader_epoch=0)


class TestDamage:
    @pytest.mark.parametrize("byte", [MAGIC_BYTE, LENGTH_BYTE])
    def test_a_cut_that_damage_hides_is_made_at_the_damage(
        self, byte: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The log stays whole: end, segments and appends agree, and a restart finds the same."""
        disk, config = CrashDisk(), LogConfig(segment_bytes=3000, index_interval_bytes=100_000)
        log = self.damaged_at(disk, config, 3, byte)
        with caplog.at_level(logging.ERROR):
            assert log.truncate_to(10)
        assert "it is cut at offset 3 instead of 10" in caplog.text
        assert (log.log_end_offset, log.flushed_offset, len(log.segments)) == (3, 3, 1)
        append(log, 1, leader_epoch=1)
        log.flush()
        disk.restart()
        assert [record.offset for record in read_all(reopened(disk, config))] == [0, 1, 2, 3]

    def test_damage_far_before_a_cut_does_not_stop_it_half_way(self) -> None:
        """The index leads past it; producers and times are taken from what can be read."""
        disk, config = CrashDisk(), LogConfig(segment_bytes=3000, index_interval_bytes=300)
        log = self.damaged_at(disk, config, 3, MAGIC_BYTE)
        assert log.truncate_to(15)
        assert (log.log_end_offset, log.flushed_offset, len(log.segments)) == (15, 15, 1)
        append(log, 1, leader_epoch=1)
        assert log.read(15, max_bytes=1000, upper_offset=16).read_blocking()

    @pytest.mark.parametrize(
        ("byte", "was_clean"),
        [
            (MAGIC_BYTE, True),
            (LENGTH_BYTE, True),
            (MAGIC_BYTE, False),
            (LENGTH_BYTE, False),
            (VALUE_BYTE, False),  # After a clean stop nobody looks at values.
        ],
    )
    def test_a_start_keeps_what_follows_damage_in_flushed_data(
        self, byte: int, was_clean: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Rule E2: the damaged offset is answered with an error, all others are there."""
        disk, config = CrashDisk(), LogConfig(index_interval_bytes=400)
        self.damaged_at(disk, config, 10, byte, stop=was_clean)
        with caplog.at_level(logging.ERROR):
            log = reopened(disk, config)
        assert "offsets 10 to 10" in caplog.text
        assert (log.log_start_offset, log.log_end_offset) == (0, 60)
        with pytest.raises(ApiError, match=r"offset 10 .* is damaged") as failure:
            log.read(10, max_bytes=1 << 20, upper_offset=60)
        assert failure.value.code == ErrorCode.CORRUPT_MESSAGE
        assert offsets_from(log, 0) == list(range(10))
        assert offsets_from(log, 11) == list(range(11, 60))
        entry = log.producers.get(9)
        assert entry is not None
        assert entry.last_sequence == 59
        append(log, 1)
        assert offsets_from(log, 60) == [60]

    def test_a_start_gets_past_a_marker_that_cannot_be_read(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Rules E2 and G5: the snapshot is lost, so what the marker said would be needed."""
        disk = CrashDisk()
        manager = manager_on(disk)
        log = manager.create(TP, TOPIC_ID, LogConfig())
        log.append_as_leader(
            batch(b"t", producer_id=9, epoch=0, sequence=0, transactional=True), leader_epoch=0
        )
        position = log.size_bytes
        marker = build_marker(
            ControlType.ABORT, producer_id=9, producer_epoch=0, coordinator_epoch=1, timestamp=5
        )
        log.append_as_leader(marker, leader_epoch=0, producer_check=False)
        append(log, 1)
        manager.shutdown({TP: 3})
        for name in disk.listdir(log.directory):
            if name.endswith(".snapshot"):
                disk.unlink(f"{log.directory}/{name}")
        flip(disk, log.segments[0].log_path, position + HEADER_BYTES + 4, 0x80)
        with caplog.at_level(logging.ERROR):
            log = reopened(disk)
        assert "marker" in caplog.text
        assert log.log_end_offset == 3
        assert log.last_stable_offset(3) == 0, "as far as anybody knows, it is open"

    def test_a_start_says_which_flushed_offsets_it_cut_off(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        disk, config = CrashDisk(), LogConfig(index_interval_bytes=400)
        self.damaged_at(disk, config, 59, MAGIC_BYTE, stop=False)
        with caplog.at_level(logging.ERROR):
            log = reopened(disk, config)
        assert log.log_end_offset == 59
        assert "is cut at offset 59: offsets up to 59 were durable" in caplog.text

    def damaged_at(
        self, disk: CrashDisk, config: LogConfig, offset: int, byte: int, stop: bool | None = None
    ) -> Log:
        """A flushed log in which one batch is wrong, after a clean stop or a crash if asked."""
        manager = manager_on(disk, config=config)
        log = manager.create(TP, TOPIC_ID, config)
        for sequence in range(60):
            records = batch(b"v" * 60, producer_id=9, epoch=0, sequence=sequence)
            log.append_as_leader(records, leader_epoch=0)
        log.flush()
        manager.write_checkpoints({TP: 60})
        segment = log.segments[0]
        data = disk.pread(segment.log_path, 0, segment.size)
        positions = [position for position, _ in iter_headers(data)]
        if stop:
            manager.shutdown({TP: 60})
        elif stop is not None:
            disk.restart()
        flip(disk, segment.log_path, positions[offset] + byte, 0x08)
        return log


def offsets_from(log: Log, offset: int) -> list[int]:
    data = log.read(offset, max_bytes=1 << 20, upper_offset=log.log_end_offset).read_blocking()
    return [header.base_offset for _, header in iter_headers(data)]


def test_a_lookup_while_a_log_begins_anew_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule B6: it finds the log as it will be, and is not told to try again."""
    disk, config = CrashDisk(), LogConfig(segment_bytes=600)
    log = manager_on(disk, config=config).create(TP, TOPIC_ID, config)
    fill(log, 40)
    flush_names, first_path = disk.fsync_dir, log.segments[0].log_path
    found: list[object] = []
    reader = threading.Thread(target=lambda: found.append(log.offset_for_timestamp(0)))

    def meet_a_reader(path: str) -> None:
        if reader.ident is None and not disk.exists(first_path):
            reader.start()
            reader.join(0.1)  # Time enough for as many tries as it likes.
        flush_names(path)

    monkeypatch.setattr(disk, "fsync_dir", meet_a_reader)
    log.truncate_fully_and_start_at(50)
    reader.join()
    assert found == [None], "the new log is empty"


@pytest.mark.parametrize("seed", range(12))
def test_a_power_cut_while_a_transaction_is_cut_off(seed: int) -> None:
    """Rules D8 and H10: of two files, the disk may keep the cut of one and not of the other. Where
    the marker is back, read_committed readers have to be told what it aborted."""
    outcomes = set()
    for steps in range(60):
        disk = CrashDisk(Random(seed))
        manager = manager_on(disk)
        log = manager.create(TP, TOPIC_ID, LogConfig())
        fill(log, 4)
        records = batch(b"t", producer_id=11, epoch=0, sequence=0, transactional=True)
        log.append_as_leader(records, leader_epoch=0)
        marker = build_marker(
            ControlType.ABORT, producer_id=11, producer_epoch=0, coordinator_epoch=1, timestamp=1
        )
        log.append_as_leader(bytearray(marker), leader_epoch=0, producer_check=False)
        manager.request_flush(log)
        manager.write_checkpoints({TP: log.log_end_offset})
        disk.cut_after(steps)
        with suppress(PowerCut):
            log.truncate_to(3)
        disk.power_on()
        again = manager_on(disk).logs[TP]
        aborted = [entry[:3] for entry in again.aborted_transactions(0, again.log_end_offset)]
        assert aborted == ([(11, 4, 5)] if again.log_end_offset == 6 else [])
        outcomes.add(again.log_end_offset)
    assert outcomes == {3, 6}, "some cuts came to the disk, and some did not"


def test_a_cut_that_a_kill_left_in_memory_is_durable_before_anything_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rules D8 and E4: what a truncation took must not come back in front of what was acked."""
    disk = CrashDisk(Random(1))
    manager = manager_on(disk)
    log = manager.create(TP, TOPIC_ID, LogConfig())
    for value in (b"kept", b"dropped", b"dropped too"):
        log.append_as_leader(batch(value), leader_epoch=0)
    log.flush()
    log.roll()
    manager.write_checkpoints({TP: 1})
    cut, first_path = disk.truncate, log.segments[0].log_path

    def die_after(path: str, size: int) -> None:
        cut(path, size)
        if path == first_path:
            disk.cut_after(0)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "truncate", die_after)
        with pytest.raises(PowerCut):
            log.truncate_to(1)
    disk.restart()  # The process was killed: the page cache has the cut, the disk does not.
    log = manager_on(disk).logs[TP]
    assert values(log) == [b"kept"]
    log.roll()
    log.append_as_leader(batch(b"acked"), leader_epoch=1)
    log.flush()
    monkeypatch.setattr(disk, "_keeps", lambda mood: False)  # Only what was flushed.
    disk.power_on()
    assert values(manager_on(disk).logs[TP]) == [b"kept", b"acked"]
