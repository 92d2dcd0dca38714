"""From one image to the next by a message: whatever changed arrives, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from tests.controller.partitions import partition

from tidemill.controller import tree
from tidemill.controller.deltas import delta_between, follow_delta
from tidemill.image import (
    EMPTY_IMAGE,
    BrokerImage,
    ClusterImage,
    Endpoint,
    TopicImage,
    with_broker,
    with_broker_configs,
    with_group_configs,
    with_partitions,
    with_topic,
    with_topic_configs,
    without_broker,
    without_topics,
)
from tidemill.types import BrokerEpoch, BrokerId, ControllerEpoch
from tidemill.wire.codec import decode, encode
from tidemill.wire.messages.cluster import ImageDeltaRequest

NAMES = ["a", "b", "c"]


def travel(delta: ImageDeltaRequest) -> ImageDeltaRequest:
    return decode(ImageDeltaRequest, 0, encode(delta, 0))


def step(image: ClusterImage, random: Random) -> ClusterImage:
    """One change of any kind."""
    name = random.choice(NAMES)
    broker_id = BrokerId(random.randint(1, 3))
    known = image.topics.get(name)
    configs = {"k": str(random.random())} if random.random() < 0.7 else {}
    choice = random.randrange(8)
    if choice == 0 or known is None:
        parts = tuple(partition([1, 2], index=i) for i in range(random.randint(1, 3)))
        topic = TopicImage(name, tree.random_uuid(random), parts, configs)
        return with_topic(image, topic)
    if choice == 1:
        return without_topics(image, [name])
    if choice == 2:
        index = random.randint(0, len(known.partitions))
        changed = partition([2, 3], [3], index=index, elr=[2], adding=[3])
        return with_partitions(image, name, [changed])
    if choice == 3:
        return with_topic_configs(image, name, configs)
    if choice == 4:
        endpoint = Endpoint("PLAINTEXT", "h", random.randint(1, 9))
        broker = BrokerImage(broker_id, BrokerEpoch(random.randint(1, 9)), (endpoint,), "r")
        return with_broker(image, replace(broker, fenced=random.random() < 0.5))
    if choice == 5:
        return without_broker(image, broker_id)
    if choice == 6:
        return with_broker_configs(image, random.choice([None, broker_id]), configs)
    return with_group_configs(image, name, configs)


def history(seed: int, length: int) -> list[ClusterImage]:
    random = Random(seed)
    image = replace(EMPTY_IMAGE, cluster_id="c", controller_epoch=ControllerEpoch(3))
    images = [image]
    for _ in range(length):
        images.append(step(images[-1], random))
    return images


@given(st.integers(0, 10_000), st.integers(1, 20), st.data())
def test_a_delta_leads_from_any_image_to_any_later_one(
    seed: int, length: int, data: st.DataObject
) -> None:
    images = history(seed, length)
    start = data.draw(st.integers(0, length))
    before, after = images[start], images[-1]
    delta = delta_between(before, after)
    followed = follow_delta(before, travel(delta))
    assert followed == after
    for name, topic in after.topics.items():
        if before.topics.get(name) is topic:
            assert followed.topics[name] is topic, "what did not change stays the same object"


@given(st.integers(0, 10_000), st.integers(1, 20), st.integers(0, 20))
def test_a_snapshot_says_it_all_whatever_was_known(seed: int, length: int, known: int) -> None:
    images = history(seed, length)
    before, after = images[min(known, length)], images[-1]
    snapshot = delta_between(None, after)
    assert snapshot.is_snapshot
    followed = follow_delta(before, travel(snapshot))
    assert followed == after
    for name, topic in after.topics.items():
        if before.topics.get(name) == topic:
            assert followed.topics[name] is before.topics[name]


def test_a_delta_names_changed_partitions_only() -> None:
    parts = tuple(partition([1, 2], index=i) for i in range(100))
    topic = TopicImage("t", tree.random_uuid(Random(1)), parts)
    before = with_topic(replace(EMPTY_IMAGE, cluster_id="c"), topic)
    after = with_partitions(before, "t", [partition([1, 2], [1], index=7, partition_epoch=10)])
    delta = delta_between(before, after)
    assert [each.partition_index for each in delta.topics[0].partitions] == [7]
    assert delta.topics[0].configs is None
    assert not delta.brokers
    assert (delta.from_version, delta.version) == (before.version, after.version)
