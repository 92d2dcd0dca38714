"""Compaction of one log: what stays, what goes, and when."""

from __future__ import annotations

import logging

import pytest
from tests.storage.cleaning import COMPACTED, Cleaning, key
from tests.storage.helpers import DIR, TP

from tidemill.storage.checkpoint import CLEANER_OFFSETS, read_offsets
from tidemill.storage.cleaner_map import ENTRY_BYTES
from tidemill.storage.cleaner_plan import assess
from tidemill.storage.cleaner_run import CleanerSettings
from tidemill.storage.segment import RELATIVE_OFFSET_MAX
from tidemill.testing.disk import CrashDisk
from tidemill.wire.batch import iter_headers
from tidemill.wire.compression import Codec
from tidemill.wire.control import ControlType
from tidemill.wire.records import Record, build_batch, iter_records


def test_the_last_value_of_each_key_stays_under_its_offset() -> None:
    """Rule I4: offsets never change, and the log's end is not lost."""
    world = Cleaning()
    for number in range(60):
        world.put((key(number % 4), b"v%d" % number))
    world.settle()
    before = world.log.size_bytes
    assert world.clean()
    assert [offset for offset, _, _ in world.records()] == [56, 57, 58, 59]
    assert world.log.log_end_offset == 60
    assert world.log.size_bytes < before / 5
    assert read_offsets(world.disk, DIR, CLEANER_OFFSETS) == {TP: 60}
    assert not world.clean(), "nothing is dirty any more"


def test_a_cleaned_log_reads_from_any_offset_and_after_a_restart() -> None:
    """Reading at an offset whose record is gone gives the next one that is left."""
    world = Cleaning()
    for number in range(40):
        world.put((key(number % 3), b"v%d" % number), (b"only-%d" % number, b"x"))
    world.settle()
    world.clean()
    left = world.records()
    for _ in range(2):
        offsets = [offset for offset, _, _ in left]
        for offset in range(world.log.log_end_offset):
            data = world.log.read(offset, max_bytes=1, upper_offset=1 << 40).read_blocking()
            found = [
                record.offset
                for position, header in iter_headers(data)
                for record in iter_records(data, position, header, limit_bytes=1 << 20)
                if record.offset >= offset
            ]
            assert found[0] == next(each for each in offsets if each >= offset)
        world.manager.shutdown({})
        world.boot()
        assert world.records() == left


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_keeps_its_codec_and_its_numbers(codec: Codec) -> None:
    """Rule I4: base offset, last offset, epoch, sequence and codec outlive the records."""
    world = Cleaning()
    pairs = [(key(number), b"first" * 10) for number in range(8)]
    world.put(*pairs, codec=codec, producer_id=5, epoch=3, sequence=0)
    world.put(*[(key(number), b"second") for number in (0, 1, 2, 5)])
    world.settle()
    assert world.clean()
    header = world.headers()[0]
    assert (header.base_offset, header.last_offset, header.record_count) == (0, 7, 4)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 3, 0)
    assert header.codec is codec
    assert [offset for offset, _, _ in world.records()] == [3, 4, 6, 7, 8, 9, 10, 11]


def test_timestamps_and_headers_of_records_survive() -> None:
    """What is left of a batch is byte for byte what the producer sent."""
    world = Cleaning()
    now_ms = world.clock.now_ms()
    records = [
        Record(0, now_ms, b"a", b"old"),
        Record(1, now_ms - 500, b"b", None, (("trace", b"1"),)),
        Record(2, now_ms + 70_000, b"c", b"new", (("trace", None), ("é", b"\x00"))),
    ]
    world.log.append_as_leader(bytearray(build_batch(records)), leader_epoch=0)
    world.put((b"a", b"new"))
    world.settle()
    assert world.clean()
    data = world.log.read(0, max_bytes=1 << 20, upper_offset=1 << 40).read_blocking()
    header = next(iter_headers(data))[1]
    assert list(iter_records(data, 0, header, limit_bytes=1 << 20)) == records[1:]
    assert header.max_timestamp == now_ms + 70_000
    assert header.delete_horizon_ms == now_ms + COMPACTED.delete_retention_ms


def test_a_tombstone_goes_only_after_its_horizon() -> None:
    """Rule I3: the horizon begins with the pass that first met the tombstone, and is stored."""
    world = Cleaning()
    world.put((b"a", b"1"), (b"b", b"1"))
    world.put((b"a", None))
    world.settle()
    assert world.clean()
    assert [pair[1:] for pair in world.records()] == [(b"b", b"1"), (b"a", None)]
    world.clock.advance(COMPACTED.delete_retention_ms - 1)
    world.put((b"c", b"1"))
    world.settle()
    assert world.clean()
    assert (b"a", None) in [pair[1:] for pair in world.records()], "not yet"
    world.clock.advance(1)
    world.put((b"d", b"1"))
    world.settle()
    assert world.clean()
    assert [pair[1] for pair in world.records()] == [b"b", b"c", b"d"]


def test_the_last_batch_of_a_producer_stays_without_its_records() -> None:
    """Rule I2: a restart must still recognise the producer's retries."""
    world = Cleaning()
    world.put((b"a", b"1"), (b"b", b"1"), producer_id=9, epoch=0, sequence=0)
    world.put((b"a", b"2"), (b"b", b"2"), producer_id=9, epoch=0, sequence=2)
    world.put((b"a", b"3"), (b"b", b"3"))
    world.settle()
    assert world.clean()
    first = world.headers()[0]
    assert (first.base_offset, first.last_offset, first.record_count) == (2, 3, 0)
    assert (first.producer_id, first.base_sequence, first.last_sequence) == (9, 2, 3)
    world.disk.restart()
    for name in world.names():
        if name.endswith(".snapshot"):
            world.disk.unlink(f"{world.log.directory}/{name}")
    world.boot()
    entry = world.log.producers.get(9)
    assert entry is not None
    assert entry.last_sequence == 3
    info = world.log.append_as_leader(
        bytearray(
            build_batch(
                [Record(0, 1, b"a", b"2"), Record(1, 1, b"b", b"2")],
                producer_id=9,
                producer_epoch=0,
                base_sequence=2,
            )
        ),
        leader_epoch=0,
    )
    assert info.duplicate
    assert info.base_offset == 2


def test_the_last_batch_of_the_range_stays() -> None:
    """Rule I4: its records are gone, but it says how far the log went.

    They have no keys: the topic was not always compacted.
    """
    world = Cleaning()
    world.put((b"a", b"1"), (None, b"1"))
    world.put((None, b"2"))
    world.settle()
    world.clean()
    assert [(header.last_offset, header.record_count) for header in world.headers()] == [
        (1, 1),
        (2, 0),
    ]


class TestWhatMayBeTouched:
    """Rule I1: never the active segment, nothing uncommitted, nothing undecided, nothing young."""

    def fill(self, world: Cleaning, count: int = 30) -> None:
        for number in range(count):
            world.put((b"same", b"value-%d" % number))

    def test_the_active_segment_is_left_alone(self) -> None:
        """Rule I1."""
        world = Cleaning()
        self.fill(world)
        world.manager.request_flush(world.log)
        active = world.log.segments[-1].base_offset
        world.clean()
        offsets = [offset for offset, _, _ in world.records()]
        assert offsets[-(30 - active) :] == list(range(active, 30))
        assert offsets[0] == active - 1

    def test_nothing_above_the_high_watermark_goes(self) -> None:
        """Rule I1."""
        world = Cleaning()
        self.fill(world)
        world.settle()
        bases = [segment.base_offset for segment in world.log.segments]
        world.high_watermark = bases[2] + 1
        world.clean()
        offsets = [offset for offset, _, _ in world.records()]
        assert offsets == [bases[2] - 1, *range(bases[2], 30)]

    def test_not_even_one_record_above_it(self) -> None:
        """Rule I1: whole segments go, so the one that holds it stays."""
        world = Cleaning()
        self.fill(world)
        world.settle()
        for high_watermark in range(1, 31):
            found = assess(world.log, None, high_watermark, world.clock.now_ms())
            assert found.upper_offset <= high_watermark

    def test_nothing_that_is_not_flushed_goes(self) -> None:
        """Rule I1: a gap above the recovery point could be taken for a torn log."""
        world = Cleaning()
        self.fill(world, 10)
        world.manager.request_flush(world.log)
        self.fill(world, 30)
        world.log.flushed_offset = 10
        assert 0 < assess(world.log, None, 40, world.clock.now_ms()).upper_offset <= 10

    def test_nothing_from_an_open_transaction_on_goes(self) -> None:
        """Rule I1: the last stable offset holds it back."""
        world = Cleaning()
        self.fill(world, 12)
        start = world.put(
            (b"same", b"open"), producer_id=4, epoch=0, sequence=0, transactional=True
        )
        self.fill(world, 12)
        world.settle()
        assert world.clean()
        offsets = [offset for offset, _, _ in world.records()]
        assert offsets[-13:] == list(range(start, start + 13))

    def test_min_compaction_lag_keeps_young_records(self) -> None:
        """Rule I1: `min.compaction.lag.ms`."""
        world = Cleaning()
        world.reconfigure(min_compaction_lag_ms=60_000)
        self.fill(world)
        world.settle()
        assert not world.clean()
        world.clock.advance(61_000)
        self.fill(world, 3)
        world.settle()
        assert world.clean()
        assert [offset for offset, _, _ in world.records()] == [29, 30, 31, 32]

    def test_min_cleanable_ratio_and_max_lag(self) -> None:
        """A log is compacted when enough of it is dirty, or when it has waited long enough."""
        world = Cleaning()
        self.fill(world)
        world.settle()
        world.clean()
        for number in range(40):
            world.put((key(number), b"v" * 20))
        world.settle()
        world.clean()
        world.reconfigure(min_cleanable_ratio=0.5)
        world.put((b"same", b"x"))
        world.settle()
        assert not world.clean()
        world.reconfigure(max_compaction_lag_ms=5000)
        assert not world.clean()
        world.clock.advance(5001)
        assert world.clean()

    def test_max_lag_rolls_the_active_segment(self) -> None:
        """Only closed segments are compacted, so a deadline closes them earlier."""
        world = Cleaning()
        world.reconfigure(max_compaction_lag_ms=5000)
        world.put((b"a", b"1"))
        world.clock.advance(5001)
        world.put((b"a", b"2"))
        assert len(world.log.segments) == 2


class TestTransactions:
    """Rule I3, for batches of transactions and their markers."""

    def test_aborted_records_go_and_are_no_reason_to_drop_others(self) -> None:
        """An aborted update neither stays nor hides the committed one before it."""
        world = Cleaning()
        world.put((b"a", b"good"), producer_id=1, epoch=0, sequence=0, transactional=True)
        world.end_transaction(ControlType.COMMIT, 1)
        world.put((b"a", b"bad"), producer_id=1, epoch=0, sequence=1, transactional=True)
        abort = world.end_transaction(ControlType.ABORT, 1)
        world.put((b"z", b"end"))
        world.settle()
        assert world.clean()
        assert [pair[1:] for pair in world.records()] == [(b"a", b"good"), (b"z", b"end")]
        aborted = world.log.aborted_transactions(0, world.log.log_end_offset)
        assert [entry.last_offset for entry in aborted] == [abort], "its marker still needs it"

    def test_a_marker_goes_after_its_records_and_a_horizon(self) -> None:
        """Rule I3: first the records, then the horizon, then the marker."""
        world = Cleaning()
        world.put((b"a", b"bad"), producer_id=1, epoch=0, sequence=0, transactional=True)
        abort = world.end_transaction(ControlType.ABORT, 1)
        world.put((b"b", b"1"), producer_id=1, epoch=0, sequence=1)
        world.settle()
        seen: list[tuple[bool, bool]] = []
        for _ in range(4):
            assert world.clean()
            marker = [header for header in world.headers() if header.base_offset == abort]
            seen.append((bool(marker), bool(marker) and marker[0].has_delete_horizon))
            world.clock.advance(COMPACTED.delete_retention_ms)
            world.put((b"c", b"%d" % world.clock.now_ms()))
            world.settle()
        assert seen == [(True, False), (True, True), (False, False), (False, False)]

    def test_a_commit_marker_stays_while_a_record_of_its_transaction_does(self) -> None:
        """Rule I3."""
        world = Cleaning()
        world.put((b"a", b"1"), producer_id=1, epoch=0, sequence=0, transactional=True)
        commit = world.end_transaction(ControlType.COMMIT, 1)
        for _ in range(3):
            world.clock.advance(COMPACTED.delete_retention_ms)
            world.put((b"x", b"%d" % world.clock.now_ms()))
            world.settle()
            assert world.clean()
        assert commit in [header.base_offset for header in world.headers()]
        assert (0, b"a", b"1") in world.records()

    def test_the_marker_with_a_producers_last_epoch_stays(self) -> None:
        """Rule I2: without it a zombie of an older epoch would not be fenced after a restart."""
        world = Cleaning()
        world.put((b"a", b"1"), producer_id=1, epoch=0, sequence=0, transactional=True)
        world.end_transaction(ControlType.ABORT, 1, epoch=1)
        for _ in range(4):
            world.clock.advance(COMPACTED.delete_retention_ms)
            world.put((b"x", b"%d" % world.clock.now_ms()))
            world.settle()
            assert world.clean()
        fencing = [header for header in world.headers() if header.producer_id == 1]
        assert [header.producer_epoch for header in fencing] == [1]


def test_a_full_map_takes_several_passes() -> None:
    """Memory is bounded by `log.cleaner.dedupe.buffer.size`: a pass covers what fits."""
    settings = CleanerSettings(dedupe_buffer_bytes=ENTRY_BYTES * 10, load_factor=1.0)
    world = Cleaning(settings=settings)
    for number in range(100):
        world.put((key(number % 50), b"v%d" % number))
    world.settle()
    assert world.clean()
    assert world.cleaner.totals.passes == 10, "each pass takes in ten keys, half of them anew"
    assert [offset for offset, _, _ in world.records()] == list(range(50, 100))


def test_small_segments_are_merged() -> None:
    """Groups are bounded by segment size, index size and 32-bit offsets."""
    world = Cleaning()
    for number in range(200):
        world.put((key(number % 2), b"v"))
    world.settle()
    many = len(world.log.segments)
    world.clean()
    world.put((b"x", b"1"))
    world.settle()
    world.clean()
    assert len(world.log.segments) <= 3 < many
    assert all(segment.size <= COMPACTED.segment_bytes for segment in world.log.segments)
    world.manager.remove_doomed()
    assert not [name for name in world.names() if name.endswith((".deleted", ".swap", ".cleaned"))]


def test_offsets_that_are_too_far_apart_stay_in_segments_of_their_own() -> None:
    """Rule E9 for merged segments."""
    world = Cleaning()
    follower = [
        build_batch([Record(base, 1_700_000_000_000, b"k%d" % base, b"v")], base_offset=base)
        for base in (0, RELATIVE_OFFSET_MAX - 5, RELATIVE_OFFSET_MAX + 5)
    ]
    for data in follower:
        world.log.append_as_follower(data)
        world.log.roll()
    world.settle()
    for base in (0, 1):
        world.clean()
        world.put((b"again", b"%d" % base))
        world.settle()
    bases = [segment.base_offset for segment in world.log.segments]
    assert bases[:2] == [0, RELATIVE_OFFSET_MAX - 4], "a merge would not fit its index"
    assert len(world.records()) == 5


class TestFailures:
    """Rule I6: one bad log does not stop the cleaner."""

    def test_a_damaged_log_is_put_aside(self, caplog: pytest.LogCaptureFixture) -> None:
        """Rule I6: it is marked, said so, and left as it is."""
        world = Cleaning()
        for number in range(30):
            world.put((b"same", b"%d" % number))
        world.settle()
        path = world.log.segments[1].log_path
        world.disk.write_at(path, 90, (b"\xff\xff",))
        with caplog.at_level(logging.ERROR):
            assert not world.clean()
        assert world.log.damage
        assert "cannot be compacted" in caplog.text
        assert not [name for name in world.names() if ".cleaned" in name or ".swap" in name]
        assert not world.clean(), "it is not tried again"
        world.put((b"more", b"1"))

    def test_a_checkpoint_from_nowhere_starts_over(self) -> None:
        """Rule I6: an offset beyond the end means that all of the log is dirty."""
        world = Cleaning()
        for number in range(30):
            world.put((b"same", b"%d" % number))
        world.settle()
        found = assess(world.log, 1000, 30, world.clock.now_ms())
        assert found.first_dirty_offset == 0
        assert assess(world.log, 7, 30, world.clock.now_ms()).first_dirty_offset == 7

    def test_a_full_disk_ends_the_pass_and_a_later_one_succeeds(self) -> None:
        """Rule E8: compaction needs room, and waits for it."""
        disk = CrashDisk()
        world = Cleaning(disk=disk)
        for number in range(30):
            world.put((b"key-%d" % number, b"%d" % number))
        world.settle()
        disk.capacity_bytes = disk.space(DIR).total_bytes - disk.space(DIR).free_bytes + 200
        assert not world.clean()
        assert not world.cleaner.uncleanable
        assert not world.log.dir.is_offline
        assert len(world.records()) == 30
        disk.capacity_bytes = 1 << 40
        assert world.clean()


def test_throttling_waits_between_pieces() -> None:
    """`log.cleaner.io.max.bytes.per.second` bounds what a pass reads and writes."""
    world = Cleaning(settings=CleanerSettings(io_bytes_per_second_max=1000.0))
    for number in range(40):
        world.put((b"same", b"%d" % number))
    world.settle()
    world.begin()
    waited = 0
    while world.later:
        waited += world.later[0][0]
        world.turn()
    total = world.cleaner.totals.bytes_read + world.cleaner.totals.bytes_written
    assert 0.8 * total <= waited <= total + 1000


def test_nothing_happens_when_it_is_switched_off() -> None:
    world = Cleaning(settings=CleanerSettings(is_enabled=False))
    for number in range(40):
        world.put((b"same", b"%d" % number))
    world.settle()
    assert not world.clean()


def test_a_topic_of_the_same_name_starts_dirty() -> None:
    """The checkpoint of a deleted topic is not believed for its successor."""
    world = Cleaning()
    for number in range(40):
        world.put((b"same", b"%d" % number))
    world.settle()
    world.clean()
    world.manager.delete(TP)
    world.log = world.manager.create(TP, world.log.topic_id, world.config)
    assert world.manager.cleaned_offset(world.log) is None
    assert read_offsets(world.disk, DIR, CLEANER_OFFSETS) == {}
