"""Opening a directory after a crash: what is scanned, what is cut, what is tidied."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.storage.helpers import DIR, TOPIC_ID, TP, StepExecutor, batch, fill, manager_on, values

from tidemill.storage.checkpoint import LEADER_EPOCHS, RECOVERY_POINTS, parse_epochs
from tidemill.storage.index import TIME_ENTRY_BYTES
from tidemill.storage.log import Log
from tidemill.storage.log_config import LogConfig
from tidemill.storage.manager import LogManager
from tidemill.storage.recovery import Loaded, OpenOptions, load
from tidemill.testing.disk import CrashDisk
from tidemill.types import TopicPartition
from tidemill.wire.control import ControlType, build_marker

SMALL = LogConfig(segment_bytes=600, index_interval_bytes=100)
PATH = f"{DIR}/{TP}"


def make(disk: CrashDisk, count: int, *, checkpoint: bool = False) -> Log:
    manager = manager_on(disk, config=SMALL)
    log = filled(manager, count)
    if checkpoint:
        log.flush()
        manager.write_checkpoints({})
    return log


def filled(manager: LogManager, count: int) -> Log:
    log = manager.create(TP, TOPIC_ID, SMALL)
    for number in range(count):
        data = batch(f"{number}".encode(), producer_id=1, epoch=0, sequence=number)
        log.append_as_leader(data, leader_epoch=number // 10)
    return log


def reopen(disk: CrashDisk) -> Log:
    disk.restart()
    log = manager_on(disk, config=SMALL).get(TP)
    assert log is not None
    return log


def options(recovery_point: int = 0, *, was_clean: bool = False) -> OpenOptions:
    return OpenOptions(was_clean=was_clean, recovery_point=recovery_point, index_interval_bytes=100)


def test_only_the_tail_is_scanned() -> None:
    """Rule E4: time to serve again is bounded by the unflushed tail, not by the log."""
    disk = CrashDisk()
    log = make(disk, 200, checkpoint=True)
    whole = log.size_bytes
    log.append_as_leader(batch(b"new"), leader_epoch=20)
    loaded: Loaded = load(disk, PATH, options(200))
    assert loaded.log_end_offset == 201
    assert loaded.scanned_bytes < 800 < whole
    again = load(disk, PATH, options(201))
    assert again.scanned_bytes < 800


def test_a_clean_log_is_not_scanned_at_all() -> None:
    """Rule E3."""
    disk = CrashDisk()
    manager = manager_on(disk, config=SMALL)
    log = manager.create(TP, TOPIC_ID, SMALL)
    for _ in range(100):
        log.append_as_leader(batch(b"x"), leader_epoch=0)
    manager.shutdown({})
    loaded = load(disk, PATH, options(100, was_clean=True))
    assert (loaded.log_end_offset, loaded.scanned_bytes) == (100, 0)
    assert not any(segment.offset_index.is_loaded for segment in loaded.segments[:-1])


def test_a_clean_marker_is_not_believed_against_the_files() -> None:
    disk = CrashDisk()
    manager = manager_on(disk, config=SMALL)
    log = manager.create(TP, TOPIC_ID, SMALL)
    for _ in range(5):
        log.append_as_leader(batch(b"x"), leader_epoch=0)
    manager.shutdown({})
    disk.truncate(log.segments[-1].log_path, disk.size(log.segments[-1].log_path) - 1)
    again = manager_on(disk, config=SMALL).get(TP)
    assert again is not None
    assert again.log_end_offset == 4


def test_cut_at_the_first_bad_batch_and_drop_what_follows() -> None:
    """Rule E4: later segments cannot be trusted to continue a damaged one."""
    disk = CrashDisk()
    log = make(disk, 40)
    victim = log.segments[2]
    kept = victim.base_offset
    disk.write_at(victim.log_path, 70, (b"\xff",))
    again = reopen(disk)
    assert again.log_end_offset == kept
    assert len(again.segments) == 3
    assert len(values(again)) == kept
    entry = again.producers.get(1)
    assert entry is not None
    assert entry.last_sequence == kept - 1
    assert all(start < kept for _, start in again.leader_epochs.entries)
    snapshots = [int(name[:20]) for name in disk.listdir(PATH) if name.endswith(".snapshot")]
    assert snapshots
    assert max(snapshots) <= kept
    again.append_as_leader(batch(b"on"), leader_epoch=9)
    assert values(again)[-1] == b"on"


@given(tail=st.binary(min_size=1, max_size=300))
def test_any_tail_ends_in_a_log_that_serves(tail: bytes) -> None:
    """Rules E4 and E10: garbage after the last batch, whatever it says, ends no worse."""
    disk = CrashDisk()
    log = make(disk, 3)
    active = log.segments[-1]
    disk.write_at(active.log_path, active.size, (tail,))
    again = reopen(disk)
    assert values(again)[:3] == [b"0", b"1", b"2"]
    again.append_as_leader(batch(b"next"), leader_epoch=1)
    assert values(again)[-1] == b"next"


@pytest.mark.parametrize(
    ("position", "data"),
    [(0, b"\xff" * 8), (8, b"\0\0\0\0"), (8, b"\x7f\xff\xff\xff"), (16, b"\0"), (23, b"\xff" * 4)],
)
def test_damage_in_any_header_field(position: int, data: bytes) -> None:
    """Rule E10: an impossible offset, length, magic or count ends the scan, never hangs it."""
    disk = CrashDisk()
    log = make(disk, 5)
    disk.write_at(log.segments[0].log_path, position, (data,))
    again = reopen(disk)
    assert again.log_end_offset == 0
    again.append_as_leader(batch(b"x"), leader_epoch=1)


def test_lost_or_wrong_indexes_are_made_again() -> None:
    disk = CrashDisk()
    log = make(disk, 40)
    for segment in log.segments[:-1]:
        disk.unlink(segment.offset_index.path)
        disk.write_at(segment.time_index.path, 0, (bytes(60),))
    again = reopen(disk)
    for segment in again.segments[:-1]:
        assert disk.size(segment.offset_index.path) > 0
    assert values(again) == [f"{n}".encode() for n in range(40)]


@pytest.mark.parametrize("stops_cleanly", [True, False])
@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"0\n4\n0 0\n1 10\n2 20\n",
        b"0\n4\n0 0\n1 1x\n2 20\n3 30\n",
        b"0\n4\n0 0\n1 30\n2 20\n3 30\n",
        b"0\n4\n0 0\n3 10\n2 20\n3 30\n",
        b"0\n4\n0 0\n1 10\n2 20\n3 90\n",
        b"0\n4\n0 0\n1 10\n2 20\n7 30\n",
    ],
    ids=["empty", "short", "letters", "start back", "epoch back", "start ahead", "epoch ahead"],
)
def test_a_damaged_epoch_checkpoint_is_read_from_the_batches(
    damaged: bytes, stops_cleanly: bool
) -> None:
    """Rule D1: each batch carries its leader's epoch, so nothing is lost with the file."""
    disk = CrashDisk()
    manager = manager_on(disk, config=SMALL)
    log = filled(manager, 40)
    log.flush()
    manager.write_checkpoints({})
    if stops_cleanly:
        manager.shutdown({})
    expected = [(0, 0), (1, 10), (2, 20), (3, 30)]
    assert log.leader_epochs.entries == expected
    path = f"{PATH}/{LEADER_EPOCHS}"
    disk.truncate(path, 0)
    disk.write_at(path, 0, (damaged,))
    assert reopen(disk).leader_epochs.entries == expected
    assert parse_epochs(disk.read_file(path)) == expected, "and the file is whole again"


def test_an_epoch_that_was_cut_off_again_is_no_damage(caplog: pytest.LogCaptureFixture) -> None:
    """Rule D1: it led, nothing was written in that epoch, and another led on from an older one."""
    disk = CrashDisk()
    log = make(disk, 2)
    log.leader_epochs.assign(1, 2)
    log.truncate_to(2)
    log.append_as_follower(batch(b"copied", base_offset=2, leader_epoch=0))
    log.flush()
    path = f"{PATH}/{LEADER_EPOCHS}"
    disk.truncate(path, 0)
    disk.write_at(path, 0, (b"0\n2\n0 0\n1 2\n",))
    with caplog.at_level("ERROR"):
        again = reopen(disk)
    assert again.leader_epochs.entries == [(0, 0)]
    assert not caplog.records
    assert parse_epochs(disk.read_file(path)) == [(0, 0)]


def test_epochs_that_a_scan_found_are_written_down_after_a_clean_stop_too() -> None:
    """Rule D1: the next start will not scan again, so what the file lacks would be lost then."""
    disk = CrashDisk()
    manager = manager_on(disk, config=SMALL)
    filled(manager, 40)
    manager.shutdown({})
    path = f"{PATH}/{LEADER_EPOCHS}"
    disk.truncate(path, 0)
    disk.write_at(path, 0, (b"0\n3\n0 0\n1 10\n2 20\n",))
    disk.unlink(f"{DIR}/{RECOVERY_POINTS}")
    expected = [(0, 0), (1, 10), (2, 20), (3, 30)]
    assert reopen(disk).leader_epochs.entries == expected
    assert parse_epochs(disk.read_file(path)) == expected


@pytest.mark.parametrize("entries_left", [0, 1, 2, None])
def test_a_time_index_that_is_behind_the_other_hides_no_time(entries_left: int | None) -> None:
    """Rule E4: neither is flushed while its segment grows, so a power cut may leave one of the two.

    Retention goes by these times: a record must not go because a later one is older.
    """
    disk, config = CrashDisk(), LogConfig(index_interval_bytes=100)
    manager = manager_on(disk, config=config)
    log = manager.create(TP, TOPIC_ID, config)
    times = [500, 600, 400, 900, 700, 300, 1000, 200, *[100] * 30]
    for timestamp in times:
        log.append_as_leader(batch(b"v" * 60, timestamp=timestamp), leader_epoch=0)
    save = log.begin_save()
    log.flush()
    save()
    manager.write_checkpoints({})
    if entries_left is not None:
        disk.truncate(log.segments[0].time_index.path, entries_left * TIME_ENTRY_BYTES)
    disk.restart()
    log = manager_on(disk, config=config).logs[TP]
    assert log.segments[0].retention_timestamp() == 1000
    for wanted in range(100, 1001, 100):
        found = log.offset_for_timestamp(wanted)
        assert found is not None
        assert found.offset == next(i for i, time in enumerate(times) if time >= wanted)


def test_index_entries_of_what_a_crash_took_do_not_stay_in_the_files() -> None:
    """Rule E4: the next recovery would begin where they point, and other batches lie there."""
    disk, config = CrashDisk(), LogConfig(index_interval_bytes=100)
    manager = manager_on(disk, config=config)
    log = manager.create(TP, TOPIC_ID, config)
    for number in range(20):
        log.append_as_leader(batch(b"v" * 60, timestamp=1000 + number), leader_epoch=0)
    segment = log.segments[0]
    segment.write_indexes()
    disk.truncate(segment.log_path, segment.locate(5, disk.pread))
    disk.restart()
    segment = manager_on(disk, config=config).logs[TP].segments[0]
    assert 0 < len(segment.offset_index) < 5
    assert disk.size(segment.offset_index.path) == segment.offset_index.size_bytes()
    assert disk.size(segment.time_index.path) == segment.time_index.size_bytes()


def test_an_index_that_lies_is_only_a_slow_index() -> None:
    disk = CrashDisk()
    log = make(disk, 30, checkpoint=True)
    path = log.segments[-1].offset_index.path
    disk.write_at(path, 0, (b"\0\0\0\1\0\0\0\x07",))
    again = reopen(disk)
    assert again.log_end_offset == 30


def test_preallocated_indexes_of_kafka_are_read_up_to_the_zeros() -> None:
    disk = CrashDisk()
    log = make(disk, 40, checkpoint=True)
    for segment in log.segments:
        segment.write_indexes()
        for index in (segment.offset_index, segment.time_index):
            disk.write_at(index.path, disk.size(index.path), (bytes(240),))
    again = reopen(disk)
    assert len(values(again)) == 40
    found = again.offset_for_timestamp(0)
    assert found is not None
    assert found.offset == 0


def test_leftovers_of_a_crash_go() -> None:
    """Rule E4: `.deleted`, `.cleaned`, temporary files and indexes without a log."""
    disk = CrashDisk()
    make(disk, 3)
    names = (
        f"{0:020d}.log.deleted",
        f"{0:020d}.log.7.deleted",
        f"{9:020d}.log.cleaned",
        f"{9:020d}.snapshot.tmp",
        f"{77:020d}.index",
        f"{77:020d}.timeindex",
        "leader-epoch-checkpoint.tmp",
    )
    for name in names:
        disk.write_at(f"{PATH}/{name}", 0, (b"junk",))
    reopen(disk)
    assert not set(names) & set(disk.listdir(PATH))


def test_a_complete_swap_is_finished() -> None:
    """Rule E4: the new files were whole, so they take the place of the old ones."""
    disk = CrashDisk()
    log = make(disk, 20)
    first, second = log.segments[0], log.segments[1]
    merged = disk.read_file(first.log_path) + disk.read_file(second.log_path)
    disk.write_at(f"{first.log_path}.swap", 0, (merged,))
    again = reopen(disk)
    assert again.segments[0].size == len(merged)
    assert second.base_offset not in [segment.base_offset for segment in again.segments]
    assert len(values(again)) == 20


def test_a_swap_replaces_a_last_segment_of_one_record() -> None:
    """Rules E4 and I5: the new segment's last offset is where that one begins."""
    disk = CrashDisk()
    manager = manager_on(disk, config=SMALL)
    log = manager.create(TP, TOPIC_ID, SMALL)
    for number in range(4):
        log.append_as_leader(batch(f"{number}".encode()), leader_epoch=0)
        if number > 1:
            log.roll()
    log.flush()
    manager.write_checkpoints({TP: 4})
    whole = b"".join(disk.read_file(segment.log_path) for segment in log.segments)
    disk.write_at(f"{PATH}/{0:020d}.log.swap", 0, (whole,))
    again = reopen(disk)
    assert [segment.base_offset for segment in again.segments] == [0, 4]
    assert values(again) == [b"0", b"1", b"2", b"3"]


def test_an_incomplete_swap_is_undone() -> None:
    """Rule E4: a `.cleaned` file says that the replacement was not whole yet."""
    disk = CrashDisk()
    log = make(disk, 20)
    disk.write_at(f"{log.segments[0].log_path}.swap", 0, (b"half",))
    disk.write_at(f"{PATH}/{0:020d}.index.cleaned", 0, (b"half",))
    again = reopen(disk)
    assert len(values(again)) == 20
    assert not [name for name in disk.listdir(PATH) if name.endswith((".swap", ".cleaned"))]


def test_everything_below_the_log_start_is_gone() -> None:
    """A log whose records were all deleted, and whose tail was lost, goes on at its start."""
    disk = CrashDisk()
    log = make(disk, 5, checkpoint=True)
    loaded = load(disk, PATH, OpenOptions(was_clean=False, log_start_offset=9))
    assert (loaded.log_start_offset, loaded.log_end_offset) == (9, 9)
    assert not disk.exists(log.segments[0].log_path)


def test_periodic_saves_bound_the_replay_of_producers() -> None:
    """Rule G5: a snapshot in the middle of a segment spares recovery its beginning."""
    disk = CrashDisk()
    manager = manager_on(disk)
    log = manager.create(TP, TOPIC_ID, LogConfig())
    for number in range(10):
        for inner in range(20):
            data = batch(b"x", producer_id=1, epoch=0, sequence=number * 20 + inner)
            log.append_as_leader(data, leader_epoch=0)
        finish = log.begin_save()
        finish()
        assert f"{log.log_end_offset:020d}.snapshot" not in disk.listdir(PATH)
        log.flush()
        finish()
    snapshots = [name for name in disk.listdir(PATH) if name.endswith(".snapshot")]
    assert [int(name[:20]) for name in snapshots] == [180, 200]
    manager.write_checkpoints({})
    disk.restart()
    again = manager_on(disk).get(TP)
    assert again is not None
    entry = again.producers.get(1)
    assert entry is not None
    assert entry.last_sequence == 199
    assert len(entry.batches) == 5


def test_a_truncation_voids_a_save_that_was_under_way() -> None:
    """Rule D8: a snapshot of what was cut must not appear afterwards."""
    disk = CrashDisk()
    log = make(disk, 3)
    finish = log.begin_save()
    log.truncate_to(1)
    for number in range(5):
        log.append_as_leader(batch(b"other"), leader_epoch=8 + number)
    log.flush()
    finish()
    assert f"{3:020d}.snapshot" not in disk.listdir(PATH)


def test_many_logs_are_recovered_with_a_handful_of_flushes() -> None:
    """Start and stop of many partitions cost no flush for each."""
    disk = CrashDisk()
    manager = manager_on(disk)
    for number in range(100):
        log = manager.create(TopicPartition("many", number), TOPIC_ID, LogConfig())
        log.append_as_leader(batch(b"x"), leader_epoch=3)
    disk.restart()
    before = disk.syncs
    manager = manager_on(disk)
    assert disk.syncs - before < 20
    assert all(log.leader_epochs.entries == [(3, 0)] for log in manager.logs.values())
    for log in manager.logs.values():
        log.append_as_leader(batch(b"y"), leader_epoch=4)
    before = disk.syncs
    manager.shutdown({}, broker_epoch=1)
    assert disk.syncs - before < 20
    disk.power_on()
    manager = manager_on(disk)
    assert manager.previous_broker_epoch == 1
    assert all(values(log) == [b"x", b"y"] for log in manager.logs.values())
    assert all(log.leader_epochs.entries == [(3, 0), (4, 1)] for log in manager.logs.values())


def test_a_lost_epoch_checkpoint_is_made_again_from_the_batches() -> None:
    """Rule D1: every batch carries its epoch."""
    disk = CrashDisk()
    log = make(disk, 35, checkpoint=True)
    entries = log.leader_epochs.entries
    assert len(entries) == 4
    disk.truncate(f"{PATH}/leader-epoch-checkpoint", 3)
    assert reopen(disk).leader_epochs.entries == entries
    assert disk.read_file(f"{PATH}/leader-epoch-checkpoint").startswith(b"0\n4\n")


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_lost_tail_of_a_closed_segment_is_no_gap_of_compaction(
    is_compacted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule E4: above the recovery point nothing was compacted, so what is missing there is lost,
    and a log must not claim it."""
    disk, waiting = CrashDisk(Random(1)), StepExecutor()
    config = LogConfig(cleanup_compact=is_compacted, cleanup_delete=not is_compacted)
    manager = manager_on(disk, config=config, executor=waiting)
    log = manager.create(TP, TOPIC_ID, config)
    fill(log, 3)
    log.flush()
    manager.write_checkpoints({TP: 3})
    waiting.run_all()
    fill(log, 3)
    log.roll()
    # The journal has the new segment's name; the flush that a roll asks for has not begun.
    disk.fsync_dir(log.directory)
    monkeypatch.setattr(disk, "_keeps", lambda mood: False)
    disk.power_on()
    again = manager_on(disk, config=config).logs[TP]
    assert len(values(again)) == 3
    assert again.log_end_offset == 3


def test_a_batch_that_was_cut_into_still_tells_what_its_producer_did() -> None:
    """Rules G5 and H9: DeleteRecords into the middle of an open transaction, then a crash."""
    disk = CrashDisk(Random(1))
    manager = manager_on(disk)
    log = manager.create(TP, TOPIC_ID, LogConfig())
    records = batch(b"a", b"b", b"c", producer_id=11, epoch=0, sequence=0, transactional=True)
    log.append_as_leader(records, leader_epoch=0)
    log.append_as_leader(batch(b"d"), leader_epoch=0)
    log.flush()
    log.advance_log_start(1)
    manager.write_checkpoints({TP: 4})
    disk.restart()
    again = manager_on(disk).logs[TP]
    assert again.log_start_offset == 1
    entry = again.producers.get(11)
    assert entry is not None
    assert entry.last_sequence == 2, "a retry would be taken for new records"
    assert again.last_stable_offset(4) == 1, "records of an open transaction could be read"
    abort = build_marker(
        ControlType.ABORT, producer_id=11, producer_epoch=0, coordinator_epoch=1, timestamp=1
    )
    again.append_as_leader(bytearray(abort), leader_epoch=0, producer_check=False)
    assert again.aborted_transactions(1, 5), "records of an aborted transaction could be read"
