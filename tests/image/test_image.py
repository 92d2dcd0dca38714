"""Images never change, share what they can, and are consistent after every step."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.image import (
    EMPTY_IMAGE,
    BrokerImage,
    ClusterImage,
    Endpoint,
    PartitionImage,
    TopicImage,
    with_broker,
    with_broker_configs,
    with_controller,
    with_partitions,
    with_topic,
    with_topic_configs,
    with_topics,
    without_broker,
    without_topics,
)
from tidemill.types import (
    NO_BROKER,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    PartitionIndex,
)

ONE = BrokerId(1)


def partition(index: int, leader: int = 1, leader_epoch: int = 0) -> PartitionImage:
    return PartitionImage(
        PartitionIndex(index), BrokerId(leader), LeaderEpoch(leader_epoch), (ONE,), (ONE,)
    )


def topic(name: str, number: int, partitions: int = 1) -> TopicImage:
    return TopicImage(name, UUID(int=number), tuple(partition(i) for i in range(partitions)))


def broker(broker_id: int, epoch: int = 1, **flags: bool) -> BrokerImage:
    endpoint = Endpoint("PLAINTEXT", "127.0.0.1", 9092 + broker_id)
    known = BrokerImage(BrokerId(broker_id), BrokerEpoch(epoch), (endpoint,))
    return replace(known, **flags)  # type: ignore[arg-type]


def test_a_topic_is_found_by_name_and_by_id() -> None:
    image = with_topic(EMPTY_IMAGE, topic("clicks", 7, partitions=3))
    found = image.topic("clicks")
    assert found is not None
    assert image.topic_by_id(UUID(int=7)) is found
    assert image.topic_by_id(UUID(int=8)) is None
    assert image.partition("clicks", 2) is found.partitions[2]
    assert image.partition("clicks", 3) is None
    assert image.partition("clicks", -1) is None
    assert image.partition("others", 0) is None
    assert image.partition_count == 3


def test_a_recreated_topic_has_a_new_identity() -> None:
    """Rule A11: identity is the id; the old one leads nowhere once the name has a new one."""
    image = with_topic(EMPTY_IMAGE, topic("clicks", 1, partitions=5))
    again = with_topic(image, topic("clicks", 2, partitions=2))
    assert again.topic_by_id(UUID(int=1)) is None
    assert again.topic_by_id(UUID(int=2)) is again.topic("clicks")
    assert again.partition_count == 2


def test_images_cannot_be_changed() -> None:
    image = with_broker(with_topic(EMPTY_IMAGE, topic("clicks", 1)), broker(1))
    with pytest.raises(FrozenInstanceError):
        image.cluster_id = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        image.topics["x"] = topic("x", 2)  # type: ignore[index]
    with pytest.raises(TypeError):
        image.brokers[ONE] = broker(1)  # type: ignore[index]
    with pytest.raises(TypeError):
        image.topics["clicks"].configs["a"] = "b"  # type: ignore[index]


def test_a_new_topic_shares_everything_that_was_there() -> None:
    before = with_topic(EMPTY_IMAGE, topic("big", 1, partitions=10_000))
    after = with_topic(before, topic("small", 2))
    assert after.topics["big"] is before.topics["big"]
    assert after.brokers is before.brokers
    changed = with_topic_configs(after, "small", {"retention.ms": "1"})
    assert changed.topic_names is after.topic_names
    assert changed.topics["small"].partitions is after.topics["small"].partitions
    assert "small" not in before.topics


def test_partitions_are_replaced_and_appended() -> None:
    image = with_topic(EMPTY_IMAGE, topic("clicks", 1, partitions=2))
    image = with_partitions(image, "clicks", [partition(2), partition(0, leader=-1)])
    indexes = [each.index for each in image.topics["clicks"].partitions]
    assert indexes == [0, 1, 2]
    first = image.partition("clicks", 0)
    assert first is not None
    assert first.leader == NO_BROKER
    assert not first.has_leader
    assert image.partition_count == 3


def test_brokers_come_and_go_with_their_epochs() -> None:
    """Rule A3: every registration is a new incarnation."""
    image = with_broker(with_broker(EMPTY_IMAGE, broker(2)), broker(1, epoch=5))
    image = with_broker(image, broker(1, epoch=9))
    member = image.broker(1)
    assert member is not None
    assert member.epoch == 9
    assert [each.broker_id for each in image.alive_brokers()] == [1, 2]
    assert member.endpoint("PLAINTEXT") is not None
    assert member.endpoint("SSL") is None
    assert list(without_broker(image, ONE).brokers) == [2]


def test_fenced_and_leaving_brokers_are_not_offered() -> None:
    image = with_broker(with_broker(EMPTY_IMAGE, broker(1, fenced=True)), broker(2))
    image = with_broker(image, broker(3, in_controlled_shutdown=True))
    assert [each.broker_id for each in image.alive_brokers()] == [2]


def test_settings_of_one_broker_and_of_all() -> None:
    image = with_broker_configs(EMPTY_IMAGE, ONE, {"a": "1"})
    image = with_broker_configs(image, None, {"a": "2"})
    assert image.broker_configs[ONE] == {"a": "1"}
    assert image.default_broker_config == {"a": "2"}
    assert dict(with_broker_configs(image, ONE, {}).broker_configs) == {}


def test_the_controller_and_every_step_have_a_number() -> None:
    image = with_controller(EMPTY_IMAGE, ONE, ControllerEpoch(4))
    assert (image.controller_id, image.controller_epoch) == (1, 4)
    assert image.version == EMPTY_IMAGE.version + 1


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 5), st.integers(1, 4)), max_size=30)
)
def test_names_ids_and_counts_always_agree(steps: list[tuple[str, int, int]]) -> None:
    image: ClusterImage = EMPTY_IMAGE
    for number, (name, kind, partitions) in enumerate(steps, 1):
        if kind == 0:
            image = without_topics(image, [name, "absent"])
        else:
            image = with_topics(image, [topic(name, number, partitions)])
        assert {each.topic_id: each.name for each in image.topics.values()} == dict(
            image.topic_names
        )
        assert image.partition_count == sum(len(t.partitions) for t in image.topics.values())
        assert image.version == number
