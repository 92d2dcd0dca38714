"""Compaction while others work with the log: appends, cuts, deletions, retention, readers."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest
from tests.storage.cleaning import Cleaning, key
from tests.storage.helpers import TP, StepExecutor

from tidemill.storage.lookup import TimestampedOffset
from tidemill.storage.slice import LogSlice
from tidemill.wire.batch import iter_headers


class TestMeanwhile:
    """A pass that somebody gets in the way of is dropped, and nothing is lost."""

    def started(self) -> tuple[Cleaning, StepExecutor]:
        executor = StepExecutor()
        world = Cleaning(executor=executor)
        for number in range(40):
            world.put((key(number % 3), b"%d" % number))
        world.settle()
        return world, executor

    def drive(self, world: Cleaning, executor: StepExecutor, pieces: int) -> None:
        """Let some pieces of work happen."""
        for _ in range(pieces):
            if executor.waiting:
                executor.waiting.pop(0)()
            else:
                world.turn()

    def end(self, world: Cleaning, executor: StepExecutor) -> None:
        while executor.waiting or world.later:
            self.drive(world, executor, 1)
        assert world.is_done

    @pytest.mark.parametrize("pieces", range(0, 24, 3))
    def test_appends_go_on(self, pieces: int) -> None:
        world, executor = self.started()
        world.begin()
        self.drive(world, executor, pieces)
        world.put((b"new", b"1"), (key(0), b"newest"))
        self.end(world, executor)
        assert world.cleaner.totals.passes
        assert [pair[2] for pair in world.records()][-2:] == [b"1", b"newest"]
        assert len(world.records()) == 5

    @pytest.mark.parametrize("pieces", range(40))
    def test_a_truncation_wins(self, pieces: int) -> None:
        """Rule D8 before I5: what was cut off never comes back, not even after a crash."""
        world, executor = self.started()
        world.begin()
        self.drive(world, executor, pieces)
        world.log.truncate_to(20)
        world.disk.power_on()
        world.boot()
        executor.waiting.clear()
        assert world.log.log_end_offset <= 20
        assert all(header.last_offset < 20 for header in world.headers())
        if pieces < 10:
            assert [offset for offset, _, _ in world.records()] == list(range(20))

    @pytest.mark.parametrize("pieces", range(0, 40, 2))
    def test_a_deletion_wins(self, pieces: int) -> None:
        world, executor = self.started()
        world.begin()
        self.drive(world, executor, pieces)
        world.manager.delete(TP)
        self.end(world, executor)
        assert not world.log.dir.is_offline
        assert not world.cleaner.uncleanable

    @pytest.mark.parametrize("pieces", range(0, 40, 2))
    def test_retention_wins(self, pieces: int) -> None:
        world, executor = self.started()
        world.reconfigure(cleanup_delete=True, retention_ms=1000)
        world.begin()
        self.drive(world, executor, pieces)
        world.clock.advance(10_000_000)
        world.manager.run_retention({TP: 40})
        self.end(world, executor)
        assert not world.log.dir.is_offline
        assert not world.cleaner.uncleanable
        world.put((b"after", b"1"))
        assert world.records()[-1][2] == b"1"

    @pytest.mark.parametrize("pieces", range(0, 40, 2))
    def test_reading_goes_on(self, pieces: int) -> None:
        """A slice that was handed out before a segment was replaced still gives its records."""
        world, executor = self.started()
        slices = [
            world.log.read(offset, max_bytes=200, upper_offset=40) for offset in range(0, 40, 5)
        ]
        world.begin()
        self.drive(world, executor, pieces)
        for offset, piece in zip(range(0, 40, 5), slices, strict=True):
            data = piece.read_blocking()
            header = next(iter_headers(data))[1]
            assert header.base_offset <= offset <= header.last_offset
        self.end(world, executor)


@pytest.mark.parametrize("operation", ["pread", "read_file"])
def test_a_read_that_a_swap_overtakes(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule I5: a thread that was about to open a file finds another one under its name, and must
    not take that one's bytes, or its index, for those it was sent for."""
    world = Cleaning()
    for number in range(40):
        world.put((key(number % 3), b"%d" % number), (b"other", b"%d" % number))
    world.settle()
    world.log.release_memory()
    piece = world.log.read(9, max_bytes=200, upper_offset=80)
    assert not piece.is_resolved
    original = getattr(world.disk, operation)
    overtaken: list[str] = []

    def overtake(path: str, *arguments: int) -> bytes:
        if not overtaken:
            overtaken.append(path)
            assert world.clean()
        found: bytes = original(path, *arguments)
        return found

    monkeypatch.setattr(world.disk, operation, overtake)
    data = piece.read_blocking()
    header = next(iter_headers(data))[1]
    assert overtaken
    assert header.base_offset <= 9 <= header.last_offset
    assert header.record_count == 2, "as it was before"


@pytest.mark.parametrize("what", ["a slice", "a time"])
def test_a_reader_who_comes_between_two_names(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule I5: a file that has lost its name, and whose segment has not heard of it, is not gone.

    A thread that asks in this moment gets its records: a consumer who was told that they are
    deleted would begin elsewhere.
    """
    world = Cleaning()
    for number in range(40):
        world.put((key(number % 3), b"%d" % number))
    world.settle()
    world.log.release_memory()
    piece = world.log.read(5, max_bytes=200, upper_offset=40)
    time_ms = world.clock.now_ms()
    found: Future[object] = Future()

    def read() -> None:
        try:
            is_slice = what == "a slice"
            found.set_result(
                piece.read_blocking() if is_slice else world.log.offset_for_timestamp(time_ms)
            )
        except BaseException as error:  # noqa: BLE001 - it is told below
            found.set_exception(error)

    reader = threading.Thread(target=read)
    rename = world.disk.replace

    def rename_slowly(source: str, target: str) -> None:
        rename(source, target)
        if source.endswith(".log") and reader.ident is None:
            reader.start()
            reader.join(0.1)  # Time enough for as many tries as it likes.

    monkeypatch.setattr(world.disk, "replace", rename_slowly)
    assert world.clean()
    reader.join()
    answer = found.result()
    if isinstance(answer, bytes):
        header = next(iter_headers(answer))[1]
        assert header.base_offset <= 5 <= header.last_offset
    else:
        assert isinstance(answer, TimestampedOffset)
        assert answer.timestamp >= time_ms


def test_a_segment_that_is_compacted_twice_before_its_first_files_go() -> None:
    """Rule I5: both have had the same name, and readers of the first find its own bytes still."""
    world = Cleaning()
    world.reconfigure(file_delete_delay_ms=60_000)
    before: list[tuple[LogSlice, bytes]] = []
    for life in range(3):
        for number in range(30):
            world.put((key(number % 4), b"%d of life %d" % (number, life)))
        world.settle()
        piece = world.log.read(0, max_bytes=1000, upper_offset=world.log.log_end_offset)
        before.append((piece, bytes(piece.read_blocking())))
        assert world.clean()
    assert len({data for _, data in before}) == len(before), "compaction changed what is there"
    for piece, data in before:
        assert piece.read_blocking() == data
    world.clock.advance(60_000)
    world.manager.remove_doomed()
    assert [piece.read_blocking() for piece, _ in before] == [b"", b"", b""]
    assert not [name for name in world.names() if name.endswith(".deleted")]
