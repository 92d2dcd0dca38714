"""The tables themselves: every key is documented, parses, and links to keys that exist."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tidemill.config import BROKER_KEYS, TOPIC_KEYS, ConfigKey, Status
from tidemill.config.parse import parse
from tidemill.config.reference import render
from tidemill.config.removed import (
    REMOVED_BROKER_KEYS,
    REMOVED_CLIENT_KEYS,
    REMOVED_TOPIC_KEYS,
    removed_broker_key,
)
from tidemill.config.tables import BROKER_SYNONYMS, DYNAMIC_ONLY_KEYS, TOPIC_FALLBACKS

ROOT = Path(__file__).parents[2]
ALL_KEYS = [*BROKER_KEYS.values(), *TOPIC_KEYS.values(), *DYNAMIC_ONLY_KEYS.values()]


@pytest.mark.parametrize("key", ALL_KEYS, ids=lambda key: key.name)
def test_a_key_is_documented_and_its_default_fits(key: ConfigKey) -> None:
    assert len(key.doc) > 20
    assert key.doc.endswith(".")
    assert key.section
    parse(key, key.default)
    suffixes = {"ms": "ms", "bytes": "bytes", "seconds": "s", "minutes": "minutes"}
    if (unit := suffixes.get(key.name.rpartition(".")[2])) is not None:
        assert key.unit == unit


def test_a_key_without_effect_says_what_stands_in_its_place() -> None:
    for key in BROKER_KEYS.values():
        if key.status is Status.ACCEPTED:
            assert "Tidemill" in key.doc.partition(". ")[2], key.name


def test_a_supported_key_is_read_by_the_code() -> None:
    """By its own name, or as the fallback of a topic key that is."""
    package = ROOT / "src" / "tidemill"
    tables = {*package.glob("config/table*.py"), package / "config" / "removed.py"}
    code = "".join(path.read_text() for path in package.rglob("*.py") if path not in tables)
    read = {key.name for key in ALL_KEYS if f'"{key.name}"' in code}
    read |= {broker for topic, broker in TOPIC_FALLBACKS.items() if topic in read}
    supported = {key.name for key in ALL_KEYS if key.status is Status.SUPPORTED}
    assert supported - read == set()


def test_links_lead_to_keys() -> None:
    assert set(TOPIC_FALLBACKS) <= set(TOPIC_KEYS)
    assert set(TOPIC_FALLBACKS.values()) <= set(BROKER_KEYS)
    assert {name for group in BROKER_SYNONYMS.values() for name in group} <= set(BROKER_KEYS)
    for topic, broker in TOPIC_FALLBACKS.items():
        assert TOPIC_KEYS[topic].type is BROKER_KEYS[broker].type, topic


def test_removed_keys_are_gone_and_name_keys_that_exist() -> None:
    for name, hint in REMOVED_BROKER_KEYS.items():
        assert name not in BROKER_KEYS
        for word in hint.split("`")[1::2]:
            is_key = "." in word and " " not in word and "=" not in word and "/" not in word
            known = word in BROKER_KEYS or word in TOPIC_KEYS or word.endswith(".sh")
            assert known or not is_key, (name, word)
    assert not set(REMOVED_TOPIC_KEYS) & set(TOPIC_KEYS)
    assert not set(REMOVED_CLIENT_KEYS) & set(BROKER_KEYS)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("producer.type", "linger.ms"),
        ("request.required.acks", "acks"),
        ("queue.buffering.max.ms", "linger.ms"),
        ("replica.lag.max.messages", "replica.lag.time.max.ms"),
        ("port", "listeners"),
        ("log.message.timestamp.difference.max.ms", "log.message.timestamp.after.max.ms"),
        ("password.encoder.secret", "remove it"),
    ],
)
def test_a_removed_key_names_todays(old: str, new: str) -> None:
    hint = removed_broker_key(old)
    assert hint is not None
    assert new in hint


def test_the_reference_page_is_current() -> None:
    page = ROOT / "docs" / "configuration.md"
    assert page.read_text() == render(), (
        "run `python -m tidemill.config.reference > docs/configuration.md`"
    )


def test_importing_the_configuration_is_light() -> None:
    """No import of what only mistakes, TOML files or the reference page need."""
    heavy = {"asyncio", "difflib", "tomllib", "decimal", "msgspec", "rich", "socket", "inspect"}
    code = "import sys; import tidemill.config; print(*sorted(sys.modules))"
    listed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not heavy & set(listed)
