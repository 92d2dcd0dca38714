"""Addresses of stores, right and wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tidemill.clock import SystemClock
from tidemill.executor import InlineExecutor
from tidemill.store.base import BadArguments
from tidemill.store.sqlite import SqliteStore
from tidemill.store.url import (
    SqliteUrl,
    StoreUrl,
    ZooKeeperUrl,
    make_store,
    parse_store_url,
    parse_zookeeper_connect,
)
from tidemill.store.zookeeper import ZooKeeperStore


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sqlite:///var/lib/tidemill/store.db", SqliteUrl("/var/lib/tidemill/store.db")),
        ("sqlite://data/store.db", SqliteUrl("data/store.db")),
        ("zk://h1:2181,h2:2182/kafka", ZooKeeperUrl(("h1:2181", "h2:2182"), "/kafka")),
        ("zk://h1:2181,h2:2182", ZooKeeperUrl(("h1:2181", "h2:2182"), "")),
        (" zk://h1, h2/a/b/ ", ZooKeeperUrl(("h1:2181", "h2:2181"), "/a/b")),
        ("zk://[::1]:2181/", ZooKeeperUrl(("[::1]:2181",), "")),
    ],
)
def test_good_addresses(text: str, expected: StoreUrl) -> None:
    assert parse_store_url(text) == expected
    assert parse_store_url(str(expected)) == expected


def test_the_value_of_zookeeper_connect() -> None:
    parsed = parse_zookeeper_connect("h1:2181,h2:2181/chroot")
    assert parsed == ZooKeeperUrl(("h1:2181", "h2:2181"), "/chroot")
    assert parsed.hosts == "h1:2181,h2:2181"
    assert str(parsed) == "zk://h1:2181,h2:2181/chroot"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not a store's address"),
        ("store.db", "write sqlite://PATH or zk://host:2181"),
        ("h1:2181/kafka", "write sqlite://PATH or zk://host:2181"),
        ("postgres://h", "is not a store's address"),
        ("sqlite://", "no file is named"),
        ("sqlite:///data/", "no file is named"),
        ("zk://", "'' is not a server"),
        ("zk:///kafka", "'' is not a server"),
        ("zk://h1,,h2", "'' is not a server"),
        ("zk://h1:port", "'h1:port' is not a server"),
        ("zk://me:secret@h1:2181", "is not a server"),
        ("zk://h1:0", "0 is not a port"),
        ("zk://h1:65536", "65536 is not a port"),
        ("zk://h1:2181/kafka,h2:2181/kafka", "the path goes once, after the last server"),
        ("zk://h1/a//b", "not a path"),
        ("zk://h1/../b", "not a path"),
        ("zk://" + "h," * 5_000, "at most 4096 characters"),
    ],
)
def test_bad_addresses_say_what_to_do(text: str, words: str) -> None:
    with pytest.raises(BadArguments, match=words):
        parse_store_url(text)


def test_an_overlong_connect_value_is_refused() -> None:
    with pytest.raises(BadArguments, match="at most 4096"):
        parse_zookeeper_connect("h" * 5_000)


def test_engines_are_made_without_touching_anything(tmp_path: Path) -> None:
    clock, executor = SystemClock(), InlineExecutor()
    path = tmp_path / "store.db"
    assert isinstance(make_store(f"sqlite://{path}", clock, executor), SqliteStore)
    assert not path.exists()
    made = make_store(ZooKeeperUrl(("127.0.0.1:1",), "/a"), clock, executor)
    assert isinstance(made, ZooKeeperStore)
    assert not made.connected


def test_without_kazoo_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kazoo", None)
    for name in [name for name in sys.modules if name.startswith("tidemill.store.zookeeper")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(BadArguments, match=r"pip install 'tidemill\[zookeeper\]'"):
        make_store("zk://h1", SystemClock(), InlineExecutor())
