"""From a store's address to an engine.

    sqlite://PATH                       a file that the brokers of one machine share
    zk://h1:2181,h2:2181/some/path      a ZooKeeper ensemble, everything below that path

`zookeeper.connect=h1:2181,h2:2181/some/path`, as Kafka's `server.properties` spell it, is the same
as the second one without `zk://`. Start at `make_store`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tidemill.clock import Clock
from tidemill.executor import Executor
from tidemill.store.base import BadArguments, Store, check_path

SQLITE = "sqlite://"
ZOOKEEPER = "zk://"
ZOOKEEPER_PORT = 2181
URL_CHARS_MAX = 4096

_FORMS = f"write {SQLITE}PATH or {ZOOKEEPER}host:{ZOOKEEPER_PORT},host:{ZOOKEEPER_PORT}/path"
_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>\d{1,5}))?")


class SqliteUrl(NamedTuple):
    """A store in a file."""

    path: str

    def __str__(self) -> str:
        return f"{SQLITE}{self.path}"


class ZooKeeperUrl(NamedTuple):
    """A store on an ensemble: its servers as `host:port`, and the path below which we live.

    The path is empty for the ensemble's root.
    """

    servers: tuple[str, ...]
    chroot: str

    @property
    def hosts(self) -> str:
        return ",".join(self.servers)

    def __str__(self) -> str:
        return f"{ZOOKEEPER}{self.hosts}{self.chroot}"


StoreUrl = SqliteUrl | ZooKeeperUrl


def make_store(url: str | StoreUrl, clock: Clock, executor: Executor) -> Store:
    """The engine for an address; nothing is touched before its `open`."""
    parsed = parse_store_url(url) if isinstance(url, str) else url
    if isinstance(parsed, SqliteUrl):
        from tidemill.store.sqlite import SqliteStore

        return SqliteStore(parsed.path, clock, executor)
    try:
        from tidemill.store.zookeeper import ZooKeeperStore
    except ImportError as error:
        if not (error.name or "").startswith("kazoo"):
            raise
        raise BadArguments(
            f"{parsed} needs the library kazoo: pip install 'tidemill[zookeeper]'"
        ) from None
    return ZooKeeperStore(parsed.hosts, clock, executor, chroot=parsed.chroot)


def parse_store_url(url: str) -> StoreUrl:
    """Read an address; BadArguments says what is wrong with it."""
    text = url.strip()
    if len(text) > URL_CHARS_MAX:
        raise BadArguments(f"a store's address has at most {URL_CHARS_MAX} characters")
    if text.startswith(SQLITE):
        path = text.removeprefix(SQLITE)
        if not path or path.endswith("/"):
            raise BadArguments(f"{text}: no file is named; {_FORMS}")
        return SqliteUrl(path)
    if text.startswith(ZOOKEEPER):
        return parse_zookeeper_connect(text.removeprefix(ZOOKEEPER))
    raise BadArguments(f"{text!r} is not a store's address; {_FORMS}")


def parse_zookeeper_connect(value: str) -> ZooKeeperUrl:
    """Read a value of `zookeeper.connect`: servers, then at most one path for all of them."""
    text = value.strip()
    if len(text) > URL_CHARS_MAX:
        raise BadArguments(f"a store's address has at most {URL_CHARS_MAX} characters")
    servers, slash, path = text.partition("/")
    if "," in path:
        raise BadArguments(
            f"{text}: the path goes once, after the last server: host:port,host:port/path"
        )
    chroot = (slash + path).rstrip("/")
    if chroot:
        check_path(chroot)
    return ZooKeeperUrl(tuple(_server(text, part.strip()) for part in servers.split(",")), chroot)


def _server(text: str, part: str) -> str:
    matched = _HOST.fullmatch(part)
    if matched is None:
        raise BadArguments(f"{text}: {part!r} is not a server; {_FORMS}")
    port = int(matched["port"] or ZOOKEEPER_PORT)
    if not 1 <= port <= 65535:
        raise BadArguments(f"{text}: {port} is not a port; ports are 1 to 65535")
    return f"{matched['host']}:{port}"
