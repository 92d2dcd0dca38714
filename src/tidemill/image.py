"""The immutable picture of the cluster that everyone reads: brokers, topics, partitions, settings.

A `ClusterImage` never changes. The controller makes the next one from the last with the pure
functions below and hands it to every listener, so a reader that holds an image across an `await`
still sees one consistent cluster. Images share what did not change: a new topic copies the mapping
of topic names and nothing below it, whatever the number of partitions.

Start at `ClusterImage`; `with_topic`, `without_topic` and the other functions make the next image.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Any, TypeVar

from tidemill.invariant import invariant
from tidemill.types import (
    NO_BROKER,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    PartitionEpoch,
    PartitionIndex,
    TopicId,
    TopicPartition,
)

K = TypeVar("K")
V = TypeVar("V")

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Topics that the brokers write for themselves; clients may read them and not produce to them."""

_EMPTY: Mapping[Any, Any] = MappingProxyType({})
_FIRST_PARTITION_EPOCH = PartitionEpoch(0)
_NO_CONTROLLER_EPOCH = ControllerEpoch(0)


class ReplicaTrouble(IntEnum):
    """What is wrong with a replica whose broker lives."""

    GONE = 0
    """Its disk failed: there is nothing left of it."""
    FULL = 1
    """It has all that it had, and no room for more."""
    DAMAGED = 2
    """Some of its records cannot be read."""


class LeaderRecovery(IntEnum):
    """Whether the leader was elected out of the ISR or had to be taken from outside it."""

    RECOVERED = 0
    RECOVERING = 1


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address at which a broker says that it can be reached."""

    listener: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """One registered broker; `epoch` names this incarnation of it.

    `machine` is known to the controller only, which reads it where the broker registered.
    """

    broker_id: BrokerId
    epoch: BrokerEpoch
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    fenced: bool = False
    in_controlled_shutdown: bool = False
    machine: str = field(default="", compare=False)

    @property
    def alive(self) -> bool:
        """Whether it may lead partitions and be listed to clients."""
        return not self.fenced and not self.in_controlled_shutdown

    def endpoint(self, listener: str) -> Endpoint | None:
        """Its address on the listener that a client came in by."""
        return next((e for e in self.endpoints if e.listener == listener), None)


def _down(broker_id: BrokerId) -> BrokerImage:
    return BrokerImage(broker_id, BrokerEpoch(-1), endpoints=(), fenced=True)


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """One partition's replicas and who leads them.

    `partition_epoch` is the version of the partition's state in the store; `leader` is -1 while
    nobody can lead.
    """

    index: PartitionIndex
    leader: BrokerId
    leader_epoch: LeaderEpoch
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    partition_epoch: PartitionEpoch = _FIRST_PARTITION_EPOCH
    elr: tuple[BrokerId, ...] = ()
    last_known_elr: tuple[BrokerId, ...] = ()
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()
    recovery: LeaderRecovery = LeaderRecovery.RECOVERED
    controller_epoch: ControllerEpoch = _NO_CONTROLLER_EPOCH

    @property
    def has_leader(self) -> bool:
        return self.leader != NO_BROKER


@dataclass(frozen=True, slots=True)
class TopicImage:
    """One topic: `partitions[i]` is partition i, `configs` its overrides as they were set.

    `sure_factor` is how many replicas every partition has for sure, without those that a move is
    about to add: what may be asked of all partitions depends on it.
    """

    name: str
    topic_id: TopicId
    partitions: tuple[PartitionImage, ...]
    configs: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    sure_factor: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        counts = (len(each.replicas) - len(each.adding) for each in self.partitions)
        object.__setattr__(self, "sure_factor", min(counts, default=0))

    def is_set_like(self, other: TopicImage) -> bool:
        """Whether partitions of both obey the same settings, as far as topics have a say."""
        return self.configs == other.configs and self.sure_factor == other.sure_factor

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS

    def partition(self, index: int) -> PartitionImage | None:
        """Partition `index`, or None where the topic has no such one."""
        return self.partitions[index] if 0 <= index < len(self.partitions) else None

    @property
    def replication_factor(self) -> int:
        """The replicas of partition 0: what Kafka reports as the topic's replication factor."""
        return len(self.partitions[0].replicas) if self.partitions else 0


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """Everything about the cluster at one moment; `version` grows with every image published.

    `broker_configs` are the dynamic settings of single brokers, `default_broker_config` those of
    all brokers together; `group_configs` are those of consumer groups, which need not exist.
    `unclean_elections` counts those that may have cost records, since the cluster was made.
    """

    cluster_id: str = ""
    version: int = 0
    controller_id: BrokerId = NO_BROKER
    controller_epoch: ControllerEpoch = _NO_CONTROLLER_EPOCH
    brokers: Mapping[BrokerId, BrokerImage] = field(default_factory=lambda: _EMPTY)
    topics: Mapping[str, TopicImage] = field(default_factory=lambda: _EMPTY)
    topic_names: Mapping[TopicId, str] = field(default_factory=lambda: _EMPTY)
    broker_configs: Mapping[BrokerId, Mapping[str, str]] = field(default_factory=lambda: _EMPTY)
    default_broker_config: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    group_configs: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: _EMPTY)
    partition_count: int = 0
    unclean_elections: int = 0

    def topic(self, name: str) -> TopicImage | None:
        return self.topics.get(name)

    def topic_by_id(self, topic_id: TopicId) -> TopicImage | None:
        name = self.topic_names.get(topic_id)
        return None if name is None else self.topics[name]

    def partition(self, topic: str, index: int) -> PartitionImage | None:
        image = self.topics.get(topic)
        return None if image is None else image.partition(index)

    def broker(self, broker_id: int) -> BrokerImage | None:
        return self.brokers.get(BrokerId(broker_id))

    def replicas_of(self, broker_id: int) -> dict[TopicPartition, TopicId]:
        """The partitions of which the broker is to have a copy, and whose they are."""
        return {
            TopicPartition(topic.name, partition.index): topic.topic_id
            for topic in self.topics.values()
            for partition in topic.partitions
            if broker_id in partition.replicas
        }

    def alive_brokers(self) -> list[BrokerImage]:
        """The brokers that clients may be told of, in the order of their ids."""
        return [self.brokers[key] for key in sorted(self.brokers) if self.brokers[key].alive]

    def members(self) -> Mapping[BrokerId, BrokerImage]:
        """The brokers there are: those registered, and those that are down but hold replicas."""
        hosts = {
            broker_id
            for topic in self.topics.values()
            for partition in topic.partitions
            for broker_id in partition.replicas
        }
        down = {host: _down(host) for host in hosts if host not in self.brokers}
        return {**self.brokers, **down} if down else self.brokers

    @property
    def staying_count(self) -> int:
        """How many brokers there are that are not about to leave: what new topics can count on.

        One that is down comes back: a topic made meanwhile is to have its replica there.
        """
        return sum(not broker.in_controlled_shutdown for broker in self.members().values())


EMPTY_IMAGE = ClusterImage()


def frozen(mapping: Mapping[K, V]) -> Mapping[K, V]:
    """A read-only view on a private copy: what an image may hold."""
    return MappingProxyType(dict(mapping)) if mapping else _EMPTY


def with_topic(image: ClusterImage, topic: TopicImage) -> ClusterImage:
    """The image in which `topic` is new, or replaces the one of the same name."""
    return with_topics(image, (topic,))


def with_topics(image: ClusterImage, topics: Iterable[TopicImage]) -> ClusterImage:
    """Like `with_topic` for many at once, at the price of one copy of the name mappings."""
    by_name = dict(image.topics)
    by_id: dict[TopicId, str] | None = None
    partition_count = image.partition_count
    for topic in topics:
        before = by_name.get(topic.name)
        by_name[topic.name] = topic
        partition_count += len(topic.partitions) - (len(before.partitions) if before else 0)
        if before is not None and before.topic_id == topic.topic_id:
            continue
        by_id = dict(image.topic_names) if by_id is None else by_id
        if before is not None:
            del by_id[before.topic_id]
        by_id[topic.topic_id] = topic.name
    return _replace_topics(image, by_name, by_id, partition_count)


def without_topics(image: ClusterImage, names: Iterable[str]) -> ClusterImage:
    """The image without these topics; names it does not have are passed over."""
    by_name = dict(image.topics)
    by_id = dict(image.topic_names)
    partition_count = image.partition_count
    for name in names:
        topic = by_name.pop(name, None)
        if topic is not None:
            del by_id[topic.topic_id]
            partition_count -= len(topic.partitions)
    return _replace_topics(image, by_name, by_id, partition_count)


def _replace_topics(
    image: ClusterImage,
    by_name: dict[str, TopicImage],
    by_id: dict[TopicId, str] | None,
    partition_count: int,
) -> ClusterImage:
    names = image.topic_names if by_id is None else MappingProxyType(by_id)
    invariant(len(names) == len(by_name), "every topic has one id", topics=len(by_name))
    return replace(
        image,
        version=image.version + 1,
        topics=MappingProxyType(by_name),
        topic_names=names,
        partition_count=partition_count,
    )


def with_partitions(
    image: ClusterImage, name: str, partitions: Iterable[PartitionImage]
) -> ClusterImage:
    """The image with these partitions of one topic replaced, or appended at its end."""
    topic = image.topics[name]
    changed = list(topic.partitions)
    for partition in sorted(partitions, key=lambda p: p.index):
        invariant(partition.index <= len(changed), "partitions have no gaps", topic=name)
        changed[partition.index : partition.index + 1] = [partition]
    return with_topic(image, replace(topic, partitions=tuple(changed)))


def with_topic_configs(image: ClusterImage, name: str, configs: Mapping[str, str]) -> ClusterImage:
    """The image in which the topic's overrides are exactly `configs`."""
    return with_topic(image, replace(image.topics[name], configs=frozen(configs)))


def with_broker(image: ClusterImage, broker: BrokerImage) -> ClusterImage:
    """The image in which `broker` is registered, in place of any earlier incarnation."""
    brokers = {**image.brokers, broker.broker_id: broker}
    return replace(image, version=image.version + 1, brokers=MappingProxyType(brokers))


def without_broker(image: ClusterImage, broker_id: BrokerId) -> ClusterImage:
    """The image without the broker; its settings stay, as they do in the store."""
    brokers = {key: value for key, value in image.brokers.items() if key != broker_id}
    return replace(image, version=image.version + 1, brokers=MappingProxyType(brokers))


def with_broker_configs(
    image: ClusterImage, broker_id: BrokerId | None, configs: Mapping[str, str]
) -> ClusterImage:
    """The image with one broker's dynamic settings, or with None those of all brokers."""
    version = image.version + 1
    if broker_id is None:
        return replace(image, version=version, default_broker_config=frozen(configs))
    by_broker = {key: value for key, value in image.broker_configs.items() if key != broker_id}
    if configs:
        by_broker[broker_id] = frozen(configs)
    return replace(image, version=version, broker_configs=MappingProxyType(by_broker))


def with_group_configs(
    image: ClusterImage, group_id: str, configs: Mapping[str, str]
) -> ClusterImage:
    """The image with one group's settings; a group without any is not listed."""
    by_group = {key: value for key, value in image.group_configs.items() if key != group_id}
    if configs:
        by_group[group_id] = frozen(configs)
    return replace(image, version=image.version + 1, group_configs=MappingProxyType(by_group))


def with_controller(
    image: ClusterImage, broker_id: BrokerId, epoch: ControllerEpoch
) -> ClusterImage:
    """The image in which that broker is the controller, elected in that epoch."""
    version = image.version + 1
    return replace(image, version=version, controller_id=broker_id, controller_epoch=epoch)
