"""The partitions of a broker follow the cluster's image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any, cast

import pytest
from tests.replication.helpers import OTHER, World, partition_image, records, topic_image

from tidemill.errors import ApiError, ErrorCode
from tidemill.image import (
    PartitionImage,
    ReplicaTrouble,
    TopicImage,
    with_partitions,
    with_topic,
    with_topic_configs,
    without_topics,
)
from tidemill.replication.manager import CHANGES_AT_ONCE_MAX
from tidemill.replication.partition import Partition
from tidemill.storage.disk_errors import DiskFullError
from tidemill.testing.disk import CrashDisk
from tidemill.types import NO_BROKER, LeaderEpoch, PartitionEpoch, TopicPartition


def strays(world: World) -> list[str]:
    return [
        name
        for place in world.logs.describe_dirs()
        for name in world.disk.listdir(place.path)
        if name.endswith("-stray")
    ]


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
    assert len(strays(again)) == 1, "whose data it was nobody knows: it is kept"


def test_the_high_watermark_survives_a_restart() -> None:
    """Rule B7: checkpointed with the clean stop, never above the log's end."""
    disk = CrashDisk(Random(1))
    world = World(disk=disk)
    world.only().append(records(b"a", b"b"), required_acks=1)
    world.logs.shutdown(world.replicas.high_watermarks())
    assert World(disk=disk).only().high_watermark == 2


def test_a_partition_without_a_leader_has_its_replica_and_its_high_watermark() -> None:
    """Rules B7 and K3: nobody leads, and a restart meanwhile forgets nothing."""
    world = World()
    world.only().append(records(b"a", b"b"), required_acks=1)
    world.logs.shutdown(world.replicas.high_watermarks())
    again = World(disk=world.disk)
    nobody = partition_image(leader=NO_BROKER, leader_epoch=1, partition_epoch=1, isr=())
    again.add(TopicImage("t", topic_image().topic_id, (nobody,), {}))
    partition = again.only()
    assert not partition.is_leader
    assert partition.log.log_end_offset == 2
    assert again.replicas.high_watermarks() == {TopicPartition("t", 0): 2}


def test_a_change_costs_what_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand ISR changes of a wide topic, one by one, must not be a million steps."""
    world = World()
    world.add(topic_image(partitions=50))
    world.run_later()
    assert len(world.replicas) == 50
    applied: list[int] = []
    apply = Partition.apply

    def counted(partition: Partition, image: PartitionImage) -> None:
        applied.append(image.index)
        apply(partition, image)

    monkeypatch.setattr(Partition, "apply", counted)
    for index in range(50):
        changed = replace(
            world.image.topics["t"].partitions[index], partition_epoch=PartitionEpoch(7)
        )
        world.apply(with_partitions(world.image, "t", [changed]))
    assert applied == list(range(50))
    world.replicas.stop_leading()
    changed = replace(world.image.topics["t"].partitions[0], partition_epoch=PartitionEpoch(8))
    world.apply(with_partitions(world.image, "t", [changed]))
    assert len(applied) == 100, "whoever stopped leading is told of everything anew"


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


def test_a_partition_that_is_made_after_the_session_was_lost_does_not_lead() -> None:
    """Rule A9: the image that asked for it says nothing about now; the next one does."""
    world = World()
    count = CHANGES_AT_ONCE_MAX + 1
    world.add(topic_image(partitions=count))
    world.replicas.stop_leading()
    late = world.replicas.get("t", count - 1)
    assert late is not None
    assert not any(partition.is_leader for partition in world.replicas)
    world.apply(world.image)
    assert all(partition.is_leader for partition in world.replicas)


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
    assert strays(world) == [], "what was deleted on purpose is not kept"
    world.apply(without_topics(world.image, ["t"]))


def test_partitions_of_other_brokers_are_left_to_them() -> None:
    world = World()
    topic = topic_image()
    elsewhere = replace(topic, partitions=(partition_image(leader=1, replicas=(1,), isr=(1,)),))
    world.add(elsewhere)
    assert len(world.replicas) == 0


class FullDisk(CrashDisk):
    """A disk on which no new log fits while `is_full` is set."""

    is_full = False

    def mkdir(self, path: str) -> None:
        if self.is_full:
            raise DiskFullError(f"No space left while creating {path}")
        super().mkdir(path)


def test_old_news_take_no_replica_away() -> None:
    """Rule A1: the partition came back to us since; its log must not go."""
    world = World()
    here = partition_image(partition_epoch=5)
    world.add(replace(topic_image(), partitions=(here,)))
    world.only().append(records(b"a"), required_acks=1)
    elsewhere = partition_image(leader=OTHER, partition_epoch=4, replicas=(OTHER,), isr=(OTHER,))
    world.add(replace(topic_image(), partitions=(elsewhere,)))
    world.run_later()
    assert world.only().log.log_end_offset == 1
    gone = replace(elsewhere, partition_epoch=PartitionEpoch(6))
    world.add(replace(topic_image(), partitions=(gone,)))
    assert world.replicas.get("t", 0) is None


def test_a_log_that_finds_no_room_is_made_later(caplog: pytest.LogCaptureFixture) -> None:
    """The partition exists: it says what is wrong with it, and is tried again by itself."""
    disk = FullDisk(Random(1))
    world = World(disk=disk)
    disk.is_full = True
    world.add(topic_image(partitions=20))
    topic_id = topic_image().topic_id
    assert world.replicas.get("t", 3) is None
    assert world.replicas.why_missing("t", 3) is ErrorCode.KAFKA_STORAGE_ERROR
    assert world.replicas.why_missing(topic_id, 3) is ErrorCode.KAFKA_STORAGE_ERROR
    assert world.replicas.why_missing("t", 20) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    said = [each for each in caplog.records if "has no log" in each.getMessage()]
    assert len(said) == 1, "one line, not one per partition"
    for _ in range(3):
        (again,) = world.later
        world.later.clear()
        again()
    assert len(world.replicas) == 0
    disk.is_full = False
    world.run_later()
    assert len(world.replicas) == 20
    assert all(partition.is_leader for partition in world.replicas)


def test_a_topic_that_goes_before_there_was_room_for_it() -> None:
    disk = FullDisk(Random(1))
    world = World(disk=disk)
    disk.is_full = True
    world.add(topic_image(partitions=3))
    world.apply(without_topics(world.image, ["t"]))
    assert world.replicas.why_missing("t", 0) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    disk.is_full = False
    world.run_later()
    assert world.logs.logs == {}


# A defect in one partition.


def spoil(
    monkeypatch: pytest.MonkeyPatch, what: str, index: int, error: Exception | None = None
) -> None:
    """One method of one partition raises what nobody has foreseen."""
    real = getattr(Partition, what)

    def raises(partition: Partition, *arguments: Any) -> Any:
        if partition.topic_partition.partition == index:
            raise error or KeyError("a defect")
        return real(partition, *arguments)

    monkeypatch.setattr(Partition, what, raises)


class Reports:
    """The controller, as far as it is told which replicas are lost."""

    def __init__(self) -> None:
        self.gone: list[TopicPartition] = []

    def report(self, partitions: Sequence[TopicPartition], trouble: ReplicaTrouble) -> None:
        assert trouble is ReplicaTrouble.GONE
        self.gone += partitions


def led_again(topic: TopicImage, leader_epoch: int) -> TopicImage:
    partitions = [
        replace(
            each,
            leader_epoch=LeaderEpoch(leader_epoch),
            partition_epoch=PartitionEpoch(leader_epoch),
        )
        for each in topic.partitions
    ]
    return replace(topic, partitions=tuple(partitions))


async def test_a_partition_that_cannot_follow_an_image_goes_offline_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Rule 2.L: the others follow it, and the controller knows."""
    world, reports = World(), Reports()
    world.replicas.replicate(cast("Any", None), cast("Any", None), reports)
    world.add(topic_image(partitions=4))
    with monkeypatch.context() as patched:
        spoil(patched, "apply", 1)
        world.add(led_again(topic_image(partitions=4), 5))
    epochs = [partition.leader_epoch for partition in world.replicas]
    assert epochs == [5, 0, 5, 5]
    assert [partition.is_leader for partition in world.replicas] == [True, False, True, True]
    assert reports.gone == [TopicPartition("t", 1)]
    assert any(one.exc_info and "t-1" in one.getMessage() for one in caplog.records)
    offline = world.replicas.get("t", 1)
    assert offline is not None
    with pytest.raises(ApiError) as caught:
        offline.append(records(b"x"), required_acks=1)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR


def test_what_an_image_did_not_reach_is_reached_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rule A1: nothing in the next image is new, but it was never applied."""
    world = World()
    world.add(topic_image("t", partitions=2))
    world.add(topic_image("u", number=2))
    with monkeypatch.context() as patched:
        settings_of = world.replicas._settings_of

        def fails(topic: TopicImage) -> Any:
            raise TypeError("a defect")

        patched.setattr(world.replicas, "_settings_of", fails)
        image = with_topic(world.image, led_again(topic_image("t", partitions=2), 5))
        changed = topic_image("u", number=2, compression_type="gzip")
        world.image = with_topic(image, led_again(changed, 7))
        world.replicas.apply(world.image)
        patched.setattr(world.replicas, "_settings_of", settings_of)
    assert [partition.leader_epoch for partition in world.replicas] == [0, 0, 0]
    world.apply(world.image)
    assert [partition.leader_epoch for partition in world.replicas] == [5, 5, 7]
    (last,) = [each for each in world.replicas if each.topic_partition.topic == "u"]
    assert last.log.config.compression_type == "gzip"
    calls: list[Partition] = []
    monkeypatch.setattr(Partition, "apply", lambda partition, image: calls.append(partition))
    world.apply(world.image)
    assert calls == [], "only what changed, from then on"


def test_a_partition_that_fails_for_good_does_not_make_every_image_expensive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    world.add(topic_image(partitions=2))
    spoil(monkeypatch, "apply", 1)
    world.add(led_again(topic_image(partitions=2), 5))
    world.apply(world.image)
    calls: list[Partition] = []
    monkeypatch.setattr(Partition, "apply", lambda partition, image: calls.append(partition))
    world.apply(world.image)
    assert calls == []


def test_a_log_that_cannot_be_made_for_a_reason_unforeseen_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    create, is_broken = world.logs.create, True

    def fails(topic_partition: TopicPartition, *arguments: Any) -> Any:
        if is_broken and topic_partition.partition == 1:
            raise ValueError("a defect")
        return create(topic_partition, *arguments)

    monkeypatch.setattr(world.logs, "create", fails)
    world.add(topic_image(partitions=3))
    assert len(world.replicas) == 2
    assert world.replicas.why_missing("t", 1) is ErrorCode.KAFKA_STORAGE_ERROR
    is_broken = False
    world.run_later()
    assert len(world.replicas) == 3


@pytest.mark.parametrize("what", ["stop_leading", "check_lag"])
async def test_what_is_done_to_all_is_done_to_the_others(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules A9 and C2: a session that is lost ends all leadership."""
    world, done = World(), []
    world.replicas.replicate(cast("Any", None), cast("Any", None), Reports())
    world.add(topic_image(partitions=4))
    monkeypatch.setattr(
        Partition, what, lambda partition: done.append(partition.topic_partition.partition)
    )
    spoil(monkeypatch, what, 1)
    if what == "stop_leading":
        world.replicas.stop_leading()
    else:
        world.later.pop(0)()
    assert done == [0, 2, 3]
    broken = world.replicas.get("t", 1)
    assert broken is not None
    assert not broken.is_leader
    assert broken.is_offline
