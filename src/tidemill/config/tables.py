"""All keys by name, of brokers, topics and groups, and what topics and groups inherit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from tidemill.config import (
    table_cluster,
    table_group_settings,
    table_groups,
    table_log,
    table_own,
    table_requests,
    table_security,
    table_server,
    table_share,
    table_tiered,
    table_tls,
    table_topic,
)
from tidemill.config.keys import ConfigKey


def _by_name(*groups: Iterable[ConfigKey]) -> Mapping[str, ConfigKey]:
    return MappingProxyType({key.name: key for group in groups for key in group})


BROKER_KEYS: Final = _by_name(
    table_server.IDENTITY_AND_STORAGE,
    table_server.LISTENERS_AND_CONNECTIONS,
    table_requests.REQUESTS,
    table_requests.TOPICS,
    table_own.OWN,
    table_log.SEGMENTS_AND_INDEXES,
    table_log.RETENTION,
    table_log.RECORDS,
    table_log.FLUSHING_AND_RECOVERY,
    table_log.COMPACTION,
    table_cluster.REPLICATION,
    table_cluster.CLUSTER,
    table_own.ZOOKEEPER,
    table_groups.CONSUMER_GROUPS,
    table_groups.OFFSETS,
    table_groups.TRANSACTIONS_AND_PRODUCERS,
    table_requests.QUOTAS_AND_METRICS,
    table_security.ACCESS,
    table_tls.TLS,
    table_security.SASL,
    table_share.SHARE_AND_STREAMS_GROUPS,
    table_tiered.TIERED_STORAGE,
    table_cluster.METADATA_QUORUM,
)

DYNAMIC_ONLY_KEYS: Final = _by_name(table_own.DYNAMIC_ONLY)

TOPIC_KEYS: Final = _by_name(table_topic.TOPIC, table_own.OWN_TOPIC)

GROUP_KEYS: Final = _by_name(table_group_settings.GROUP, table_group_settings.SHARE_AND_STREAMS)

# Broker keys that say the same thing in other units, the one that counts first.
BROKER_SYNONYMS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        name: group
        for group in (
            ("log.roll.ms", "log.roll.hours"),
            ("log.roll.jitter.ms", "log.roll.jitter.hours"),
            ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
            ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
        )
        for name in group
        # Kafka links the scheduler's key only from `log.flush.interval.ms`.
        if name != "log.flush.scheduler.interval.ms"
    }
)

# The broker key that a topic key falls back to.
TOPIC_FALLBACKS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "cleanup.policy": "log.cleanup.policy",
        "compression.gzip.level": "compression.gzip.level",
        "compression.lz4.level": "compression.lz4.level",
        "compression.type": "compression.type",
        "compression.zstd.level": "compression.zstd.level",
        "delete.retention.ms": "log.cleaner.delete.retention.ms",
        "file.delete.delay.ms": "log.segment.delete.delay.ms",
        "flush.messages": "log.flush.interval.messages",
        "flush.ms": "log.flush.interval.ms",
        "flush.policy": "log.flush.policy",
        "index.interval.bytes": "log.index.interval.bytes",
        "local.retention.bytes": "log.local.retention.bytes",
        "local.retention.ms": "log.local.retention.ms",
        "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
        "max.message.bytes": "message.max.bytes",
        "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
        "message.timestamp.type": "log.message.timestamp.type",
        "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
        "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
        "min.insync.replicas": "min.insync.replicas",
        "preallocate": "log.preallocate",
        "record.validation": "record.validation",
        "retention.bytes": "log.retention.bytes",
        "retention.ms": "log.retention.ms",
        "segment.bytes": "log.segment.bytes",
        "segment.index.bytes": "log.index.size.max.bytes",
        "segment.jitter.ms": "log.roll.jitter.ms",
        "segment.ms": "log.roll.ms",
        "unclean.leader.election.enable": "unclean.leader.election.enable",
    }
)

# The broker key that a group key falls back to; a few have none.
GROUP_FALLBACKS: Final[Mapping[str, str]] = MappingProxyType(
    {name: f"group.{name}" for name in GROUP_KEYS if f"group.{name}" in BROKER_KEYS}
)
