"""Broker keys about partitions on disk: segments, retention, flushing and compaction."""

from __future__ import annotations

from tidemill.config.constraints import at_least, between, between_or, list_of, one_of
from tidemill.config.keys import ConfigType, Section, Status, Update

_segments_and_indexes = Section("Segments and indexes")

SEGMENTS_AND_INDEXES = (
    _segments_and_indexes(
        "log.segment.bytes",
        ConfigType.INT,
        "1073741824",
        (
            "The size at which a partition starts a new segment file. Retention and compaction "
            "work on whole closed segments, so small segments free space sooner and cost more "
            "files."
        ),
        unit="bytes",
        constraint=at_least(1048576),
        update=Update.CLUSTER_WIDE,
    ),
    _segments_and_indexes(
        "log.roll.ms",
        ConfigType.LONG,
        None,
        (
            "The age at which a segment is closed even if it is not full, so that retention can "
            "reach quiet partitions. Unset, `log.roll.hours` counts."
        ),
        unit="ms",
        update=Update.CLUSTER_WIDE,
    ),
    _segments_and_indexes(
        "log.roll.hours",
        ConfigType.INT,
        "168",
        ("As `log.roll.ms`, in hours; used when that is unset."),
        unit="hours",
        constraint=at_least(1),
    ),
    _segments_and_indexes(
        "log.roll.jitter.ms",
        ConfigType.LONG,
        None,
        (
            "Up to this much is taken off the roll age at random, so that many partitions do not "
            "roll at the same moment. Unset, `log.roll.jitter.hours` counts."
        ),
        unit="ms",
        update=Update.CLUSTER_WIDE,
    ),
    _segments_and_indexes(
        "log.roll.jitter.hours",
        ConfigType.INT,
        "0",
        ("As `log.roll.jitter.ms`, in hours; used when that is unset."),
        unit="hours",
        constraint=at_least(0),
    ),
    _segments_and_indexes(
        "log.index.interval.bytes",
        ConfigType.INT,
        "4096",
        (
            "One index entry is written per this many bytes of log. Smaller means faster seeks "
            "and larger indexes."
        ),
        unit="bytes",
        constraint=at_least(0),
        update=Update.CLUSTER_WIDE,
    ),
    _segments_and_indexes(
        "log.index.size.max.bytes",
        ConfigType.INT,
        "10485760",
        ("The size of a segment's offset index at which the segment is closed."),
        unit="bytes",
        constraint=at_least(4),
        update=Update.CLUSTER_WIDE,
    ),
    _segments_and_indexes(
        "log.preallocate",
        ConfigType.BOOLEAN,
        "false",
        (
            "Whether the disk space of a new segment is reserved at once, so that a segment that "
            "was begun can be filled and lies in one piece; what is not used is given back when "
            "the next one begins. A file system that cannot do it is left alone."
        ),
        update=Update.CLUSTER_WIDE,
    ),
    _segments_and_indexes(
        "log.segment.delete.delay.ms",
        ConfigType.LONG,
        "60000",
        (
            "How long a deleted segment's files stay, renamed, before they are removed, so that "
            "readers that are still at it can finish."
        ),
        unit="ms",
        constraint=at_least(0),
        update=Update.CLUSTER_WIDE,
    ),
)

_retention = Section("Retention")

RETENTION = (
    _retention(
        "log.retention.ms",
        ConfigType.LONG,
        None,
        (
            "How long records are kept before their segment may be deleted; -1 keeps them for "
            "ever. Unset, `log.retention.minutes` and then `log.retention.hours` count. This is "
            "the time a consumer has to read its data."
        ),
        unit="ms",
        update=Update.CLUSTER_WIDE,
    ),
    _retention(
        "log.retention.minutes",
        ConfigType.INT,
        None,
        ("As `log.retention.ms`, in minutes; used when that is unset."),
        unit="minutes",
    ),
    _retention(
        "log.retention.hours",
        ConfigType.INT,
        "168",
        (
            "As `log.retention.ms`, in hours; used when neither ms nor minutes is set. A negative "
            "number keeps records for ever."
        ),
        unit="hours",
    ),
    _retention(
        "log.retention.bytes",
        ConfigType.LONG,
        "-1",
        (
            "How large a partition (not a topic) may grow before its oldest segments are deleted; "
            "-1 sets no limit."
        ),
        unit="bytes",
        update=Update.CLUSTER_WIDE,
    ),
    _retention(
        "log.retention.check.interval.ms",
        ConfigType.LONG,
        "300000",
        ("How often the broker looks for segments that retention allows to delete."),
        unit="ms",
        constraint=at_least(1),
    ),
    _retention(
        "log.cleanup.policy",
        ConfigType.LIST,
        "delete",
        (
            "What happens to old records: `delete` drops them by age and size, `compact` keeps "
            "the newest per key, both together do both. A topic's `cleanup.policy` overrides it."
        ),
        constraint=list_of("compact", "delete", empty=True),
        update=Update.CLUSTER_WIDE,
    ),
    _retention(
        "log.local.retention.ms",
        ConfigType.LONG,
        "-2",
        ("How long tiered segments stay on local disk. Tidemill keeps all data local."),
        unit="ms",
        constraint=at_least(-2),
        update=Update.CLUSTER_WIDE,
        status=Status.UNSUPPORTED,
    ),
    _retention(
        "log.local.retention.bytes",
        ConfigType.LONG,
        "-2",
        ("How much of a tiered partition stays on local disk. Tidemill keeps all data local."),
        unit="bytes",
        constraint=at_least(-2),
        update=Update.CLUSTER_WIDE,
        status=Status.UNSUPPORTED,
    ),
)

_records = Section("Records")

RECORDS = (
    _records(
        "message.max.bytes",
        ConfigType.INT,
        "1048588",
        (
            "The largest record batch accepted, after compression. Producers get an error for "
            "larger ones. Consumers of old clients must fetch at least this much."
        ),
        unit="bytes",
        constraint=at_least(0),
        update=Update.CLUSTER_WIDE,
    ),
    _records(
        "compression.type",
        ConfigType.STRING,
        "producer",
        (
            "The codec batches are stored with: `producer` keeps what the producer used, and any "
            "other name re-compresses what differs, which costs the broker CPU."
        ),
        constraint=one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        update=Update.CLUSTER_WIDE,
    ),
    _records(
        "compression.gzip.level",
        ConfigType.INT,
        "-1",
        (
            "The effort of gzip when the broker compresses: 1 is fastest, 9 smallest, -1 the "
            "library's default."
        ),
        constraint=between_or(1, 9, -1),
        update=Update.CLUSTER_WIDE,
    ),
    _records(
        "compression.lz4.level",
        ConfigType.INT,
        "9",
        ("The effort of lz4 when the broker compresses: 1 is fastest, 17 smallest."),
        constraint=between(1, 17),
        update=Update.CLUSTER_WIDE,
    ),
    _records(
        "compression.zstd.level",
        ConfigType.INT,
        "3",
        ("The effort of zstd when the broker compresses: low and negative is faster, 22 smallest."),
        constraint=between(-131072, 22),
        update=Update.CLUSTER_WIDE,
    ),
    _records(
        "log.message.timestamp.type",
        ConfigType.STRING,
        "CreateTime",
        (
            "Whose clock dates a record: `CreateTime` keeps the producer's time, `LogAppendTime` "
            "writes the broker's."
        ),
        constraint=one_of("CreateTime", "LogAppendTime"),
        update=Update.CLUSTER_WIDE,
    ),
    _records(
        "log.message.timestamp.before.max.ms",
        ConfigType.LONG,
        "9223372036854775807",
        (
            "How far in the past a producer's timestamp may lie, compared with the broker's "
            "clock, before the batch is refused. Not checked under LogAppendTime."
        ),
        unit="ms",
        constraint=at_least(0),
        update=Update.CLUSTER_WIDE,
        default_2_8="9223372036854775807, as log.message.timestamp.difference.max.ms",
    ),
    _records(
        "log.message.timestamp.after.max.ms",
        ConfigType.LONG,
        "3600000",
        (
            "How far in the future a producer's timestamp may lie before the batch is refused. A "
            "far future date would keep its segment from ever expiring. Not checked under "
            "LogAppendTime."
        ),
        unit="ms",
        constraint=at_least(0),
        update=Update.CLUSTER_WIDE,
        default_2_8="9223372036854775807, as log.message.timestamp.difference.max.ms",
    ),
)

_flushing_and_recovery = Section("Flushing and recovery")

FLUSHING_AND_RECOVERY = (
    _flushing_and_recovery(
        "log.flush.interval.messages",
        ConfigType.LONG,
        "9223372036854775807",
        (
            "How many records a partition collects before it is flushed to disk. Beyond "
            "`log.flush.policy`, and for Kafka's habits: 1 flushes each append."
        ),
        unit="records",
        constraint=at_least(1),
        update=Update.CLUSTER_WIDE,
    ),
    _flushing_and_recovery(
        "log.flush.interval.ms",
        ConfigType.LONG,
        None,
        (
            "The longest that records wait in the page cache before they are flushed. Unset, "
            "`log.flush.scheduler.interval.ms` counts."
        ),
        unit="ms",
        update=Update.CLUSTER_WIDE,
    ),
    _flushing_and_recovery(
        "log.flush.scheduler.interval.ms",
        ConfigType.LONG,
        "9223372036854775807",
        ("How often the broker looks for partitions whose flush time has come."),
        unit="ms",
    ),
    _flushing_and_recovery(
        "log.flush.offset.checkpoint.interval.ms",
        ConfigType.INT,
        "60000",
        (
            "How often recovery points are written. Tidemill writes them together with high "
            "watermarks, every `replica.high.watermark.checkpoint.interval.ms`."
        ),
        unit="ms",
        constraint=at_least(0),
        status=Status.ACCEPTED,
    ),
    _flushing_and_recovery(
        "log.flush.start.offset.checkpoint.interval.ms",
        ConfigType.INT,
        "60000",
        (
            "How often partitions' first offsets are written. Tidemill writes them together with "
            "high watermarks, every `replica.high.watermark.checkpoint.interval.ms`."
        ),
        unit="ms",
        constraint=at_least(0),
        status=Status.ACCEPTED,
    ),
    _flushing_and_recovery(
        "num.recovery.threads.per.data.dir",
        ConfigType.INT,
        "2",
        (
            "Threads that check logs after a crash. Tidemill checks only what was written since "
            "the last flush, with the pool it also flushes with."
        ),
        unit="threads",
        constraint=at_least(1),
        update=Update.CLUSTER_WIDE,
        status=Status.ACCEPTED,
        default_2_8="1",
    ),
    _flushing_and_recovery(
        "log.dir.failure.timeout.ms",
        ConfigType.LONG,
        "30000",
        (
            "How long Kafka waits to report a failed directory before it shuts down. Tidemill "
            "takes a failed directory's partitions offline at once and keeps serving the others."
        ),
        unit="ms",
        constraint=at_least(1),
        status=Status.ACCEPTED,
    ),
    _flushing_and_recovery(
        "log.cleaner.enable",
        ConfigType.BOOLEAN,
        "true",
        (
            "Whether compaction runs. Off, topics with `cleanup.policy=compact` grow without end, "
            "group offsets included."
        ),
    ),
)

_compaction = Section("Compaction")

COMPACTION = (
    _compaction(
        "log.cleaner.threads",
        ConfigType.INT,
        "1",
        (
            "Threads that compact. Tidemill compacts in its pool of workers, one partition at a "
            "time."
        ),
        unit="threads",
        constraint=at_least(0),
        update=Update.CLUSTER_WIDE,
        status=Status.ACCEPTED,
    ),
    _compaction(
        "log.cleaner.io.max.bytes.per.second",
        ConfigType.DOUBLE,
        "1.7976931348623157E308",
        (
            "The most that compaction reads and writes per second, so that it does not take the "
            "disk from clients."
        ),
        unit="bytes per second",
        update=Update.CLUSTER_WIDE,
    ),
    _compaction(
        "log.cleaner.dedupe.buffer.size",
        ConfigType.LONG,
        "134217728",
        (
            "The memory for the table of newest offsets per key while compacting, at some 160 "
            "bytes a key. When it is full, the pass covers only part of the log."
        ),
        unit="bytes",
        update=Update.CLUSTER_WIDE,
    ),
    _compaction(
        "log.cleaner.io.buffer.size",
        ConfigType.INT,
        "524288",
        ("The memory for reading and writing while compacting."),
        unit="bytes",
        constraint=at_least(0),
        update=Update.CLUSTER_WIDE,
    ),
    _compaction(
        "log.cleaner.io.buffer.load.factor",
        ConfigType.DOUBLE,
        "0.9",
        (
            "How full the table of newest offsets may get. Higher covers more log per pass, with "
            "more collisions."
        ),
        unit="ratio",
        update=Update.CLUSTER_WIDE,
    ),
    _compaction(
        "log.cleaner.backoff.ms",
        ConfigType.LONG,
        "15000",
        ("How long compaction sleeps when no partition needs it."),
        unit="ms",
        constraint=at_least(0),
        update=Update.CLUSTER_WIDE,
    ),
    _compaction(
        "log.cleaner.min.cleanable.ratio",
        ConfigType.DOUBLE,
        "0.5",
        (
            "The share of a log that must be uncompacted before it is worth a pass. Lower keeps "
            "logs cleaner and costs more I/O."
        ),
        unit="ratio",
        constraint=between(0, 1),
        update=Update.CLUSTER_WIDE,
    ),
    _compaction(
        "log.cleaner.delete.retention.ms",
        ConfigType.LONG,
        "86400000",
        (
            "How long a tombstone stays after compaction reached it. A consumer that needs longer "
            "to read from the start may miss the deletion."
        ),
        unit="ms",
        constraint=at_least(0),
        update=Update.CLUSTER_WIDE,
    ),
    _compaction(
        "log.cleaner.min.compaction.lag.ms",
        ConfigType.LONG,
        "0",
        (
            "How long a record is safe from compaction, so that consumers see every update within "
            "that time."
        ),
        unit="ms",
        constraint=at_least(0),
        update=Update.CLUSTER_WIDE,
    ),
    _compaction(
        "log.cleaner.max.compaction.lag.ms",
        ConfigType.LONG,
        "9223372036854775807",
        (
            "After this time a record is compacted even if `log.cleaner.min.cleanable.ratio` is "
            "not reached. For data that must be gone by a deadline."
        ),
        unit="ms",
        constraint=at_least(1),
        update=Update.CLUSTER_WIDE,
    ),
)
