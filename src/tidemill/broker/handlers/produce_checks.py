"""What Produce asks of the records of one partition before anything looks into them."""

from __future__ import annotations

import struct

from tidemill.errors import ApiError, ErrorCode
from tidemill.storage.validate import RecordsRefusedError
from tidemill.wire.batch import (
    ATTRIBUTES_POS,
    LENGTH_POS,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_POS,
    TRANSACTIONAL_BIT,
)
from tidemill.wire.compression import Codec

_CODEC_MASK = 0x07
_LENGTH_MIN = 14
"""The shortest that any message format has had: below, the length field itself is broken."""
_ZSTD_FROM_VERSION = 7

_unpack_length = struct.Struct(">i").unpack_from

Records = memoryview | bytearray | bytes


def check_batch(records: Records | None, version: int) -> Records:
    """The one record batch in `records`, without an unfinished one behind it.

    Kafka allows exactly one batch per partition since version 3, and drops a torn tail.
    """
    end = 0 if records is None else _batch_end(records, 0)
    if records is None or end == 0:
        raise ApiError(ErrorCode.INVALID_RECORD, "there is no record batch")
    if records[MAGIC_POS] != MAGIC:
        raise _wrong_format(records[MAGIC_POS])
    attributes = records[ATTRIBUTES_POS + 1]
    if attributes & _CODEC_MASK == Codec.ZSTD and version < _ZSTD_FROM_VERSION:
        raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce v7")
    if attributes & TRANSACTIONAL_BIT:
        raise ApiError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "no transaction can be open"
        )
    if end == len(records):
        return records
    if _batch_end(records, end):
        raise ApiError(ErrorCode.INVALID_RECORD, "there is more than one record batch")
    return records[:end]


def _wrong_format(magic: int) -> ApiError:
    """Old message sets are refused as records, unknown formats as corruption, as Kafka does."""
    if magic < MAGIC:
        return ApiError(ErrorCode.INVALID_RECORD, "the record batch is not of format v2")
    why = f"Invalid magic found in record: {magic}"
    return RecordsRefusedError(ErrorCode.CORRUPT_MESSAGE, why, ())


def _batch_end(records: Records, start: int) -> int:
    """Where the batch at `start` ends, or 0 if it is not all there."""
    left_bytes = len(records) - start
    if left_bytes <= ATTRIBUTES_POS + 1:
        return 0
    length: int = _unpack_length(records, start + LENGTH_POS)[0]
    if length < _LENGTH_MIN:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"a record batch claims {length} bytes")
    size_bytes = LOG_OVERHEAD_BYTES + length
    return start + size_bytes if size_bytes <= left_bytes else 0
