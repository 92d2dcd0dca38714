"""Keys that Kafka once had and dropped, and what a reader of an old file or runbook should write.

A removed key is an error and not a warning: whoever set it wanted something, and would otherwise
believe to have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_LISTENERS: Final = "write `listeners=PLAINTEXT://HOST:PORT`"
_ADVERTISED: Final = "write `advertised.listeners=PLAINTEXT://HOST:PORT`"
_NO_STORE_TLS: Final = "there is nothing to replace it: the embedded store needs no connection"
_PER_TOPIC: Final = "set it on the topic: `tidemill config set topic/NAME KEY=VALUE` with key "
_CLIENT: Final = "it was a setting of old clients, not of a broker; today's clients call it "

REMOVED_BROKER_KEYS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "advertised.host.name": _ADVERTISED,
        "advertised.port": _ADVERTISED,
        "host.name": _LISTENERS,
        "hostname": _LISTENERS,
        "port": _LISTENERS,
        "brokerid": "use `node.id`",
        "broker.id.generation.enable": "give each broker its own `node.id`",
        "inter.broker.protocol.version": "brokers agree on versions by themselves; remove it",
        "log.message.format.version": "records are always stored in format v2; remove it",
        "log.message.downconversion.enable": "clients older than format v2 cannot fetch; remove it",
        "log.message.timestamp.difference.max.ms": (
            "use `log.message.timestamp.before.max.ms` and `log.message.timestamp.after.max.ms`"
        ),
        "replica.lag.max.messages": "use `replica.lag.time.max.ms`: lag is measured in time",
        "control.plane.listener.name": "use `inter.broker.listener.name`",
        "controlled.shutdown.max.retries": "use `controlled.shutdown.enable`",
        "controlled.shutdown.retry.backoff.ms": "use `controlled.shutdown.enable`",
        "leader.imbalance.per.broker.percentage": "use `auto.leader.rebalance.enable`",
        "offsets.commit.required.acks": "offset commits always wait for all in-sync replicas",
        "offsets.topic.retention.minutes": "use `offsets.retention.minutes`",
        "quota.consumer.default": "set the default client quota with `kafka-configs.sh`",
        "quota.producer.default": "set the default client quota with `kafka-configs.sh`",
        "delegation.token.master.key": "use `delegation.token.secret.key`",
        "auto.include.jmx.reporter": "use `metric.reporters`",
        "eligible.leader.replicas.enable": "remove it; it is a feature level, not a setting",
        "group.coordinator.new.enable": "use `group.coordinator.rebalance.protocols`",
        "controller.message.queue.size": "use `queued.max.requests`",
        "log.cleanup.interval.mins": "use `log.retention.check.interval.ms`",
        "log.retention.check.interval.mins": "use `log.retention.check.interval.ms`",
        "log.default.flush.interval.ms": "use `log.flush.interval.ms`",
        "log.default.flush.scheduler.interval.ms": "use `log.flush.scheduler.interval.ms`",
        "log.flush.interval": "use `log.flush.interval.messages`",
        "log.delete.delay.ms": "use `log.segment.delete.delay.ms`",
        "log.file.size": "use `log.segment.bytes`",
        "log.index.max.size": "use `log.index.size.max.bytes`",
        "log.retention.size": "use `log.retention.bytes`",
        "max.message.size": "use `message.max.bytes`",
        "max.socket.request.bytes": "use `socket.request.max.bytes`",
        "socket.receive.buffer": "use `socket.receive.buffer.bytes`",
        "socket.send.buffer": "use `socket.send.buffer.bytes`",
        "num.threads": "run several brokers on a machine to use more cores",
        "enable.zookeeper": "use `zookeeper.connect`",
        "zk.connect": "use `zookeeper.connect`",
        "zk.connectiontimeout.ms": "use `zookeeper.connection.timeout.ms`",
        "zk.sessiontimeout.ms": "use `zookeeper.session.timeout.ms`",
        "zookeeper.metadata.migration.enable": "remove it; there is no migration to KRaft",
        "zookeeper.max.in.flight.requests": _NO_STORE_TLS,
        "zookeeper.set.acl": _NO_STORE_TLS,
        "zookeeper.sync.time.ms": "use `zookeeper.session.timeout.ms`",
        "log.flush.interval.ms.per.topic": _PER_TOPIC + "`flush.ms`",
        "log.retention.bytes.per.topic": _PER_TOPIC + "`retention.bytes`",
        "log.retention.hours.per.topic": _PER_TOPIC + "`retention.ms`",
        "log.roll.hours.per.topic": _PER_TOPIC + "`segment.ms`",
        "log.segment.bytes.per.topic": _PER_TOPIC + "`segment.bytes`",
        "topic.flush.intervals.ms": _PER_TOPIC + "`flush.ms`",
        "topic.log.retention.hours": _PER_TOPIC + "`retention.ms`",
        "topic.partition.count.map": "create the topic with `tidemill topic create NAME -p N`",
    }
)

REMOVED_TOPIC_KEYS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "message.downconversion.enable": "clients older than format v2 cannot fetch; remove it",
        "message.format.version": "records are always stored in format v2; remove it",
        "message.timestamp.difference.max.ms": (
            "use `message.timestamp.before.max.ms` and `message.timestamp.after.max.ms`"
        ),
    }
)

# Old client settings, old name to new. An empty name has no successor.
REMOVED_CLIENT_KEYS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "producer.type": "linger.ms",
        "request.required.acks": "acks",
        "queue.buffering.max.ms": "linger.ms",
        "queue.buffering.max.messages": "buffer.memory",
        "queue.enqueue.timeout.ms": "max.block.ms",
        "batch.num.messages": "batch.size",
        "block.on.buffer.full": "max.block.ms",
        "metadata.fetch.timeout.ms": "max.block.ms",
        "timeout.ms": "request.timeout.ms",
        "metadata.broker.list": "bootstrap.servers",
        "broker.list": "bootstrap.servers",
        "compression.codec": "compression.type",
        "compressed.topics": "compression.type",
        "message.send.max.retries": "retries",
        "serializer.class": "value.serializer",
        "key.serializer.class": "key.serializer",
        "topic.metadata.refresh.interval.ms": "metadata.max.age.ms",
        "auto.commit.enable": "enable.auto.commit",
        "autocommit.enable": "enable.auto.commit",
        "autooffset.reset": "auto.offset.reset",
        "groupid": "group.id",
        "consumer.id": "group.instance.id",
        "fetch.message.max.bytes": "max.partition.fetch.bytes",
        "fetch.size": "max.partition.fetch.bytes",
        "fetch.wait.max.ms": "fetch.max.wait.ms",
        "rebalance.max.retries": "max.poll.interval.ms",
        "rebalance.backoff.ms": "retry.backoff.ms",
        "refresh.leader.backoff.ms": "retry.backoff.ms",
        "backoff.increment.ms": "retry.backoff.ms",
        "socket.timeout.ms": "request.timeout.ms",
        "offsets.channel.socket.timeout.ms": "request.timeout.ms",
        "offsets.commit.max.retries": "default.api.timeout.ms",
        "consumer.timeout.ms": "",
        "num.consumer.fetchers": "",
        "queued.max.message.chunks": "",
        "offsets.storage": "",
        "dual.commit.enabled": "",
    }
)

_REMOVED_PREFIXES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "password.encoder.": "secrets are no longer encrypted with a password; remove it",
        "zookeeper.ssl.": _NO_STORE_TLS,
        "zookeeper.clientCnxnSocket": _NO_STORE_TLS,
    }
)


def removed_broker_key(name: str) -> str | None:
    """What to write instead of a broker key that is gone; None if it never was one."""
    if name in REMOVED_BROKER_KEYS:
        return REMOVED_BROKER_KEYS[name]
    if name in REMOVED_CLIENT_KEYS:
        today = REMOVED_CLIENT_KEYS[name]
        return f"{_CLIENT}`{today}`" if today else "it was a setting of old clients; remove it"
    return next(
        (hint for prefix, hint in _REMOVED_PREFIXES.items() if name.startswith(prefix)), None
    )
