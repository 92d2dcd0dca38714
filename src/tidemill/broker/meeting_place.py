"""Where the brokers of a cluster meet, and by what number a broker goes there."""

from __future__ import annotations

from tidemill.broker.directories import NO_NODE
from tidemill.config import BrokerConfig, Source
from tidemill.store.url import SqliteUrl, StoreUrl, parse_store_url, parse_zookeeper_connect

STORE_NAME = "store.db"


def wanted_id(config: BrokerConfig) -> int:
    """The number that a broker is to have; where brokers meet, one without gets its own."""
    url = store_url(config)
    is_shared = url != _own_store(config)
    is_given = config.source("node.id") is not Source.DEFAULT
    return config.broker_id if is_given or not is_shared else NO_NODE


def _own_store(config: BrokerConfig) -> StoreUrl:
    return SqliteUrl(str(config.log_dirs[0].absolute() / STORE_NAME))


def store_url(config: BrokerConfig) -> StoreUrl:
    """Where the brokers of this cluster meet: by default in a file of the broker's own."""
    url = config.optional_str("store.url")
    if url:
        return parse_store_url(url)
    connect = config.optional_str("zookeeper.connect")
    if connect:
        return parse_zookeeper_connect(connect)
    return _own_store(config)
