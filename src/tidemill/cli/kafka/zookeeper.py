"""`--zookeeper HOST:PORT,HOST:PORT/PATH`: the brokers that are registered there.

Old runbooks name ZooKeeper where today's name a broker. A cluster that meets at a ZooKeeper can be
found that way still: its brokers' addresses are in `/brokers/ids`.
"""

from __future__ import annotations

import json
import logging
import socket
import warnings
from typing import Any

from tidemill.cli.kafka.common import ToolError
from tidemill.store.base import BadArguments
from tidemill.store.url import ZooKeeperUrl, parse_zookeeper_connect

PROBE_TIMEOUT_S = 1.0
ANSWER_TIMEOUT_S = 10.0
BROKER_IDS = "/brokers/ids"


def find_brokers(connect: str) -> str | None:
    """`host:port,host:port` of the registered brokers; None where no ZooKeeper answers."""
    try:
        url = parse_zookeeper_connect(connect)
    except BadArguments as error:
        raise ToolError(f"--zookeeper: {error}") from None
    if not any(_accepts(server) for server in url.servers):
        return None
    try:
        from kazoo.client import KazooClient
    except ImportError:
        return None
    # What it has to say about its connection is no output of a tool.
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    client = KazooClient(hosts=f"{url.hosts}{url.chroot}", timeout=ANSWER_TIMEOUT_S, read_only=True)
    try:
        return _ask(client, url)
    finally:
        client.stop()
        client.close()


def _accepts(server: str) -> bool:
    host, _, port = server.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), PROBE_TIMEOUT_S):
            return True
    except OSError:
        return False


def _ask(client: Any, url: ZooKeeperUrl) -> str | None:
    from kazoo.exceptions import KazooException, NoNodeError
    from kazoo.handlers.threading import KazooTimeoutError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # A path that is not there is said below, once.
            client.start(timeout=ANSWER_TIMEOUT_S)
        ids = client.get_children(BROKER_IDS)
        values = [client.get(f"{BROKER_IDS}/{broker}")[0] for broker in sorted(ids, key=int)]
    except NoNodeError:
        values = []
    except (KazooException, KazooTimeoutError):
        return None
    if not values:
        raise ToolError(f"no broker is registered at {url.hosts}{url.chroot}{BROKER_IDS}")
    return ",".join(address_of(value) for value in values)


def address_of(registration: bytes) -> str:
    """The first endpoint of a broker; very old ones have only a host and a port."""
    found = json.loads(registration)
    for endpoint in found.get("endpoints", ()):
        return str(endpoint).partition("://")[2]
    return f"{found['host']}:{found['port']}"
