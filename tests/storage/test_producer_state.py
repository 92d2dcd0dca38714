"""Idempotent producers: what is a repetition, what is out of order, and what survives a restart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.storage.helpers import TP, batch, manager_on, new_log, values

from tidemill.errors import ApiError, ErrorCode
from tidemill.storage.log import AppendInfo, Log
from tidemill.storage.log_config import LogConfig
from tidemill.storage.producer_snapshot import (
    BadSnapshotError,
    format_snapshot,
    parse_snapshot,
    snapshot_path,
)
from tidemill.storage.producer_state import (
    BATCHES_KEPT,
    BatchMeta,
    ProducerEntry,
    ProducerStates,
)
from tidemill.testing.disk import CrashDisk
from tidemill.wire.batch import SEQUENCE_MAX, read_header

NOW_MS = 10**15
"""Later than what the records say."""


def send(log: Log, sequence: int, *payload: bytes, epoch: int = 0, pid: int = 1) -> AppendInfo:
    data = batch(*(payload or (b"x",)), producer_id=pid, epoch=epoch, sequence=sequence)
    return log.append_as_leader(data, leader_epoch=0)


def refused(log: Log, sequence: int, *, epoch: int = 0) -> ErrorCode:
    before = log.log_end_offset
    with pytest.raises(ApiError) as caught:
        send(log, sequence, epoch=epoch)
    assert log.log_end_offset == before
    return caught.value.code


def test_a_repetition_is_answered_with_the_offsets_of_the_first_time() -> None:
    """Rule G2."""
    log = new_log()
    first = send(log, 0, b"a", b"b")
    send(log, 2)
    again = send(log, 0, b"a", b"b")
    assert again.duplicate
    assert (again.base_offset, again.last_offset) == (first.base_offset, first.last_offset)
    assert log.log_end_offset == 3


def test_the_last_five_batches_are_remembered() -> None:
    """Rule G1: as many as a client may have in flight."""
    log = new_log()
    for sequence in range(8):
        send(log, sequence)
    for sequence in range(8 - BATCHES_KEPT, 8):
        assert send(log, sequence).duplicate
    assert refused(log, 2) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_must_follow() -> None:
    """Rule G3: gaps, new epochs and old epochs."""
    log = new_log()
    send(log, 5)
    assert refused(log, 7) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(log, 3, epoch=2) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    send(log, 0, epoch=2)
    assert refused(log, 0, epoch=1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refused(log, 5, epoch=0) is ErrorCode.INVALID_PRODUCER_EPOCH
    send(log, 1, epoch=2)


def test_unknown_producers_may_start_anywhere() -> None:
    """Rule G3: their state may have expired."""
    log = new_log()
    assert not send(log, 4711).duplicate
    assert not send(log, 4712).duplicate


def test_sequences_wrap() -> None:
    """Rule G3: 2^31 - 1 is followed by 0, also inside a batch."""
    log = new_log()
    send(log, SEQUENCE_MAX - 1, b"a", b"b", b"c")
    assert send(log, SEQUENCE_MAX - 1, b"a", b"b", b"c").duplicate
    send(log, 1)
    entry = log.producers.get(1)
    assert entry is not None
    assert entry.last_sequence == 1
    assert entry.batches[0].first_sequence == SEQUENCE_MAX - 1


def test_state_changes_only_after_the_append() -> None:
    """Rule G4: a batch that could not be written leaves no trace."""
    disk = CrashDisk(capacity_bytes=1000)
    log = new_log(disk=disk)
    send(log, 0)
    with pytest.raises(ApiError):
        send(log, 1, b"x" * 2000)
    disk.capacity_bytes = 10_000
    assert not send(log, 1, b"x" * 2000).duplicate


def test_followers_apply_without_judging() -> None:
    """Rule G4: what the leader accepted is taken in as it is."""
    log = new_log()
    log.append_as_follower(batch(b"a", producer_id=1, epoch=3, sequence=9, base_offset=0))
    log.append_as_follower(batch(b"b", producer_id=1, epoch=3, sequence=99, base_offset=1))
    entry = log.producers.get(1)
    assert entry is not None
    assert (entry.epoch, entry.last_sequence) == (3, 99)


def test_expiry() -> None:
    """Rule G6: silent producers go, those with an open transaction stay."""
    states = ProducerStates()
    for pid, transactional in ((1, False), (2, True), (3, False)):
        data = batch(
            b"x",
            timestamp=1000 * pid,
            producer_id=pid,
            epoch=0,
            sequence=0,
            transactional=transactional,
        )
        states.apply(read_header(data), pid)
    assert states.expire(2_000, 10_000) == 0
    assert states.expire(12_500, 10_000) == 1
    assert [entry.producer_id for entry in states.active()] == [2, 3]


def test_a_producer_of_old_records_is_not_forgotten_while_it_writes() -> None:
    """Rule G6: a mirror or a back-fill writes records of last year, and it is not silent."""
    states = ProducerStates()
    now_ms = 1_000_000
    for sequence in range(5):
        data = batch(b"x", timestamp=1, producer_id=7, epoch=0, sequence=sequence)
        states.apply(read_header(data), sequence)
        now_ms += 8_000
        assert states.expire(now_ms, 10_000) == 0
    assert states.expire(now_ms + 9_000, 10_000) == 0
    assert states.expire(now_ms + 10_000, 10_000) == 1


def test_the_number_of_producers_is_bounded() -> None:
    """Rule G6: the longest silent producer makes room."""
    states = ProducerStates(ids_max=3)
    for offset, pid in enumerate((1, 2, 3, 1, 4)):
        states.apply(read_header(batch(b"x", producer_id=pid, epoch=0, sequence=offset)), offset)
    assert [entry.producer_id for entry in states.active()] == [3, 1, 4]


def heard_of(entry: ProducerEntry) -> int | None:
    return entry.heard_ms if entry.was_silent else None


class TestSnapshots:
    def test_all_five_batches_survive_a_clean_restart(self) -> None:
        """Rule G5: a retry after a restart is still recognised."""
        disk = CrashDisk()
        manager = manager_on(disk)
        log = manager.create(TP, new_log().topic_id, LogConfig())
        for sequence in range(7):
            send(log, sequence)
        manager.shutdown({})
        again = manager_on(disk).get(TP)
        assert again is not None
        for sequence in range(2, 7):
            assert send(again, sequence).duplicate

    def test_restarts_do_not_make_the_silent_seem_to_write(self) -> None:
        """Rule G6: on a broker that restarts every day producers are forgotten all the same."""
        disk = CrashDisk()
        manager = manager_on(disk)
        log = manager.create(TP, new_log().topic_id, LogConfig())
        send(log, 0)
        assert log.producers.expire(NOW_MS, 10_000) == 0
        manager.shutdown({})
        for silent_ms, expired in ((4_000, 0), (9_000, 0), (10_000, 1)):
            manager = manager_on(disk)
            again = manager.get(TP)
            assert again is not None
            assert again.producers.expire(NOW_MS + silent_ms, 10_000) == expired
            manager.shutdown({})

    def test_who_wrote_since_the_last_look_is_not_silent_after_a_restart(self) -> None:
        """Rule G6: nobody has noted yet when it wrote."""
        disk = CrashDisk()
        manager = manager_on(disk)
        log = manager.create(TP, new_log().topic_id, LogConfig())
        send(log, 0)
        log.producers.expire(NOW_MS, 10_000)
        send(log, 1)
        manager.shutdown({})
        again = manager_on(disk).get(TP)
        assert again is not None
        assert again.producers.expire(NOW_MS + 11_000, 10_000) == 0
        assert again.producers.expire(NOW_MS + 21_000, 10_000) == 1

    def test_a_damaged_snapshot_is_deleted_and_replaced_by_replay(self) -> None:
        """Rule G5: fall back to an older one, or to the log."""
        disk = CrashDisk()
        manager = manager_on(disk)
        log = manager.create(TP, new_log().topic_id, LogConfig())
        for sequence in range(3):
            send(log, sequence)
        manager.shutdown({})
        path = snapshot_path(log.directory, 3)
        disk.write_at(path, 8, (b"\xff",))
        again = manager_on(disk).get(TP)
        assert again is not None
        assert not disk.exists(path)
        assert send(again, 2).duplicate
        assert len(values(again)) == 3

    def test_the_layout_is_kafkas(self) -> None:
        """The bytes that Kafka 4.3 wrote for one producer, less what depends on the run."""
        entry = ProducerEntry(1, 0, [BatchMeta(30, 33, 0, 99)], 0, 99, 33)
        data = format_snapshot([entry])
        assert data[:2] == b"\0\1"
        assert data[6:56].hex() == (
            "00000001" "0000000000000001" "0000" "0000001e" "0000000000000021" "00000000"
            "0000000000000063" "00000000" "0000000000000021"
        )  # fmt: skip
        assert format_snapshot([])[6:] == bytes(4)

    @given(
        st.lists(
            st.builds(
                ProducerEntry,
                producer_id=st.integers(0, 2**62),
                epoch=st.integers(0, 2**15 - 1),
                batches=st.lists(
                    st.builds(
                        BatchMeta,
                        last_sequence=st.integers(0, SEQUENCE_MAX),
                        last_offset=st.integers(0, 2**62),
                        offset_delta=st.integers(0, 2**31 - 1),
                        timestamp=st.integers(-1, 2**62),
                    ),
                    max_size=5,
                ),
                coordinator_epoch=st.integers(-1, 2**31 - 1),
                last_timestamp=st.integers(-1, 2**62),
                current_txn_first_offset=st.integers(-1, 2**62),
                was_silent=st.booleans(),
                heard_ms=st.integers(0, 2**62),
            ),
            max_size=5,
            unique_by=lambda entry: entry.producer_id,
        )
    )
    def test_round_trip(self, entries: list[ProducerEntry]) -> None:
        again = parse_snapshot(format_snapshot(entries))
        assert again == entries
        assert [heard_of(entry) for entry in again] == [heard_of(entry) for entry in entries]

    @given(st.binary(max_size=200))
    def test_garbage_is_refused(self, data: bytes) -> None:
        with pytest.raises(BadSnapshotError):
            parse_snapshot(data)
