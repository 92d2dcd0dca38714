"""The settings of one topic that its logs obey, as typed values.

`from_settings` reads them from a resolved topic configuration; tests and tools write them down
directly. A log's settings are replaced as a whole by `Log.reconfigure`.
"""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from typing import Literal, Protocol, cast

FlushPolicy = Literal["ack", "async"]
TimestampType = Literal["CreateTime", "LogAppendTime"]
RecordValidation = Literal["batch", "full"]

NO_LIMIT = -1
FOREVER_MS = 2**63 - 1


class Settings(Protocol):
    """Typed getters by Kafka's key names, as `tidemill.config` offers them."""

    def bool(self, key: builtins.str) -> builtins.bool: ...
    def int(self, key: builtins.str) -> builtins.int: ...
    def float(self, key: builtins.str) -> builtins.float: ...
    def str(self, key: builtins.str) -> builtins.str: ...
    def list(self, key: builtins.str) -> builtins.list[builtins.str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """One topic's settings; the defaults are those of a topic without overrides."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3600 * 1000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * 24 * 3600 * 1000
    retention_bytes: int = NO_LIMIT
    preallocate: bool = False
    file_delete_delay_ms: int = 60_000
    flush_messages: int = FOREVER_MS
    flush_ms: int = FOREVER_MS
    flush_policy: FlushPolicy = "ack"
    max_message_bytes: int = 1_048_588
    timestamp_type: TimestampType = "CreateTime"
    timestamp_before_max_ms: int = FOREVER_MS
    timestamp_after_max_ms: int = 3_600_000
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    cleanup_delete: bool = True
    cleanup_compact: bool = False
    min_cleanable_ratio: float = 0.5
    delete_retention_ms: int = 24 * 3600 * 1000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = FOREVER_MS
    record_validation: RecordValidation = "batch"
    is_internal: bool = False

    @property
    def decodes_records(self) -> bool:
        """Whether every record is looked at on append, not only its batch's header."""
        return self.cleanup_compact or self.is_internal or self.record_validation == "full"

    @property
    def roll_ms(self) -> int:
        """How old a segment may get: only closed ones are compacted, so that must not wait."""
        if self.cleanup_compact and self.max_compaction_lag_ms > 0:
            return min(self.segment_ms, self.max_compaction_lag_ms)
        return self.segment_ms

    @staticmethod
    def from_settings(settings: Settings, *, is_internal: bool = False) -> LogConfig:
        """The log's part of a resolved topic configuration."""
        policies = settings.list("cleanup.policy")
        return LogConfig(
            segment_bytes=settings.int("segment.bytes"),
            segment_ms=settings.int("segment.ms"),
            segment_jitter_ms=settings.int("segment.jitter.ms"),
            segment_index_bytes=settings.int("segment.index.bytes"),
            index_interval_bytes=settings.int("index.interval.bytes"),
            retention_ms=settings.int("retention.ms"),
            retention_bytes=settings.int("retention.bytes"),
            preallocate=settings.bool("preallocate"),
            file_delete_delay_ms=settings.int("file.delete.delay.ms"),
            flush_messages=settings.int("flush.messages"),
            flush_ms=settings.int("flush.ms"),
            flush_policy=cast(FlushPolicy, settings.str("flush.policy")),
            max_message_bytes=settings.int("max.message.bytes"),
            timestamp_type=cast(TimestampType, settings.str("message.timestamp.type")),
            timestamp_before_max_ms=settings.int("message.timestamp.before.max.ms"),
            timestamp_after_max_ms=settings.int("message.timestamp.after.max.ms"),
            compression_type=settings.str("compression.type"),
            compression_gzip_level=settings.int("compression.gzip.level"),
            compression_lz4_level=settings.int("compression.lz4.level"),
            compression_zstd_level=settings.int("compression.zstd.level"),
            cleanup_delete="delete" in policies,
            cleanup_compact="compact" in policies,
            min_cleanable_ratio=settings.float("min.cleanable.dirty.ratio"),
            delete_retention_ms=settings.int("delete.retention.ms"),
            min_compaction_lag_ms=settings.int("min.compaction.lag.ms"),
            max_compaction_lag_ms=settings.int("max.compaction.lag.ms"),
            record_validation=cast(RecordValidation, settings.str("record.validation")),
            is_internal=is_internal,
        )
