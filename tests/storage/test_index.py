"""The index files: layout, lookups, and what is not believed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.storage import index as index_module
from tidemill.storage.index import IndexEntry, OffsetIndex, TimeIndex
from tidemill.storage.txn_index import AbortedTransaction, TransactionIndex
from tidemill.testing.disk import CrashDisk

GROWING = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 500)), min_size=1, max_size=40).map(
    lambda steps: [
        (sum(a for a, _ in steps[: n + 1]), sum(b for _, b in steps[: n + 1]))
        for n in range(len(steps))
    ]
)


def floor(index: OffsetIndex | TimeIndex, asked: int) -> int:
    """Where a lookup in either begins to look."""
    if isinstance(index, TimeIndex):
        return index.floor(asked)
    entry = index.at_most(asked)
    return entry.position if entry else 0


@given(GROWING, st.integers(0, 3000))
def test_the_last_entry_before(entries: list[tuple[int, int]], asked: int) -> None:
    disk = CrashDisk()
    index = OffsetIndex(disk, "/i", empty=True)
    for offset, position in entries:
        index.append(offset, position)
    index.write()
    before = [0, *(offset for offset, _ in entries)]
    expected = [IndexEntry(*entry, after) for entry, after in zip(entries, before, strict=False)]
    for one in (index, OffsetIndex(disk, "/i")):
        by_offset = [entry for entry in expected if entry.offset <= asked]
        assert one.at_most(asked) == (by_offset[-1] if by_offset else None)
        by_position = [entry for entry in expected if entry.position <= asked]
        assert one.placed_at_most(asked) == (by_position[-1] if by_position else None)
    assert index.last() == expected[-1]
    last_in_file = OffsetIndex(disk, "/i").last()
    assert last_in_file is not None
    assert last_in_file[:2] == entries[-1]


@given(GROWING, st.integers(0, 20_000))
def test_truncate(entries: list[tuple[int, int]], position: int) -> None:
    disk = CrashDisk()
    index = OffsetIndex(disk, "/i", empty=True)
    for offset, at in entries:
        index.append(offset, at)
    index.write()
    index.truncate(position)
    kept = [entry for entry in entries if entry[1] < position]
    assert len(index) == len(kept)
    assert index.unwritten == len(entries) - len(kept), "the file is told with the next write"
    index.write()
    assert len(OffsetIndex(disk, "/i")) == len(kept)
    assert disk.size("/i") == 8 * len(kept)
    assert index.unwritten == 0


def test_layout() -> None:
    """Eight and twelve bytes an entry, big endian, as Kafka writes them."""
    disk = CrashDisk()
    offsets = OffsetIndex(disk, "/i", empty=True)
    offsets.append(0x14, 0x2BEC)
    offsets.write()
    assert disk.read_file("/i").hex() == "0000001400002bec"
    times = TimeIndex(disk, "/t", empty=True)
    times.append(0x01A1E1A06C9C, 0x14)
    times.write()
    assert disk.read_file("/t").hex() == "000001a1e1a06c9c00000014"
    aborted = TransactionIndex(disk, "/x", empty=True)
    aborted.append(AbortedTransaction(1, 11, 21, 22))
    assert disk.read_file("/x").hex() == (
        "00000000000000000001000000000000000b00000000000000150000000000000016"
    )


@given(GROWING, st.binary(max_size=100))
def test_torn_and_preallocated_ends_are_not_believed(
    entries: list[tuple[int, int]], junk: bytes
) -> None:
    disk = CrashDisk()
    index = OffsetIndex(disk, "/i", empty=True)
    for offset, position in entries:
        index.append(offset, position)
    index.write()
    disk.write_at("/i", disk.size("/i"), (bytes(80) + junk,))
    again = OffsetIndex(disk, "/i")
    again.last()
    assert len(again) == len(entries)


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 5)), min_size=1),
    st.integers(0, 1000),
)
def test_time_floor(steps: list[tuple[int, int]], asked: int) -> None:
    """No record before the answer has the asked timestamp or a later one."""
    disk = CrashDisk()
    index = TimeIndex(disk, "/t", empty=True)
    seen: list[tuple[int, int]] = []
    largest, offset = -1, 0
    for timestamp, step in steps:
        offset += step
        if timestamp > largest:
            largest = timestamp
            index.append(timestamp, offset)
            seen.append((timestamp, offset))
    index.write()
    expected = max((o for t, o in seen if t < asked), default=0)
    assert index.floor(asked) == expected
    again = TimeIndex(disk, "/t")
    last = again.last()
    assert last is not None or seen[-1] == (0, 0)
    if last is not None:
        assert (last.timestamp, last.offset) == seen[-1]


def test_a_transaction_index_does_not_repeat_itself() -> None:
    """Rule H10: a marker seen again adds nothing; a torn entry is dropped."""
    disk = CrashDisk()
    index = TransactionIndex(disk, "/x", empty=True)
    for last in (5, 9, 9, 12):
        index.append(AbortedTransaction(1, last - 1, last, last + 1))
    assert [entry.last_offset for entry in index.entries()] == [5, 9, 12]
    disk.truncate("/x", 34 * 2 + 11)
    again = TransactionIndex(disk, "/x")
    assert [entry.last_offset for entry in again.entries()] == [5, 9]
    again.truncate(9)
    assert [entry.last_offset for entry in TransactionIndex(disk, "/x").entries()] == [5]


class MeanwhileDisk(CrashDisk):
    """Lets something happen between the moment a file was read and the reader's next step."""

    meanwhile: Callable[[], None] | None = None

    def read_file(self, path: str) -> bytes:
        data = super().read_file(path)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return data


def test_a_thread_that_loads_aborted_transactions_does_not_undo_a_cut() -> None:
    """Rules D8 and H10: what it has read is of before, and so would the next append's place be."""
    disk = MeanwhileDisk()
    whole = TransactionIndex(disk, "/x", empty=True)
    for last in (5, 9, 12):
        whole.append(AbortedTransaction(1, last - 1, last, last + 1))
    index = TransactionIndex(disk, "/x")
    disk.meanwhile = lambda: index.truncate(9)
    assert [entry.last_offset for entry in index.entries()] == [5], "asked by the thread"
    index.append(AbortedTransaction(1, 7, 8, 9))
    for known in (index, TransactionIndex(disk, "/x")):
        assert [entry.last_offset for entry in known.entries()] == [5, 8]


def written_index(
    kind: type[OffsetIndex | TimeIndex],
) -> tuple[MeanwhileDisk, OffsetIndex | TimeIndex]:
    """An index of nine entries that nobody has loaded."""
    disk = MeanwhileDisk()
    index = kind(disk, "/i", empty=True)
    for number in range(1, 10):
        index.append(number * 10, number * 10)
    index.write()
    return disk, kind(disk, "/i")


@pytest.mark.parametrize("kind", [OffsetIndex, TimeIndex])
@pytest.mark.parametrize("is_unloaded", [False, True])
def test_a_thread_that_loads_does_not_undo_what_the_loop_did_meanwhile(
    kind: type[OffsetIndex | TimeIndex], is_unloaded: bool
) -> None:
    disk, index = written_index(kind)

    def cut_and_append() -> None:
        index.truncate(50)
        index.append(70, 55)
        index.write()
        if is_unloaded:
            index.unload()

    disk.meanwhile = cut_and_append
    assert floor(index, 75) == 55, "asked by the thread"
    assert floor(index, 1000) == 55
    assert len(index) == 5
    assert index.unwritten == 0
    index.append(80, 66)
    index.write()
    again = kind(disk, "/i")
    assert [floor(again, asked) for asked in (45, 65, 75, 85)] == [40, 40, 55, 66]


@pytest.mark.parametrize("kind", [OffsetIndex, TimeIndex])
@pytest.mark.parametrize("what", ["unload", "truncate"])
def test_a_lookup_goes_on_with_the_entries_it_took(
    kind: type[OffsetIndex | TimeIndex], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop gives memory back, or cuts, between two steps of a thread's lookup."""
    _, index = written_index(kind)
    name = "bisect_right" if kind is OffsetIndex else "bisect_left"
    real = getattr(index_module, name)

    def interrupted(entries: list[int], asked: int) -> int:
        slot: int = real(entries, asked)
        monkeypatch.setattr(index_module, name, real)
        index.unload() if what == "unload" else index.truncate(20)
        return slot

    monkeypatch.setattr(index_module, name, interrupted)
    assert floor(index, 55) == 50
    assert floor(index, 55) == (50 if what == "unload" else 10)
