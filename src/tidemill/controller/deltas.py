"""What changed between two images, as a message, and the way back: from an image and a message to
the next image.

Pure. Images share what did not change, so comparing them costs as much as there are topics, and a
message holds as much as has changed. Whoever applies one keeps every topic and partition object
that is still the same, so that the next comparison is as cheap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import is_
from types import MappingProxyType
from typing import TypeVar

from tidemill.image import (
    EMPTY_IMAGE,
    BrokerImage,
    ClusterImage,
    Endpoint,
    LeaderRecovery,
    PartitionImage,
    TopicImage,
    frozen,
    with_topics,
    without_topics,
)
from tidemill.invariant import invariant
from tidemill.types import (
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    PartitionEpoch,
    PartitionIndex,
)
from tidemill.wire.messages.cluster import (
    ImageBroker,
    ImageBrokerConfig,
    ImageDeltaRequest,
    ImageEndpoint,
    ImageGroupConfig,
    ImagePartition,
    ImageTopic,
    Setting,
)

K = TypeVar("K")

ALL_BROKERS = -1
"""The broker id under which the settings of all brokers together travel."""


# From images to a message


def delta_between(before: ClusterImage | None, after: ClusterImage) -> ImageDeltaRequest:
    """What a broker that has `before` must be told; None: it has nothing, and gets it all."""
    known = EMPTY_IMAGE if before is None else before
    return ImageDeltaRequest(
        cluster_id=after.cluster_id,
        controller_id=after.controller_id,
        controller_epoch=after.controller_epoch,
        from_version=-1 if before is None else before.version,
        version=after.version,
        is_snapshot=before is None,
        brokers=[
            _broker(broker)
            for broker_id, broker in after.brokers.items()
            if known.brokers.get(broker_id) != broker
        ],
        removed_brokers=[key for key in known.brokers if key not in after.brokers],
        topics=[
            _topic(known.topics.get(name), topic)
            for name, topic in after.topics.items()
            if known.topics.get(name) is not topic
        ],
        removed_topics=[name for name in known.topics if name not in after.topics],
        unclean_elections=after.unclean_elections,
        broker_configs=_broker_configs(known, after),
        group_configs=[
            ImageGroupConfig(group_id=name, configs=_settings(configs))
            for name, configs in _changed(known.group_configs, after.group_configs)
        ],
    )


def _broker(broker: BrokerImage) -> ImageBroker:
    return ImageBroker(
        broker_id=broker.broker_id,
        broker_epoch=broker.epoch,
        endpoints=[
            ImageEndpoint(
                listener=each.listener,
                host=each.host,
                port=each.port,
                security_protocol=each.security_protocol,
            )
            for each in broker.endpoints
        ],
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
    )


def _topic(before: TopicImage | None, after: TopicImage) -> ImageTopic:
    if before is not None and before.topic_id != after.topic_id:
        before = None
    known = () if before is None else before.partitions
    return ImageTopic(
        name=after.name,
        topic_id=after.topic_id,
        partitions=[
            _partition(each)
            for each in after.partitions
            if each.index >= len(known) or known[each.index] is not each
        ],
        configs=None
        if before is not None and before.configs == after.configs
        else _settings(after.configs),
    )


def _partition(partition: PartitionImage) -> ImagePartition:
    return ImagePartition(
        partition_index=partition.index,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        replicas=list(partition.replicas),
        isr=list(partition.isr),
        elr=list(partition.elr),
        last_known_elr=list(partition.last_known_elr),
        adding_replicas=list(partition.adding),
        removing_replicas=list(partition.removing),
        leader_recovery_state=int(partition.recovery),
        controller_epoch=partition.controller_epoch,
    )


def _settings(configs: Mapping[str, str]) -> list[Setting]:
    return [Setting(name=name, value=value) for name, value in configs.items()]


def _broker_configs(before: ClusterImage, after: ClusterImage) -> list[ImageBrokerConfig]:
    changed = [
        ImageBrokerConfig(broker_id=broker_id, configs=_settings(configs))
        for broker_id, configs in _changed(before.broker_configs, after.broker_configs)
    ]
    if before.default_broker_config != after.default_broker_config:
        configs = _settings(after.default_broker_config)
        changed.append(ImageBrokerConfig(broker_id=ALL_BROKERS, configs=configs))
    return changed


def _changed(
    before: Mapping[K, Mapping[str, str]], after: Mapping[K, Mapping[str, str]]
) -> list[tuple[K, Mapping[str, str]]]:
    """The settings that differ; those that are gone are empty."""
    keys = dict.fromkeys([*before, *after])
    return [(key, after.get(key, {})) for key in keys if before.get(key, {}) != after.get(key, {})]


# From a message to an image


def follow_delta(image: ClusterImage, delta: ImageDeltaRequest) -> ClusterImage:
    """The image that the message describes; `image` is what is known so far."""
    base = _nothing_of(image) if delta.is_snapshot else image
    after = without_topics(base, delta.removed_topics) if delta.removed_topics else base
    if delta.topics:
        known = image.topics
        after = with_topics(after, [_read_topic(known.get(t.name), t) for t in delta.topics])
    brokers = {key: value for key, value in after.brokers.items() if key not in _gone(delta)}
    brokers.update((BrokerId(each.broker_id), _read_broker(each)) for each in delta.brokers)
    return replace(
        _with_configs(after, delta),
        cluster_id=delta.cluster_id,
        version=delta.version,
        controller_id=BrokerId(delta.controller_id),
        controller_epoch=ControllerEpoch(delta.controller_epoch),
        brokers=MappingProxyType(brokers),
        unclean_elections=delta.unclean_elections,
    )


def _nothing_of(image: ClusterImage) -> ClusterImage:
    return replace(EMPTY_IMAGE, cluster_id=image.cluster_id)


def _gone(delta: ImageDeltaRequest) -> frozenset[int]:
    return frozenset(delta.removed_brokers)


def _read_broker(message: ImageBroker) -> BrokerImage:
    return BrokerImage(
        broker_id=BrokerId(message.broker_id),
        epoch=BrokerEpoch(message.broker_epoch),
        endpoints=tuple(
            Endpoint(each.listener, each.host, each.port, each.security_protocol)
            for each in message.endpoints
        ),
        rack=message.rack,
        fenced=message.fenced,
        in_controlled_shutdown=message.in_controlled_shutdown,
    )


def _read_topic(known: TopicImage | None, message: ImageTopic) -> TopicImage:
    """The topic after the change; the known one itself if there is none, as in a snapshot."""
    if known is not None and known.topic_id != message.topic_id:
        known = None
    partitions = [] if known is None else list(known.partitions)
    for each in sorted(message.partitions, key=lambda each: each.partition_index):
        index = each.partition_index
        after = _read_partition(each)
        if index < len(partitions) and partitions[index] == after:
            continue
        invariant(index <= len(partitions), "partitions have no gaps", topic=message.name)
        partitions[index : index + 1] = [after]
    if message.configs is not None:
        configs = frozen({each.name: each.value for each in message.configs})
    else:
        configs = frozen({}) if known is None else known.configs
    if known is not None and known.configs == configs and _are(known.partitions, partitions):
        return known
    return TopicImage(message.name, message.topic_id, tuple(partitions), configs)


def _are(known: Sequence[PartitionImage], partitions: Sequence[PartitionImage]) -> bool:
    return len(known) == len(partitions) and all(map(is_, known, partitions))


def _read_partition(message: ImagePartition) -> PartitionImage:
    return PartitionImage(
        index=PartitionIndex(message.partition_index),
        leader=BrokerId(message.leader_id),
        leader_epoch=LeaderEpoch(message.leader_epoch),
        replicas=_ids(message.replicas),
        isr=_ids(message.isr),
        partition_epoch=PartitionEpoch(message.partition_epoch),
        elr=_ids(message.elr),
        last_known_elr=_ids(message.last_known_elr),
        adding=_ids(message.adding_replicas),
        removing=_ids(message.removing_replicas),
        recovery=LeaderRecovery(message.leader_recovery_state),
        controller_epoch=ControllerEpoch(message.controller_epoch),
    )


def _ids(numbers: Iterable[int]) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, numbers))


def _with_configs(image: ClusterImage, delta: ImageDeltaRequest) -> ClusterImage:
    if not delta.broker_configs and not delta.group_configs:
        return image
    by_broker = dict(image.broker_configs)
    default = image.default_broker_config
    for entry in delta.broker_configs:
        configs = frozen({each.name: each.value for each in entry.configs})
        if entry.broker_id == ALL_BROKERS:
            default = configs
        else:
            _set(by_broker, BrokerId(entry.broker_id), configs)
    by_group = dict(image.group_configs)
    for group in delta.group_configs:
        _set(by_group, group.group_id, frozen({each.name: each.value for each in group.configs}))
    return replace(
        image,
        broker_configs=MappingProxyType(by_broker),
        default_broker_config=default,
        group_configs=MappingProxyType(by_group),
    )


def _set(mapping: dict[K, Mapping[str, str]], key: K, configs: Mapping[str, str]) -> None:
    if configs:
        mapping[key] = configs
    else:
        mapping.pop(key, None)
