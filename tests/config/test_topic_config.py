"""`TopicConfig`: a topic's own settings over its broker's, and the refusal of wrong ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.config import (
    TOPIC_KEYS,
    BrokerConfig,
    ConfigError,
    check_topic_overrides,
    resolve_topic_config,
)
from tidemill.config.parse import parse


def test_defaults_are_the_tables() -> None:
    topic = resolve_topic_config({}, BrokerConfig())
    for name, key in TOPIC_KEYS.items():
        assert topic.value(name) == parse(key, key.default), name


numbers = st.fixed_dictionaries(
    {},
    optional={
        "retention.ms": st.integers(-1, 2**62).map(str),
        "max.message.bytes": st.integers(0, 2**31 - 1).map(str),
        "flush.messages": st.integers(1, 2**62).map(str),
    },
)


@given(numbers)
def test_the_topics_own_settings_count(overrides: dict[str, str]) -> None:
    check_topic_overrides(overrides)
    broker = BrokerConfig()
    broker.apply_dynamic({}, {"message.max.bytes": "77", "log.retention.ms": "66"})
    topic = resolve_topic_config(overrides, broker)
    assert topic.int("retention.ms") == int(overrides.get("retention.ms", 66))
    assert topic.int("max.message.bytes") == int(overrides.get("max.message.bytes", 77))
    assert topic.overrides == overrides


def test_a_topic_stays_readable_whatever_the_store_holds() -> None:
    topic = resolve_topic_config({"from.the.future": "1", "flush.ms": "3"}, BrokerConfig())
    assert topic.overrides == {"flush.ms": "3"}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"retention.ms": "x", "foo": "1"}, "Unknown topic config name: foo"),
        ({"message.format.version": "2.8"}, "Unknown topic config name: message.format.version"),
        (
            {"min.compaction.lag.ms": "100", "max.compaction.lag.ms": "50"},
            "conflict topic config setting min.compaction.lag.ms (100)"
            " > max.compaction.lag.ms (50)",
        ),
        (
            {"remote.storage.enable": "true"},
            "Tiered Storage functionality is disabled in the broker."
            " Topic cannot be configured with remote log storage.",
        ),
        (
            {"flush.policy": "never"},
            "Invalid value never for configuration flush.policy: String must be one of: ack, async",
        ),
    ],
)
def test_refusals(overrides: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_topic_overrides(overrides)
    assert caught.value.message == message
