"""From fetched bytes to records: what is hidden, what is damaged, what is skipped."""

from __future__ import annotations

import pytest

from tidemill.client.errors import ClientError
from tidemill.client.fetched import FetchedBatch, check, decode, split_batches, unreadable
from tidemill.errors import ErrorCode, WireError
from tidemill.types import TopicPartition
from tidemill.wire.batch import UnsupportedMagicError
from tidemill.wire.compression import Codec
from tidemill.wire.control import ControlType, build_marker
from tidemill.wire.messages.fetch import AbortedTransaction
from tidemill.wire.records import Record, build_batch

TP = TopicPartition("t", 3)


def data(base: int, count: int, *, producer_id: int = -1, transactional: bool = False) -> bytes:
    records = [Record(base + n, 1000 + n, b"k%d" % n, b"v%d" % n) for n in range(count)]
    return build_batch(
        records,
        base_offset=base,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=0 if producer_id >= 0 else -1,
        transactional=transactional,
        leader_epoch=4,
    )


def marker(base: int, producer_id: int, kind: ControlType) -> bytes:
    return build_marker(
        kind,
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp=1,
        base_offset=base,
    )


def visible(batches: list[FetchedBatch]) -> list[int]:
    return [batch.header.base_offset for batch in batches if not batch.hidden]


def all_of(batch: FetchedBatch, from_offset: int = 0) -> list[int]:
    records = decode(
        TP,
        batch,
        from_offset=from_offset,
        limit_bytes=1 << 20,
        key_deserializer=None,
        value_deserializer=None,
    )
    return [record.offset for record in records]


def test_a_partial_batch_at_the_end_is_dropped() -> None:
    whole = data(0, 3) + data(3, 2)
    assert len(split_batches(whole[:-1], None, committed_only=False)) == 1
    assert len(split_batches(whole, None, committed_only=False)) == 2
    assert split_batches(None, None, committed_only=False) == []


def test_aborted_transactions_are_hidden_from_who_reads_committed() -> None:
    """Transactions of producers 1 (aborted, then a committed one) and 2 (committed), mingled."""
    log = b"".join(
        [
            data(0, 2, producer_id=1, transactional=True),
            data(2, 2, producer_id=2, transactional=True),
            marker(4, 1, ControlType.ABORT),
            data(5, 1, producer_id=1, transactional=True),
            marker(6, 2, ControlType.COMMIT),
            marker(7, 1, ControlType.COMMIT),
            data(8, 1),
        ]
    )
    aborted = [AbortedTransaction(producer_id=1, first_offset=0)]
    assert visible(split_batches(log, aborted, committed_only=True)) == [2, 5, 8]
    assert visible(split_batches(log, aborted, committed_only=False)) == [0, 2, 5, 8]


def test_an_abort_that_began_before_the_answer_hides_its_tail() -> None:
    log = data(10, 1, producer_id=1, transactional=True) + marker(11, 1, ControlType.ABORT)
    aborted = [AbortedTransaction(producer_id=1, first_offset=3)]
    assert visible(split_batches(log, aborted, committed_only=True)) == []


def test_records_before_the_position_are_skipped() -> None:
    (batch,) = split_batches(data(10, 5), None, committed_only=False)
    assert all_of(batch, from_offset=13) == [13, 14]


def test_deserializers_see_the_topic() -> None:
    (batch,) = split_batches(data(0, 1), None, committed_only=False)
    (record,) = decode(
        TP,
        batch,
        from_offset=0,
        limit_bytes=1 << 20,
        key_deserializer=lambda topic, key: (topic, key),
        value_deserializer=lambda topic, value: len(value or b""),
    )
    assert (record.key, record.value, record.leader_epoch) == (("t", b"k0"), 2, 4)
    assert (record.topic, record.partition, record.timestamp_ms) == ("t", 3, 1000)


def test_a_damaged_batch_is_named() -> None:
    damaged = bytearray(data(7, 2))
    damaged[-1] ^= 1
    (batch,) = split_batches(bytes(damaged), None, committed_only=False)
    with pytest.raises(ClientError, match="t-3 at offset 7 is damaged"):
        check(TP, batch)


def test_a_decompression_bomb_stops_at_the_limit() -> None:
    """Rule 3.4.3: decompression has a ceiling."""
    records = [Record(0, 0, None, bytes(4_000_000))]
    bomb = build_batch(records, codec=Codec.ZSTD)
    assert len(bomb) < 10_000
    (batch,) = split_batches(bomb, None, committed_only=False)
    with pytest.raises(ClientError) as caught:
        all_of(batch)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def test_errors_of_whole_answers() -> None:
    old = unreadable(TP, UnsupportedMagicError(1))
    assert old.code is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    assert unreadable(TP, WireError("nonsense")).code is ErrorCode.CORRUPT_MESSAGE
