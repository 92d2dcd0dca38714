"""What a broker that registers anew is believed to have kept (rule F3).

Pure. The latest incarnation of each broker is noted in the store, and says how that one lived; what
the new registration says of itself proves something only together with it. A process that lost its
session and lives has lost nothing, and is known by its name: if no controller has noted that name,
nobody has judged yet what became of the process before.

A note is written last of all that follows from an incarnation. While it is missing, the next look
at the registrations decides the same again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidemill.controller import tree
from tidemill.controller.settings import ConfigChange
from tidemill.controller.tree import Incarnation
from tidemill.image import ClusterImage
from tidemill.store.base import Create, Node, Op, Put
from tidemill.types import BrokerEpoch, BrokerId

Registrations = Mapping[BrokerId, Node]
Noted = Mapping[BrokerId, Incarnation]

TOPIC_POLICY = "flush.policy"
BROKER_POLICY = "log.flush.policy"
SAFE = "ack"
"""The policy under which nothing is committed that a power cut could take back."""
_UNSAFE = "async"


def fresh(registered: Registrations, noted: Noted) -> Registrations:
    """The incarnations that no controller has taken note of."""
    return {
        broker_id: node
        for broker_id, node in sorted(registered.items())
        if not is_noted(noted, broker_id, node)
    }


def is_noted(noted: Noted, broker_id: BrokerId, node: Node) -> bool:
    known = noted.get(broker_id)
    return known is not None and known.epoch == node.stat.created


def notes(fresh: Registrations, noted: Noted) -> list[Op]:
    """Take note of these incarnations."""
    return [
        _note(broker_id, _incarnation(node, noted.get(broker_id)), broker_id in noted)
        for broker_id, node in fresh.items()
    ]


def _incarnation(node: Node, last: Incarnation | None) -> Incarnation:
    claims = tree.read_claims(node)
    epoch = BrokerEpoch(node.stat.created)
    if last is not None and is_same_process(node, last):
        return last._replace(epoch=epoch)
    return Incarnation(epoch, claims.directories, claims.flush_policy, claims.process)


def _note(broker_id: BrokerId, incarnation: Incarnation, was_noted: bool) -> Op:
    path, value = tree.broker_epoch_path(broker_id), tree.incarnation_value(incarnation)
    return Put(path, value) if was_noted else Create(path, value)


# After a crash


def is_same_process(node: Node, last: Incarnation | None) -> bool:
    """Whether the broker only lost its session since it was noted."""
    process = tree.read_claims(node).process
    return bool(process) and last is not None and last.process == process


def lost_nothing(node: Node, last: Incarnation | None) -> bool:
    """Whether the broker proves that its last incarnation lost nothing."""
    if is_same_process(node, last):
        return True
    epoch = tree.read_claims(node).clean_shutdown_epoch
    return epoch >= 0 and (last is None or last.epoch == epoch)


def lossless_topics(
    image: ClusterImage, broker_id: BrokerId, node: Node, last: Incarnation | None
) -> frozenset[str]:
    """The topics that lose nothing committed by a crash: those that flush before they commit.

    What counts is how the last incarnation lived, from its first record on, not what this one
    promises. And it is worth nothing if the broker came back with another disk.
    """
    claims = tree.read_claims(node)
    if last is not None and not last.directories <= claims.directories:
        return frozenset()
    lived = claims.flush_policy if last is None else last.flush_policy
    default = _default_policy(image, broker_id, {claims.flush_policy, lived})
    unflushed = frozenset() if last is None else last.unflushed
    return frozenset(
        name
        for name, topic in image.topics.items()
        if topic.configs.get(TOPIC_POLICY, default) == SAFE
        and tree.uuid_text(topic.topic_id) not in unflushed
    )


def _default_policy(image: ClusterImage, broker_id: BrokerId, said: Iterable[str]) -> str:
    """What topics inherit that have no policy of their own: safe if nothing says otherwise."""
    own = image.broker_configs.get(broker_id, {})
    set_while_running = {
        configs.get(BROKER_POLICY, SAFE) for configs in (own, image.default_broker_config)
    }
    return SAFE if {*said, *set_while_running} == {SAFE} else _UNSAFE


# When a policy changes


def concern_flushing(image: ClusterImage, changes: Iterable[ConfigChange]) -> bool:
    """Whether one of these changes a flush policy."""
    return any(_changes_policy(image, change) for change in changes)


def doubts(image: ClusterImage, noted: Noted, changes: Iterable[ConfigChange]) -> list[Op]:
    """Note, of each broker, the policies that these changes may make safe while it lives.

    What it has not flushed by the time of the change, it may not have flushed when its power goes,
    if it has not heard of the change. Write this before the change.
    """
    changed = [change for change in changes if _changes_policy(image, change)]
    ops = []
    for broker_id, last in noted.items():
        doubted = last
        for change in changed:
            doubted = _doubted(image, broker_id, doubted, change)
        if doubted != last:
            ops.append(_note(broker_id, doubted, was_noted=True))
    return ops


def _changes_policy(image: ClusterImage, change: ConfigChange) -> bool:
    if change.topic is not None:
        before = image.topics[change.topic].configs.get(TOPIC_POLICY)
        return before != change.configs.get(TOPIC_POLICY)
    if change.group_id is not None:
        return False
    if change.broker_id is None:
        before = image.default_broker_config.get(BROKER_POLICY)
    else:
        before = image.broker_configs.get(BrokerId(change.broker_id), {}).get(BROKER_POLICY)
    return before != change.configs.get(BROKER_POLICY)


def _doubted(
    image: ClusterImage, broker_id: BrokerId, last: Incarnation, change: ConfigChange
) -> Incarnation:
    default = _default_policy(image, broker_id, {last.flush_policy})
    if change.topic is None:
        concerned = change.broker_id is None or change.broker_id == broker_id
        return last._replace(flush_policy=default) if concerned else last
    topic = image.topics[change.topic]
    if topic.configs.get(TOPIC_POLICY, default) == SAFE:
        return last
    return last._replace(unflushed=last.unflushed | {tree.uuid_text(topic.topic_id)})
