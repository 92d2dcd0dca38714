"""What retention takes, and what it must leave."""

from __future__ import annotations

from tests.storage.helpers import TP, batch, manager_on, new_log, values

from tidemill.storage.log import Log
from tidemill.storage.log_config import LogConfig
from tidemill.testing.clock import START_MS, ManualClock
from tidemill.testing.disk import CrashDisk


def rolled(config: LogConfig, count: int = 5, **options: object) -> Log:
    """A log of one record per segment, the n-th one n seconds old at the start."""
    disk = options.get("disk")
    assert disk is None or isinstance(disk, CrashDisk)
    log = new_log(config, disk=disk)
    for number in range(count):
        log.append_as_leader(batch(b"x", timestamp=START_MS + number * 1000), leader_epoch=0)
        log.roll()
    return log


def test_by_time() -> None:
    log = rolled(LogConfig(retention_ms=10_000))
    assert log.delete_old_segments(START_MS + 12_500, 5) == 3
    assert log.log_start_offset == 3
    assert len(values(log)) == 2
    assert log.leader_epochs.entries == [(0, 3)]


def test_all_of_it() -> None:
    log = rolled(LogConfig(retention_ms=10_000))
    log.append_as_leader(batch(b"y", timestamp=START_MS), leader_epoch=0)
    assert log.delete_old_segments(START_MS + 10**6, 6) == 6
    assert (log.log_start_offset, log.log_end_offset) == (6, 6)
    assert len(log.segments) == 1
    assert log.append_as_leader(batch(b"z"), leader_epoch=0).base_offset == 6


def test_an_empty_log_is_left_alone() -> None:
    log = new_log(LogConfig(retention_ms=1))
    assert log.delete_old_segments(START_MS + 10**9, 0) == 0


def test_by_size() -> None:
    log = rolled(LogConfig(retention_ms=-1, retention_bytes=150))
    size = log.segments[0].size
    assert log.delete_old_segments(START_MS, 5) == 5 - 150 // size - 1
    assert log.size_bytes >= 150


def test_never_above_the_high_watermark() -> None:
    """Rule B12."""
    log = rolled(LogConfig(retention_ms=1, retention_bytes=0))
    assert log.delete_old_segments(START_MS + 10**6, 2) == 2
    assert log.log_start_offset == 2


def test_below_the_log_start_whatever_the_policy() -> None:
    log = rolled(LogConfig(retention_ms=-1, cleanup_delete=False, cleanup_compact=True))
    log.advance_log_start(3)
    assert log.delete_old_segments(START_MS, 5) == 3
    assert log.delete_old_segments(START_MS + 10**9, 5) == 0


def test_files_go_after_the_delay() -> None:
    disk, clock = CrashDisk(), ManualClock()
    config = LogConfig(retention_ms=1000, file_delete_delay_ms=500)
    manager = manager_on(disk, clock=clock, config=config)
    log = manager.create(TP, new_log().topic_id, config)
    for _ in range(3):
        log.append_as_leader(batch(b"x", timestamp=clock.now_ms()), leader_epoch=0)
        log.roll()
    clock.advance(2000)
    assert manager.run_retention({TP: 3}) == 3
    assert [name for name in disk.listdir(log.directory) if name.endswith(".deleted")]
    clock.advance(500)
    manager.run_retention({TP: 3})
    assert not [name for name in disk.listdir(log.directory) if ".deleted" in name]
    assert [name for name in disk.listdir(log.directory) if name.endswith(".snapshot")] == [
        f"{3:020d}.snapshot"
    ]


def test_time_is_known_again_after_a_restart() -> None:
    disk = CrashDisk()
    config = LogConfig(retention_ms=10_000)
    rolled(config, disk=disk)
    disk.restart()
    log = manager_on(disk, config=config).get(TP)
    assert log is not None
    assert log.delete_old_segments(START_MS + 12_500, 5) == 3


def test_producers_expire_with_the_same_run() -> None:
    """Rule G6."""
    clock = ManualClock()
    manager = manager_on(CrashDisk(), clock=clock)
    log = manager.create(TP, new_log().topic_id, LogConfig())
    data = batch(b"x", timestamp=clock.now_ms(), producer_id=1, epoch=0, sequence=0)
    log.append_as_leader(data, leader_epoch=0)
    manager.run_retention({})
    clock.advance(86_399_999)
    manager.run_retention({})
    assert len(log.producers) == 1
    clock.advance(1)
    manager.run_retention({})
    assert len(log.producers) == 0
