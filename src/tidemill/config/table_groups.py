"""Broker keys about coordinators: consumer groups, offsets and transactions."""

from __future__ import annotations

from tidemill.config.constraints import any_list, at_least, list_of, one_of_ignoring_case
from tidemill.config.keys import ConfigType, Section, Status, Update

_consumer_groups = Section("Consumer groups")

CONSUMER_GROUPS = (
    _consumer_groups(
        "group.initial.rebalance.delay.ms",
        ConfigType.INT,
        "3000",
        (
            "How long an empty group waits for more members before its first assignment. Longer "
            "means fewer rebalances at start, shorter a faster first record."
        ),
        unit="ms",
    ),
    _consumer_groups(
        "group.min.session.timeout.ms",
        ConfigType.INT,
        "6000",
        ("The shortest session timeout a member of a classic group may ask for."),
        unit="ms",
    ),
    _consumer_groups(
        "group.max.session.timeout.ms",
        ConfigType.INT,
        "1800000",
        (
            "The longest session timeout a member of a classic group may ask for. Longer means "
            "slower notice of dead members."
        ),
        unit="ms",
    ),
    _consumer_groups(
        "group.max.size",
        ConfigType.INT,
        "2147483647",
        ("How many members a classic group may have; further ones are refused."),
        unit="members",
        constraint=at_least(1),
    ),
    _consumer_groups(
        "group.coordinator.rebalance.protocols",
        ConfigType.LIST,
        "classic,consumer,streams",
        ("The group protocols that are on offer: `classic`, `consumer`, `share` and `streams`."),
        constraint=list_of("consumer", "classic", "share", "streams"),
    ),
    _consumer_groups(
        "group.consumer.assignors",
        ConfigType.LIST,
        "uniform,range",
        ("The server-side ways to assign partitions, best first; the first is the default."),
        constraint=any_list(),
    ),
    _consumer_groups(
        "group.consumer.assignment.interval.ms",
        ConfigType.INT,
        "1000",
        ("The shortest time between two new assignments of a group of the `consumer` protocol."),
        unit="ms",
        constraint=at_least(0),
        update=Update.CLUSTER_WIDE,
    ),
    _consumer_groups(
        "group.consumer.min.assignment.interval.ms",
        ConfigType.INT,
        "0",
        ("The lowest value a group may set for its assignment interval."),
        unit="ms",
        constraint=at_least(0),
    ),
    _consumer_groups(
        "group.consumer.max.assignment.interval.ms",
        ConfigType.INT,
        "15000",
        ("The highest value a group may set for its assignment interval."),
        unit="ms",
        constraint=at_least(0),
    ),
    _consumer_groups(
        "group.consumer.heartbeat.interval.ms",
        ConfigType.INT,
        "5000",
        ("How often members of `consumer` groups report."),
        unit="ms",
        constraint=at_least(1),
    ),
    _consumer_groups(
        "group.consumer.min.heartbeat.interval.ms",
        ConfigType.INT,
        "5000",
        ("The lowest value a group may set for its heartbeat interval."),
        unit="ms",
        constraint=at_least(1),
    ),
    _consumer_groups(
        "group.consumer.max.heartbeat.interval.ms",
        ConfigType.INT,
        "15000",
        ("The highest value a group may set for its heartbeat interval."),
        unit="ms",
        constraint=at_least(1),
    ),
    _consumer_groups(
        "group.consumer.session.timeout.ms",
        ConfigType.INT,
        "45000",
        ("A member of a `consumer` group that has not reported for this long is dropped."),
        unit="ms",
        constraint=at_least(1),
    ),
    _consumer_groups(
        "group.consumer.min.session.timeout.ms",
        ConfigType.INT,
        "45000",
        ("The lowest value a group may set for its session timeout."),
        unit="ms",
        constraint=at_least(1),
    ),
    _consumer_groups(
        "group.consumer.max.session.timeout.ms",
        ConfigType.INT,
        "60000",
        ("The highest value a group may set for its session timeout."),
        unit="ms",
        constraint=at_least(1),
    ),
    _consumer_groups(
        "group.consumer.max.size",
        ConfigType.INT,
        "2147483647",
        ("How many members a `consumer` group may have."),
        unit="members",
        constraint=at_least(1),
    ),
    _consumer_groups(
        "group.consumer.migration.policy",
        ConfigType.STRING,
        "bidirectional",
        (
            "Which way groups may move between the classic and the `consumer` protocol while "
            "members of both are in: `disabled`, `upgrade`, `downgrade` or `bidirectional`."
        ),
        constraint=one_of_ignoring_case("DISABLED", "DOWNGRADE", "UPGRADE", "BIDIRECTIONAL"),
    ),
    _consumer_groups(
        "group.coordinator.threads",
        ConfigType.INT,
        "4",
        (
            "Threads that coordinate groups. Tidemill coordinates groups on the event loop of the "
            "broker that leads their partition."
        ),
        unit="threads",
        constraint=at_least(1),
        status=Status.ACCEPTED,
    ),
    _consumer_groups(
        "group.coordinator.background.threads",
        ConfigType.INT,
        "2",
        ("Threads for a coordinator's housekeeping. Tidemill has none."),
        unit="threads",
        constraint=at_least(1),
        status=Status.ACCEPTED,
    ),
    _consumer_groups(
        "group.coordinator.append.linger.ms",
        ConfigType.INT,
        "-1",
        (
            "How long offset commits gather before they are written together; -1 takes those that "
            "come in one turn of the event loop, 0 writes each by itself. Other changes of a group "
            "are written at once."
        ),
        unit="ms",
        constraint=at_least(-1),
    ),
    _consumer_groups(
        "group.coordinator.cached.buffer.max.bytes",
        ConfigType.INT,
        "1048588",
        ("The largest buffer a Kafka coordinator keeps for re-use. Tidemill keeps none."),
        unit="bytes",
        constraint=at_least(524288),
        update=Update.CLUSTER_WIDE,
        status=Status.ACCEPTED,
    ),
)

_offsets = Section("Offsets")

OFFSETS = (
    _offsets(
        "offsets.topic.num.partitions",
        ConfigType.INT,
        "50",
        (
            "The partitions of the topic that stores group offsets. Fixed once the topic exists: "
            "groups are placed by it."
        ),
        unit="partitions",
        constraint=at_least(1),
    ),
    _offsets(
        "offsets.topic.replication.factor",
        ConfigType.SHORT,
        "3",
        (
            "The replicas of the offsets topic. Left alone, a cluster of fewer brokers gets one on "
            "each; a number that is set is meant, and the topic waits for that many brokers."
        ),
        unit="replicas",
        constraint=at_least(1),
    ),
    _offsets(
        "offsets.topic.segment.bytes",
        ConfigType.INT,
        "104857600",
        ("The segment size of the offsets topic. Small keeps compaction and loading fast."),
        unit="bytes",
        constraint=at_least(1),
    ),
    _offsets(
        "offsets.topic.compression.codec",
        ConfigType.INT,
        "0",
        ("The codec of the offsets topic by number: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."),
        unit="codec",
    ),
    _offsets(
        "offsets.retention.minutes",
        ConfigType.INT,
        "10080",
        (
            "How long the offsets of a group without members are kept. A group that pauses longer "
            "starts again from its reset policy."
        ),
        unit="minutes",
        constraint=at_least(1),
    ),
    _offsets(
        "offsets.retention.check.interval.ms",
        ConfigType.LONG,
        "600000",
        ("How often the broker looks for offsets that have expired."),
        unit="ms",
        constraint=at_least(1),
    ),
    _offsets(
        "offsets.commit.timeout.ms",
        ConfigType.INT,
        "5000",
        ("How long an offset commit waits for its replicas."),
        unit="ms",
        constraint=at_least(1),
    ),
    _offsets(
        "offsets.load.buffer.size",
        ConfigType.INT,
        "5242880",
        ("How much of the offsets topic is read at a time when a coordinator takes over."),
        unit="bytes",
        constraint=at_least(1),
    ),
    _offsets(
        "offset.metadata.max.bytes",
        ConfigType.INT,
        "4096",
        ("The longest note a client may store with a committed offset."),
        unit="bytes",
    ),
)

_transactions_and_producers = Section("Transactions and producers")

TRANSACTIONS_AND_PRODUCERS = (
    _transactions_and_producers(
        "transactional.id.expiration.ms",
        ConfigType.INT,
        "604800000",
        ("How long a transactional id without use is remembered."),
        unit="ms",
        constraint=at_least(1),
        status=Status.RESERVED,
    ),
    _transactions_and_producers(
        "transaction.max.timeout.ms",
        ConfigType.INT,
        "900000",
        (
            "The longest transaction timeout a producer may ask for. An open transaction holds "
            "back read_committed consumers for as long."
        ),
        unit="ms",
        constraint=at_least(1),
        status=Status.RESERVED,
    ),
    _transactions_and_producers(
        "transaction.state.log.num.partitions",
        ConfigType.INT,
        "50",
        ("The partitions of the topic that stores transactions. Fixed once the topic exists."),
        unit="partitions",
        constraint=at_least(1),
        status=Status.RESERVED,
    ),
    _transactions_and_producers(
        "transaction.state.log.replication.factor",
        ConfigType.SHORT,
        "3",
        ("The replicas of the transactions topic. It is created when that many brokers are there."),
        unit="replicas",
        constraint=at_least(1),
        status=Status.RESERVED,
    ),
    _transactions_and_producers(
        "transaction.state.log.min.isr",
        ConfigType.INT,
        "2",
        ("How many replicas of the transactions topic must hold a change."),
        unit="replicas",
        constraint=at_least(1),
        status=Status.RESERVED,
    ),
    _transactions_and_producers(
        "transaction.state.log.segment.bytes",
        ConfigType.INT,
        "104857600",
        ("The segment size of the transactions topic. Small keeps compaction and loading fast."),
        unit="bytes",
        constraint=at_least(1),
        status=Status.RESERVED,
    ),
    _transactions_and_producers(
        "transaction.state.log.load.buffer.size",
        ConfigType.INT,
        "5242880",
        ("How much of the transactions topic is read at a time when a coordinator takes over."),
        unit="bytes",
        constraint=at_least(1),
        status=Status.RESERVED,
    ),
    _transactions_and_producers(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        ConfigType.INT,
        "10000",
        ("How often the broker looks for transactions that have timed out."),
        unit="ms",
        constraint=at_least(1),
        status=Status.RESERVED,
    ),
    _transactions_and_producers(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        ConfigType.INT,
        "3600000",
        ("How often the broker looks for transactional ids that have expired."),
        unit="ms",
        constraint=at_least(1),
        status=Status.RESERVED,
    ),
    _transactions_and_producers(
        "transaction.partition.verification.enable",
        ConfigType.BOOLEAN,
        "true",
        (
            "Whether a transactional write is checked against the coordinator before it is "
            "appended. Off, a late write can hang in the log and hold back read_committed "
            "consumers."
        ),
        update=Update.CLUSTER_WIDE,
        status=Status.RESERVED,
    ),
    _transactions_and_producers(
        "transaction.two.phase.commit.enable",
        ConfigType.BOOLEAN,
        "false",
        ("Whether a producer may leave a prepared transaction open without a timeout."),
        status=Status.UNSUPPORTED,
    ),
    _transactions_and_producers(
        "add.partitions.to.txn.retry.backoff.ms",
        ConfigType.INT,
        "20",
        (
            "How long the broker waits before it asks the coordinator about a transactional write "
            "again."
        ),
        unit="ms",
        constraint=at_least(1),
        status=Status.RESERVED,
    ),
    _transactions_and_producers(
        "add.partitions.to.txn.retry.backoff.max.ms",
        ConfigType.INT,
        "100",
        ("How long the broker keeps asking the coordinator before the producer must retry."),
        unit="ms",
        constraint=at_least(0),
        status=Status.RESERVED,
    ),
    _transactions_and_producers(
        "producer.id.expiration.ms",
        ConfigType.INT,
        "86400000",
        (
            "How long a partition remembers an idle producer. A producer that pauses longer than "
            "this, with retries still under way, can no longer be checked for duplicates."
        ),
        unit="ms",
        constraint=at_least(1),
        update=Update.CLUSTER_WIDE,
    ),
)
