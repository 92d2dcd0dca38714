"""Readers in threads while segments are replaced under them, on real files."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

from tests.storage.cleaning import COMPACTED, key
from tests.storage.helpers import TOPIC_ID, TP, manager_on

from tidemill.executor import InlineExecutor
from tidemill.storage.cleaner import LogCleaner
from tidemill.storage.cleaner_run import CleanerSettings
from tidemill.storage.files import OsFiles
from tidemill.storage.log import Log
from tidemill.storage.slice import LogSlice
from tidemill.testing.clock import ManualClock
from tidemill.wire.batch import crc_matches, iter_headers
from tidemill.wire.records import Record, build_batch

ROUNDS = 12
THREADS = 3


def read_something(log: Log, offset: int, piece: LogSlice) -> None:
    """A cold read and a lookup by time, as an executor runs them: whole, sound batches."""
    data = piece.read_blocking()
    for position, header in iter_headers(data):
        assert crc_matches(data, position, header)
        assert header.last_offset >= offset
    found = log.offset_for_timestamp(1_700_000_000_000 + offset)
    assert found is None or found.offset >= offset


def test_reading_in_threads_while_segments_are_replaced(tmp_path: Path) -> None:
    """Rule I5: a file that takes another's name is never read for it."""
    files, clock = OsFiles(), ManualClock()
    manager = manager_on(files, clock=clock, config=COMPACTED, dirs=(str(tmp_path),))
    log = manager.create(TP, TOPIC_ID, COMPACTED)
    later: list[Callable[[], None]] = []
    cleaner = LogCleaner(
        manager,
        clock=clock,
        executor=InlineExecutor(),
        call_later=lambda _, callback: later.append(callback),
        settings=CleanerSettings,
        high_watermarks=lambda: {TP: log.log_end_offset},
    )
    errors: list[BaseException] = []

    waiting: SimpleQueue[tuple[int, LogSlice] | None] = SimpleQueue()

    def read_on() -> None:
        while (wanted := waiting.get()) is not None:
            try:
                read_something(log, *wanted)
            except BaseException as error:  # noqa: BLE001 - it is told below
                errors.append(error)

    def ask_for_reads() -> None:
        """What the loop does for a fetch: find the segment, and leave the disk to a thread."""
        for offset in range(0, log.log_end_offset, 11):
            found = log.read(offset, max_bytes=2000, upper_offset=log.log_end_offset)
            waiting.put((offset, found))

    def write(first: int) -> None:
        for number in range(first, first + 30):
            record = Record(0, 1_700_000_000_000 + number, key(number % 4), b"%d" % number)
            log.append_as_leader(bytearray(build_batch([record])), leader_epoch=0)
        log.roll()
        manager.request_flush(log)

    write(0)
    threads = [threading.Thread(target=read_on) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for number in range(1, ROUNDS):
        write(30 * number)
        log.release_memory()
        ask_for_reads()
        cleaner.run(lambda: None)
        while later:
            later.pop(0)()
    for _ in threads:
        waiting.put(None)
    for thread in threads:
        thread.join()
    assert errors == []
    assert cleaner.totals.passes == ROUNDS - 1
    assert not cleaner.uncleanable
    manager.shutdown({TP: log.log_end_offset})
    files.close_all()
