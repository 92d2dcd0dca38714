"""What a follower lets into its log, and how the high watermark follows."""

from __future__ import annotations

import pytest
from tests.storage.helpers import TOPIC_ID, TP, batch, manager_on, new_log, read_all, values

from tidemill.errors import ApiError, ErrorCode
from tidemill.replication.alignment import StartOver, TruncateTo
from tidemill.replication.copying import MisplacedRecordsError, ReplicaCopy, whole_batches
from tidemill.storage.log import Log
from tidemill.storage.log_config import LogConfig
from tidemill.testing.disk import CrashDisk


def at(offset: int, *contents: bytes, epoch: int = 0) -> bytes:
    return bytes(batch(*contents, base_offset=offset, leader_epoch=epoch))


def copy_of(
    *records: bytes, config: LogConfig | None = None, high_watermark: int = 0
) -> ReplicaCopy:
    log = new_log(config)
    for one in records:
        log.append_as_follower(one)
    return ReplicaCopy(log, high_watermark)


def take(copy: ReplicaCopy, records: bytes, leader_epoch: int = 5) -> None:
    fetched = whole_batches(copy.log, memoryview(records), leader_epoch)
    assert fetched is not None
    copy.append(fetched)


def test_batches_go_on_where_the_log_ends() -> None:
    """Rule D6."""
    copy = copy_of(at(0, b"a", b"b"))
    take(copy, at(2, b"c") + at(3, b"d", epoch=1))
    assert values(copy.log) == [b"a", b"b", b"c", b"d"]
    assert copy.log.leader_epochs.entries == [(0, 0), (1, 3)]


@pytest.mark.parametrize("records", [at(1, b"c"), at(2, b"c") + at(1, b"d")])
def test_batches_of_another_place_fail_loudly(records: bytes) -> None:
    """Rule D6."""
    copy = copy_of(at(0, b"a", b"b"))
    with pytest.raises(MisplacedRecordsError, match="leader sent a batch with offsets 1 to 1"):
        take(copy, records)


@pytest.mark.parametrize("is_compacted", [True, False])
def test_compaction_leaves_gaps(is_compacted: bool) -> None:
    """Rule D6: also in a topic that is compacted no longer."""
    copy = copy_of(config=LogConfig(cleanup_compact=is_compacted))
    take(copy, at(3, b"a") + at(9, b"c"))
    assert [record.offset for record in read_all(copy.log)] == [3, 9]
    assert copy.log.log_end_offset == 10


def test_a_partial_batch_at_the_end_is_left_out() -> None:
    """Rule E2."""
    copy = copy_of()
    take(copy, at(0, b"a") + at(1, b"b")[:-1])
    assert values(copy.log) == [b"a"]


@pytest.mark.parametrize("records", [at(0, b"a")[:-1], b"\0" * 40, b"\xff" * 80])
def test_what_is_no_batch_is_corrupt(records: bytes) -> None:
    """Rules D9 and E2."""
    with pytest.raises(ApiError) as refused:
        whole_batches(copy_of().log, memoryview(records), 5)
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE


def test_a_flipped_bit_is_found_before_anything_is_written() -> None:
    """Rule E2."""
    copy = copy_of()
    records = bytearray(at(0, b"a") + at(1, b"b"))
    records[-1] ^= 1
    with pytest.raises(ApiError) as refused:
        take(copy, bytes(records))
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
    assert copy.log.log_end_offset == 0


def test_records_of_a_later_term_are_left_out() -> None:
    """Rule D4: a leader deposed while it sent may have put its successor's records in."""
    copy = copy_of()
    take(copy, at(0, b"a", epoch=5) + at(1, b"b", epoch=6), leader_epoch=5)
    assert values(copy.log) == [b"a"]
    assert whole_batches(copy.log, memoryview(at(1, b"b", epoch=6)), 5) is None


def test_an_epoch_that_goes_back_is_corrupt() -> None:
    """Rule D1: epochs only grow along a log."""
    with pytest.raises(ApiError, match="epoch 1"):
        take(copy_of(at(0, b"a", epoch=2)), at(1, b"b", epoch=1))


def test_a_log_that_starts_within_a_batch_takes_all_of_it() -> None:
    """Rules D6 and D7: DeleteRecords left the leader's start in the middle of a batch."""
    copy = copy_of()
    copy.cut(StartOver(2))
    take(copy, at(0, b"a", b"b", b"c"))
    assert (copy.log.log_start_offset, copy.log.log_end_offset) == (2, 3)
    assert values(copy.log) == [b"c"]


def test_only_an_empty_log_may_start_within_a_batch() -> None:
    """Rule D6."""
    copy = copy_of(at(0, b"a"))
    with pytest.raises(MisplacedRecordsError):
        take(copy, at(0, b"a", b"b"))


def test_the_high_watermark_stays_below_our_own_end() -> None:
    """Rule B4."""
    copy = copy_of(at(0, b"a", b"b"))
    assert copy.advance(9, 0)
    assert copy.high_watermark == 2
    assert not copy.advance(9, 0)


def test_the_high_watermark_does_not_go_back_with_a_new_leader() -> None:
    """Rule B5."""
    copy = copy_of(at(0, b"a", b"b"))
    copy.advance(2, 0)
    copy.advance(1, 0)
    assert copy.high_watermark == 2


def test_the_log_start_follows_the_leaders_but_not_beyond_what_is_committed() -> None:
    """Rule B12."""
    copy = copy_of(at(0, b"a", b"b", b"c"))
    copy.advance(2, 3)
    assert (copy.log.log_start_offset, copy.high_watermark) == (2, 2)


@pytest.mark.parametrize(
    ("decision", "expected"),
    [(TruncateTo(1), (0, 1, 1)), (TruncateTo(3), (0, 3, 2)), (StartOver(7), (7, 7, 7))],
)
def test_start_end_and_high_watermark_move_together(
    decision: TruncateTo | StartOver, expected: tuple[int, int, int]
) -> None:
    """Rule B6."""
    copy = copy_of(*(at(place, b"v") for place in range(4)), high_watermark=2)
    copy.cut(decision)
    found = (copy.log.log_start_offset, copy.log.log_end_offset, copy.high_watermark)
    assert found == expected


def test_a_cut_below_the_high_watermark_is_told() -> None:
    """Rule D7: it follows an unclean election, and somebody should know."""
    copy = copy_of(at(0, b"a"), at(1, b"b"), high_watermark=2)
    assert copy.cut(TruncateTo(1))
    assert not copy.cut(TruncateTo(1))


def test_a_log_is_settled_when_all_of_it_may_be_reported() -> None:
    """Rule E7."""
    copy = copy_of(at(0, b"a"), config=LogConfig(flush_policy="ack"))
    before = copy.is_settled
    copy.log.flush()
    assert (before, copy.is_settled) == (False, True)
    assert copy_of(at(0, b"a"), config=LogConfig(flush_policy="async")).is_settled


def test_a_dropped_epoch_does_not_come_back_with_other_records_after_a_crash() -> None:
    """Rule D1: it left no record, so no cut of data writes down that it is gone."""
    disk, config = CrashDisk(), LogConfig(flush_policy="async")
    log = _open(disk, config)
    log.append_as_follower(at(0, b"a"))
    log.begin_epoch(1)
    log.flush()
    copy = ReplicaCopy(log, 1)
    copy.cut(TruncateTo(1))
    take(copy, at(1, b"b"))
    log.abandon()
    disk.restart()
    assert _open(disk, config).leader_epochs.entries == [(0, 0)]


def _open(disk: CrashDisk, config: LogConfig) -> Log:
    return manager_on(disk, config=config).create(TP, TOPIC_ID, config)
