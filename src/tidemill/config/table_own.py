"""Keys that only Tidemill has, and the ZooKeeper keys that it keeps from older Kafkas."""

from __future__ import annotations

from tidemill.config.constraints import at_least, between, one_of
from tidemill.config.keys import LONG_MAX, ConfigType, Section, Status, Update

_own = Section("Tidemill's own")

OWN = (
    _own(
        "store.url",
        ConfigType.STRING,
        None,
        (
            "Where the brokers of a cluster keep what they must agree on. `sqlite://PATH` is a "
            "file that the brokers of one machine share; `zk://HOST:PORT,HOST:PORT/PATH` is a "
            "ZooKeeper ensemble, for brokers on several. Unset, the broker is a cluster of its "
            "own, with a file in its data directory."
        ),
        unit="address",
        own=True,
    ),
    _own(
        "cluster.brokers.min",
        ConfigType.INT,
        "1",
        (
            "How many brokers must have joined the cluster, at whatever time, before topics are "
            "made in it. Until then a cluster is still coming up, and its first topics would have "
            "too few replicas. `tidemill up --brokers N` sets it to N."
        ),
        unit="brokers",
        constraint=at_least(1),
        own=True,
    ),
    _own(
        "log.flush.policy",
        ConfigType.STRING,
        "ack",
        (
            "When an acks=all produce is answered. `ack` waits until the records are on disk: a "
            "power cut loses nothing that was acknowledged, and produces that arrive together "
            "share one flush. `async` answers from memory and leaves writing to the operating "
            "system, as Kafka does: faster, and safe only as long as another replica survives. "
            "Producers with acks=1 or 0 never wait for the disk."
        ),
        constraint=one_of("ack", "async"),
        update=Update.CLUSTER_WIDE,
        own=True,
    ),
    _own(
        "log.flush.threads",
        ConfigType.INT,
        "8",
        (
            "How many files of one log directory are flushed at the same time. More helps disks "
            "that take parallel writes when many partitions are written at once."
        ),
        unit="threads",
        constraint=at_least(1),
        own=True,
    ),
    _own(
        "log.disk.reserve.bytes",
        ConfigType.LONG,
        "268435456",
        (
            "Free space that produce requests may not use up. When a log directory has less, "
            "produces to it fail with KAFKA_STORAGE_ERROR while everything else, retention "
            "included, goes on, so that a full disk heals itself. 0 switches the check off. Unless "
            "set it is at most a twentieth of the file system."
        ),
        unit="bytes",
        constraint=at_least(0),
        update=Update.CLUSTER_WIDE,
        own=True,
    ),
    _own(
        "log.open.files.max",
        ConfigType.INT,
        "4096",
        (
            "How many log files are kept open. When another is needed, one that nobody is using is "
            "closed: by turns the one unused for longest and the one used last, so that going "
            "round more files than this still finds some of them open. Unless set it is half of "
            "the process's file limit, less a reserve."
        ),
        unit="files",
        constraint=at_least(16),
        own=True,
    ),
    _own(
        "log.scrub.bytes.per.second",
        ConfigType.LONG,
        "8388608",
        (
            "How fast closed segments are read again to see whether the disk still has what was "
            "written, over all partitions together. What is damaged is logged, and its offsets "
            "are answered with CORRUPT_MESSAGE while all others are served. 0 stops it."
        ),
        unit="bytes per second",
        constraint=at_least(0),
        update=Update.CLUSTER_WIDE,
        own=True,
    ),
    _own(
        "log.scrub.interval.ms",
        ConfigType.LONG,
        "86400000",
        (
            "How long after all closed segments have been read the next round begins. The first "
            "one begins at most a minute after the start."
        ),
        unit="ms",
        constraint=at_least(1),
        update=Update.CLUSTER_WIDE,
        own=True,
    ),
    _own(
        "reserved.broker.max.id",
        ConfigType.INT,
        "1000",
        (
            "Brokers that get their number from the store get one above this, so that numbers up "
            "to it are free to be given by hand."
        ),
        unit="id",
        constraint=at_least(0),
        own=True,
    ),
    _own(
        "record.validation",
        ConfigType.STRING,
        "batch",
        (
            "How closely the broker looks at what producers send. `batch` checks each batch's "
            "header and checksum; `full` also decodes every record, as Kafka does, which costs "
            "CPU per record. Compacted and internal topics are always checked in full."
        ),
        constraint=one_of("batch", "full"),
        update=Update.CLUSTER_WIDE,
        own=True,
    ),
    _own(
        "socket.busy.poll.us",
        ConfigType.INT,
        "100",
        (
            "How long the broker looks for the next request before it sleeps, while requests come "
            "in quick succession: waking up takes as long as a small request. It sleeps at once "
            "where requests come slowly, where somebody else wants the core, and on a machine "
            "with one core. 0 always sleeps."
        ),
        unit="µs",
        constraint=between(0, 1000),
        update=Update.CLUSTER_WIDE,
        own=True,
    ),
    _own(
        "connection.handshake.timeout.ms",
        ConfigType.LONG,
        "10000",
        (
            "How long a new connection may take to send its first complete request. Slower ones "
            "are closed, so that silent connections do not pile up."
        ),
        unit="ms",
        constraint=at_least(1),
        update=Update.CLUSTER_WIDE,
        own=True,
    ),
    _own(
        "connection.partial.frame.timeout.ms",
        ConfigType.LONG,
        "30000",
        (
            "How long a request may take to arrive once its first byte is there, as long as it "
            "makes no progress. A client that stalls in the middle of a request is closed and its "
            "memory is freed."
        ),
        unit="ms",
        constraint=at_least(1),
        update=Update.CLUSTER_WIDE,
        own=True,
    ),
)

_zookeeper = Section("ZooKeeper")

# Kafka dropped these with ZooKeeper itself; a cluster of Tidemill brokers can meet there again.
ZOOKEEPER = (
    _zookeeper(
        "zookeeper.connect",
        ConfigType.STRING,
        None,
        (
            "The ZooKeeper servers that a cluster of brokers meets at: `HOST:PORT,HOST:PORT/PATH`. "
            "The same as `store.url=zk://HOST:PORT,HOST:PORT/PATH`, in the words of older Kafkas."
        ),
        own=True,
        default_2_8="(unset)",
    ),
    _zookeeper(
        "zookeeper.connection.timeout.ms",
        ConfigType.INT,
        None,
        (
            "How long the first connection to ZooKeeper may take; `zookeeper.session.timeout.ms` "
            "counts when unset."
        ),
        unit="ms",
        status=Status.RESERVED,
        own=True,
    ),
    _zookeeper(
        "zookeeper.session.timeout.ms",
        ConfigType.INT,
        "18000",
        (
            "A broker that ZooKeeper has not heard of for this long counts as dead. Shorter finds "
            "failures sooner, and takes a long pause for one."
        ),
        unit="ms",
        status=Status.RESERVED,
        own=True,
    ),
)

_throttles = Section("Throttles")

# These exist only as dynamic settings; no file may hold them.
DYNAMIC_ONLY = (
    _throttles(
        "leader.replication.throttled.rate",
        ConfigType.LONG,
        str(LONG_MAX),
        "The most that this broker sends per second for the replicas that a topic throttles.",
        unit="bytes per second",
        constraint=at_least(0),
        update=Update.CLUSTER_WIDE,
    ),
    _throttles(
        "follower.replication.throttled.rate",
        ConfigType.LONG,
        str(LONG_MAX),
        "The most that this broker fetches per second for the replicas that a topic throttles.",
        unit="bytes per second",
        constraint=at_least(0),
        update=Update.CLUSTER_WIDE,
    ),
    _throttles(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        ConfigType.LONG,
        str(LONG_MAX),
        "The most that moving partitions between log directories copies per second.",
        unit="bytes per second",
        constraint=at_least(0),
        update=Update.CLUSTER_WIDE,
    ),
)

_topic = Section("Topics")

OWN_TOPIC = (
    _topic(
        "flush.policy",
        ConfigType.STRING,
        "ack",
        (
            "When an acks=all produce to this topic is answered: `ack` once the records are on "
            "disk, `async` once they are in memory, as Kafka does."
        ),
        constraint=one_of("ack", "async"),
        own=True,
    ),
    _topic(
        "record.validation",
        ConfigType.STRING,
        "batch",
        (
            "`batch` checks each batch's header and checksum, `full` also decodes every record. "
            "Compacted topics are always checked in full."
        ),
        constraint=one_of("batch", "full"),
        own=True,
    ),
)
