"""Settings: both spellings, text and values, and errors that say what to write instead."""

from __future__ import annotations

from dataclasses import fields

import pytest

from tidemill.client.errors import SettingsError
from tidemill.client.settings import (
    AdminSettings,
    CommonSettings,
    ConsumerSettings,
    ProducerSettings,
    describe,
    is_explicit,
    parse,
    split_address,
)


def test_kafkas_defaults() -> None:
    settings = ProducerSettings()
    assert settings.acks == "all"
    assert settings.enable_idempotence
    assert settings.linger_ms == 5
    assert settings.batch_size == 16_384
    assert settings.max_in_flight_requests_per_connection == 5
    assert settings.delivery_timeout_ms == 120_000
    assert settings.buffer_memory == 33_554_432
    consumer = ConsumerSettings()
    assert consumer.auto_offset_reset == "latest"
    assert consumer.max_poll_records == 500
    assert consumer.fetch_max_bytes == 52_428_800


@pytest.mark.parametrize("name", ["linger_ms", "linger.ms"])
@pytest.mark.parametrize("value", [7, 7.0, "7"])
def test_both_spellings_take_values_and_text(name: str, value: object) -> None:
    assert parse(ProducerSettings, {name: value}).linger_ms == 7


def test_aliases_and_choices_ignore_case() -> None:
    given = {"max_in_flight": "3", "compression.type": "ZSTD", "enable.idempotence": "false"}
    settings = parse(ProducerSettings, given)
    assert settings.max_in_flight_requests_per_connection == 3
    assert settings.compression_type == "zstd"
    assert settings.enable_idempotence is False


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ({"lingr.ms": 5}, "did you mean `linger.ms`"),
        ({"request.required.acks": 1}, "use acks"),
        ({"linger.ms": -1}, "at least 0"),
        ({"linger.ms": "soon"}, "must be a number"),
        ({"enable.idempotence": "maybe"}, "true or false"),
        ({"acks": "2"}, "one of all, -1, 0, 1"),
        ({"linger.ms": 1, "linger_ms": 2}, "twice"),
        ({"key_serializer": "org.example.Serializer"}, "callable"),
        ({"retries": True}, "must be a number"),
    ],
)
def test_mistakes_are_answered_with_advice(given: dict[str, object], advice: str) -> None:
    with pytest.raises(SettingsError, match=advice):
        parse(ProducerSettings, given)


def test_a_setting_of_another_client_is_unknown() -> None:
    with pytest.raises(SettingsError, match=r"unknown setting `linger\.ms`"):
        parse(ConsumerSettings, {"linger.ms": 1})


@pytest.mark.parametrize(
    ("address", "pair"),
    [
        ("h:1", ("h", 1)),
        ("h", ("h", 9092)),
        ("[::1]:5", ("::1", 5)),
        ("::1", ("::1", 9092)),
        ("[::1]", ("::1", 9092)),
    ],
)
def test_addresses(address: str, pair: tuple[str, int]) -> None:
    assert split_address(address) == pair


@pytest.mark.parametrize("address", ["", ":1", "h:0", "h:65536", "h:x", "h:-1"])
def test_wrong_addresses(address: str) -> None:
    with pytest.raises(SettingsError):
        parse(AdminSettings, {}, [address])


def test_bootstrap_as_text_list_or_setting() -> None:
    assert parse(AdminSettings, {}, "a:1, b:2").bootstrap_servers == ("a:1", "b:2")
    assert parse(AdminSettings, {}, ["a:1"]).bootstrap_servers == ("a:1",)
    assert parse(AdminSettings, {"bootstrap.servers": "a:1"}).bootstrap_servers == ("a:1",)


def test_explicit_is_seen_in_either_spelling() -> None:
    assert is_explicit({"linger.ms": 1}, "linger_ms")
    assert not is_explicit({"acks": 1}, "linger_ms")


@pytest.mark.parametrize("kind", [AdminSettings, ProducerSettings, ConsumerSettings])
def test_every_setting_has_a_meaning_and_a_default_in_range(kind: type[CommonSettings]) -> None:
    for name, _, doc in describe(kind):
        assert doc.endswith((".", "bytes.", "key.", "value.")), name
    given = {row.name: row.default for row in fields(kind) if row.name != "bootstrap_servers"}
    assert parse(kind, given) == kind()
