"""Making one topic like another: what to create, what to grow, which settings to take along.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemill.client.admin_types import ConfigEntry, ConfigSource, NewTopic, TopicDescription
from tidemill.errors import TidemillError

NOT_COPIED = frozenset(
    {
        # The copy keeps the original's timestamps, so its own log must neither set nor refuse any.
        "message.timestamp.type",
        "message.timestamp.before.max.ms",
        "message.timestamp.after.max.ms",
        # These name brokers of the source.
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
        # The other cluster may have fewer brokers.
        "min.insync.replicas",
    }
)


SIZE_SETTING = "max.message.bytes"
SEALED = "0"
"""The size that refuses every record: what a hand-over leaves behind, see `sealing.py`."""


class CopyError(TidemillError):
    """A copy that cannot be made, or go on; the message says why."""


@dataclass(frozen=True, slots=True)
class TopicChange:
    """What the target needs: a new topic, or more partitions, or neither."""

    create: NewTopic | None = None
    grow_to: int | None = None


def settings_of(entries: Mapping[str, ConfigEntry]) -> dict[str, str | None]:
    """The settings that the topic has of its own and that its copy should have, too.

    Of a sealed topic all but the seal: its copy has to take records.
    """
    return {
        name: entry.value
        for name, entry in sorted(entries.items())
        if entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG
        and name not in NOT_COPIED
        and not entry.sensitive
        and (name, entry.value) != (SIZE_SETTING, SEALED)
    }


def change_for(
    name: str,
    partitions: int,
    settings: Mapping[str, str | None],
    existing: TopicDescription | None,
    replication_factor: int = -1,
    *,
    may_grow: bool,
) -> TopicChange:
    """What makes `name` a topic of so many partitions.

    One whose partitions hang on the keys may not grow: its keys would move.
    """
    if existing is None:
        configs = {**settings, "message.timestamp.type": "CreateTime"}
        return TopicChange(create=NewTopic(name, partitions, replication_factor, configs=configs))
    have = len(existing.partitions)
    if have > partitions or (have < partitions and not may_grow):
        raise CopyError(
            f"{name} has {have} partitions and should have {partitions}; choose another target"
        )
    return TopicChange(grow_to=partitions if have < partitions else None)
