"""Which cluster a command talks to, and where that address came from.

Precedence: `--bootstrap`, then `TIDEMILL_BOOTSTRAP`, then the profile, then `localhost:9092`. When
nothing answers, the error names the source, so that nobody debugs the wrong address.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemill.cli.exits import CommandError, Exit

if TYPE_CHECKING:
    from tidemill.client import Admin, Consumer, Producer

DEFAULT_BOOTSTRAP = "localhost:9092"
DEFAULT_SOURCE = "the default"
EXPLICIT_SOURCE = "the command line"
BOOTSTRAP_VARIABLE = "TIDEMILL_BOOTSTRAP"
PROFILE_VARIABLE = "TIDEMILL_PROFILE"


@dataclass(frozen=True, slots=True)
class Target:
    """A cluster's address, its source in words, and the client settings to use with it."""

    bootstrap: str
    source: str
    settings: Mapping[str, str]
    timeout_ms: int | None = None

    @property
    def is_default(self) -> bool:
        """Nobody said where the cluster is."""
        return self.source == DEFAULT_SOURCE

    @property
    def is_explicit(self) -> bool:
        """The command itself says where the cluster is."""
        return self.source == EXPLICIT_SOURCE

    def admin(self) -> Admin:
        from tidemill.client import Admin

        return Admin(self.bootstrap, **self.client_settings(timeouts=True))

    def producer(self, **more: object) -> Producer:
        from tidemill.client import Producer

        return Producer(self.bootstrap, **self._delivery_settings() | more)

    def consumer(self, **more: object) -> Consumer:
        from tidemill.client import Consumer

        return Consumer(self.bootstrap, **self.client_settings() | more)

    def _delivery_settings(self) -> dict[str, Any]:
        """A producer's settings; `--timeout` bounds how long a record may take, all in all."""
        settings = self.client_settings()
        if self.timeout_ms is not None:
            for name in ("delivery_timeout_ms", "max_block_ms", "request_timeout_ms"):
                settings.setdefault(name, self.timeout_ms)
        return settings

    def client_settings(self, *, timeouts: bool = False) -> dict[str, Any]:
        """The settings as keyword arguments; `--timeout` bounds each call of an admin."""
        settings: dict[str, Any] = {k.replace(".", "_"): v for k, v in self.settings.items()}
        settings.setdefault("client_id", "tidemill-cli")
        if timeouts and self.timeout_ms is not None:
            settings["default_api_timeout_ms"] = self.timeout_ms
            settings["request_timeout_ms"] = min(self.timeout_ms, 30_000)
        return settings


def parse_pairs(pairs: Iterable[str], option: str) -> dict[str, str]:
    """`key=value` words as a mapping."""
    result: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise CommandError(f"{option} takes key=value, not {pair!r}", Exit.USAGE)
        result[key.strip()] = value.strip()
    return result


def resolve(
    bootstrap: str | None = None,
    profile: str | None = None,
    overrides: Iterable[str] = (),
    timeout_ms: int | None = None,
) -> Target:
    """The target of a command from its options, the environment and the profile."""
    from tidemill.cli import profiles

    settings = parse_pairs(overrides, "-X")
    written = settings.pop("bootstrap.servers", None)
    chosen = profiles.active(profile or os.environ.get(PROFILE_VARIABLE))
    merged = dict(chosen.settings if chosen else {}) | settings
    if bootstrap or written:
        return Target(bootstrap or written or "", EXPLICIT_SOURCE, merged, timeout_ms)
    if from_environment := os.environ.get(BOOTSTRAP_VARIABLE):
        source = f"the variable {BOOTSTRAP_VARIABLE}"
        return Target(from_environment, source, merged, timeout_ms)
    if chosen and chosen.bootstrap:
        return Target(chosen.bootstrap, f"profile {chosen.name!r}", merged, timeout_ms)
    return Target(DEFAULT_BOOTSTRAP, DEFAULT_SOURCE, merged, timeout_ms)
