"""Addresses: what `listeners` and `advertised.listeners` say, checked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from tidemill.config.getters import Getters
from tidemill.config.keys import ConfigError

_ADDRESS: Final = re.compile(r"([^:/]+)://(?:\[([0-9a-fA-F:.%]+)\]|([^\[\]:/]*)):(-?[0-9]{1,5})")
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_UNROUTABLE: Final = ("0.0.0.0", "::")
PORT_MAX: Final = 65535


class Listener(NamedTuple):
    """One address. An empty host means all interfaces; port 0 means any free port."""

    name: str
    host: str
    port: int
    protocol: str = "PLAINTEXT"


def client_listeners(config: Getters) -> tuple[Listener, ...]:
    """What the broker opens: every listener but those of Kafka's controllers."""
    everything = _parse(config, "listeners")
    controllers = {name.upper() for name in config.list("controller.listener.names")}
    served = tuple(each for each in everything if each.name not in controllers)
    if not served:
        raise ConfigError("listeners: none is left for clients; add PLAINTEXT://127.0.0.1:9092")
    _refuse_shared_ports(served)
    for each in served:
        if each.protocol != "PLAINTEXT":
            raise ConfigError(
                f"listeners: {each.name} speaks {each.protocol}, and TLS and SASL cannot be served"
                " yet; use a PLAINTEXT listener on a network you trust"
            )
    return served


def advertised_listeners(config: Getters) -> tuple[Listener, ...]:
    """What clients are told; the listeners themselves when nothing else is set.

    An empty host is left for the broker to fill in: only it knows the machine's name.
    """
    served = client_listeners(config)
    if not config.list("advertised.listeners"):
        return served
    names = {each.name for each in served}
    controllers = {name.upper() for name in config.list("controller.listener.names")}
    told = tuple(
        each for each in _parse(config, "advertised.listeners") if each.name not in controllers
    )
    for each in told:
        if each.name not in names:
            raise ConfigError(
                "advertised.listeners listener names must be equal to or a subset of the ones"
                f" defined in listeners. Found {each.name}."
            )
        if each.host in _UNROUTABLE:
            raise ConfigError(
                "advertised.listeners cannot use the nonroutable meta-address"
                f" {each.host}. Use a routable IP address."
            )
    return told


def _parse(config: Getters, key: str) -> tuple[Listener, ...]:
    protocols = _protocol_map(config)
    controllers = {name.upper() for name in config.list("controller.listener.names")}
    found = []
    for text in config.list(key):
        match = _ADDRESS.fullmatch(text)
        if match is None or int(match[4]) > PORT_MAX or int(match[4]) < 0:
            raise ConfigError(f"{key}: `{text}` is not of the form NAME://HOST:PORT")
        name = match[1].upper()
        if name not in protocols and name not in controllers:
            raise ConfigError(
                f"{key}: No security protocol defined for listener {name};"
                f" add {name}:PLAINTEXT to listener.security.protocol.map"
            )
        host = match[2] or match[3]
        found.append(Listener(name, host, int(match[4]), protocols.get(name, "PLAINTEXT")))
    if len({each.name for each in found}) != len(found):
        raise ConfigError(f"{key}: Each listener must have a different name")
    return tuple(found)


def _protocol_map(config: Getters) -> dict[str, str]:
    protocols = {}
    for pair in config.str("listener.security.protocol.map").split(","):
        if not pair.strip():
            continue
        name, _, protocol = (part.strip().upper() for part in pair.partition(":"))
        if protocol not in _PROTOCOLS:
            raise ConfigError(
                f"listener.security.protocol.map: `{pair.strip()}` is not NAME:PROTOCOL with one"
                f" of {', '.join(_PROTOCOLS)}"
            )
        protocols[name] = protocol
    return protocols


def _refuse_shared_ports(listeners: Sequence[Listener]) -> None:
    taken: dict[tuple[str, int], str] = {}
    for each in listeners:
        address = (each.host, each.port)
        if each.port != 0 and address in taken:
            raise ConfigError(
                f"listeners: {taken[address]} and {each.name} share port {each.port};"
                " each listener must have a different port"
            )
        taken[address] = each.name
