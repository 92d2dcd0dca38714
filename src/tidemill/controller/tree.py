"""Where things are in the store, and what they look like: Kafka's node tree with its JSON values.

Names, keys and versions are those that Kafka kept in ZooKeeper, so that tools which read that tree
can read ours. Newer facts are further keys of the same values: `topic_id` of a topic, `elr`,
`last_known_elr` and `leader_recovery_state` of a partition; `directory_id`, `clean_shutdown_epoch`,
`flush_policy`, `process` and `machine` of a broker. `/brokers/epochs` has the latest incarnation of
each broker that a controller has taken note of, `/cluster/secret` what brokers prove to each other.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from random import Random
from typing import Any, NamedTuple
from urllib.parse import quote, unquote
from uuid import UUID

from tidemill.image import (
    BrokerImage,
    Endpoint,
    LeaderRecovery,
    PartitionImage,
    TopicImage,
    frozen,
)
from tidemill.store.base import Node
from tidemill.types import (
    NO_BROKER,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    PartitionEpoch,
    PartitionIndex,
)

BROKERS = "/brokers"
BROKER_IDS = "/brokers/ids"
BROKER_SEQUENCE = "/brokers/seqid"
BROKER_EPOCHS = "/brokers/epochs"
TOPICS = "/brokers/topics"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
CLUSTER = "/cluster"
CLUSTER_ID = "/cluster/id"
CLUSTER_SECRET = "/cluster/secret"
CONFIG = "/config"
TOPIC_CONFIGS = "/config/topics"
BROKER_CONFIGS = "/config/brokers"
GROUP_CONFIGS = "/config/groups"
DEFAULT_ENTITY = "<default>"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"
UNCLEAN_ELECTIONS = "/unclean_elections"
"""How many elections may have cost records (rule A10)."""

PERSISTENT_PATHS = (
    BROKERS,
    BROKER_IDS,
    BROKER_EPOCHS,
    TOPICS,
    CLUSTER,
    CONFIG,
    TOPIC_CONFIGS,
    BROKER_CONFIGS,
    GROUP_CONFIGS,
    "/config/changes",
    "/config/clients",
    "/config/users",
    "/admin",
    "/admin/delete_topics",
    "/isr_change_notification",
    "/log_dir_event_notification",
    UNCLEAN_ELECTIONS,
)
"""The parents that a store must have before the first broker registers."""


def topic_path(topic: str) -> str:
    return f"{TOPICS}/{topic}"


def partitions_path(topic: str) -> str:
    return f"{TOPICS}/{topic}/partitions"


def partition_path(topic: str, index: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{index}"


def state_path(topic: str, index: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{index}/state"


def topic_config_path(topic: str) -> str:
    return f"{TOPIC_CONFIGS}/{topic}"


def broker_config_path(broker_id: int | None) -> str:
    """Where a broker's dynamic settings are; None is the default of all brokers."""
    return f"{BROKER_CONFIGS}/{DEFAULT_ENTITY if broker_id is None else broker_id}"


def group_config_path(group_id: str) -> str:
    """Where a group's settings are; its id may have characters that separate paths."""
    name = quote(group_id, safe="").replace(".", "%2E")
    return f"{GROUP_CONFIGS}/{name}"


def group_of_config(node_name: str) -> str:
    return unquote(node_name)


def broker_path(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def broker_epoch_path(broker_id: int) -> str:
    """Where the latest incarnation of a broker is noted, whether it lives or not."""
    return f"{BROKER_EPOCHS}/{broker_id}"


# Values


_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def dump(value: Mapping[str, Any]) -> bytes:
    return _encode(value).encode()


def load(value: bytes) -> dict[str, Any]:
    """A node's JSON object; an empty node, as old tools leave behind, counts as an empty one."""
    parsed = json.loads(value) if value else {}
    return parsed if isinstance(parsed, dict) else {}


def uuid_text(value: UUID) -> str:
    """The 22 characters by which Kafka spells an id."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def uuid_from_text(text: str) -> UUID:
    return UUID(bytes=base64.urlsafe_b64decode(text + "=="))


def random_uuid(random: Random) -> UUID:
    """A random id that a command line cannot take for a flag: it does not start with a dash."""
    while True:
        value = UUID(int=random.getrandbits(128), version=4)
        if not uuid_text(value).startswith("-"):
            return value


def topic_value(topic: TopicImage) -> bytes:
    """A topic's node: who holds which partition, and moves under way."""
    partitions = topic.partitions
    return dump(
        {
            "version": 3,
            "topic_id": uuid_text(topic.topic_id),
            "partitions": {str(p.index): list(p.replicas) for p in partitions},
            "adding_replicas": {str(p.index): list(p.adding) for p in partitions if p.adding},
            "removing_replicas": {str(p.index): list(p.removing) for p in partitions if p.removing},
        }
    )


def state_value(partition: PartitionImage) -> bytes:
    """A partition's state node: who leads, and who is in sync."""
    value: dict[str, Any] = {
        "controller_epoch": partition.controller_epoch,
        "leader": partition.leader,
        "version": 1,
        "leader_epoch": partition.leader_epoch,
        "isr": list(partition.isr),
    }
    if partition.recovery is not LeaderRecovery.RECOVERED:
        value["leader_recovery_state"] = int(partition.recovery)
    if partition.elr:
        value["elr"] = list(partition.elr)
    if partition.last_known_elr:
        value["last_known_elr"] = list(partition.last_known_elr)
    return dump(value)


def read_partition(
    index: int,
    replicas: Iterable[int],
    adding: Iterable[int],
    removing: Iterable[int],
    state: Node | None,
) -> PartitionImage:
    """A partition from its topic's node and its state; without a state nobody leads it yet."""
    value = {} if state is None else load(state.value)
    return PartitionImage(
        index=PartitionIndex(index),
        leader=BrokerId(value.get("leader", NO_BROKER)),
        leader_epoch=LeaderEpoch(value.get("leader_epoch", 0)),
        replicas=tuple(map(BrokerId, replicas)),
        isr=tuple(map(BrokerId, value.get("isr", ()))),
        partition_epoch=PartitionEpoch(0 if state is None else state.stat.version),
        elr=tuple(map(BrokerId, value.get("elr", ()))),
        last_known_elr=tuple(map(BrokerId, value.get("last_known_elr", ()))),
        adding=tuple(map(BrokerId, adding)),
        removing=tuple(map(BrokerId, removing)),
        recovery=LeaderRecovery(value.get("leader_recovery_state", 0)),
        controller_epoch=ControllerEpoch(value.get("controller_epoch", 0)),
    )


def config_value(configs: Mapping[str, str]) -> bytes:
    return dump({"version": 1, "config": dict(sorted(configs.items()))})


def read_config(value: bytes) -> Mapping[str, str]:
    configs = load(value).get("config", {})
    return frozen({str(key): str(setting) for key, setting in configs.items()})


def broker_value(
    broker: BrokerImage,
    timestamp_ms: int,
    directory_id: str,
    *,
    clean_shutdown_epoch: int = -1,
    flush_policy: str = "",
    process: str = "",
) -> bytes:
    """A broker's registration; its epoch is the number of the commit that creates the node.

    `clean_shutdown_epoch` is the incarnation that is known to have stopped cleanly; with the
    `flush_policy` "ack" nothing committed is lost by any other end. `process` names the process: if
    the latest incarnation is of the same one, there was no end.
    """
    first = broker.endpoints[0]
    protocols = {e.listener: e.security_protocol for e in broker.endpoints}
    value: dict[str, Any] = {
        "version": 5,
        "host": first.host,
        "port": first.port,
        "endpoints": [f"{e.listener}://{_bracketed(e.host)}:{e.port}" for e in broker.endpoints],
        "listener_security_protocol_map": protocols,
        "jmx_port": -1,
        "timestamp": str(timestamp_ms),
        "features": {},
        "directory_id": directory_id,
    }
    if broker.rack is not None:
        value["rack"] = broker.rack
    if clean_shutdown_epoch >= 0:
        value["clean_shutdown_epoch"] = clean_shutdown_epoch
    if flush_policy:
        value["flush_policy"] = flush_policy
    if process:
        value["process"] = process
    if broker.machine:
        value["machine"] = broker.machine
    return dump(value)


def read_broker(broker_id: int, node: Node) -> BrokerImage:
    value = load(node.value)
    protocols = value.get("listener_security_protocol_map", {})
    endpoints = []
    for text in value.get("endpoints", ()):
        listener, _, address = text.partition("://")
        host, _, port = address.rpartition(":")
        protocol = protocols.get(listener, listener)
        endpoints.append(Endpoint(listener, host.strip("[]"), int(port), protocol))
    return BrokerImage(
        broker_id=BrokerId(broker_id),
        epoch=BrokerEpoch(node.stat.created),
        endpoints=tuple(endpoints),
        rack=value.get("rack"),
        machine=str(value.get("machine", "")),
    )


def producer_id_block(broker_id: int, start: int, end: int) -> bytes:
    """The latest block of producer ids that was given out, and to whom; `end` is in it."""
    return dump(
        {"version": 1, "broker": broker_id, "block_start": str(start), "block_end": str(end)}
    )


class BrokerClaims(NamedTuple):
    """What a registration says of the broker's past; see `broker_value`."""

    directories: frozenset[str]
    clean_shutdown_epoch: int
    flush_policy: str
    process: str


def _directories(value: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(filter(None, str(value.get("directory_id", "")).split(",")))


class Incarnation(NamedTuple):
    """The latest incarnation of a broker that a controller took note of, and how it lived.

    `unflushed` are the ids of topics that came to be flushed before they are committed only while
    it lived; see `trust.doubts`.
    """

    epoch: BrokerEpoch
    directories: frozenset[str]
    flush_policy: str
    process: str = ""
    unflushed: frozenset[str] = frozenset()


def incarnation_value(incarnation: Incarnation) -> bytes:
    value: dict[str, Any] = {
        "version": 1,
        "epoch": incarnation.epoch,
        "directory_id": ",".join(sorted(incarnation.directories)),
        "flush_policy": incarnation.flush_policy,
    }
    if incarnation.process:
        value["process"] = incarnation.process
    if incarnation.unflushed:
        value["unflushed"] = sorted(incarnation.unflushed)
    return dump(value)


def read_incarnation(node: Node) -> Incarnation:
    value = load(node.value)
    return Incarnation(
        BrokerEpoch(int(value.get("epoch", -1))),
        _directories(value),
        str(value.get("flush_policy", "")),
        str(value.get("process", "")),
        frozenset(map(str, value.get("unflushed", ()))),
    )


def read_claims(node: Node) -> BrokerClaims:
    value = load(node.value)
    return BrokerClaims(
        _directories(value),
        int(value.get("clean_shutdown_epoch", -1)),
        str(value.get("flush_policy", "")),
        str(value.get("process", "")),
    )


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
