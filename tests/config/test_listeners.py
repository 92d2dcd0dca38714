"""Addresses: what is opened, what clients are told, and what is refused with a way out."""

from __future__ import annotations

import pytest
from tests.config.helpers import broker_with

from tidemill.config import BrokerConfig, ConfigError, Listener


def test_this_machine_only_unless_told() -> None:
    assert BrokerConfig().listeners == (Listener("PLAINTEXT", "127.0.0.1", 9092),)
    assert BrokerConfig().advertised_listeners == BrokerConfig().listeners


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PLAINTEXT://:9092", [("PLAINTEXT", "", 9092)]),
        ("plaintext://0.0.0.0:0", [("PLAINTEXT", "0.0.0.0", 0)]),
        ("PLAINTEXT://[::1]:9092", [("PLAINTEXT", "::1", 9092)]),
        ("PLAINTEXT://my-host.example:65535", [("PLAINTEXT", "my-host.example", 65535)]),
    ],
)
def test_addresses(text: str, expected: list[tuple[str, str, int]]) -> None:
    listeners = broker_with({"listeners": text}).listeners
    assert [(each.name, each.host, each.port) for each in listeners] == expected


def test_several_named_listeners() -> None:
    config = broker_with(
        {
            "listeners": "INSIDE://10.0.0.1:9092, OUTSIDE://:9093,CONTROLLER://:9094",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "advertised.listeners": "OUTSIDE://example.org:443,CONTROLLER://x:1",
        }
    )
    assert [each.name for each in config.listeners] == ["INSIDE", "OUTSIDE"]
    assert config.advertised_listeners == (Listener("OUTSIDE", "example.org", 443),)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"listeners": "localhost:9092"}, "not of the form NAME://HOST:PORT"),
        ({"listeners": "PLAINTEXT://:70000"}, "not of the form NAME://HOST:PORT"),
        ({"listeners": "PLAINTEXT://:1,PLAINTEXT://:2"}, "must have a different name"),
        ({"listeners": "FOO://:1"}, "add FOO:PLAINTEXT to listener.security.protocol.map"),
        ({"listeners": "SSL://:1"}, "TLS and SASL cannot be served yet"),
        ({"listeners": "SASL_PLAINTEXT://:1"}, "TLS and SASL cannot be served yet"),
        ({"listeners": "C://:1", "controller.listener.names": "C"}, "none is left for clients"),
        (
            {
                "listeners": "A://h:1,B://h:1",
                "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT",
            },
            "share port 1",
        ),
        ({"listener.security.protocol.map": "A:TELNET"}, "is not NAME:PROTOCOL"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:1"}, "nonroutable meta-address"),
        ({"advertised.listeners": "SSL://h:1"}, "Found SSL"),
    ],
)
def test_refusals(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        broker_with(settings).advertised_listeners  # noqa: B018 - reading it is the check
    assert message in caught.value.message
