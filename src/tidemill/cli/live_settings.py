"""The settings of a running broker, for whoever explains a key."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidemill.config import BROKER_KEYS, BrokerConfig, Setting
from tidemill.config.text import HIDDEN
from tidemill.errors import TidemillError

if TYPE_CHECKING:
    from tidemill.cli.connect import Target
    from tidemill.client.admin_types import ConfigEntry

TIMEOUT_S = 1.0
_SOURCES = {
    "DYNAMIC_BROKER_CONFIG": "set for this broker",
    "DYNAMIC_DEFAULT_BROKER_CONFIG": "set for all brokers",
    "STATIC_BROKER_CONFIG": "set at its start: a file, a variable or a flag",
}


async def of_cluster(target: Target) -> tuple[str, BrokerConfig] | None:
    """A broker in words and its settings; None if none answers at once.

    Who named the broker on the command line wants to know of that one, and is told if it fails.
    """
    if target.is_explicit:
        return await _ask(target)
    timeout_s = TIMEOUT_S if target.timeout_ms is None else target.timeout_ms / 1000
    try:
        async with asyncio.timeout(timeout_s):
            return await _ask(target)
    except (TidemillError, OSError, TimeoutError):
        return None


async def _ask(target: Target) -> tuple[str, BrokerConfig]:
    from tidemill.client.admin_types import ConfigResource

    async with target.admin() as admin:
        broker = (await admin.describe_cluster()).brokers[0]
        resource = ConfigResource.broker(broker.broker_id)
        entries = (await admin.describe_configs([resource])).raise_first()[resource]
    name = f"broker {broker.broker_id} at {broker.host}:{broker.port}"
    return name, _as_config(entries.values())


def _as_config(entries: Iterable[ConfigEntry]) -> BrokerConfig:
    """What a broker said as the settings they are; keys that we do not know are left out."""
    known = [entry for entry in entries if entry.name in BROKER_KEYS]
    defaults = {e.name: e.value for e in known if e.is_default and e.value is not None}
    given = {
        entry.name: Setting(
            HIDDEN if entry.sensitive else entry.value or "",
            _SOURCES.get(entry.source.name, entry.source.name.lower()),
        )
        for entry in known
        if not entry.is_default
    }
    return BrokerConfig(given, derived_defaults=defaults)
