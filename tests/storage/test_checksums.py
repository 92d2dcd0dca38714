"""Sidecars: what they say, when they are there, and that nobody believes a bad one (rule E2)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.storage.helpers import DIR, TP, StepExecutor, batch, manager_on
from tests.storage.scrub_helpers import SMALL, filled

from tidemill.storage.checksums import (
    CHECKSUMS,
    INTERVAL_BYTES,
    BadChecksumsError,
    Checksums,
    compute,
    drop_sidecar,
    format_checksums,
    parse_checksums,
    read_sidecar,
    sums_of,
    write_sidecar,
)
from tidemill.storage.segment import Segment
from tidemill.testing.disk import CrashDisk
from tidemill.wire.batch import crc32c

HOME = f"{DIR}/{TP}"


def sidecars(disk: CrashDisk) -> list[str]:
    return [name for name in disk.listdir(HOME) if name.endswith(CHECKSUMS)]


def names_of(segments: list[Segment]) -> list[str]:
    return [segment.checksums_path.rpartition("/")[2] for segment in segments]


class TestFormat:
    def test_one_sum_for_each_interval_of_all_bytes(self) -> None:
        disk = CrashDisk()
        data = bytes(range(256)) * 200
        disk.mkdir("/d")
        disk.write_at("/d/x.log", 0, (data,))
        write_sidecar(disk, "/d/x.log", "/d/x.checksums")
        known = read_sidecar(disk, "/d/x.checksums")
        assert known is not None
        assert (known.size_bytes, known.interval_bytes) == (len(data), INTERVAL_BYTES)
        pieces = [
            data[start : start + INTERVAL_BYTES] for start in range(0, len(data), INTERVAL_BYTES)
        ]
        assert list(known.sums) == [crc32c(piece) for piece in pieces]
        assert known == compute(disk, "/d/x.log")
        drop_sidecar(disk, "/d/x")
        assert read_sidecar(disk, "/d/x.checksums") is None

    @given(st.binary(max_size=2_000), st.data())
    def test_no_flipped_byte_and_no_torn_end_is_believed(
        self, content: bytes, data: st.DataObject
    ) -> None:
        whole = format_checksums(Checksums(len(content), 512, sums_of(content, 512)))
        assert parse_checksums(whole).sums == sums_of(content, 512)
        position = data.draw(st.integers(0, len(whole) - 1))
        mask = data.draw(st.integers(1, 255))
        changed = bytearray(whole)
        changed[position] ^= mask
        with pytest.raises(BadChecksumsError):
            parse_checksums(bytes(changed))
        with pytest.raises(BadChecksumsError):
            parse_checksums(whole[:position])

    @given(st.binary(max_size=100))
    def test_anything_else_is_refused(self, junk: bytes) -> None:
        with pytest.raises(BadChecksumsError):
            parse_checksums(junk)


class TestLife:
    def test_a_closed_segment_gets_them_and_the_open_one_does_not(self) -> None:
        disk = CrashDisk()
        manager, log = filled(disk)
        assert len(log.segments) > 3
        assert sidecars(disk) == names_of(list(log.segments[:-1]))
        assert manager.sealer.sealed == len(log.segments) - 1
        for segment in log.segments[:-1]:
            assert read_sidecar(disk, segment.checksums_path) == compute(disk, segment.log_path)

    def test_they_are_durable_after_their_segment(self) -> None:
        """Rule E5: a power cut finds both, or the segment alone."""
        disk = CrashDisk()
        _, log = filled(disk)
        closed = list(log.segments[:-1])
        disk.random.seed(3)
        disk.power_on()
        assert sidecars(disk) == names_of(closed)
        for segment in closed:
            assert read_sidecar(disk, segment.checksums_path) == compute(disk, segment.log_path)

    def test_a_truncation_drops_those_of_the_segment_that_is_open_again(self) -> None:
        disk = CrashDisk()
        _, log = filled(disk)
        middle = log.segments[2]
        log.truncate_to(middle.base_offset + 2)
        assert log.segments[-1] is middle
        assert sidecars(disk) == names_of(list(log.segments[:-1]))
        log.append_as_leader(batch(b"x" * 1_900), leader_epoch=9)
        log.append_as_leader(batch(b"x"), leader_epoch=9)
        assert sidecars(disk) == names_of(list(log.segments[:-1]))

    def test_starting_over_drops_all(self) -> None:
        disk = CrashDisk()
        _, log = filled(disk)
        log.truncate_fully_and_start_at(7)
        assert sidecars(disk) == []

    def test_retention_takes_them_along(self) -> None:
        disk = CrashDisk()
        _, log = filled(disk)
        log.advance_log_start(log.segments[2].base_offset)
        assert log.delete_old_segments(0, log.log_end_offset) == 2
        assert sidecars(disk) == names_of(list(log.segments[:-1]))
        for segment in log.take_doomed(10**15):
            segment.delete_files()
        assert not [name for name in disk.listdir(HOME) if name.endswith(".deleted")]

    def test_a_segment_that_changes_while_it_is_summed_up_is_not_sealed(self) -> None:
        disk, executor = CrashDisk(), StepExecutor()
        manager, log = filled(disk, executor=executor)
        executor.waiting.pop(0)()  # the flush of the first roll; now the sums are asked for
        while manager.sealer.sealed == 0 and not manager.sealer._is_running:
            executor.waiting.pop(0)()
        log.truncate_to(1)
        executor.run_all()
        assert sidecars(disk) == []

    def test_the_open_segment_of_a_restart_has_none(self) -> None:
        disk = CrashDisk()
        manager, log = filled(disk)
        write_sidecar(disk, log.segments[-1].log_path, log.segments[-1].checksums_path)
        manager.shutdown({})
        disk.restart()
        again = manager_on(disk, config=SMALL).get(TP)
        assert again is not None
        assert sidecars(disk) == names_of(list(again.segments[:-1]))

    def test_recovery_that_cuts_a_closed_segment_drops_its_sums(self) -> None:
        disk = CrashDisk()
        _, log = filled(disk)
        closed = log.segments[1]
        disk.unlink(f"{DIR}/recovery-point-offset-checkpoint")
        disk.write_at(closed.log_path, closed.size - 5, (b"torn",))
        disk.restart()
        again = manager_on(disk, config=SMALL).get(TP)
        assert again is not None
        assert again.segments[-1].base_offset == closed.base_offset
        assert sidecars(disk) == names_of(list(again.segments[:-1]))
