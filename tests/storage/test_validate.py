"""What a produce request may hold. Every code here was asked of Apache Kafka 4.3.1."""

from __future__ import annotations

import pytest
from tests.storage.helpers import TP, batch, old_message_set

from tidemill.errors import ApiError, ErrorCode
from tidemill.storage.log_config import LogConfig
from tidemill.storage.validate import RecordsRefusedError, Validated, convert, validate_for_append
from tidemill.wire.batch import HEADER, HEADER_BYTES, crc_matches, read_header, write_crc
from tidemill.wire.compression import Codec, compress
from tidemill.wire.records import Record, build_batch, iter_records

NOW = 1_700_000_000_000
PLAIN = LogConfig()


def edited(data: bytearray, *, fix_crc: bool = True, **changes: int) -> bytearray:
    """The batch with header fields changed."""
    header = read_header(data)._replace(**changes)
    changed = bytearray(HEADER.pack(*header) + data[HEADER_BYTES:])
    if fix_crc:
        write_crc(changed, 0, len(changed))
    return changed


def broken_crc() -> bytearray:
    data = batch(b"a")
    data[-1] ^= 1
    return data


def check(records: bytes | bytearray | None, config: LogConfig = PLAIN) -> Validated:
    validated = validate_for_append(records, config, NOW, topic_partition=TP)
    if validated.needs_conversion:
        return convert(validated, config, NOW, topic_partition=TP)
    return validated


GOOD = batch(b"a", b"b", b"c")


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (None, ErrorCode.INVALID_RECORD),
        (b"", ErrorCode.INVALID_RECORD),
        (GOOD + GOOD, ErrorCode.INVALID_RECORD),
        (GOOD[:-3], ErrorCode.INVALID_RECORD),
        (GOOD + bytes(20), ErrorCode.CORRUPT_MESSAGE),
        (broken_crc(), ErrorCode.CORRUPT_MESSAGE),
        (old_message_set(), ErrorCode.INVALID_RECORD),
        (edited(GOOD, magic=3, fix_crc=False), ErrorCode.CORRUPT_MESSAGE),
        (edited(GOOD, batch_length=10, fix_crc=False), ErrorCode.CORRUPT_MESSAGE),
        (edited(GOOD, base_offset=5), ErrorCode.INVALID_RECORD),
        (edited(GOOD, record_count=2), ErrorCode.INVALID_RECORD),
        (edited(GOOD, record_count=-1), ErrorCode.INVALID_RECORD),
        (edited(GOOD, record_count=0, last_offset_delta=-1), ErrorCode.INVALID_RECORD),
        (edited(GOOD, last_offset_delta=9), ErrorCode.INVALID_RECORD),
        (edited(GOOD, last_offset_delta=-2), ErrorCode.INVALID_RECORD),
        (edited(GOOD, record_count=90, last_offset_delta=89), ErrorCode.INVALID_RECORD),
        (edited(GOOD, attributes=0x20), ErrorCode.INVALID_RECORD),
        (edited(GOOD, attributes=5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (edited(GOOD, attributes=0x10), ErrorCode.INVALID_RECORD),
        (edited(GOOD, producer_id=7, producer_epoch=0), ErrorCode.INVALID_RECORD),
    ],
)
def test_refusals(records: bytes | None, code: ErrorCode) -> None:
    """Rule E2: lengths, magic, attributes, checksum and counts are checked on produce."""
    with pytest.raises(ApiError) as caught:
        check(records)
    assert caught.value.code is code


def test_the_usual_batch_is_passed_through_untouched() -> None:
    validated = validate_for_append(GOOD, PLAIN, NOW)
    assert validated.records is GOOD
    assert not validated.needs_conversion
    assert validated.append_time_ms == -1


def test_a_few_bytes_after_the_batch_are_cut() -> None:
    assert bytes(check(GOOD + bytes(5)).records) == bytes(GOOD)


def test_sizes() -> None:
    with pytest.raises(ApiError) as caught:
        check(broken_crc(), LogConfig(max_message_bytes=50))
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    with pytest.raises(ApiError) as caught:
        check(GOOD, LogConfig(segment_bytes=50))
    assert caught.value.code is ErrorCode.RECORD_LIST_TOO_LARGE


class TestTimestamps:
    def test_too_far_ahead(self) -> None:
        with pytest.raises(RecordsRefusedError) as caught:
            check(batch(b"a", b"b", timestamp=NOW + 7_200_000))
        assert caught.value.code is ErrorCode.INVALID_TIMESTAMP
        assert caught.value.message == (
            "One or more records have been rejected due to invalid timestamp"
        )
        assert [index for index, _ in caught.value.record_errors] == [0, 1]
        assert "is out of range" in caught.value.record_errors[0][1]

    def test_too_old(self) -> None:
        config = LogConfig(timestamp_before_max_ms=1000)
        with pytest.raises(RecordsRefusedError) as caught:
            check(batch(b"a", timestamp=NOW - 5000), config)
        assert caught.value.code is ErrorCode.INVALID_TIMESTAMP
        check(batch(b"a", timestamp=NOW - 500), config)

    def test_no_timestamp_is_fine(self) -> None:
        check(batch(b"a", timestamp=-1))
        check(batch(b"a", timestamp=-1), LogConfig(timestamp_before_max_ms=1000))

    def test_a_header_that_lies_about_its_maximum_is_corrected(self) -> None:
        validated = check(edited(GOOD, max_timestamp=NOW + 10**9))
        assert validated.headers[0].max_timestamp == NOW
        assert crc_matches(validated.records, 0, validated.headers[0])

    def test_append_time(self) -> None:
        validated = check(GOOD, LogConfig(timestamp_type="LogAppendTime"))
        assert validated.append_time_ms == NOW
        header = validated.headers[0]
        assert crc_matches(validated.records, 0, header)
        times = {r.timestamp for r in iter_records(validated.records, 0, header, limit_bytes=999)}
        assert times == {NOW}
        assert validate_for_append(GOOD, PLAIN, NOW).headers[0].attributes == 0

    def test_a_client_must_not_claim_append_time(self) -> None:
        with pytest.raises(RecordsRefusedError) as caught:
            check(edited(GOOD, attributes=8), LogConfig(timestamp_type="LogAppendTime"))
        assert caught.value.code is ErrorCode.INVALID_TIMESTAMP

    def test_the_claim_is_dropped_where_times_are_the_clients(self) -> None:
        validated = check(edited(GOOD, attributes=8))
        assert validated.headers[0].attributes == 0
        assert crc_matches(validated.records, 0, validated.headers[0])


class TestRecordByRecord:
    def test_compacted_topics_need_keys(self) -> None:
        data = build_batch([Record(0, NOW, b"k", b"v"), Record(1, NOW, None, b"v")])
        with pytest.raises(RecordsRefusedError) as caught:
            check(data, LogConfig(cleanup_compact=True))
        assert caught.value.code is ErrorCode.INVALID_RECORD
        message = f"Compacted topic cannot accept message without key in topic partition {TP}"
        assert caught.value.record_errors == ((1, message),)
        assert "due to 1 record errors in total" in str(caught.value)

    def test_full_validation_finds_what_is_inside(self) -> None:
        garbage = edited(GOOD, attributes=1)
        check(garbage)
        with pytest.raises(ApiError) as caught:
            check(garbage, LogConfig(record_validation="full"))
        assert caught.value.code is ErrorCode.INVALID_RECORD

    def test_a_decompression_bomb_is_refused(self) -> None:
        bomb = compress(Codec.ZSTD, bytes(200 << 20))
        header = read_header(GOOD)._replace(
            attributes=4, batch_length=HEADER_BYTES - 12 + len(bomb)
        )
        data = bytearray(HEADER.pack(*header) + bomb)
        write_crc(data, 0, len(data))
        with pytest.raises(ApiError) as caught:
            check(data, LogConfig(record_validation="full"))
        assert caught.value.code is ErrorCode.INVALID_RECORD


class TestCompression:
    @pytest.mark.parametrize("source", list(Codec))
    @pytest.mark.parametrize("target", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
    def test_conversion(self, source: Codec, target: str) -> None:
        data = batch(b"a" * 100, b"b" * 100, codec=source, producer_id=3, epoch=1, sequence=8)
        validated = check(data, LogConfig(compression_type=target))
        (header,) = validated.headers
        wanted = Codec.NONE if target == "uncompressed" else Codec[target.upper()]
        assert header.codec is wanted
        assert crc_matches(validated.records, 0, header)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (3, 1, 8)
        found = iter_records(validated.records, 0, header, limit_bytes=1000)
        assert [record.value for record in found] == [b"a" * 100, b"b" * 100]

    def test_producer_keeps_what_came(self) -> None:
        data = batch(b"a" * 100, codec=Codec.LZ4)
        assert check(data).records is data

    def test_what_is_heavy(self) -> None:
        config = LogConfig(compression_type="zstd")
        assert not validate_for_append(GOOD, config, NOW).conversion_is_heavy
        assert validate_for_append(batch(b"x" * 70_000), config, NOW).conversion_is_heavy
        small = batch(b"x", codec=Codec.GZIP)
        assert validate_for_append(small, config, NOW).conversion_is_heavy

    def test_too_large_after_conversion(self) -> None:
        data = batch(b"x" * 10_000, codec=Codec.ZSTD)
        with pytest.raises(ApiError) as caught:
            check(data, LogConfig(compression_type="uncompressed", max_message_bytes=5000))
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
