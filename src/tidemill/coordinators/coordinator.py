"""The broker's door to its groups: finds the shard of a group and runs the request on it.

`GroupCoordinator` follows the cluster's image: which partitions of the offsets topic this broker
leads, which topics went away. Each request method returns at once and answers through `reply`, a
response that may carry an error; the broker's handlers add what belongs to versions and names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from random import Random
from typing import TypeVar

from tidemill.config import BrokerConfig, resolve_group_config
from tidemill.coordinators.classic_group import ClassicSettings
from tidemill.coordinators.consumer_steps import ConsumerGroupConfig
from tidemill.coordinators.group_hash import partition_of
from tidemill.coordinators.records import GROUP_RECORDS
from tidemill.coordinators.result import Result
from tidemill.coordinators.runtime import Machinery, Runtime, RuntimeSettings
from tidemill.coordinators.shard import GroupShard, ShardSettings, Surroundings
from tidemill.errors import ErrorCode
from tidemill.image import ClusterImage
from tidemill.replication.partition import Partition
from tidemill.wire.compression import Codec

OFFSETS_TOPIC = "__consumer_offsets"
_MS_PER_MINUTE = 60_000

R = TypeVar("R")

SETTINGS = (
    "group.initial.rebalance.delay.ms",
    "group.max.size",
    "group.min.session.timeout.ms",
    "group.max.session.timeout.ms",
    "group.consumer.session.timeout.ms",
    "group.consumer.heartbeat.interval.ms",
    "group.consumer.max.size",
    "group.consumer.assignors",
    "group.consumer.assignment.interval.ms",
    "group.consumer.migration.policy",
    "offset.metadata.max.bytes",
    "offsets.retention.minutes",
)
"""The settings that shards obey; they may change while the broker runs."""


class GroupCoordinator:
    """All groups of one broker."""

    def __init__(
        self,
        config: BrokerConfig,
        random: Random,
        machinery: Machinery,
        find_partition: Callable[[str, int], Partition | None],
    ) -> None:
        self._config = config
        self._find_partition = find_partition
        self._around = Surroundings(
            machinery.clock, random, shard_settings(config), self._with_overrides
        )
        self._runtime: Runtime[GroupShard] = Runtime(
            machinery, lambda timers: GroupShard(self._around, timers), GROUP_RECORDS
        )
        self._call_soon = machinery.call_soon
        self._partition_count = 0
        self._follow_is_due = False
        self._is_closed = False
        config.subscribe(SETTINGS, lambda changed: self._reconfigure())

    def _reconfigure(self) -> None:
        self._around.settings = shard_settings(self._config)

    def _with_overrides(
        self, common: ConsumerGroupConfig, overrides: Mapping[str, str]
    ) -> ConsumerGroupConfig:
        own = resolve_group_config(overrides, self._config)
        return replace(
            common,
            session_timeout_ms=own.int("consumer.session.timeout.ms"),
            heartbeat_interval_ms=own.int("consumer.heartbeat.interval.ms"),
            assignment_interval_ms=own.int("consumer.assignment.interval.ms"),
        )

    @property
    def settings(self) -> ShardSettings:
        return self._around.settings

    @property
    def image(self) -> ClusterImage:
        return self._around.image

    # Following the image.

    def apply(self, image: ClusterImage) -> None:
        """Take over the partitions that this broker leads; forget offsets of deleted topics."""
        before, self._around.image = self._around.image, image
        topic = image.topic(OFFSETS_TOPIC)
        if topic is not before.topic(OFFSETS_TOPIC) or topic is None:
            self._follow(0 if topic is None else len(topic.partitions))
        gone = [
            name
            for name, known in before.topics.items()
            if (now := image.topics.get(name)) is not known
            and (now is None or now.topic_id != known.topic_id)
        ]
        if gone:
            for index in self._runtime.indexes():
                self._runtime.steps(index, lambda shard: shard.forget_deleted_topics(gone))

    def _follow(self, partition_count: int) -> None:
        if self._is_closed:
            return
        self._partition_count = partition_count
        led = {}
        for index in range(partition_count):
            partition = self._find_partition(OFFSETS_TOPIC, index)
            if partition is not None and partition.is_leader:
                led[index] = partition
        self._runtime.follow(led)

    def partition_moved(self, partition: Partition) -> None:
        topic, index = partition.topic_partition
        if topic != OFFSETS_TOPIC:
            return
        self._runtime.partition_moved(partition)
        is_ours = self._runtime.state_of(index) is not ErrorCode.NOT_COORDINATOR
        if partition.is_leader and not is_ours and not self._follow_is_due:
            # Its log could only be made after the image that gave it to us.
            self._follow_is_due = True
            self._call_soon(self._follow_late)

    def _follow_late(self) -> None:
        self._follow_is_due = False
        self._follow(self._partition_count)

    def close(self) -> None:
        self._is_closed = True
        self._runtime.close()

    # Requests.

    def partition_for(self, group_id: str) -> int | None:
        """The group's partition, once there is an offsets topic."""
        if not self._partition_count:
            return None
        return partition_of(group_id, self._partition_count)

    def run(
        self,
        group_id: str,
        operation: Callable[[GroupShard], Result[R]],
        reply: Callable[[R | None], object],
        fail: Callable[[ErrorCode, str | None], object],
        *,
        gather: bool = False,
    ) -> None:
        """Run an operation on the shard of a group."""
        index = self.partition_for(group_id)
        if index is None:
            fail(ErrorCode.NOT_COORDINATOR, None)
        else:
            self._runtime.run(index, operation, reply, fail, gather=gather)

    def delete(
        self,
        group_id: str,
        reply: Callable[[None], object],
        fail: Callable[[ErrorCode, str | None], object],
    ) -> None:
        """Delete a group; if it has very many offsets, some go in batches of their own before."""
        index = self.partition_for(group_id)
        if index is not None:
            self._runtime.steps(index, lambda shard: shard.shrink(group_id))
        self.run(group_id, lambda shard: shard.delete(group_id), reply, fail)

    def indexes(self) -> list[int]:
        """The partitions that are coordinated here."""
        return self._runtime.indexes()

    def run_on(
        self,
        index: int,
        operation: Callable[[GroupShard], Result[R]],
        reply: Callable[[R | None], object],
        fail: Callable[[ErrorCode, str | None], object],
    ) -> None:
        """Run an operation on the shard of a partition."""
        self._runtime.run(index, operation, reply, fail)

    # Housekeeping.

    def expiry(self) -> Iterator[None]:
        """Remove what is past its retention, some groups per step."""
        for index in self._runtime.indexes():
            shard = self._runtime.shard(index)
            for group_ids in [] if shard is None else shard.group_ids_in_steps():
                self._expire(index, group_ids)
                yield

    def _expire(self, index: int, group_ids: list[str]) -> None:
        self._runtime.steps(index, lambda shard: shard.expire(group_ids))


def shard_settings(config: BrokerConfig) -> ShardSettings:
    policy = config.str("group.consumer.migration.policy").lower()
    return ShardSettings(
        classic=ClassicSettings(
            initial_rebalance_delay_ms=config.int("group.initial.rebalance.delay.ms"),
            max_size=config.int("group.max.size"),
            min_session_timeout_ms=config.int("group.min.session.timeout.ms"),
            max_session_timeout_ms=config.int("group.max.session.timeout.ms"),
        ),
        consumer=ConsumerGroupConfig.of(config),
        may_upgrade=policy in ("upgrade", "bidirectional"),
        metadata_max=config.int("offset.metadata.max.bytes"),
        offsets_retention_ms=config.int("offsets.retention.minutes") * _MS_PER_MINUTE,
    )


def runtime_settings(config: BrokerConfig) -> RuntimeSettings:
    return RuntimeSettings(
        load_buffer_bytes=config.int("offsets.load.buffer.size"),
        commit_timeout_ms=config.int("offsets.commit.timeout.ms"),
        codec=Codec(config.int("offsets.topic.compression.codec")),
        append_linger_ms=config.int("group.coordinator.append.linger.ms"),
    )
