"""The leader-epoch cache against a plain model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemill.storage.checkpoint import LEADER_EPOCHS
from tidemill.storage.epochs import LeaderEpochCache
from tidemill.testing.disk import CrashDisk


def cache(*entries: tuple[int, int]) -> LeaderEpochCache:
    disk = CrashDisk()
    disk.mkdir("/d")
    made = LeaderEpochCache(disk, "/d")
    for epoch, start in entries:
        made.assign(epoch, start)
    return made


@given(st.lists(st.tuples(st.integers(-2, 30), st.integers(-2, 60))))
def test_strictly_growing_in_both(assigned: list[tuple[int, int]]) -> None:
    """Rule D1: assigning an entry removes later-or-equal ones; old news changes nothing."""
    made = cache(*assigned)
    epochs = [epoch for epoch, _ in made.entries]
    starts = [start for _, start in made.entries]
    assert epochs == sorted(set(epochs))
    assert starts == sorted(set(starts))
    assert made.latest == max((e for e, s in assigned if e >= 0 and s >= 0), default=-1)


def test_epoch_zero_counts() -> None:
    """Rule D1: epoch 0 is an epoch like any other."""
    made = cache((0, 0))
    assert made.entries == [(0, 0)]
    assert made.end_offset_for(0, 10) == (0, 10)


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 10)), min_size=1),
    st.integers(-1, 25),
)
def test_end_offset(steps: list[tuple[int, int]], asked: int) -> None:
    """Rule D2, against every record's epoch written out."""
    written: list[int] = []
    made = cache()
    for epoch, count in sorted(steps):
        made.note(epoch, len(written))
        written += [epoch] * count
    epoch, end = made.end_offset_for(asked, len(written))
    if asked == -1 or asked > max(written):
        assert (epoch, end) == (-1, -1)
    elif asked < min(written):
        assert (epoch, end) == (asked, 0)
    else:
        assert epoch == max(e for e in written if e <= asked)
        assert end == len([e for e in written if e <= epoch])
    for offset, expected in enumerate(written):
        assert made.epoch_for(offset) == expected


def test_truncation() -> None:
    made = cache((1, 0), (3, 10), (5, 20))
    assert made.truncate_from_end(20)
    assert made.entries == [(1, 0), (3, 10)]
    assert not made.truncate_from_end(15)
    assert made.truncate_from_start(12)
    assert made.entries == [(3, 12)]
    assert not made.truncate_from_start(5)
    assert made.truncate_from_end(12)
    assert made.latest == -1


def test_file() -> None:
    disk = CrashDisk()
    disk.mkdir("/d")
    made = LeaderEpochCache(disk, "/d")
    made.assign(2, 7)
    made.assign(4, 9)
    assert disk.read_file(f"/d/{LEADER_EPOCHS}") == b"0\n2\n2 7\n4 9\n"
    again = LeaderEpochCache(disk, "/d")
    again.load()
    assert again.entries == made.entries
    disk.truncate(f"/d/{LEADER_EPOCHS}", 6)
    damaged = LeaderEpochCache(disk, "/d")
    damaged.load()
    assert damaged.entries == []
