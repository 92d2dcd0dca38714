"""Values: Java's number formats, Kafka's wording, and text forms that come back unchanged."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.config import BROKER_KEYS, TOPIC_KEYS, ConfigError, ConfigKey, ConfigType, Value
from tidemill.config.parse import parse, parse_type
from tidemill.config.text import format_value

# Each refusal was seen from Kafka 4.3.1 itself.
REFUSALS = {
    ("retention.ms", "abc"): (
        "Invalid value abc for configuration retention.ms: Not a number of type LONG"
    ),
    ("retention.ms", "-5"): (
        "Invalid value -5 for configuration retention.ms: Value must be at least -1"
    ),
    ("segment.bytes", " 5 "): (
        "Invalid value 5 for configuration segment.bytes: Value must be at least 1048576"
    ),
    ("segment.bytes", "99999999999"): (
        "Invalid value 99999999999 for configuration segment.bytes: Not a number of type INT"
    ),
    ("segment.bytes", "1_000_000_000"): (
        "Invalid value 1_000_000_000 for configuration segment.bytes: Not a number of type INT"
    ),
    ("preallocate", "yes"): (
        "Invalid value yes for configuration preallocate: Expected value to be either true or false"
    ),
    ("cleanup.policy", "delete,foo"): (
        "Invalid value foo for configuration cleanup.policy: String must be one of: compact, delete"
    ),
    ("min.cleanable.dirty.ratio", "99999999999"): (
        "Invalid value 9.9999999999E10 for configuration min.cleanable.dirty.ratio:"
        " Value must be no more than 1"
    ),
    ("compression.gzip.level", "0"): (
        "Invalid value 0 for configuration compression.gzip.level:"
        " Value must be between 1 and 9 or equal to -1"
    ),
    ("compression.type", "gz"): (
        "Invalid value gz for configuration compression.type: String must be one of:"
        " uncompressed, zstd, lz4, snappy, gzip, producer"
    ),
    ("leader.replication.throttled.replicas", "a, b,"): (
        "Invalid value [a, b, ] for configuration leader.replication.throttled.replicas:"
        " leader.replication.throttled.replicas must be the literal '*' or a list of replicas in"
        " the following format: [partitionId]:[brokerId],[partitionId]:[brokerId],..."
    ),
}


@pytest.mark.parametrize(("case", "message"), REFUSALS.items())
def test_refusals_are_worded_as_kafka_words_them(case: tuple[str, str], message: str) -> None:
    name, text = case
    with pytest.raises(ConfigError) as caught:
        parse(TOPIC_KEYS[name], text)
    assert caught.value.message == message


def test_lists_forget_doubles_and_blanks() -> None:
    assert parse(TOPIC_KEYS["cleanup.policy"], " delete , compact,delete") == ("delete", "compact")
    assert parse(TOPIC_KEYS["cleanup.policy"], "") == ()
    assert parse(TOPIC_KEYS["leader.replication.throttled.replicas"], "0:1,2:3") == ("0:1", "2:3")
    with pytest.raises(ConfigError, match=r"'log\.dirs' must not be empty"):
        parse(BROKER_KEYS["log.dirs"], "")
    with pytest.raises(ConfigError, match=r"'log\.dirs' values must not be empty"):
        parse(BROKER_KEYS["log.dirs"], "/a,,/b")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.5"),
        (5.0, "5.0"),
        (1e7, "1.0E7"),
        (9999999.0, "9999999.0"),
        (1.5e-4, "1.5E-4"),
        (0.001, "0.001"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (math.inf, "Infinity"),
        (-2.5e10, "-2.5E10"),
    ],
)
def test_decimals_look_as_in_java(value: float, text: str) -> None:
    assert format_value(value) == text
    assert parse_type("x", ConfigType.DOUBLE, text) == value


@given(st.integers(-(2**63), 2**63 - 1))
def test_integers_come_back(number: int) -> None:
    assert parse_type("x", ConfigType.LONG, format_value(number)) == number


@given(st.floats(allow_nan=False))
def test_decimals_come_back(number: float) -> None:
    assert parse_type("x", ConfigType.DOUBLE, format_value(number)) == number


@given(st.sampled_from([*BROKER_KEYS.values(), *TOPIC_KEYS.values()]), st.text(max_size=20))
def test_any_text_is_read_or_refused_and_what_is_read_stays(key: ConfigKey, text: str) -> None:
    try:
        value: Value = parse(key, text)
    except ConfigError:
        return
    assert key.sensitive or parse(key, format_value(value)) == value
