"""Broker keys about the process itself: identity, storage, listeners and connections."""

from __future__ import annotations

from tidemill.config.constraints import (
    any_list,
    at_least,
    list_of,
    one_of,
)
from tidemill.config.keys import ConfigType, Section, Status, Update

_identity_and_storage = Section("Identity and storage")

IDENTITY_AND_STORAGE = (
    _identity_and_storage(
        "node.id",
        ConfigType.INT,
        "0",
        (
            "This broker's number in the cluster. Every broker has its own; a data directory "
            "remembers the number it was first started with. `broker.id` is the older name, and "
            "the two must agree. Left out, it is 0."
        ),
        unit="id",
        constraint=at_least(0),
        default_2_8="-1",
    ),
    _identity_and_storage(
        "broker.id",
        ConfigType.INT,
        "-1",
        (
            "The older name of `node.id`, still shown by tools. Set one of the two, or both to "
            "the same number."
        ),
        unit="id",
    ),
    _identity_and_storage(
        "broker.rack",
        ConfigType.STRING,
        None,
        (
            "The failure zone this broker stands in. Replicas of a partition are spread over "
            "racks, and consumers that name their rack can read from a near replica. Brokers "
            "without a rack stand in one zone together. Where no broker has one, replicas of new "
            "partitions are spread over the machines that the brokers run on, and clients see no "
            "rack."
        ),
    ),
    _identity_and_storage(
        "process.roles",
        ConfigType.LIST,
        None,
        (
            "Kafka splits a node into `broker` and `controller` roles. Every Tidemill broker can "
            "be the controller, so `broker` and `broker,controller` mean the same; a node that is "
            "only `controller` has nothing to do here."
        ),
        constraint=list_of("broker", "controller"),
        status=Status.KRAFT,
        default_2_8="",
    ),
    _identity_and_storage(
        "log.dir",
        ConfigType.LIST,
        "tidemill-data",
        (
            "Where partitions are stored if `log.dirs` is not set. A relative path starts at the "
            "working directory."
        ),
        unit="path",
        constraint=any_list(),
        kafka_default="/tmp/kafka-logs",
    ),
    _identity_and_storage(
        "log.dirs",
        ConfigType.LIST,
        None,
        (
            "The directories that hold partitions, separated by commas; `log.dir` counts when "
            "this is unset. A new partition goes to the directory with the fewest. When one "
            "directory fails, the partitions in it go offline and the others keep serving."
        ),
        unit="paths",
        constraint=any_list(),
    ),
    _identity_and_storage(
        "cordoned.log.dirs",
        ConfigType.LIST,
        "",
        (
            "Directories that must not get new partitions, or `*` for all. Tidemill places "
            "partitions in every healthy directory."
        ),
        unit="paths",
        constraint=any_list(empty=True),
        update=Update.PER_BROKER,
        status=Status.UNSUPPORTED,
    ),
    _identity_and_storage(
        "metadata.log.dir",
        ConfigType.STRING,
        None,
        ("Where Kafka keeps its metadata quorum's log. Tidemill keeps metadata in its store."),
        unit="path",
        status=Status.KRAFT,
    ),
)

_listeners_and_connections = Section("Listeners and connections")

LISTENERS_AND_CONNECTIONS = (
    _listeners_and_connections(
        "listeners",
        ConfigType.LIST,
        "PLAINTEXT://127.0.0.1:9092",
        (
            "Where the broker accepts connections: `NAME://HOST:PORT`, separated by commas. An "
            "empty host means all interfaces; port 0 takes a free one. Unset, the broker can be "
            "reached from this machine only. Listeners are opened when the broker starts: a change "
            "takes a restart."
        ),
        constraint=any_list(),
        kafka_default="PLAINTEXT://:9092",
        default_2_8="(unset)",
    ),
    _listeners_and_connections(
        "advertised.listeners",
        ConfigType.LIST,
        None,
        (
            "The addresses that clients are told to connect to, when they differ from `listeners` "
            "(containers, NAT, several networks). Clients must be able to reach them; `0.0.0.0` "
            "is refused. Unset, `listeners` is used."
        ),
        constraint=any_list(),
    ),
    _listeners_and_connections(
        "listener.security.protocol.map",
        ConfigType.STRING,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        (
            "Which security protocol each listener name speaks, as `NAME:PROTOCOL` pairs "
            "separated by commas. Every name in `listeners` must be in it. Only PLAINTEXT can be "
            "served today."
        ),
    ),
    _listeners_and_connections(
        "inter.broker.listener.name",
        ConfigType.STRING,
        None,
        ("The listener over which brokers talk to each other. Unset, the first one."),
    ),
    _listeners_and_connections(
        "security.inter.broker.protocol",
        ConfigType.STRING,
        "PLAINTEXT",
        (
            "How brokers talk to each other when `inter.broker.listener.name` is unset. Only "
            "PLAINTEXT can be served today."
        ),
        constraint=one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        status=Status.RESERVED,
    ),
    _listeners_and_connections(
        "early.start.listeners",
        ConfigType.LIST,
        None,
        (
            "Listeners that open before authorization is ready. Tidemill opens all listeners "
            "together, when it can serve."
        ),
        constraint=any_list(empty=True),
        status=Status.UNSUPPORTED,
    ),
    _listeners_and_connections(
        "max.connections",
        ConfigType.INT,
        "2147483647",
        (
            "How many connections the broker holds open at once over all listeners. A connection "
            "above it is closed right away, so that file handles for the log are never used up by "
            "clients. Half of the process's file limit unless set."
        ),
        unit="count",
        constraint=at_least(0),
        update=Update.CLUSTER_WIDE,
    ),
    _listeners_and_connections(
        "max.connections.per.ip",
        ConfigType.INT,
        "2147483647",
        (
            "How many connections one client address may hold. Further ones are closed. No limit "
            "by default, because proxies and containers share addresses."
        ),
        unit="count",
        constraint=at_least(0),
        update=Update.CLUSTER_WIDE,
    ),
    _listeners_and_connections(
        "max.connections.per.ip.overrides",
        ConfigType.STRING,
        "",
        ("Exceptions to `max.connections.per.ip`, as `HOST:COUNT` pairs separated by commas."),
        update=Update.CLUSTER_WIDE,
    ),
    _listeners_and_connections(
        "max.connection.creation.rate",
        ConfigType.INT,
        "2147483647",
        (
            "How many new connections per second the broker accepts; above it, accepting is "
            "slowed down. Protects against storms of reconnecting clients."
        ),
        unit="connections per second",
        constraint=at_least(0),
        update=Update.CLUSTER_WIDE,
    ),
    _listeners_and_connections(
        "connections.max.idle.ms",
        ConfigType.LONG,
        "600000",
        (
            "A connection without traffic for this long is closed. Clients reconnect by "
            "themselves when they need it."
        ),
        unit="ms",
    ),
    _listeners_and_connections(
        "connection.failed.authentication.delay.ms",
        ConfigType.INT,
        "100",
        (
            "How long a failed login is held before the connection closes, to slow down guessing. "
            "Below `connections.max.idle.ms`."
        ),
        unit="ms",
        constraint=at_least(0),
        status=Status.UNSUPPORTED,
    ),
    _listeners_and_connections(
        "connections.max.reauth.ms",
        ConfigType.LONG,
        "0",
        (
            "How long a login lasts before the client must log in again; 0 means for the life of "
            "the connection."
        ),
        unit="ms",
        status=Status.UNSUPPORTED,
    ),
    _listeners_and_connections(
        "socket.connection.setup.timeout.ms",
        ConfigType.LONG,
        "10000",
        (
            "How long this broker waits for a connection to another broker, at first; doubled "
            "after each failure."
        ),
        unit="ms",
        status=Status.RESERVED,
    ),
    _listeners_and_connections(
        "socket.connection.setup.timeout.max.ms",
        ConfigType.LONG,
        "30000",
        ("The longest that doubling of `socket.connection.setup.timeout.ms` may reach."),
        unit="ms",
        status=Status.RESERVED,
    ),
    _listeners_and_connections(
        "socket.listen.backlog.size",
        ConfigType.INT,
        "1024",
        (
            "How many connections may wait in the kernel to be accepted. The kernel's own limit "
            "(`somaxconn`) still applies. Raise it if many clients reconnect at once."
        ),
        unit="connections",
        constraint=at_least(1),
        kafka_default="50",
    ),
    _listeners_and_connections(
        "socket.send.buffer.bytes",
        ConfigType.INT,
        "-1",
        (
            "The kernel's send buffer per connection; -1 leaves it to the operating system, which "
            "lets it grow as needed. A fixed size bounds the kernel's memory for many connections."
        ),
        unit="bytes",
        constraint=at_least(-1),
        kafka_default="102400",
    ),
    _listeners_and_connections(
        "socket.receive.buffer.bytes",
        ConfigType.INT,
        "-1",
        (
            "The kernel's receive buffer per connection; -1 leaves it to the operating system, "
            "which lets it grow as needed."
        ),
        unit="bytes",
        constraint=at_least(-1),
        kafka_default="102400",
    ),
    _listeners_and_connections(
        "socket.request.max.bytes",
        ConfigType.INT,
        "104857600",
        (
            "The largest request accepted. A connection that announces more is closed before "
            "anything is read or allocated."
        ),
        unit="bytes",
        constraint=at_least(1),
    ),
)
