"""Judging the records of a produce request before they reach the log.

`validate_for_append` looks at batch headers only and costs microseconds. Where single records have
to be looked at or rewritten - compacted and internal topics, `record.validation=full`, another
`compression.type`, doubtful timestamps - it says `needs_conversion`, and `convert` does that work:
in an executor when `conversion_is_heavy`. Both are pure. The codes are those of Kafka's validator.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemill.errors import ApiError, ErrorCode, WireError
from tidemill.storage.log_config import FOREVER_MS, LogConfig
from tidemill.types import TopicPartition
from tidemill.wire.batch import (
    ATTRIBUTES_POS,
    CONTROL_BIT,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    UnsupportedMagicError,
    crc_matches,
    iter_headers,
    pack_batch,
    read_header,
    stamp_append_time,
    write_crc,
)
from tidemill.wire.compression import Codec, compress
from tidemill.wire.record_checks import RecordsSummary, validate_records
from tidemill.wire.records import records_body

HEAVY_BYTES = 64 * 1024
DECOMPRESSED_BYTES_MAX = 104_857_600
"""As much as one request may hold; a batch that inflates to more is refused."""

_CODEC_MASK = 0x07
RECORD_BYTES_MIN = 7
"""The smallest record there is: seven one-byte fields, and nothing in them."""
_CODEC_MAX = max(Codec)
_NO_TIMESTAMP = -1
_SHOWN_ERRORS_MAX = 3
_CODECS = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


class RecordsRefusedError(ApiError):
    """Single records are at fault; `record_errors` names them by their index in the batch."""

    def __init__(
        self, code: ErrorCode, message: str, record_errors: tuple[tuple[int, str], ...]
    ) -> None:
        self.record_errors = record_errors
        super().__init__(code, message)


class Validated(NamedTuple):
    """Batches that may be appended, once converted if `needs_conversion`."""

    records: Buffer
    headers: tuple[BatchHeader, ...]
    append_time_ms: int = _NO_TIMESTAMP
    needs_conversion: bool = False

    @property
    def conversion_is_heavy(self) -> bool:
        """Whether `convert` belongs in an executor: big, or of unknown size once inflated."""
        return self.needs_conversion and (
            len(self.records) > HEAVY_BYTES
            or any(header.attributes & _CODEC_MASK for header in self.headers)
        )


def validate_for_append(
    records: Buffer | None,
    config: LogConfig,
    now_ms: int,
    *,
    topic_partition: TopicPartition | None = None,
) -> Validated:
    """Check what a client wants to append: exactly one sound batch of records (rule E2)."""
    header = _only_batch(records, topic_partition)
    assert records is not None  # _only_batch refused it otherwise
    size = header.batch_length + LOG_OVERHEAD_BYTES
    if len(records) > size:
        records = memoryview(records)[:size]
    _check_batch(records, header, config, topic_partition)
    if config.timestamp_type == "LogAppendTime":
        return _with_append_time(records, header, config, now_ms)
    if header.attributes & TIMESTAMP_TYPE_BIT:
        records, header = _as_create_time(records)
    doubtful = (
        header.max_timestamp > now_ms + config.timestamp_after_max_ms
        or config.timestamp_before_max_ms != FOREVER_MS
        or config.decodes_records
        or _changes_codec(header, config)
    )
    return Validated(records, (header,), _NO_TIMESTAMP, doubtful)


def _only_batch(records: Buffer | None, where: TopicPartition | None) -> BatchHeader:
    if not records:
        raise ApiError(
            ErrorCode.INVALID_RECORD, f"Produce requests need a record batch for {where}."
        )
    try:
        header = read_header(records)
        if header.batch_length + LOG_OVERHEAD_BYTES == len(records):
            return header  # The usual case: one batch, nothing after it.
        batches = list(iter_headers(records))
    except UnsupportedMagicError as error:
        raise ApiError(ErrorCode.INVALID_RECORD, str(error)) from None
    except WireError as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
    if len(batches) != 1:
        raise ApiError(
            ErrorCode.INVALID_RECORD,
            f"Produce requests may hold exactly one record batch for {where}, not {len(batches)}.",
        )
    return header


def _check_batch(
    records: Buffer, header: BatchHeader, config: LogConfig, where: TopicPartition | None
) -> None:
    size = len(records)
    if header.base_offset != 0:
        raise _invalid(f"The base offset of a batch for {where} is {header.base_offset}, not 0.")
    _check_size(size, config, where)
    if not crc_matches(records, 0, header):
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"A batch for {where} fails its checksum.")
    if header.last_offset_delta < 0 or header.record_count != header.last_offset_delta + 1:
        raise _invalid(
            f"A batch for {where} counts {header.record_count} records over "
            f"{header.last_offset_delta + 1} offsets."
        )
    attributes = header.attributes
    body_bytes = size - HEADER_BYTES
    if not attributes & _CODEC_MASK and header.record_count * RECORD_BYTES_MIN > body_bytes:
        raise _invalid(
            f"A batch for {where} counts {header.record_count} records in {body_bytes} bytes."
        )
    if attributes & CONTROL_BIT:
        raise _invalid(f"Clients are not allowed to write control records, as one does to {where}.")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise _invalid(
            f"Invalid sequence number {header.base_sequence} in a batch of producer "
            f"{header.producer_id}."
        )
    if attributes & TRANSACTIONAL_BIT and header.producer_id < 0:
        raise _invalid(f"A transactional batch for {where} has no producer id.")
    if attributes & _CODEC_MASK > _CODEC_MAX:
        raise ApiError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"A batch for {where} names unknown compression type {attributes & _CODEC_MASK}.",
        )


def _check_size(size: int, config: LogConfig, where: TopicPartition | None) -> None:
    if size > config.max_message_bytes:
        raise ApiError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"The record batch size in the append to {where} is {size} bytes which exceeds the "
            f"maximum configured value of {config.max_message_bytes}.",
        )
    if size > config.segment_bytes:
        raise ApiError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"Message batch size is {size} bytes in append to partition {where}, which exceeds "
            f"the maximum configured segment size of {config.segment_bytes}.",
        )


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_RECORD, message)


def _with_append_time(
    records: Buffer, header: BatchHeader, config: LogConfig, now_ms: int
) -> Validated:
    """The batch with the broker's time in place of its own."""
    if header.attributes & TIMESTAMP_TYPE_BIT:
        message = "Producer should not set timestamp type to LogAppendTime."
        errors = tuple((index, message) for index in range(min(header.record_count, 10)))
        raise RecordsRefusedError(ErrorCode.INVALID_TIMESTAMP, _TIMESTAMPS_REFUSED, errors)
    copy = bytearray(records)
    stamp_append_time(copy, 0, now_ms)
    stamped = read_header(copy)
    needs_conversion = config.decodes_records or _changes_codec(header, config)
    return Validated(copy, (stamped,), now_ms, needs_conversion)


def _as_create_time(records: Buffer) -> tuple[Buffer, BatchHeader]:
    """The batch without the mark that its times are a broker's: this topic keeps the client's."""
    copy = bytearray(records)
    copy[ATTRIBUTES_POS + 1] &= ~TIMESTAMP_TYPE_BIT & 0xFF
    write_crc(copy, 0, len(copy))
    return copy, read_header(copy)


def _changes_codec(header: BatchHeader, config: LogConfig) -> bool:
    if config.compression_type == "producer":
        return False
    return header.attributes & _CODEC_MASK != _CODECS[config.compression_type]


# --- looking at single records, and rewriting batches -------------------------------------------

_TIMESTAMPS_REFUSED = "One or more records have been rejected due to invalid timestamp"


def convert(
    validated: Validated,
    config: LogConfig,
    now_ms: int,
    *,
    topic_partition: TopicPartition | None = None,
) -> Validated:
    """Check every record and give the batch the topic's compression; may take milliseconds."""
    (header,) = validated.headers
    records = validated.records
    try:
        header = _check_records(records, header, config, now_ms, topic_partition)
        if _changes_codec(header, config) or header != validated.headers[0]:
            records = _repack(records, validated.headers[0], header, config)
            header = read_header(records)
    except WireError as error:
        # Without the frames, which hold all that was decompressed.
        error = error.with_traceback(None)
        raise _invalid(f"A batch for {topic_partition} holds bad records: {error}") from error
    _check_size(header.size_bytes, config, topic_partition)
    return Validated(records, (header,), validated.append_time_ms)


def _check_records(
    records: Buffer,
    header: BatchHeader,
    config: LogConfig,
    now_ms: int,
    where: TopicPartition | None,
) -> BatchHeader:
    """The header with its maximum timestamp corrected; raises for records at fault."""
    checks_time = config.timestamp_type == "CreateTime" and header.base_timestamp != _NO_TIMESTAMP
    summary = validate_records(
        records,
        0,
        header,
        limit_bytes=DECOMPRESSED_BYTES_MAX,
        require_keys=config.cleanup_compact,
        timestamp_min=now_ms - config.timestamp_before_max_ms if checks_time else None,
        timestamp_max=now_ms + config.timestamp_after_max_ms if checks_time else None,
    )
    if summary.problems:
        raise _refused(summary, where)
    if summary.max_timestamp != header.max_timestamp and config.timestamp_type == "CreateTime":
        return header._replace(max_timestamp=summary.max_timestamp)
    return header


def _refused(summary: RecordsSummary, where: TopicPartition | None) -> RecordsRefusedError:
    problems = summary.problems
    code = problems[0].code
    suffix = f" in topic partition {where}" if code is ErrorCode.INVALID_RECORD else ""
    errors = tuple(
        (problem.record_index, problem.message.rstrip(".") + suffix) for problem in problems
    )
    if code is ErrorCode.INVALID_TIMESTAMP:
        return RecordsRefusedError(code, _TIMESTAMPS_REFUSED, errors)
    shown = ", ".join(
        f"RecordError(batchIndex={index}, message='{message}')"
        for index, message in errors[:_SHOWN_ERRORS_MAX]
    )
    message = (
        f"One or more records have been rejected due to {summary.problem_count} record errors in "
        f"total, and only showing the first three errors at most: [{shown}]"
    )
    return RecordsRefusedError(ErrorCode.INVALID_RECORD, message, errors)


def _repack(records: Buffer, source: BatchHeader, header: BatchHeader, config: LogConfig) -> bytes:
    """The same records under a corrected header, in the topic's compression."""
    if not _changes_codec(header, config):
        return pack_batch(header, memoryview(records)[HEADER_BYTES : source.size_bytes])
    body = records_body(records, 0, source, limit_bytes=DECOMPRESSED_BYTES_MAX)
    codec = _CODECS[config.compression_type]
    attributes = header.attributes & ~_CODEC_MASK | codec
    packed = body if codec is Codec.NONE else compress(codec, body, _level(codec, config))
    return pack_batch(header._replace(attributes=attributes), packed)


def _level(codec: Codec, config: LogConfig) -> int | None:
    levels = {
        Codec.GZIP: config.compression_gzip_level,
        Codec.LZ4: config.compression_lz4_level,
        Codec.ZSTD: config.compression_zstd_level,
    }
    level = levels.get(codec)
    return None if codec is Codec.GZIP and level == -1 else level
