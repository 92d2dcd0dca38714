"""From the store's tree to an image: how a controller learns the cluster when it takes over.

Pure: it is given the nodes, as `Store.tree` returns them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from tidemill.controller import tree
from tidemill.controller.election import without
from tidemill.image import ClusterImage, PartitionImage, TopicImage, with_topics
from tidemill.store.base import Delete, Node, Op
from tidemill.types import NO_BROKER, BrokerId, ControllerEpoch

log = logging.getLogger(__name__)


def load_image(nodes: Mapping[str, Node]) -> ClusterImage:
    """The cluster as these nodes describe it."""
    image = ClusterImage(
        cluster_id=str(_load(nodes, tree.CLUSTER_ID).get("id", "")),
        controller_id=BrokerId(int(_load(nodes, tree.CONTROLLER).get("brokerid", -1))),
        controller_epoch=read_controller_epoch(nodes.get(tree.CONTROLLER_EPOCH)),
        brokers=MappingProxyType(
            {
                BrokerId(int(name)): tree.read_broker(int(name), node)
                for name, node in _children(nodes, tree.BROKER_IDS)
            }
        ),
        broker_configs=MappingProxyType(
            {
                BrokerId(int(name)): tree.read_config(node.value)
                for name, node in _children(nodes, tree.BROKER_CONFIGS)
                if name != tree.DEFAULT_ENTITY
            }
        ),
        group_configs=MappingProxyType(
            {
                tree.group_of_config(name): tree.read_config(node.value)
                for name, node in _children(nodes, tree.GROUP_CONFIGS)
            }
        ),
    )
    elections = nodes.get(tree.UNCLEAN_ELECTIONS)
    if elections is not None and elections.value:
        image = replace(image, unclean_elections=int(elections.value))
    default = nodes.get(tree.broker_config_path(None))
    if default is not None:
        image = replace(image, default_broker_config=tree.read_config(default.value))
    topics = [
        _read_topic(nodes, name, node)
        for name, node in _children(nodes, tree.TOPICS)
        if is_whole_topic(node)
    ]
    return with_topics(image, topics)


def is_whole_topic(node: Node) -> bool:
    """Whether a topic's node is that of a topic; without a value it is one half made or deleted."""
    return bool(node.value)


def remnants(nodes: Mapping[str, Node]) -> list[Op]:
    """Remove what is left of topics whose creation, growth or deletion was cut short.

    Only a store that cuts commits can leave such things behind.
    """
    roots: set[str] = set()
    for name, node in _children(nodes, tree.TOPICS):
        if is_whole_topic(node):
            index = len(tree.load(node.value)["partitions"])
            while (path := tree.partition_path(name, index)) in nodes:
                roots.add(path)
                index += 1
        else:
            log.warning("topic %s was half made or half deleted; the rest of it goes", name)
            roots |= {tree.topic_path(name), tree.topic_config_path(name)}
    # Ten thousand partitions may be left of one topic, among as many of others.
    below = [each for each in nodes if not roots.isdisjoint(_with_parents(each))] if roots else []
    return [Delete(each) for each in sorted(below, reverse=True)]


def _with_parents(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.rpartition("/")[0]


def read_incarnations(nodes: Mapping[str, Node]) -> dict[BrokerId, tree.Incarnation]:
    """The latest incarnation of each broker of which a controller has taken note."""
    return {
        BrokerId(int(name)): tree.read_incarnation(node)
        for name, node in _children(nodes, tree.BROKER_EPOCHS)
    }


def read_registrations(nodes: Mapping[str, Node]) -> dict[BrokerId, Node]:
    """The registrations there are, by broker."""
    return {BrokerId(int(name)): node for name, node in _children(nodes, tree.BROKER_IDS)}


def read_controller_epoch(node: Node | None) -> ControllerEpoch:
    """The epoch that a node says, 0 before the first election."""
    return ControllerEpoch(int(node.value) if node is not None and node.value else 0)


def _read_topic(nodes: Mapping[str, Node], name: str, node: Node) -> TopicImage:
    value = tree.load(node.value)
    adding = value.get("adding_replicas", {})
    removing = value.get("removing_replicas", {})
    assigned = sorted((int(index), replicas) for index, replicas in value["partitions"].items())
    configs = nodes.get(tree.topic_config_path(name))
    return TopicImage(
        name=name,
        topic_id=tree.uuid_from_text(value["topic_id"]),
        partitions=tuple(
            _consistent(
                tree.read_partition(
                    index,
                    replicas,
                    adding.get(str(index), ()),
                    removing.get(str(index), ()),
                    nodes.get(tree.state_path(name, index)),
                )
            )
            for index, replicas in assigned
        ),
        configs={} if configs is None else tree.read_config(configs.value),
    )


def _consistent(partition: PartitionImage) -> PartitionImage:
    """A partition that elections can go on from, though its topic and its state disagree.

    They are two nodes, and a commit may be cut between them. Who is in sync and no replica is one
    on its way out: it leaves when the others are in sync.
    """
    replicas, isr = partition.replicas, partition.isr
    strangers = without(dict.fromkeys((*isr, *partition.elr)), replicas)
    if strangers:
        removing = (*partition.removing, *strangers) if replicas else ()
        partition = replace(partition, replicas=(*replicas, *strangers), removing=removing)
    if partition.has_leader and partition.leader not in isr:
        partition = replace(partition, leader=NO_BROKER)
    return partition


def _load(nodes: Mapping[str, Node], path: str) -> dict[str, Any]:
    node = nodes.get(path)
    return {} if node is None else tree.load(node.value)


def _children(nodes: Mapping[str, Node], path: str) -> list[tuple[str, Node]]:
    prefix = path + "/"
    start = len(prefix)
    return [
        (name[start:], node)
        for name, node in nodes.items()
        if name.startswith(prefix) and "/" not in name[start:]
    ]
