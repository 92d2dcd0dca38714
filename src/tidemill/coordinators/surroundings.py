"""What the shards of a broker share: settings for groups, the cluster's image, chance and time."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from tidemill.clock import Clock
from tidemill.coordinators.classic_group import ClassicSettings
from tidemill.coordinators.consumer_steps import ConsumerGroupConfig
from tidemill.coordinators.topic_search import TopicSearch
from tidemill.image import EMPTY_IMAGE, ClusterImage


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """The broker's settings for groups, as they are now."""

    classic: ClassicSettings = field(default_factory=ClassicSettings)
    consumer: ConsumerGroupConfig = field(default_factory=ConsumerGroupConfig)
    metadata_max: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 3600 * 1000
    may_upgrade: bool = True


WithOverrides = Callable[[ConsumerGroupConfig, Mapping[str, str]], ConsumerGroupConfig]
"""The settings of a group that has some of its own."""


class _Own(NamedTuple):
    """A group's settings, and what they were made from."""

    overrides: Mapping[str, str]
    common: ConsumerGroupConfig
    resolved: ConsumerGroupConfig


class Surroundings:
    """What all shards of a broker share; `image` and `settings` are replaced as they change."""

    def __init__(
        self,
        clock: Clock,
        random: Random,
        settings: ShardSettings,
        with_overrides: WithOverrides = lambda common, _: common,
    ) -> None:
        self.clock = clock
        self.random = random
        self.settings = settings
        self.image: ClusterImage = EMPTY_IMAGE
        self.search = TopicSearch(clock)
        self._with_overrides = with_overrides
        self._own_settings: dict[str, _Own] = {}

    def consumer_settings(self, group_id: str) -> ConsumerGroupConfig:
        """What holds for a group of the newer protocol, now."""
        overrides = self.image.group_configs.get(group_id)
        common = self.settings.consumer
        if overrides is None:
            return common
        known = self._own_settings.get(group_id)
        if known is None or known.overrides is not overrides or known.common is not common:
            known = _Own(overrides, common, self._with_overrides(common, overrides))
            self._own_settings[group_id] = known
            if len(self._own_settings) > len(self.image.group_configs):
                self._forget_former(self.image.group_configs)
        return known.resolved

    def _forget_former(self, now: Container[str]) -> None:
        """Groups come and go with settings of their own; what they had is not kept."""
        for group_id in [each for each in self._own_settings if each not in now]:
            del self._own_settings[group_id]

    def new_member_id(self) -> str:
        """A random id in the form of a UUID of version 4."""
        bits = self.random.getrandbits(128)
        bits = (bits & ~(0xF << 76)) | (4 << 76)
        bits = (bits & ~(0x3 << 62)) | (2 << 62)
        text = f"{bits:032x}"
        return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
