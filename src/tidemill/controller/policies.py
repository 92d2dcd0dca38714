"""What topics' settings say about their elections, resolved once per combination of settings."""

from __future__ import annotations

from tidemill.config import BrokerConfig, resolve_topic_config
from tidemill.controller.election import ElectionPolicy
from tidemill.image import TopicImage

MIN_ISR = "min.insync.replicas"
UNCLEAN = "unclean.leader.election.enable"
ELECTION_KEYS = (MIN_ISR, UNCLEAN)
"""The settings that decide, of a topic, or of the brokers for topics that do not say."""

_RESOLVED_MAX = 10_000


class Policies:
    """Resolved policies: ten thousand topics without overrides share one object."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._resolved: dict[tuple[object, int], ElectionPolicy] = {}

    def of(self, topic: TopicImage) -> ElectionPolicy:
        factor = topic.sure_factor
        key = (tuple(sorted(topic.configs.items())), factor)
        found = self._resolved.get(key)
        if found is None:
            if len(self._resolved) >= _RESOLVED_MAX:
                self._resolved.clear()
            found = self._resolved[key] = self._resolve(topic, factor)
        return found

    def _resolve(self, topic: TopicImage, factor: int) -> ElectionPolicy:
        resolved = resolve_topic_config(topic.configs, self._config, replication_factor=factor)
        return ElectionPolicy(
            min_isr=resolved.int(MIN_ISR),
            unclean_allowed=resolved.bool(UNCLEAN),
        )

    def forget(self) -> None:
        """The broker's own settings may have changed, from which topics inherit."""
        self._resolved.clear()
