"""Compaction when something is wrong: bytes, threads, room, or the log is not what it was."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from tests.storage.cleaning import COMPACTED, Cleaning, key
from tests.storage.helpers import DIR, TP, StepExecutor
from tests.storage.scrub_helpers import flip, scrub
from tests.waiting import LONG_S

from tidemill.errors import ApiError
from tidemill.executor import InlineExecutor, Then
from tidemill.storage import cleaner as cleaner_module
from tidemill.storage.checkpoint import RECOVERY_POINTS, read_offsets
from tidemill.storage.checksums import INTERVAL_BYTES
from tidemill.storage.cleaner_run import CleaningRun
from tidemill.storage.cleaner_source import SuspectSegmentError, sound_batches
from tidemill.storage.disk_errors import DiskFailedError, OutOfFilesError
from tidemill.storage.log import Log
from tidemill.types import TopicPartition
from tidemill.wire.batch import iter_headers

OTHER = TopicPartition("views", 0)
BASE_OFFSET_BYTE, LEADER_EPOCH_BYTE = 7, 15
"""Of a batch's header; its CRC covers neither."""


def two_segments() -> Cleaning:
    """Something to compact in the first segment; the second one can stay as it is."""
    world = Cleaning()
    for number in (0, 1, 2, 3, 4, 1):
        world.put((key(number), b"value-%d" % number))
    world.settle()
    for number in range(20, 26):
        world.put((key(number), b"z"))
    world.settle()
    world.put((key(99), b"tail"))
    return world


def with_another_log(world: Cleaning) -> Log:
    """A second compacted log, of which everything is committed, too."""
    other = world.manager.create(OTHER, UUID(int=8), world.config)
    world.cleaner._high_watermarks = lambda: {
        log.topic_partition: log.log_end_offset for log in (world.log, other)
    }
    return other


def put_into(world: Cleaning, log: Log, *values: bytes) -> None:
    """Values of one key, in a segment of their own."""
    first, world.log = world.log, log
    for value in values:
        world.put((b"same", value))
    world.settle()
    world.log = first


class TestDamage:
    """Rules E2 and I6: what is damaged is not copied under new checksums."""

    @pytest.mark.parametrize("position", [BASE_OFFSET_BYTE, LEADER_EPOCH_BYTE])
    def test_bytes_that_no_batch_covers_are_compared_with_the_sidecar(self, position: int) -> None:
        """Rule E2: it is noted, somebody is told, and the log is compacted when it is sound."""
        world, told = two_segments(), list[Log]()
        world.cleaner._on_damage = told.append
        segment = world.log.segments[0]
        flip(world.disk, segment.log_path, position, 0x40)
        before = world.disk.pread(segment.log_path, 0, segment.size)
        assert not world.clean()
        assert world.log.segments[0] is segment
        assert world.disk.pread(segment.log_path, 0, segment.size) == before
        assert [damage.base_offset for damage in world.log.damage] == [0]
        assert told == [world.log]
        assert not [name for name in world.names() if ".cleaned" in name or ".swap" in name]
        flip(world.disk, segment.log_path, position, 0x40)
        scrub(world.manager, world.disk)
        assert world.clean(), "it is not put aside for ever"

    def test_damage_in_the_part_that_was_compacted_before(self) -> None:
        """The map of keys does not look there; the copy does."""
        world = two_segments()
        assert world.clean()
        world.settle()
        world.put((key(99), b"newer"))
        world.settle()
        flip(world.disk, world.log.segments[0].log_path, LEADER_EPOCH_BYTE, 0x40)
        assert not world.clean()
        assert [damage.base_offset for damage in world.log.damage] == [0]

    @pytest.mark.parametrize("position", [BASE_OFFSET_BYTE, LEADER_EPOCH_BYTE])
    def test_without_a_sidecar_batches_have_to_follow_each_other(self, position: int) -> None:
        """Rule E2: the first batch says an offset or an epoch that the second one contradicts."""
        world = two_segments()
        segment = world.log.segments[0]
        world.disk.unlink(segment.checksums_path)
        flip(world.disk, segment.log_path, position, 0x40)
        assert not world.clean()
        assert [damage.base_offset for damage in world.log.damage] == [0]

    def test_a_sidecar_about_another_size(self) -> None:
        world = two_segments()
        first, second = world.log.segments[:2]
        world.disk.replace(second.checksums_path, first.checksums_path)
        assert not world.clean()
        assert [damage.base_offset for damage in world.log.damage] == [0]

    def test_from_any_batch_on_any_interval(self) -> None:
        """A pass may begin to read anywhere; a wrong byte behind that is found."""
        world = Cleaning(config=replace(COMPACTED, segment_bytes=1 << 20))
        for number in range(30):
            world.put((key(number), b"v" * 2_000))
        world.settle()
        segment = world.log.segments[0]
        data = world.disk.pread(segment.log_path, 0, segment.size)
        starts = [position for position, _ in iter_headers(data)]
        assert segment.size > 3 * INTERVAL_BYTES

        def count(start: int) -> int:
            batches = sound_batches(world.disk, segment, 30, start, chunk_bytes=5_000)
            return sum(1 for _ in batches)

        assert [count(start) for start in starts] == list(range(30, 0, -1))
        flip(world.disk, segment.log_path, starts[-1] + LEADER_EPOCH_BYTE, 0x40)
        for start in starts:
            with pytest.raises(SuspectSegmentError):
                count(start)


def test_the_last_batch_of_the_range_stays_when_its_records_go() -> None:
    """Rule I4: without it the segment would seem to end earlier."""
    world = Cleaning(config=replace(COMPACTED, cleanup_compact=False))
    world.put((b"a", b"1"))
    world.put((None, b"from before the topic was compacted"))
    world.put((None, b"and another"))
    world.reconfigure(cleanup_compact=True)
    world.settle()
    assert world.clean()
    assert [(header.last_offset, header.record_count) for header in world.headers()] == [
        (0, 1),
        (2, 0),
    ]


@pytest.mark.parametrize("pieces", range(24))
def test_a_segment_that_was_cut_and_filled_anew_is_not_replaced(pieces: int) -> None:
    """Rule D8 before I5: it is the same segment again, but not with what the pass has read."""
    executor = StepExecutor()
    world = Cleaning(executor=executor)
    for number in range(16):
        world.put((b"same", b"old-%02d" % number))
    world.settle()
    last_closed = world.log.segments[-2]
    world.begin()
    for _ in range(pieces):
        if executor.waiting:
            executor.waiting.pop(0)()
        else:
            world.turn()
    cut = last_closed.base_offset + 1
    if last_closed.is_gone:
        return  # It has been replaced already.
    world.log.truncate_to(cut)
    for number in range(16 - cut):
        world.put((b"new-%d" % number, b"new-%02d" % number))
    world.settle()
    while executor.waiting or world.later:
        executor.run_all()
        world.turn()
    assert world.is_done
    found = [(offset, value) for offset, _, value in world.records() if offset >= cut]
    assert found == [(cut + number, b"new-%02d" % number) for number in range(16 - cut)]


def test_what_is_compacted_lies_below_the_recovery_point() -> None:
    """Rule I5: a log that is no longer compacted would take the gaps for lost records."""
    world = Cleaning()
    for number in range(60):
        world.put((key(number % 4), b"v%d" % number))
    world.settle()
    upper = world.log.segments[-1].base_offset
    assert read_offsets(world.disk, DIR, RECOVERY_POINTS).get(TP, 0) < upper
    assert world.clean()
    assert read_offsets(world.disk, DIR, RECOVERY_POINTS)[TP] >= upper
    before = world.records()
    world.config = replace(COMPACTED, cleanup_compact=False)
    world.disk.power_on()
    world.boot()
    assert world.records() == before


def test_a_swap_that_fails_for_a_moment_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule I5: the old segments stay, nothing waits to take their place, and it is tried again."""
    world = two_segments()
    real = world.disk.fsync_dir

    def fails(path: str) -> None:
        if world.log.pending_swap is not None:
            raise OutOfFilesError("too many open files")
        real(path)

    monkeypatch.setattr(world.disk, "fsync_dir", fails)
    before = world.records()
    assert not world.clean()
    assert not world.log.dir.is_offline
    assert world.log.pending_swap is None
    assert not [name for name in world.names() if ".cleaned" in name or ".swap" in name]
    assert world.records() == before
    monkeypatch.undo()
    assert world.clean()


def test_a_log_that_changed_since_the_survey(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule I6: a survey takes several turns; what it found may be gone by then."""
    monkeypatch.setattr(cleaner_module, "LOGS_PER_STEP", 1)
    world = two_segments()
    other = with_another_log(world)
    put_into(world, other, b"1", b"2")
    world.begin()
    assert not world.is_done
    world.log.truncate_fully_and_start_at(world.log.log_end_offset)
    world.finish()
    assert not world.cleaner.uncleanable
    assert world.cleaner.totals.passes == 1, "the other one was compacted nevertheless"


@pytest.mark.parametrize(
    "end", [lambda world: world.log.truncate_to(8), lambda world: world.manager.delete(TP)]
)
def test_the_map_of_an_abandoned_pass_is_released_in_a_thread(
    end: Callable[[Cleaning], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To let go of a large map at once would stop the loop."""
    runs: list[CleaningRun] = []

    def remembered(*arguments: Any) -> CleaningRun:
        runs.append(CleaningRun(*arguments))
        return runs[-1]

    monkeypatch.setattr(cleaner_module, "CleaningRun", remembered)
    executor = StepExecutor()
    world = two_segments()
    world.cleaner._executor = executor
    world.begin()
    executor.waiting.pop(0)()
    (run,) = runs
    assert len(run.offsets)
    end(world)
    world.turn()
    assert run.offsets._tables, "not on the loop"
    assert len(executor.waiting) == 1
    executor.run_all()
    assert not run.offsets._tables
    world.finish()


def test_a_log_without_room_does_not_hold_up_smaller_ones() -> None:
    """Rules E8 and I6: the dirtiest log is too large, so the next one has its turn."""
    world = Cleaning(config=replace(COMPACTED, segment_bytes=50_000))
    for number in range(40):
        world.put((key(number), b"x" * 1_000))
    world.settle()
    other = with_another_log(world)
    put_into(world, other, b"1", b"2", b"3")
    space = world.disk.space(DIR)
    world.disk.capacity_bytes = space.total_bytes - space.free_bytes + 10_000
    world.log.dir.forget_allowance()
    assert world.clean()
    assert world.manager.cleaned_offset(other) == 3
    assert world.manager.cleaned_offset(world.log) is None
    world.disk.capacity_bytes = 1 << 40
    assert world.clean(), "there is room now"
    assert world.manager.cleaned_offset(world.log) == 40


class RefusingExecutor(InlineExecutor):
    """Cannot start a thread for the n-th piece of work."""

    def __init__(self, refused: int) -> None:
        self.left = refused

    def submit(self, work: Callable[[], Any], then: Then[Any]) -> None:
        self.left -= 1
        if self.left == -1:
            raise RuntimeError("can't start new thread")
        super().submit(work, then)


@pytest.mark.parametrize("refused", range(8))
def test_a_pass_waits_for_a_thread(refused: int) -> None:
    """Rule I6: a machine short of threads for a moment is no end of compaction."""
    world = two_segments()
    executor = RefusingExecutor(refused)
    world.cleaner._executor = executor
    assert world.clean()
    assert executor.left < 0
    assert world.cleaner.totals.aborted_passes == 0


def test_whoever_hears_that_a_swap_broke_off_may_read() -> None:
    """A failed rename takes the directory offline, and listeners are told of that at once."""
    world = Cleaning()
    for number in range(40):
        world.put((key(number % 3), b"%d" % number))
    world.settle()
    world.log.release_memory()
    heard: list[str] = []

    def hear(path: str, _: object) -> None:
        with suppress(ApiError):  # Half of its segments are gone.
            world.log.offset_for_timestamp(0)
        heard.append(path)

    def refuse(source: str, target: str) -> None:
        if source.endswith(".index"):
            raise DiskFailedError(f"{source} cannot be renamed")
        rename(source, target)

    rename, world.disk.replace = world.disk.replace, refuse  # type: ignore[method-assign]
    world.manager.on_dir_failure = hear
    cleaner = threading.Thread(target=world.clean, daemon=True)
    cleaner.start()
    cleaner.join(LONG_S)
    assert heard == [DIR], "it waits for ever"
    assert world.log.dir.is_offline
