"""A copy's topic: which settings it takes along, and which partitions it may have."""

from __future__ import annotations

from uuid import UUID

import pytest

from tidemill.client.admin_types import (
    ConfigEntry,
    ConfigSource,
    PartitionDescription,
    TopicDescription,
)
from tidemill.client.consumer_types import ConsumerRecord
from tidemill.client.partitioner import positive_hash
from tidemill.copying.routes import by_key, same_partition
from tidemill.copying.topics import CopyError, TopicChange, change_for, settings_of


def topic(partitions: int) -> TopicDescription:
    found = tuple(PartitionDescription(n, 1, 0, (1,), (1,)) for n in range(partitions))
    return TopicDescription("t", UUID(int=1), False, found)


def test_a_topics_own_settings_come_along_but_those_about_its_place_and_time() -> None:
    own, default = ConfigSource.DYNAMIC_TOPIC_CONFIG, ConfigSource.DEFAULT_CONFIG
    entries = {
        "cleanup.policy": ConfigEntry("cleanup.policy", "compact", own),
        "retention.ms": ConfigEntry("retention.ms", "1000", default),
        "message.timestamp.type": ConfigEntry("message.timestamp.type", "LogAppendTime", own),
    }
    settings = settings_of(entries)
    assert settings == {"cleanup.policy": "compact"}
    create = change_for("t", 3, settings, None, may_grow=True).create
    assert create is not None
    assert create.configs["message.timestamp.type"] == "CreateTime"


def test_a_copy_of_a_sealed_topic_takes_records() -> None:
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG
    for size, wanted in (("0", {}), ("5000", {"max.message.bytes": "5000"})):
        entries = {"max.message.bytes": ConfigEntry("max.message.bytes", size, own)}
        assert settings_of(entries) == wanted


def test_a_mirror_grows_with_its_original_and_a_repartitioned_topic_does_not() -> None:
    assert change_for("t", 3, {}, topic(3), may_grow=True) == TopicChange()
    assert change_for("t", 5, {}, topic(3), may_grow=True) == TopicChange(grow_to=5)
    with pytest.raises(CopyError, match="has 3 partitions and should have 5"):
        change_for("t", 5, {}, topic(3), may_grow=False)
    with pytest.raises(CopyError, match="has 3 partitions and should have 2"):
        change_for("t", 2, {}, topic(3), may_grow=True)


def test_keys_go_where_producers_put_them_and_the_rest_is_spread() -> None:
    route = by_key(12)
    keyed = ConsumerRecord("t", 3, 99, 0, 0, b"user-7", b"", (), 0)
    assert route(keyed) == positive_hash(b"user-7") % 12
    assert same_partition(keyed) == 3
    keyless = [ConsumerRecord("t", 0, at, 0, 0, None, b"", (), 0) for at in range(12 * 64)]
    assert {route(each) for each in keyless} == set(range(12))
