"""The partitions of a broker follow the cluster's image."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.replication.helpers import World, partition_image, records, topic_image

from tidemill.image import with_partitions, with_topic, with_topic_configs, without_topics
from tidemill.replication.manager import CHANGES_AT_ONCE_MAX
from tidemill.testing.disk import CrashDisk
from tidemill.types import TopicPartition


def test_a_topic_that_comes_and_goes() -> None:
    world = World()
    world.add(topic_image(partitions=3))
    assert len(world.replicas) == 3
    partition = world.replicas.get("t", 2)
    assert partition is not None
    assert partition.is_leader
    assert world.replicas.get_by_id(topic_image().topic_id, 2) is partition
    world.apply(without_topics(world.image, ["t"]))
    assert len(world.replicas) == 0
    assert partition.is_gone
    assert world.replicas.get("t", 2) is None
    assert world.logs.get(TopicPartition("t", 2)) is None


def test_a_topic_made_again_starts_empty() -> None:
    """Rule A11: the id tells them apart, also when one image replaces the other."""
    world = World()
    first = world.only()
    first.append(records(b"old"), required_acks=1)
    world.add(topic_image(number=2))
    second = world.only()
    assert second is not first
    assert first.is_gone
    assert second.log.log_end_offset == 0
    assert world.replicas.get_by_id(topic_image(number=1).topic_id, 0) is None


def test_a_log_left_by_another_topic_of_the_name_is_not_used() -> None:
    """Rule A11: the topic was deleted and made again while the broker was down."""
    disk = CrashDisk(Random(1))
    world = World(disk=disk)
    world.only().append(records(b"old"), required_acks=1)
    world.logs.shutdown(world.replicas.high_watermarks())
    again = World(disk=disk)
    again.add(topic_image(number=2))
    assert again.only().log.log_end_offset == 0


def test_the_high_watermark_survives_a_restart() -> None:
    """Rule B7: checkpointed with the clean stop, never above the log's end."""
    disk = CrashDisk(Random(1))
    world = World(disk=disk)
    world.only().append(records(b"a", b"b"), required_acks=1)
    world.logs.shutdown(world.replicas.high_watermarks())
    assert World(disk=disk).only().high_watermark == 2


def test_more_partitions() -> None:
    world = World()
    world.add(topic_image(partitions=1))
    before = world.replicas.get("t", 0)
    world.apply(with_partitions(world.image, "t", [partition_image(1)]))
    assert world.replicas.get("t", 0) is before
    assert world.replicas.get("t", 1) is not None


def test_changed_settings_reach_the_log() -> None:
    world = World()
    partition = world.only()
    world.apply(with_topic_configs(world.image, "t", {"max.message.bytes": "77"}))
    assert partition.log.config.max_message_bytes == 77


def test_a_broker_setting_reaches_every_topic() -> None:
    world = World()
    partition = world.only()
    world.flush_policy = "ack"
    world.apply(replace(world.image, default_broker_config={"log.flush.policy": "ack"}))
    assert partition.log.config.flush_policy == "ack"


def test_many_logs_are_made_in_steps_and_on_demand() -> None:
    """Ten thousand partitions do not hold the loop, and nobody finds one missing."""
    world = World()
    world.add(topic_image(partitions=1000))
    assert len(world.replicas) == CHANGES_AT_ONCE_MAX
    last = world.replicas.get("t", 999)
    assert last is not None
    assert last.is_leader
    by_id = world.replicas.get_by_id(topic_image().topic_id, 998)
    assert by_id is not None
    assert world.replicas.get("t", 1000) is None
    world.run_later()
    assert len(world.replicas) == 1000
    assert world.replicas.get("t", 999) is last


def test_a_topic_that_goes_before_its_logs_are_made() -> None:
    world = World()
    world.add(topic_image(partitions=1000))
    world.apply(without_topics(world.image, ["t"]))
    world.run_later()
    assert len(world.replicas) == 0
    assert world.logs.logs == {}


def test_a_topic_that_comes_back_before_its_logs_are_removed() -> None:
    world = World()
    world.add(topic_image(partitions=1000))
    world.run_later()
    world.apply(without_topics(world.image, ["t"]))
    world.apply(with_topic(world.image, topic_image(number=2, partitions=1000)))
    world.run_later()
    assert len(world.replicas) == 1000
    assert {stored.topic_id.int for stored in world.logs.logs.values()} == {2}
    world.apply(without_topics(world.image, ["t"]))


def test_partitions_of_other_brokers_are_left_to_them() -> None:
    world = World()
    topic = topic_image()
    elsewhere = replace(topic, partitions=(partition_image(leader=1, replicas=(1,), isr=(1,)),))
    world.add(elsewhere)
    assert len(world.replicas) == 0
