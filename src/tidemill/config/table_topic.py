"""The keys of a topic that Kafka has, too."""

from __future__ import annotations

from tidemill.config.constraints import (
    at_least,
    between,
    between_or,
    list_of,
    one_of,
    throttled_replicas,
)
from tidemill.config.keys import ConfigType, Section, Status

_topic = Section("Topics")

TOPIC = (
    _topic(
        "cleanup.policy",
        ConfigType.LIST,
        "delete",
        (
            "What happens to old records: `delete` drops them by age and size, `compact` keeps "
            "the newest per key, both together do both."
        ),
        constraint=list_of("compact", "delete", empty=True),
    ),
    _topic(
        "compression.type",
        ConfigType.STRING,
        "producer",
        (
            "The codec batches are stored with: `producer` keeps what the producer used, any "
            "other name re-compresses what differs."
        ),
        constraint=one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    ),
    _topic(
        "compression.gzip.level",
        ConfigType.INT,
        "-1",
        (
            "The effort of gzip when the broker compresses: 1 is fastest, 9 smallest, -1 the "
            "library's default."
        ),
        constraint=between_or(1, 9, -1),
    ),
    _topic(
        "compression.lz4.level",
        ConfigType.INT,
        "9",
        ("The effort of lz4 when the broker compresses: 1 is fastest, 17 smallest."),
        constraint=between(1, 17),
    ),
    _topic(
        "compression.zstd.level",
        ConfigType.INT,
        "3",
        ("The effort of zstd when the broker compresses: low and negative is faster, 22 smallest."),
        constraint=between(-131072, 22),
    ),
    _topic(
        "delete.retention.ms",
        ConfigType.LONG,
        "86400000",
        (
            "How long a tombstone stays after compaction reached it; the time a consumer has to "
            "read the topic from its start and still see every deletion."
        ),
        unit="ms",
        constraint=at_least(0),
    ),
    _topic(
        "file.delete.delay.ms",
        ConfigType.LONG,
        "60000",
        ("How long a deleted segment's files stay, renamed, before they are removed."),
        unit="ms",
        constraint=at_least(0),
    ),
    _topic(
        "flush.messages",
        ConfigType.LONG,
        "9223372036854775807",
        ("How many records are collected before a flush to disk; 1 flushes each append."),
        unit="records",
        constraint=at_least(1),
    ),
    _topic(
        "flush.ms",
        ConfigType.LONG,
        "9223372036854775807",
        ("The longest that records wait in the page cache before they are flushed."),
        unit="ms",
        constraint=at_least(0),
    ),
    _topic(
        "follower.replication.throttled.replicas",
        ConfigType.LIST,
        "",
        (
            "The replicas whose copying is throttled at the receiving end, as `PARTITION:BROKER` "
            "pairs, or `*` for all."
        ),
        constraint=throttled_replicas(),
    ),
    _topic(
        "leader.replication.throttled.replicas",
        ConfigType.LIST,
        "",
        (
            "The replicas whose copying is throttled at the sending end, as `PARTITION:BROKER` "
            "pairs, or `*` for all."
        ),
        constraint=throttled_replicas(),
    ),
    _topic(
        "index.interval.bytes",
        ConfigType.INT,
        "4096",
        ("One index entry is written per this many bytes of log."),
        unit="bytes",
        constraint=at_least(0),
    ),
    _topic(
        "local.retention.bytes",
        ConfigType.LONG,
        "-2",
        ("How much of a tiered partition stays on local disk; -2 means `retention.bytes`."),
        unit="bytes",
        constraint=at_least(-2),
        status=Status.UNSUPPORTED,
    ),
    _topic(
        "local.retention.ms",
        ConfigType.LONG,
        "-2",
        ("How long tiered segments stay on local disk; -2 means `retention.ms`."),
        unit="ms",
        constraint=at_least(-2),
        status=Status.UNSUPPORTED,
    ),
    _topic(
        "max.compaction.lag.ms",
        ConfigType.LONG,
        "9223372036854775807",
        (
            "After this time a record is compacted even if `min.cleanable.dirty.ratio` is not "
            "reached."
        ),
        unit="ms",
        constraint=at_least(1),
    ),
    _topic(
        "max.message.bytes",
        ConfigType.INT,
        "1048588",
        ("The largest record batch accepted, after compression."),
        unit="bytes",
        constraint=at_least(0),
    ),
    _topic(
        "message.timestamp.type",
        ConfigType.STRING,
        "CreateTime",
        (
            "Whose clock dates a record: `CreateTime` keeps the producer's time, `LogAppendTime` "
            "writes the broker's."
        ),
        constraint=one_of("CreateTime", "LogAppendTime"),
    ),
    _topic(
        "message.timestamp.before.max.ms",
        ConfigType.LONG,
        "9223372036854775807",
        ("How far in the past a producer's timestamp may lie before the batch is refused."),
        unit="ms",
        constraint=at_least(0),
        default_2_8="9223372036854775807, as message.timestamp.difference.max.ms",
    ),
    _topic(
        "message.timestamp.after.max.ms",
        ConfigType.LONG,
        "3600000",
        ("How far in the future a producer's timestamp may lie before the batch is refused."),
        unit="ms",
        constraint=at_least(0),
        default_2_8="9223372036854775807, as message.timestamp.difference.max.ms",
    ),
    _topic(
        "min.cleanable.dirty.ratio",
        ConfigType.DOUBLE,
        "0.5",
        ("The share of the log that must be uncompacted before it is worth a pass."),
        unit="ratio",
        constraint=between(0, 1),
    ),
    _topic(
        "min.compaction.lag.ms",
        ConfigType.LONG,
        "0",
        ("How long a record is safe from compaction."),
        unit="ms",
        constraint=at_least(0),
    ),
    _topic(
        "min.insync.replicas",
        ConfigType.INT,
        "1",
        (
            "How many replicas must hold a record before a produce with acks=all is answered; "
            "with fewer in sync, such produces are refused. Unless set it is 2 for topics with 3 "
            "or more replicas and 1 for others."
        ),
        unit="replicas",
        constraint=at_least(1),
    ),
    _topic(
        "preallocate",
        ConfigType.BOOLEAN,
        "false",
        ("Whether the disk space of a new segment is reserved at once."),
    ),
    _topic(
        "remote.log.copy.disable",
        ConfigType.BOOLEAN,
        "false",
        ("Stops copying segments to the remote store."),
        status=Status.UNSUPPORTED,
    ),
    _topic(
        "remote.log.delete.on.disable",
        ConfigType.BOOLEAN,
        "false",
        ("Whether remote segments are deleted when tiered storage is switched off for the topic."),
        status=Status.UNSUPPORTED,
    ),
    _topic(
        "remote.storage.enable",
        ConfigType.BOOLEAN,
        "false",
        (
            "Whether old segments of the topic move to a remote store. Tidemill keeps all data "
            "local."
        ),
        status=Status.UNSUPPORTED,
    ),
    _topic(
        "retention.bytes",
        ConfigType.LONG,
        "-1",
        (
            "How large a partition may grow before its oldest segments are deleted; -1 sets no "
            "limit."
        ),
        unit="bytes",
    ),
    _topic(
        "retention.ms",
        ConfigType.LONG,
        "604800000",
        (
            "How long records are kept before their segment may be deleted; -1 keeps them for "
            "ever. This is the time a consumer has to read its data."
        ),
        unit="ms",
        constraint=at_least(-1),
    ),
    _topic(
        "segment.bytes",
        ConfigType.INT,
        "1073741824",
        ("The size at which a partition starts a new segment file."),
        unit="bytes",
        constraint=at_least(1048576),
    ),
    _topic(
        "segment.index.bytes",
        ConfigType.INT,
        "10485760",
        ("The size of a segment's offset index at which the segment is closed."),
        unit="bytes",
        constraint=at_least(4),
    ),
    _topic(
        "segment.jitter.ms",
        ConfigType.LONG,
        "0",
        (
            "Up to this much is taken off `segment.ms` at random, so that many partitions do not "
            "roll at the same moment."
        ),
        unit="ms",
        constraint=at_least(0),
    ),
    _topic(
        "segment.ms",
        ConfigType.LONG,
        "604800000",
        ("The age at which a segment is closed even if it is not full."),
        unit="ms",
        constraint=at_least(1),
    ),
    _topic(
        "unclean.leader.election.enable",
        ConfigType.BOOLEAN,
        "false",
        (
            "Whether a replica that is behind may lead when no other is left. On, acknowledged "
            "records can be lost."
        ),
    ),
)
