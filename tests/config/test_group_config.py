"""A group's own settings: what they fall back to, where their bounds are, what is refused."""

from __future__ import annotations

import pytest

from tidemill.config import (
    BrokerConfig,
    ConfigError,
    Source,
    check_group_overrides,
    describe_group,
    load_broker_config,
    resolve_group_config,
)
from tidemill.config.tables import BROKER_KEYS, GROUP_FALLBACKS, GROUP_KEYS

SESSION = "consumer.session.timeout.ms"
HEARTBEAT = "consumer.heartbeat.interval.ms"
ASSIGNMENT = "consumer.assignment.interval.ms"


def broker(**settings: str) -> BrokerConfig:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return load_broker_config(environ={}, overrides=named)[0]


def test_a_group_without_settings_has_its_broker_s() -> None:
    config = resolve_group_config({}, broker(group_consumer_session_timeout_ms="50000"))
    assert (config.int(SESSION), config.int(HEARTBEAT)) == (50_000, 5_000)


def test_its_own_settings_come_first_within_the_bounds() -> None:
    """The bounds may have moved since: then the nearest value counts."""
    own = {SESSION: "50000", HEARTBEAT: "14000", ASSIGNMENT: "0", "unknown": "1"}
    config = resolve_group_config(own, broker(group_consumer_max_heartbeat_interval_ms="12000"))
    assert [config.int(name) for name in (SESSION, HEARTBEAT, ASSIGNMENT)] == [50_000, 12_000, 0]
    assert "unknown" not in config.overrides


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        (SESSION, "44999", f"{SESSION} must be greater than or equal to group.consumer.min."),
        (SESSION, "60001", f"{SESSION} must be less than or equal to group.consumer.max."),
        (HEARTBEAT, "4999", f"{HEARTBEAT} must be greater than or equal to group.consumer.min."),
        (HEARTBEAT, "15001", f"{HEARTBEAT} must be less than or equal to group.consumer.max."),
        (ASSIGNMENT, "15001", f"{ASSIGNMENT} must be less than or equal to group.consumer.max."),
        (ASSIGNMENT, "-1", "Value must be at least 0"),
        (SESSION, "soon", "Not a number of type INT"),
        ("consumer.assignor.offload.enable", "true", "Unknown group config name"),
        ("share.session.timeout.ms", "46000", "which Tidemill does not offer"),
    ],
)
def test_what_a_group_cannot_have(name: str, value: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_group_overrides({name: value})
    assert complaint in refused.value.message


def test_a_session_is_longer_than_a_heartbeat() -> None:
    narrow = broker(
        group_consumer_min_session_timeout_ms="1000",
        group_consumer_min_heartbeat_interval_ms="1000",
    )
    check_group_overrides({SESSION: "5001", HEARTBEAT: "5000"}, narrow)
    with pytest.raises(ConfigError, match=r"must be greater than consumer\.heartbeat"):
        check_group_overrides({SESSION: "5000", HEARTBEAT: "5000"}, narrow)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"group.consumer.session.timeout.ms": "10000"}, "group.consumer.min.session.timeout.ms"),
        ({"group.consumer.session.timeout.ms": "70000"}, "group.consumer.max.session.timeout.ms"),
        ({"group.consumer.heartbeat.interval.ms": "1"}, "group.consumer.min.heartbeat.interval.ms"),
        (
            {"group.consumer.min.assignment.interval.ms": "20000"},
            "group.consumer.max.assignment.interval.ms must be greater",
        ),
        (
            {
                "group.consumer.min.session.timeout.ms": "1000",
                "group.consumer.session.timeout.ms": "5000",
            },
            "group.consumer.heartbeat.interval.ms must be less than",
        ),
    ],
)
def test_a_broker_s_defaults_are_inside_its_own_bounds(
    settings: dict[str, str], complaint: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        load_broker_config(environ={}, overrides=settings)
    assert complaint in refused.value.message


def test_described_with_every_layer() -> None:
    config = broker(group_consumer_session_timeout_ms="50000")
    (session,) = describe_group({SESSION: "55000"}, config, names={SESSION})
    assert (session.value, session.source) == ("55000", Source.DYNAMIC_GROUP)
    assert [(each.name, each.value, each.source) for each in session.synonyms] == [
        (SESSION, "55000", Source.DYNAMIC_GROUP),
        ("group.consumer.session.timeout.ms", "50000", Source.STATIC_BROKER),
        ("group.consumer.session.timeout.ms", "45000", Source.DEFAULT),
    ]
    assert [each.name for each in describe_group({}, config)] == list(GROUP_KEYS)


def test_links_lead_to_keys_with_the_same_default() -> None:
    for name, fallback in GROUP_FALLBACKS.items():
        assert GROUP_KEYS[name].type is BROKER_KEYS[fallback].type, name
        assert GROUP_KEYS[name].default == BROKER_KEYS[fallback].default, name
