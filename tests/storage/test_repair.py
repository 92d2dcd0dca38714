"""A damaged stretch of a segment is replaced by another replica's batches, or left alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.storage.scrub_helpers import filled, flip, scrub

from tidemill.errors import ApiError
from tidemill.storage.log import Log
from tidemill.storage.repair import NoRepairError, SegmentRepair
from tidemill.testing.disk import CrashDisk
from tidemill.wire.batch import iter_headers


def damaged(places: list[int]) -> tuple[CrashDisk, Log, Log]:
    """A log with bits flipped at these bytes of its first segment, found; and a sound copy."""
    disk = CrashDisk()
    manager, log = filled(disk)
    _, sound = filled(CrashDisk())
    scrub(manager, disk)
    segment = log.segments[0]
    for place in places:
        flip(disk, segment.log_path, place % segment.size)
    scrub(manager, disk)
    assert log.damage
    return disk, log, sound


def repair(log: Log, sound: Log, *, read_bytes: int = 10_000) -> None:
    """Repair the first damaged segment once, with batches of `sound`."""
    found = log.damaged_segment()
    assert found is not None
    segment, one = found
    one.survey()
    while not one.is_complete:
        one.take(_read(sound, one, read_bytes))
    one.write()
    log.note_damage(segment, one.verify())


def _read(sound: Log, one: SegmentRepair, read_bytes: int) -> bytes:
    end = sound.log_end_offset
    return sound.read(one.next_offset, max_bytes=read_bytes, upper_offset=end).read_blocking()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 1_500), min_size=1, max_size=4, unique=True),
    st.sampled_from([1, 1 << 20]),
)
def test_any_wrong_bytes_are_made_right_again(places: list[int], read_bytes: int) -> None:
    """Rule E2: afterwards the file is what it was, byte for byte."""
    disk, log, sound = damaged(places)
    for _ in range(len(places) + 1):
        if log.damage:
            repair(log, sound, read_bytes=read_bytes)
    assert log.damage == []
    (_, whole) = filled(CrashDisk())
    assert disk.read_file(log.segments[0].log_path) == whole._files.read_file(
        whole.segments[0].log_path
    )


def test_what_does_not_fit_is_not_written() -> None:
    """A replica that was compacted has fewer bytes for the same offsets."""
    disk, log, sound = damaged([5_000])
    found = log.damaged_segment()
    assert found is not None
    _, one = found
    one.survey()
    before = disk.read_file(log.segments[0].log_path)
    data = _read(sound, one, 1 << 20)
    skipped = next(header.size_bytes for _, header in iter_headers(data))
    one.take(data[skipped:])
    while not one.is_complete:
        one.take(_read(sound, one, 1 << 20))
    with pytest.raises(NoRepairError, match="does not fit"):
        one.write()
    assert disk.read_file(log.segments[0].log_path) == before


def test_a_copy_that_is_damaged_too_is_refused() -> None:
    _, log, sound = damaged([5_000])
    found = log.damaged_segment()
    assert found is not None
    _, one = found
    one.survey()
    data = bytearray(_read(sound, one, 1 << 20))
    data[100] ^= 1
    with pytest.raises(ApiError, match="checksum"):
        one.take(bytes(data))


def test_a_copy_that_says_nothing_ends_the_attempt() -> None:
    _, log, _ = damaged([5_000])
    found = log.damaged_segment()
    assert found is not None
    _, one = found
    one.survey()
    with pytest.raises(ApiError, match="reach"):
        one.take(b"")
