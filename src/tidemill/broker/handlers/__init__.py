"""One file per API family; importing this package fills the table in `broker.dispatch`.

Each file begins with its contract: the APIs and versions, how they behave, where they differ from
Apache Kafka on purpose, and the KIPs behind them.
"""

from tidemill.broker.handlers import (
    api_versions,
    cluster,
    configs,
    consumer_groups,
    delete_records,
    fetch,
    find_coordinator,
    group_admin,
    group_offsets,
    groups,
    leader_epochs,
    list_offsets,
    log_dirs,
    metadata,
    peers,
    produce,
    producers,
    reassignments,
    topic_partitions,
    topics,
)

__all__ = [
    "api_versions",
    "cluster",
    "configs",
    "consumer_groups",
    "delete_records",
    "fetch",
    "find_coordinator",
    "group_admin",
    "group_offsets",
    "groups",
    "leader_epochs",
    "list_offsets",
    "log_dirs",
    "metadata",
    "peers",
    "produce",
    "producers",
    "reassignments",
    "topic_partitions",
    "topics",
]
