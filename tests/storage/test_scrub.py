"""The scrub: no wrong byte in a closed segment goes unnoticed, and none is served (rule E2)."""

from __future__ import annotations

import logging
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.storage.helpers import TP, StepExecutor, batch, manager_on, read_all
from tests.storage.scrub_helpers import (
    LARGE,
    SMALL,
    Later,
    filled,
    flip,
    scrub,
    scrubber_of,
    value_of,
)

from tidemill.errors import ApiError, ErrorCode
from tidemill.storage.checksums import read_sidecar
from tidemill.storage.disk_errors import DiskFailedError
from tidemill.storage.inspect_verify import verify_log
from tidemill.storage.log import Log
from tidemill.storage.lookup import TimestampedOffset
from tidemill.storage.scrub import ScrubLimits
from tidemill.storage.segment import Segment
from tidemill.testing.clock import ManualClock
from tidemill.testing.disk import CrashDisk, PowerCut
from tidemill.types import TopicPartition
from tidemill.wire.batch import iter_headers
from tidemill.wire.records import iter_records

BASE_OFFSET, LENGTH, LEADER_EPOCH, MAGIC, CRC, DATA = 7, 11, 15, 16, 17, 70
UNCOVERED = [BASE_OFFSET, LENGTH, LEADER_EPOCH, MAGIC]


def served(log: Log, max_bytes: int = 1) -> dict[int, bytes]:
    """Every record that can be had, batch by batch unless said otherwise, asking on behind errors.

    Whatever is wrong must be refused.
    """
    found: dict[int, bytes] = {}
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = read_at(log, offset, max_bytes)
        if data is None:
            offset += 1
            continue
        assert data, f"nothing at {offset}, and no error"
        for position, header in iter_headers(data):
            for record in iter_records(data, position, header, limit_bytes=1 << 20):
                found[record.offset] = record.value or b""
            offset = header.next_offset
    return found


def read_at(log: Log, offset: int, max_bytes: int) -> bytes | None:
    """What the log says; None if it is that the offset is damaged."""
    try:
        part = log.read(offset, max_bytes=max_bytes, upper_offset=log.log_end_offset)
    except ApiError as error:
        if error.code is not ErrorCode.CORRUPT_MESSAGE:
            raise
        return None
    return part.read_blocking()


def check_served(log: Log) -> None:
    """What is served is right, and all that is not is in the damage that is known."""
    known = {
        offset for damage in log.damage for offset in range(damage.first_offset, damage.next_offset)
    }
    for max_bytes in (1, 10_000, 1 << 20):
        found = served(log, max_bytes)
        assert all(value.rstrip(b".") == value_of(offset) for offset, value in found.items())
        lost = set(range(log.log_start_offset, log.log_end_offset)) - found.keys()
        assert lost <= known


def batch_starts(disk: CrashDisk, segment: Segment) -> list[int]:
    return [position for position, _ in iter_headers(disk.read_file(segment.log_path))]


def test_a_sound_log_has_nothing_to_report() -> None:
    disk = CrashDisk()
    manager, log = filled(disk)
    scrubber = scrub(manager, disk)
    assert manager.damaged == {}
    assert scrubber.segments_checked == len(log.segments) - 1
    assert scrubber.bytes_checked == sum(segment.size for segment in log.segments[:-1])
    assert verify_log(disk, log.directory).problems == []


@pytest.mark.parametrize("slot", [0, 2])
@pytest.mark.parametrize("which", ["first", "middle", "last"])
@pytest.mark.parametrize("place", [BASE_OFFSET, LENGTH, LEADER_EPOCH, MAGIC, CRC, DATA])
def test_a_flipped_bit_is_found_wherever_it_is(
    place: int, which: str, slot: int, caplog: pytest.LogCaptureFixture
) -> None:
    """By the scrub and by the command, in what a batch's CRC covers and in what it does not."""
    disk = CrashDisk()
    manager, log = filled(disk)
    segment = log.segments[slot]
    starts = batch_starts(disk, segment)
    start = {"first": starts[0], "middle": starts[len(starts) // 2], "last": starts[-1]}[which]
    flip(disk, segment.log_path, start + place)
    scrubber = scrub(manager, disk)
    (damage,) = log.damage
    assert scrubber.damage_found == 1
    assert damage.base_offset == segment.base_offset
    assert damage.start <= start + place < damage.end
    check_served(log)
    (line,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert segment.log_path in line.getMessage()
    assert "restore the partition" in line.getMessage()
    report = verify_log(disk, log.directory)
    assert not report.is_sound
    (problem,) = [each for each in report.problems if "not what was written" in each.message]
    assert (problem.file, problem.position) == (segment.log_path, damage.start)
    assert f"offsets {damage.first_offset} to" in problem.message


@settings(max_examples=60)
@given(data=st.data())
def test_any_flipped_byte_of_any_closed_segment_is_found(data: st.DataObject) -> None:
    disk = CrashDisk()
    manager, log = filled(disk, 200, config=LARGE, padding=500)
    closed = list(log.segments[:-1])
    hits = data.draw(st.integers(1, 4), label="how many")
    for _ in range(hits):
        segment = data.draw(st.sampled_from(closed))
        position = data.draw(st.integers(0, segment.size - 1))
        flip(disk, segment.log_path, position, data.draw(st.integers(1, 255)))
    scrub(manager, disk)
    assert log.damage or hits > 1, "two flips may undo each other"
    check_served(log)
    report = verify_log(disk, log.directory)
    assert report.is_sound == (not log.damage)


def test_damage_leaves_the_rest_alone() -> None:
    """Reads up to it, reads behind it, and appends go on: this may be the only replica."""
    disk = CrashDisk()
    manager, log = filled(disk, 200, config=LARGE, padding=500)
    segment = log.segments[0]
    flip(disk, segment.log_path, 20_000)
    scrub(manager, disk)
    (damage,) = log.damage
    assert 0 < damage.first_offset < damage.next_offset < log.segments[1].base_offset
    assert damage.end - damage.start <= 16 * 1024
    check_served(log)
    before = log.read(0, max_bytes=1 << 20, upper_offset=log.log_end_offset)
    assert [h.next_offset for _, h in iter_headers(before.read_blocking())][-1] == (
        damage.first_offset
    )
    with pytest.raises(ApiError, match=f"can be read is {damage.next_offset}"):
        log.read(damage.first_offset, max_bytes=100, upper_offset=log.log_end_offset)
    log.append_as_leader(batch(value_of(log.log_end_offset)), leader_epoch=99)
    manager.request_flush(log)
    assert log.flushed_offset == log.log_end_offset
    assert not manager.offline_dirs


@pytest.mark.parametrize("place", [BASE_OFFSET, LENGTH, MAGIC, DATA])
def test_a_time_is_not_looked_up_in_damaged_bytes(place: int) -> None:
    disk = CrashDisk()
    manager, log = filled(disk, 200, config=LARGE, padding=500, one_ms_each=True)
    first_time = log.offset_for_timestamp(0)
    assert first_time is not None
    segment = log.segments[0]
    middle = next(start for start in batch_starts(disk, segment) if start > 20_000)
    flip(disk, segment.log_path, middle + place)
    scrub(manager, disk)
    (damage,) = log.damage
    for offset in range(0, log.log_end_offset, 3):
        wanted = first_time.timestamp + offset
        found = time_at(log, wanted)
        if found is None:
            assert damage.first_offset <= offset + 3
            assert offset < damage.next_offset + 10
        else:
            assert (found.offset, found.timestamp) == (offset, wanted)


def time_at(log: Log, timestamp: int) -> TimestampedOffset | None:
    """What the log finds; None if damage is in the way."""
    try:
        return log.offset_for_timestamp(timestamp)
    except ApiError as error:
        if error.code is not ErrorCode.CORRUPT_MESSAGE:
            raise
        return None


def test_a_file_that_became_shorter_or_longer() -> None:
    for change in (-10, 10):
        disk = CrashDisk()
        manager, log = filled(disk)
        segment = log.segments[1]
        if change < 0:
            disk.truncate(segment.log_path, segment.size + change)
        else:
            disk.write_at(segment.log_path, segment.size, (bytes(change),))
        scrub(manager, disk)
        assert len(log.damage) == 1
        check_served(log)
        assert not verify_log(disk, log.directory).is_sound


def test_a_closed_segment_without_its_file() -> None:
    disk = CrashDisk()
    manager, log = filled(disk)
    segment = log.segments[1]
    disk.unlink(segment.log_path)
    scrub(manager, disk)
    (damage,) = log.damage
    assert damage.first_offset == segment.base_offset
    assert damage.next_offset == log.segments[2].base_offset
    check_served(log)


class FailingDisk(CrashDisk):
    """A disk with a sector that cannot be read."""

    bad_path = ""

    def pread(self, path: str, position: int, length: int) -> bytes:
        if path == self.bad_path and position <= 1_000 < position + length:
            raise DiskFailedError(f"Disk failure while reading {path}: input/output error")
        return super().pread(path, position, length)


def test_bytes_that_cannot_be_read_are_damage_too() -> None:
    disk = FailingDisk()
    manager, log = filled(disk)
    disk.bad_path = log.segments[1].log_path
    scrub(manager, disk)
    assert [damage.base_offset for damage in log.damage] == [log.segments[1].base_offset]
    assert not manager.offline_dirs


class TestWithoutSidecar:
    """Kafka's own directories, and data from before: nothing wrong, and soon covered."""

    def test_the_first_scrub_makes_it(self) -> None:
        disk = CrashDisk()
        manager, log = filled(disk)
        for segment in log.segments[:-1]:
            segment.drop_checksums()
        assert verify_log(disk, log.directory).problems == []
        scrub(manager, disk)
        assert log.damage == []
        disk.random.seed(1)
        disk.power_on()
        for segment in log.segments[:-1]:
            assert read_sidecar(disk, segment.checksums_path) is not None
        again = manager_on(disk, config=SMALL)
        flip(disk, log.segments[0].log_path, BASE_OFFSET)
        scrub(again, disk)
        assert again.damaged[TP]

    @pytest.mark.parametrize("place", [BASE_OFFSET, LENGTH, MAGIC, CRC, DATA])
    def test_what_the_batches_show_is_found_and_never_sealed(self, place: int) -> None:
        disk = CrashDisk()
        manager, log = filled(disk)
        segment = log.segments[1]
        start = batch_starts(disk, segment)[4]
        segment.drop_checksums()
        mask = 0x80 if place == BASE_OFFSET else 0x01
        flip(disk, segment.log_path, start + place - (place == BASE_OFFSET) * 4, mask)
        for _ in range(2):
            scrub(manager, disk)
            (damage,) = log.damage
            assert damage.start <= start + place
            check_served(log)
            assert read_sidecar(disk, segment.checksums_path) is None

    @pytest.mark.parametrize("size", [0, 10, 30])
    def test_a_torn_sidecar_is_made_anew(self, size: int) -> None:
        disk = CrashDisk()
        manager, log = filled(disk)
        segment = log.segments[1]
        disk.truncate(segment.checksums_path, size)
        report = verify_log(disk, log.directory)
        assert report.is_sound
        assert [problem.file for problem in report.problems] == [segment.checksums_path]
        scrub(manager, disk)
        assert log.damage == []
        assert read_sidecar(disk, segment.checksums_path) is not None


def test_damage_is_found_again_after_a_restart() -> None:
    disk = CrashDisk()
    manager, log = filled(disk)
    flip(disk, log.segments[1].log_path, LEADER_EPOCH)
    scrub(manager, disk)
    known = log.damage
    manager.shutdown({})
    disk.restart()
    manager = manager_on(disk, config=SMALL)
    assert manager.damaged == {}
    scrub(manager, disk)
    assert manager.damaged == {TP: known}


def test_damage_goes_with_the_segment(caplog: pytest.LogCaptureFixture) -> None:
    disk = CrashDisk()
    manager, log = filled(disk)
    for slot in (0, 3):
        flip(disk, log.segments[slot].log_path, DATA)
    for _ in range(2):
        scrub(manager, disk)
    assert len([line for line in caplog.records if line.levelno == logging.ERROR]) == 2, "once each"
    log.advance_log_start(log.segments[1].base_offset)
    log.delete_old_segments(0, log.log_end_offset)
    assert [damage.base_offset for damage in log.damage] == [log.segments[2].base_offset]
    log.truncate_to(log.segments[2].base_offset)
    assert log.damage == []
    assert len(read_all(log)) == log.log_end_offset - log.log_start_offset


def test_bytes_that_are_right_again_are_served_again() -> None:
    disk = CrashDisk()
    manager, log = filled(disk)
    flip(disk, log.segments[1].log_path, DATA)
    scrub(manager, disk)
    assert log.damage
    flip(disk, log.segments[1].log_path, DATA)
    scrub(manager, disk)
    assert log.damage == []


@pytest.mark.parametrize("change", ["truncate", "retention", "delete", "close"])
def test_a_segment_that_changes_under_the_scrub_is_no_damage(change: str) -> None:
    disk, executor = CrashDisk(), StepExecutor()
    manager, log = filled(disk, executor=executor)
    executor.run_all()
    later, over = Later(), list[bool]()
    scrubber = scrubber_of(manager, disk, later, executor=executor)
    scrubber.start_round(lambda: over.append(True))
    assert len(executor.waiting) == 1, "a step is under way"
    if change == "truncate":
        log.truncate_to(5)
        log.append_as_leader(batch(b"other"), leader_epoch=9)
        log.roll()
    elif change == "retention":
        log.advance_log_start(log.segments[1].base_offset)
        log.delete_old_segments(0, log.log_end_offset)
    elif change == "delete":
        manager.delete(TP)
    else:
        log.close()

    def turn() -> bool:
        executor.run_all()
        return bool(over)

    later.run(turn)
    assert over
    assert log.damage == []
    assert manager.damaged == {}


def test_the_rate_is_kept_and_can_be_set_to_nothing() -> None:
    disk, later, over = CrashDisk(), Later(), list[bool]()
    manager, log = filled(disk, 2_000)
    rate = [50_000]
    scrubber = scrubber_of(manager, disk, later)
    scrubber._limits = lambda: ScrubLimits(rate[0], 1)
    scrubber.start_round(lambda: over.append(True))
    later.run(lambda: scrubber.bytes_checked > 20_000)
    rate[0] = 0
    later.run(lambda: len(later.delays_ms) > 200)
    checked = scrubber.bytes_checked
    later.delays_ms.clear()
    rate[0] = 50_000
    later.run(lambda: bool(over))
    wanted_ms = (scrubber.bytes_checked - checked) * 1000 / 50_000
    assert 0.9 * wanted_ms <= sum(later.delays_ms) <= 1.1 * wanted_ms + 2_000
    assert scrubber.segments_checked == len(log.segments) - 1


def test_rounds_come_in_their_interval() -> None:
    disk, clock, later = CrashDisk(), ManualClock(), Later()
    manager, _ = filled(disk)
    scrubber = scrubber_of(manager, disk, later)
    scrubber._clock = clock
    scrubber._started_ms = clock.monotonic_ms()
    scrubber._limits = lambda: ScrubLimits(1 << 30, 3_600_000)

    def after(milliseconds: int) -> int:
        clock.advance(milliseconds)
        scrubber.run_if_due(lambda: None)
        later.run(lambda: False)
        return scrubber.rounds

    assert after(59_000) == 0
    assert after(1_000) == 1, "the first one comes soon"
    assert after(3_599_000) == 1
    assert after(1_000) == 2


def test_logs_without_closed_segments_cost_few_turns() -> None:
    disk, later, over = CrashDisk(), Later(), list[bool]()
    manager, log = filled(disk, 1)
    manager.logs = {TopicPartition("t", number): log for number in range(1_200)}
    scrubber = scrubber_of(manager, disk, later)
    scrubber.start_round(lambda: over.append(True))
    assert not over
    later.run(lambda: bool(over))
    assert len(later.delays_ms) == 2


@pytest.mark.parametrize("seed", range(40))
def test_a_power_cut_never_leaves_sums_of_other_bytes(seed: int) -> None:
    """Rule E5: whatever survives, no sidecar says something wrong of a closed segment."""
    survive(seed)


@pytest.mark.soak
def test_power_cuts_and_sums_soak() -> None:
    """The long form of the same."""
    for seed in range(1_000, 6_000):
        survive(seed)


def survive(seed: int) -> None:
    """Live until the power goes, twice, and look at what is left."""
    random = Random(seed)
    disk = CrashDisk(random)
    filled(disk, 30)
    for _ in range(2):
        disk.restart()
        manager = manager_on(disk, config=SMALL)
        scrub(manager, disk)
        assert manager.damaged == {}
        disk.cut_after(random.randint(1, 20_000))
        with pytest.raises(PowerCut):
            live(manager.logs[TP], random)
        disk.power_on()
    manager = manager_on(disk, config=SMALL)
    scrub(manager, disk)
    assert manager.damaged == {}


def live(log: Log, random: Random) -> None:
    while True:
        step(log, random)


def step(log: Log, random: Random) -> None:
    """One step in the life of a log."""
    choice = random.random()
    if choice < 0.9:
        log.append_as_leader(batch(b"x" * random.randint(1, 900)), leader_epoch=5)
    elif choice < 0.93:
        log.roll()
    elif choice < 0.96:
        log.truncate_to(random.randint(log.log_start_offset, log.log_end_offset))
    elif choice < 0.98:
        log.flush()
    else:
        log.advance_log_start(random.randint(log.log_start_offset, log.log_end_offset))
        log.delete_old_segments(0, log.log_end_offset)
