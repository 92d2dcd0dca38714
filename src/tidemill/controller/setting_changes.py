"""Alters settings: decisions of `settings.py` made durable, with what follows from them."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.config import BrokerConfig
from tidemill.controller import tree, trust
from tidemill.controller.changes import Changes, PolicyOf
from tidemill.controller.ledger import Ledger
from tidemill.controller.liveness import min_isr_changed
from tidemill.controller.loading import read_incarnations
from tidemill.controller.office import Office
from tidemill.controller.policies import ELECTION_KEYS, Policies
from tidemill.controller.settings import (
    ConfigChange,
    ResourcePlan,
    plan_increments,
    plan_replacements,
)
from tidemill.image import (
    ClusterImage,
    with_broker_configs,
    with_group_configs,
    with_topic_configs,
)
from tidemill.store.base import Create, Delete, Op, Put
from tidemill.types import BrokerId
from tidemill.wire.messages.configs import AlterConfigsResource, IncrementalAlterConfigsResource


class SettingChanges:
    """Each request is one change: all resources that pass their checks, together."""

    def __init__(self, office: Office, config: BrokerConfig, policies: Policies) -> None:
        self._office = office
        self._config = config
        self._policies = policies

    async def replace(
        self, resources: Sequence[AlterConfigsResource], origin: int, validate_only: bool
    ) -> list[ResourcePlan]:
        """`origin` is the broker that was asked: only its own settings can be meant."""
        async with self._office.deciding():
            plans = plan_replacements(self._office.image, resources, origin, self._config)
            return await self._apply(plans, validate_only)

    async def increment(
        self,
        resources: Sequence[IncrementalAlterConfigsResource],
        origin: int,
        validate_only: bool,
    ) -> list[ResourcePlan]:
        async with self._office.deciding():
            plans = plan_increments(self._office.image, resources, origin, self._config)
            return await self._apply(plans, validate_only)

    async def _apply(self, plans: list[ResourcePlan], validate_only: bool) -> list[ResourcePlan]:
        changes = [plan.change for plan in plans if plan.change is not None]
        if not changes or validate_only:
            return plans
        image = self._office.image
        ops: list[Op] = []
        for change in changes:
            ops += await self._ops(change)
            image = _with_change(image, change)
        topics = [each.topic for each in changes if each.topic is not None]
        policy_of = self._policies.of
        if any(_concerns_elections(self._office.image, change) for change in changes):
            topics, policy_of = list(image.topics), self._policies_in(image).of
        ledger = Ledger(image, policy_of)
        self._follow_topics(ledger, topics, policy_of)
        doubts = await self._doubts(changes)
        # Should the commit be cut, those who are no longer eligible have to go first.
        await self._office.commit([*doubts, *ledger.settle(), *ops])
        await self._office.publish(ledger.image)
        return plans

    def _policies_in(self, image: ClusterImage) -> Policies:
        """What topics inherit once this image is true."""
        own = image.broker_configs.get(self._office.broker_id, {})
        config = self._config.with_dynamic(image.default_broker_config, cluster=True)
        return Policies(config.with_dynamic(own, cluster=False))

    def _follow_topics(self, ledger: Ledger, topics: Sequence[str], policy_of: PolicyOf) -> None:
        """What is eligible depends on `min.insync.replicas` (rule F2), and an offline partition
        may be one whose topic allows an unclean election from now on."""
        ledger.take(min_isr_changed(ledger.image, topics, policy_of))
        changes = Changes(ledger.image, policy_of)
        for name in topics:
            topic = ledger.image.topics[name]
            for partition in topic.partitions:
                if not partition.has_leader:
                    changes.settle(topic, partition)
        ledger.take(changes.made)

    async def _doubts(self, changes: Sequence[ConfigChange]) -> list[Op]:
        """What brokers that live now are not believed later, if flush policies change (F3)."""
        image = self._office.image
        if not trust.concern_flushing(image, changes):
            return []
        noted = read_incarnations(await self._office.read_tree(tree.BROKER_EPOCHS))
        return trust.doubts(image, noted, changes)

    async def _ops(self, change: ConfigChange) -> list[Op]:
        if change.topic is not None:
            path = tree.topic_config_path(change.topic)
        elif change.group_id is not None:
            path = tree.group_config_path(change.group_id)
        else:
            path = tree.broker_config_path(change.broker_id)
        value = tree.config_value(change.configs)
        known = await self._office.store.exists(path) is not None
        if change.group_id is not None and not change.configs:
            # Nothing else says that a group is there, so nothing is left of it.
            return [Delete(path)] if known else []
        return [Put(path, value) if known else Create(path, value)]


def _concerns_elections(image: ClusterImage, change: ConfigChange) -> bool:
    """Whether it changes a broker's setting on which all topics' elections depend."""
    if change.topic is not None or change.group_id is not None:
        return False
    if change.broker_id is None:
        before = image.default_broker_config
    else:
        before = image.broker_configs.get(BrokerId(change.broker_id), {})
    return any(before.get(key) != change.configs.get(key) for key in ELECTION_KEYS)


def _with_change(image: ClusterImage, change: ConfigChange) -> ClusterImage:
    if change.topic is not None:
        return with_topic_configs(image, change.topic, change.configs)
    if change.group_id is not None:
        return with_group_configs(image, change.group_id, change.configs)
    return with_broker_configs(image, change.broker_id, change.configs)
