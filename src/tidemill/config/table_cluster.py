"""Broker keys about the cluster: replication, membership, and Kafka's metadata quorum."""

from __future__ import annotations

from tidemill.config.constraints import any_list, at_least, one_of
from tidemill.config.keys import ConfigType, Section, Status, Update

_replication = Section("Replication")

REPLICATION = (
    _replication(
        "min.insync.replicas",
        ConfigType.INT,
        "1",
        (
            "How many replicas must hold a record before a produce with acks=all is answered; "
            "with fewer in sync, such produces are refused. Unless set it is 2 for topics with 3 "
            "or more replicas and 1 for others, so that one broker can be lost without losing "
            "data."
        ),
        unit="replicas",
        constraint=at_least(1),
        update=Update.CLUSTER_WIDE,
    ),
    _replication(
        "unclean.leader.election.enable",
        ConfigType.BOOLEAN,
        "false",
        (
            "Whether a replica that is behind may lead when no other is left. On, the partition "
            "is back sooner and acknowledged records can be lost."
        ),
        update=Update.CLUSTER_WIDE,
    ),
    _replication(
        "replica.lag.time.max.ms",
        ConfigType.LONG,
        "30000",
        (
            "A follower that has not caught up for this long leaves the in-sync set, so that "
            "producers need not wait for it."
        ),
        unit="ms",
    ),
    _replication(
        "replica.fetch.wait.max.ms",
        ConfigType.INT,
        "500",
        (
            "How long a follower's fetch waits at the leader for new data. Must stay below "
            "`replica.lag.time.max.ms`, or quiet partitions would fall out of sync."
        ),
        unit="ms",
    ),
    _replication(
        "replica.fetch.min.bytes",
        ConfigType.INT,
        "1",
        ("How much data a follower's fetch waits for, up to `replica.fetch.wait.max.ms`."),
        unit="bytes",
    ),
    _replication(
        "replica.fetch.max.bytes",
        ConfigType.INT,
        "1048576",
        (
            "How much a follower asks for per partition. The first batch comes whole even if it "
            "is larger."
        ),
        unit="bytes",
        constraint=at_least(0),
    ),
    _replication(
        "replica.fetch.response.max.bytes",
        ConfigType.INT,
        "10485760",
        ("How much a follower asks for in one answer over all partitions."),
        unit="bytes",
        constraint=at_least(0),
    ),
    _replication(
        "replica.fetch.backoff.ms",
        ConfigType.INT,
        "1000",
        ("How long a follower waits after an error before it fetches again."),
        unit="ms",
        constraint=at_least(0),
    ),
    _replication(
        "replica.socket.timeout.ms",
        ConfigType.INT,
        "30000",
        (
            "How long a follower waits for the leader's answer. At least "
            "`replica.fetch.wait.max.ms`."
        ),
        unit="ms",
    ),
    _replication(
        "replica.socket.receive.buffer.bytes",
        ConfigType.INT,
        "65536",
        (
            "The kernel's receive buffer for fetching from leaders; -1 leaves it to the operating "
            "system."
        ),
        unit="bytes",
        status=Status.RESERVED,
    ),
    _replication(
        "replica.high.watermark.checkpoint.interval.ms",
        ConfigType.LONG,
        "5000",
        (
            "How often high watermarks are written to disk. Losing the last ones costs time at "
            "the next start, never data."
        ),
        unit="ms",
    ),
    _replication(
        "num.replica.fetchers",
        ConfigType.INT,
        "1",
        (
            "Threads that fetch from each leader. Tidemill keeps one pipelined connection per "
            "leader."
        ),
        unit="threads",
        constraint=at_least(1),
        update=Update.CLUSTER_WIDE,
        status=Status.ACCEPTED,
    ),
    _replication(
        "num.replica.alter.log.dirs.threads",
        ConfigType.INT,
        None,
        ("Threads that move partitions between log directories."),
        unit="threads",
        status=Status.UNSUPPORTED,
    ),
    _replication(
        "replica.selector.class",
        ConfigType.STRING,
        None,
        (
            "With Kafka's rack-aware selector, a consumer that names its rack (`client.rack`) is "
            "sent to a replica in that rack. Tidemill loads no code that a setting names: only "
            "the two selectors that Kafka has are known."
        ),
        unit="class",
        constraint=one_of(
            "org.apache.kafka.common.replica.LeaderSelector",
            "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        ),
    ),
)

_cluster = Section("Cluster")

CLUSTER = (
    _cluster(
        "broker.heartbeat.interval.ms",
        ConfigType.INT,
        "2000",
        (
            "How often a broker tells the cluster that it lives. A Tidemill broker renews its "
            "session three times in every `broker.session.timeout.ms`."
        ),
        unit="ms",
        status=Status.ACCEPTED,
    ),
    _cluster(
        "broker.session.timeout.ms",
        ConfigType.INT,
        "9000",
        (
            "A broker that has not renewed its session for this long counts as dead and its "
            "partitions get other leaders. Shorter finds failures sooner, and takes a long pause "
            "for one."
        ),
        unit="ms",
    ),
    _cluster(
        "controlled.shutdown.enable",
        ConfigType.BOOLEAN,
        "true",
        (
            "Whether a broker that stops hands its partitions to others first, so that clients "
            "hardly notice."
        ),
    ),
    _cluster(
        "auto.leader.rebalance.enable",
        ConfigType.BOOLEAN,
        "true",
        (
            "Whether leadership returns to each partition's preferred replica by itself after a "
            "broker comes back."
        ),
    ),
    _cluster(
        "leader.imbalance.check.interval.seconds",
        ConfigType.LONG,
        "300",
        ("How often leadership is looked over for `auto.leader.rebalance.enable`."),
        unit="s",
        constraint=at_least(1),
    ),
    _cluster(
        "controller.socket.timeout.ms",
        ConfigType.INT,
        "30000",
        ("How long the controller waits for a broker's answer."),
        unit="ms",
    ),
    _cluster(
        "initial.broker.registration.timeout.ms",
        ConfigType.INT,
        "60000",
        ("How long a starting broker tries to register before it gives up."),
        unit="ms",
    ),
)

_metadata_quorum = Section("Kafka's metadata quorum")

METADATA_QUORUM = (
    _metadata_quorum(
        "controller.listener.names",
        ConfigType.LIST,
        None,
        (
            "The listeners of Kafka's controllers. Tidemill has no controller listener: one named "
            "here is not opened."
        ),
        constraint=any_list(),
        status=Status.KRAFT,
        default_2_8="(unset)",
    ),
    _metadata_quorum(
        "controller.quorum.bootstrap.servers",
        ConfigType.LIST,
        "",
        ("Where to find Kafka's metadata quorum. Tidemill's brokers meet in their store."),
        status=Status.KRAFT,
    ),
    _metadata_quorum(
        "controller.quorum.voters",
        ConfigType.LIST,
        "",
        ("The members of Kafka's metadata quorum. Tidemill's brokers meet in their store."),
        status=Status.KRAFT,
    ),
    _metadata_quorum(
        "controller.quorum.auto.join.enable",
        ConfigType.BOOLEAN,
        "false",
        ("Whether a controller joins the quorum's voters by itself."),
        status=Status.KRAFT,
    ),
    _metadata_quorum(
        "controller.quorum.append.linger.ms",
        ConfigType.INT,
        "25",
        ("How long the quorum's leader gathers writes before it flushes them."),
        unit="ms",
        constraint=at_least(0),
        status=Status.KRAFT,
    ),
    _metadata_quorum(
        "controller.quorum.election.backoff.max.ms",
        ConfigType.INT,
        "1000",
        ("The longest wait between two elections of the quorum."),
        unit="ms",
        constraint=at_least(0),
        status=Status.KRAFT,
    ),
    _metadata_quorum(
        "controller.quorum.election.timeout.ms",
        ConfigType.INT,
        "1000",
        ("How long a candidate of the quorum waits for votes."),
        unit="ms",
        constraint=at_least(0),
        status=Status.KRAFT,
    ),
    _metadata_quorum(
        "controller.quorum.fetch.timeout.ms",
        ConfigType.INT,
        "2000",
        ("How long a quorum member may go without hearing from the leader."),
        unit="ms",
        constraint=at_least(0),
        status=Status.KRAFT,
    ),
    _metadata_quorum(
        "controller.quorum.fetch.max.bytes",
        ConfigType.INT,
        "1048576",
        ("How much a quorum member fetches at once."),
        unit="bytes",
        constraint=at_least(1),
        status=Status.KRAFT,
    ),
    _metadata_quorum(
        "controller.quorum.fetch.snapshot.max.bytes",
        ConfigType.INT,
        "1048576",
        ("How much of a snapshot a quorum member fetches at once."),
        unit="bytes",
        constraint=at_least(1),
        status=Status.KRAFT,
    ),
    _metadata_quorum(
        "controller.quorum.request.timeout.ms",
        ConfigType.INT,
        "2000",
        ("How long a quorum member waits for an answer."),
        unit="ms",
        constraint=at_least(0),
        status=Status.KRAFT,
    ),
    _metadata_quorum(
        "controller.quorum.retry.backoff.ms",
        ConfigType.INT,
        "20",
        ("How long a quorum member waits before it tries again."),
        unit="ms",
        constraint=at_least(0),
        status=Status.KRAFT,
    ),
    _metadata_quorum(
        "metadata.log.max.record.bytes.between.snapshots",
        ConfigType.LONG,
        "20971520",
        ("How much metadata log makes a new snapshot due."),
        unit="bytes",
        constraint=at_least(1),
        status=Status.KRAFT,
    ),
    _metadata_quorum(
        "metadata.log.max.snapshot.interval.ms",
        ConfigType.LONG,
        "3600000",
        ("How much time makes a new metadata snapshot due."),
        unit="ms",
        constraint=at_least(0),
        status=Status.KRAFT,
    ),
    _metadata_quorum(
        "metadata.log.segment.bytes",
        ConfigType.INT,
        "1073741824",
        ("The segment size of the metadata log."),
        unit="bytes",
        constraint=at_least(8388608),
        status=Status.KRAFT,
    ),
    _metadata_quorum(
        "metadata.log.segment.ms",
        ConfigType.LONG,
        "604800000",
        ("The segment age of the metadata log."),
        unit="ms",
        status=Status.KRAFT,
    ),
    _metadata_quorum(
        "metadata.max.idle.interval.ms",
        ConfigType.INT,
        "500",
        ("How often an idle quorum writes an empty record."),
        unit="ms",
        constraint=at_least(0),
        status=Status.KRAFT,
    ),
    _metadata_quorum(
        "metadata.max.retention.bytes",
        ConfigType.LONG,
        "104857600",
        ("How much metadata log and snapshots are kept."),
        unit="bytes",
        status=Status.KRAFT,
    ),
    _metadata_quorum(
        "metadata.max.retention.ms",
        ConfigType.LONG,
        "604800000",
        ("How long metadata log and snapshots are kept."),
        unit="ms",
        status=Status.KRAFT,
    ),
    _metadata_quorum(
        "sasl.mechanism.controller.protocol",
        ConfigType.STRING,
        "GSSAPI",
        ("How nodes log in to Kafka's controllers."),
        status=Status.KRAFT,
    ),
)
