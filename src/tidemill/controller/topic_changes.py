"""Creates, grows and deletes topics: decisions of `topics.py` made durable.

On a store that cuts large commits, a topic's node is made empty and gets its value last, and loses
its value first when the topic is deleted: what a dead controller left half done can be told from a
topic, and the next one removes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

from tidemill.config import BrokerConfig, describe_topic
from tidemill.controller import tree
from tidemill.controller.office import Office
from tidemill.controller.settings import check_topic_configs
from tidemill.controller.topics import (
    CreatePlan,
    DeletePlan,
    GrowthPlan,
    TopicDefaults,
    plan_creations,
    plan_deletions,
    plan_growth,
)
from tidemill.image import TopicImage, with_topics, without_topics
from tidemill.store.base import Create, Delete, Op, Put
from tidemill.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsTopic,
    DeleteTopicState,
)

Described = dict[tuple[object, int], list[CreatableTopicConfigs]]


class TopicChanges:
    """Each request is one change: all topics that pass their checks, together."""

    def __init__(self, office: Office, config: BrokerConfig, random: Random) -> None:
        self._office = office
        self._config = config
        self._random = random

    async def create(
        self, requests: Sequence[CreatableTopic], validate_only: bool
    ) -> list[CreatableTopicResult]:
        office = self._office
        async with office.deciding():
            plans = plan_creations(
                office.image, requests, self._defaults(), self._config_check(), self._random
            )
            created = [plan.topic for plan in plans if plan.topic is not None]
            if created and not validate_only:
                staged = office.cuts_commits
                await office.commit([op for topic in created for op in _creation(topic, staged)])
                await office.publish(with_topics(office.image, created))
            described: Described = {}
            return [self._result(plan, described) for plan in plans]

    async def grow(
        self, requests: Sequence[CreatePartitionsTopic], validate_only: bool
    ) -> list[GrowthPlan]:
        office = self._office
        async with office.deciding():
            plans = plan_growth(office.image, requests, self._random)
            grown = [plan.topic for plan in plans if plan.topic is not None]
            if grown and not validate_only:
                present = {topic.name: office.image.topics[topic.name] for topic in grown}
                ops: list[Op] = []
                for topic in grown:
                    ops += _growth(topic, len(present[topic.name].partitions))
                await office.commit(ops)
                await office.publish(with_topics(office.image, grown))
            return plans

    async def delete(
        self, names: Sequence[str], topics: Sequence[DeleteTopicState]
    ) -> list[DeletePlan]:
        office = self._office
        async with office.deciding():
            plans = plan_deletions(office.image, names, topics)
            gone = [plan.topic.name for plan in plans if plan.topic is not None]
            if gone:
                ops: list[Op] = []
                for name in gone:
                    ops += await self._deletion(name)
                await office.commit(ops)
                await office.publish(without_topics(office.image, gone))
            return plans

    async def _deletion(self, name: str) -> list[Op]:
        path = tree.topic_path(name)
        ops: list[Op] = [Put(path, b"")] if self._office.cuts_commits else []
        for root in (tree.topic_config_path(name), path):
            nodes = await self._office.read_tree(root)
            ops += [Delete(each) for each in reversed(nodes)]
        return ops

    def _config_check(self) -> Callable[[Mapping[str, str]], None]:
        """Checks topics' settings; those of a request's many topics are mostly the same."""
        checked: set[object] = set()

        def check(configs: Mapping[str, str]) -> None:
            key = tuple(configs.items())
            if key not in checked:
                check_topic_configs(configs, self._config)
                checked.add(key)

        return check

    def _defaults(self) -> TopicDefaults:
        brokers = self._office.image.staying_count
        return TopicDefaults(
            partitions=self._config.int("num.partitions"),
            replication_factor=self._config.default_replication_factor(brokers),
            internal_replication_factor=self._config.offsets_replication_factor(brokers),
        )

    def _result(self, plan: CreatePlan, described: Described) -> CreatableTopicResult:
        if plan.topic is None:
            assert plan.error is not None
            return CreatableTopicResult(
                name=plan.name, error_code=plan.error.code, error_message=plan.error.message
            )
        topic = plan.topic
        key = (tuple(topic.configs.items()), topic.sure_factor)
        if key not in described:
            described[key] = self._describe(topic)
        return CreatableTopicResult(
            name=plan.name,
            topic_id=topic.topic_id,
            error_message=None,
            num_partitions=len(topic.partitions),
            replication_factor=topic.replication_factor,
            configs=described[key],
        )

    def _describe(self, topic: TopicImage) -> list[CreatableTopicConfigs]:
        factor = topic.sure_factor
        described = describe_topic(topic.configs, self._config, replication_factor=factor)
        return [
            CreatableTopicConfigs(
                name=entry.name,
                value=entry.value,
                read_only=entry.read_only,
                config_source=entry.source,
                is_sensitive=entry.sensitive,
            )
            for entry in sorted(described)
        ]


def _creation(topic: TopicImage, staged: bool) -> list[Op]:
    path, value = tree.topic_path(topic.name), tree.topic_value(topic)
    ops: list[Op] = [
        Create(path, b"" if staged else value),
        Create(tree.topic_config_path(topic.name), tree.config_value(topic.configs)),
        Create(tree.partitions_path(topic.name)),
        *_new_partitions(topic, 0),
    ]
    return [*ops, Put(path, value)] if staged else ops


def _growth(topic: TopicImage, present: int) -> list[Op]:
    """The topic's node goes last: until then it has no more partitions than before."""
    put = Put(tree.topic_path(topic.name), tree.topic_value(topic))
    return [*_new_partitions(topic, present), put]


def _new_partitions(topic: TopicImage, first: int) -> list[Op]:
    ops: list[Op] = []
    for partition in topic.partitions[first:]:
        ops.append(Create(tree.partition_path(topic.name, partition.index)))
        ops.append(
            Create(tree.state_path(topic.name, partition.index), tree.state_value(partition))
        )
    return ops
