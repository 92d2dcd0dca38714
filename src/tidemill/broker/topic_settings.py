"""From a topic's overrides to the settings its partitions obey, resolved once per combination."""

from __future__ import annotations

from tidemill.config import BrokerConfig, resolve_topic_config
from tidemill.image import TopicImage
from tidemill.replication.partition import PartitionSettings
from tidemill.replication.throttle import throttled_replicas
from tidemill.storage.log_config import LogConfig

Combination = tuple[tuple[tuple[str, str], ...], int, bool]


class TopicSettings:
    """Resolved settings: ten thousand topics without overrides share one object."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._resolved: dict[Combination, PartitionSettings] = {}

    def of(self, topic: TopicImage) -> PartitionSettings:
        factor = topic.sure_factor
        key = (tuple(sorted(topic.configs.items())), factor, topic.is_internal)
        found = self._resolved.get(key)
        if found is None:
            found = self._resolved[key] = self._resolve(topic, factor)
        return found

    def _resolve(self, topic: TopicImage, factor: int) -> PartitionSettings:
        resolved = resolve_topic_config(topic.configs, self._config, replication_factor=factor)
        return PartitionSettings(
            log=LogConfig.from_settings(resolved, is_internal=topic.is_internal),
            min_insync_replicas=resolved.int("min.insync.replicas"),
            leader_throttled=throttled_replicas(
                resolved.list("leader.replication.throttled.replicas")
            ),
            follower_throttled=throttled_replicas(
                resolved.list("follower.replication.throttled.replicas")
            ),
        )

    def forget(self) -> None:
        """The broker's own settings may have changed, from which topics inherit."""
        self._resolved.clear()
