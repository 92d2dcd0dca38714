"""A log with closed segments, a scrub that a test drives by hand, and bytes that go bad."""

from __future__ import annotations

from collections.abc import Callable

from tests.storage.helpers import TOPIC_ID, TP, batch, manager_on

from tidemill.executor import Executor, InlineExecutor
from tidemill.storage.files import Files
from tidemill.storage.log import Log
from tidemill.storage.log_config import LogConfig
from tidemill.storage.manager import LogManager
from tidemill.storage.scrub import Scrubber, ScrubLimits
from tidemill.testing.clock import ManualClock
from tidemill.testing.disk import CrashDisk

SMALL = LogConfig(segment_bytes=2_000, index_interval_bytes=300)
LARGE = LogConfig(segment_bytes=60_000, index_interval_bytes=2_000)
"""Segments of several intervals of checksums."""


class Later:
    """A timing wheel that goes on whenever the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.delays_ms: list[int] = []

    def __call__(self, delay_ms: int, callback: Callable[[], None]) -> None:
        self.delays_ms.append(delay_ms)
        self.waiting.append(callback)

    def run(self, until: Callable[[], bool]) -> None:
        for _ in range(100_000):
            if until() or not self.waiting:
                return
            self.waiting.pop(0)()
        raise AssertionError("it never ends")


def filled(
    disk: Files,
    count: int = 100,
    *,
    config: LogConfig = SMALL,
    padding: int = 0,
    one_ms_each: bool = False,
    executor: Executor | None = None,
) -> tuple[LogManager, Log]:
    """A log of `count` batches of one to three records, whose values say their offsets."""
    manager = manager_on(disk, config=config, executor=executor)
    log = manager.create(TP, TOPIC_ID, config)
    for number in range(count):
        offset = log.log_end_offset
        values = [value_of(offset + place, padding) for place in range(number % 3 + 1)]
        timestamp = 1_700_000_000_000 + (offset if one_ms_each else 0)
        records = batch(*values[: 1 if one_ms_each else 3], timestamp=timestamp)
        log.append_as_leader(records, leader_epoch=number // 20)
    manager.request_flush(log)
    return manager, log


def value_of(offset: int, padding: int = 0) -> bytes:
    return b"value of %d" % offset + b"." * padding


def scrubber_of(
    manager: LogManager,
    disk: Files,
    later: Later,
    *,
    executor: Executor | None = None,
    bytes_per_second: int = 1 << 30,
) -> Scrubber:
    return Scrubber(
        manager,
        disk,
        ManualClock(),
        executor or InlineExecutor(),
        later,
        lambda: ScrubLimits(bytes_per_second, 1),
    )


def scrub(manager: LogManager, disk: Files, *, executor: Executor | None = None) -> Scrubber:
    """One whole round."""
    later, over = Later(), list[bool]()
    scrubber = scrubber_of(manager, disk, later, executor=executor)
    scrubber.start_round(lambda: over.append(True))
    later.run(lambda: bool(over))
    assert over == [True]
    return scrubber


def flip(disk: CrashDisk, path: str, position: int, mask: int = 0x01) -> None:
    """Change bits of a file behind everybody's back; it is as durable as the rest was."""
    before = disk.pread(path, position, 1)
    disk.write_at(path, position, (bytes([before[0] ^ mask]),))
