"""Profiles: named clusters in one TOML file, so that an address is written once.

The file is `profiles.toml` in the user's configuration directory (`TIDEMILL_CONFIG_DIR` overrides
it). `current` names the profile in use; each `[profiles.NAME]` has `bootstrap` and `settings`.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidemill.cli.exits import CommandError, Exit

CONFIG_DIR_VARIABLE = "TIDEMILL_CONFIG_DIR"
PROFILES_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Profile:
    """One cluster: where it is and how to talk to it."""

    name: str
    bootstrap: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProfileBook:
    """All profiles, and the one in use."""

    current: str | None
    profiles: Mapping[str, Profile]


def path() -> Path:
    """Where the profiles are kept."""
    if given := os.environ.get(CONFIG_DIR_VARIABLE):
        return Path(given) / "profiles.toml"
    # A config home per the base-directory rules; platformdirs is imported by nobody else here and
    # costs more than the whole look-up on the common systems.
    home = os.environ.get("XDG_CONFIG_HOME")
    if os.name == "posix" and (home or os.path.isdir(os.path.expanduser("~/.config"))):
        return Path(home or os.path.expanduser("~/.config")) / "tidemill" / "profiles.toml"
    from platformdirs import user_config_path

    return user_config_path("tidemill") / "profiles.toml"


def read() -> ProfileBook:
    """The profiles on disk; none is a fine answer."""
    try:
        document = tomllib.loads(path().read_text())
    except FileNotFoundError:
        return ProfileBook(None, {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CommandError(
            f"{path()} is no valid TOML: {error}", hint="repair it with `tidemill profile edit`"
        ) from None
    tables = document.get("profiles", {})
    if not isinstance(tables, dict) or len(tables) > PROFILES_MAX:
        raise CommandError(f"{path()}: `profiles` must be a table of at most {PROFILES_MAX}")
    return ProfileBook(
        document.get("current"), {name: _profile(name, t) for name, t in tables.items()}
    )


def _profile(name: str, table: Any) -> Profile:
    if not isinstance(table, dict):
        raise CommandError(f"{path()}: [profiles.{name}] must be a table")
    settings = {str(key): str(value) for key, value in table.get("settings", {}).items()}
    return Profile(name, table.get("bootstrap"), settings)


def active(name: str | None) -> Profile | None:
    """The profile asked for, or the current one; None when there is none at all."""
    book = read()
    wanted = name or book.current
    if wanted is None:
        return None
    if wanted not in book.profiles:
        raise CommandError(
            f"there is no profile {wanted!r}",
            Exit.NOT_FOUND,
            hint="see `tidemill profile list`, or make it with `tidemill profile create`",
        )
    return book.profiles[wanted]


def save(profile: Profile, *, make_current: bool) -> Path:
    """Add or replace one profile, leaving the rest of the file as its owner wrote it."""
    import tomlkit

    document = _document()
    table = tomlkit.table()
    if profile.bootstrap:
        table["bootstrap"] = profile.bootstrap
    if profile.settings:
        table["settings"] = dict(profile.settings)
    profiles = document.setdefault("profiles", tomlkit.table())
    profiles[profile.name] = table
    if make_current or "current" not in document:
        document["current"] = profile.name
    return _write(document)


def use(name: str) -> Path:
    """Make a profile the current one."""
    active(name)
    document = _document()
    document["current"] = name
    return _write(document)


def _document() -> Any:
    import tomlkit

    try:
        return tomlkit.parse(path().read_text())
    except FileNotFoundError:
        return tomlkit.document()


def _write(document: Any) -> Path:
    import tomlkit

    target = path()
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.with_suffix(f".{os.getpid()}.tmp")
    # Settings may hold secrets one day: nobody else needs to read them.
    scratch.touch(mode=0o600)
    scratch.write_text(tomlkit.dumps(document))
    os.replace(scratch, target)
    return target
