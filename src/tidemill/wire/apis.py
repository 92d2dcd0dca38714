"""The table of APIs: key, versions, and where the messages are declared.

The ranges are those of one self-consistent release, Apache Kafka 4.3: what a client may be told,
not what this broker has handlers for (a broker derives its ApiVersions from its handlers). Message
classes are imported when `Api.request` or `Api.response` is first read, which keeps start-up fast.

Keys from `PRIVATE_FROM` on are Tidemill's own, for brokers among themselves: no client is ever told
of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from functools import cached_property
from importlib import import_module
from types import MappingProxyType
from typing import cast

from tidemill.wire.declare import Message

NEVER_FLEXIBLE = 32767
"""`flexible_from` of an API that has no flexible version."""

PRIVATE_FROM = 30_000
"""The first key that is not Kafka's."""


class ApiKey(IntEnum):
    """The number at the front of every request that says which API is meant."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    ALTER_PARTITION = 56
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    CLUSTER_HELLO = 30_000
    IMAGE_DELTA = 30_001
    FORWARD = 30_002
    CONTROLLED_SHUTDOWN = 30_003
    OFFLINE_REPLICAS = 30_004


class Api:
    """One API: its versions as advertised, and its messages."""

    def __init__(
        self, key: ApiKey, module: str, min_version: int, max_version: int, flexible_from: int
    ) -> None:
        self.key = key
        self.name = "".join(word.capitalize() for word in key.name.split("_"))
        self.min_version = min_version
        self.max_version = max_version
        self.flexible_from = flexible_from
        self._module = f"tidemill.wire.messages.{module}"

    @property
    def is_private(self) -> bool:
        """Whether only brokers speak it, among themselves."""
        return self.key >= PRIVATE_FROM

    @cached_property
    def request(self) -> type[Message]:
        return self._load("Request")

    @cached_property
    def response(self) -> type[Message]:
        return self._load("Response")

    def _load(self, kind: str) -> type[Message]:
        # The module's name comes from the table below and never from outside.
        return cast(type[Message], getattr(import_module(self._module), self.name + kind))

    def __repr__(self) -> str:
        return f"Api({self.name}, {self.min_version}-{self.max_version})"


_ROWS = (
    # Produce 0-2 are advertised but have no schema: see `messages.produce`.
    (ApiKey.PRODUCE, "produce", 0, 13, 9),
    (ApiKey.FETCH, "fetch", 4, 18, 12),
    (ApiKey.LIST_OFFSETS, "list_offsets", 1, 11, 6),
    (ApiKey.METADATA, "metadata", 0, 13, 9),
    (ApiKey.OFFSET_COMMIT, "offsets", 2, 10, 8),
    (ApiKey.OFFSET_FETCH, "offsets", 1, 10, 6),
    (ApiKey.FIND_COORDINATOR, "find_coordinator", 0, 6, 3),
    (ApiKey.JOIN_GROUP, "groups", 0, 9, 6),
    (ApiKey.HEARTBEAT, "groups", 0, 4, 4),
    (ApiKey.LEAVE_GROUP, "groups", 0, 5, 4),
    (ApiKey.SYNC_GROUP, "groups", 0, 5, 4),
    (ApiKey.DESCRIBE_GROUPS, "group_admin", 0, 6, 5),
    (ApiKey.LIST_GROUPS, "group_admin", 0, 5, 3),
    (ApiKey.SASL_HANDSHAKE, "sasl", 0, 1, NEVER_FLEXIBLE),
    (ApiKey.API_VERSIONS, "api_versions", 0, 4, 3),
    (ApiKey.CREATE_TOPICS, "topics", 2, 7, 5),
    (ApiKey.DELETE_TOPICS, "topics", 1, 6, 4),
    (ApiKey.DELETE_RECORDS, "delete_records", 0, 2, 2),
    (ApiKey.INIT_PRODUCER_ID, "producers", 0, 5, 2),
    (ApiKey.OFFSET_FOR_LEADER_EPOCH, "leader_epochs", 2, 4, 4),
    (ApiKey.ADD_PARTITIONS_TO_TXN, "transactions", 0, 5, 3),
    (ApiKey.ADD_OFFSETS_TO_TXN, "transactions", 0, 4, 3),
    (ApiKey.END_TXN, "transactions", 0, 5, 3),
    (ApiKey.WRITE_TXN_MARKERS, "transactions", 1, 2, 1),
    (ApiKey.TXN_OFFSET_COMMIT, "transactions", 0, 5, 3),
    (ApiKey.DESCRIBE_ACLS, "acls", 1, 3, 2),
    (ApiKey.CREATE_ACLS, "acls", 1, 3, 2),
    (ApiKey.DELETE_ACLS, "acls", 1, 3, 2),
    (ApiKey.DESCRIBE_CONFIGS, "configs", 1, 4, 4),
    (ApiKey.ALTER_CONFIGS, "configs", 0, 2, 2),
    (ApiKey.ALTER_REPLICA_LOG_DIRS, "log_dirs", 1, 2, 2),
    (ApiKey.DESCRIBE_LOG_DIRS, "log_dirs", 1, 5, 2),
    (ApiKey.SASL_AUTHENTICATE, "sasl", 0, 2, 2),
    (ApiKey.CREATE_PARTITIONS, "topics", 0, 3, 2),
    (ApiKey.DELETE_GROUPS, "group_admin", 0, 2, 2),
    (ApiKey.ELECT_LEADERS, "reassignments", 0, 2, 2),
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, "configs", 0, 1, 1),
    (ApiKey.ALTER_PARTITION_REASSIGNMENTS, "reassignments", 0, 1, 0),
    (ApiKey.LIST_PARTITION_REASSIGNMENTS, "reassignments", 0, 0, 0),
    (ApiKey.OFFSET_DELETE, "offsets", 0, 0, NEVER_FLEXIBLE),
    (ApiKey.DESCRIBE_CLIENT_QUOTAS, "quotas", 0, 1, 1),
    (ApiKey.ALTER_CLIENT_QUOTAS, "quotas", 0, 1, 1),
    (ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, "scram", 0, 0, 0),
    (ApiKey.ALTER_USER_SCRAM_CREDENTIALS, "scram", 0, 0, 0),
    (ApiKey.ALTER_PARTITION, "isr", 2, 3, 0),
    (ApiKey.DESCRIBE_CLUSTER, "cluster", 0, 2, 0),
    (ApiKey.DESCRIBE_PRODUCERS, "producers", 0, 0, 0),
    (ApiKey.DESCRIBE_TRANSACTIONS, "transaction_admin", 0, 0, 0),
    (ApiKey.LIST_TRANSACTIONS, "transaction_admin", 0, 2, 0),
    (ApiKey.ALLOCATE_PRODUCER_IDS, "producers", 0, 0, 0),
    (ApiKey.CONSUMER_GROUP_HEARTBEAT, "consumer_groups", 0, 1, 0),
    (ApiKey.CONSUMER_GROUP_DESCRIBE, "consumer_groups", 0, 1, 0),
    (ApiKey.LIST_CONFIG_RESOURCES, "configs", 0, 1, 0),
    (ApiKey.DESCRIBE_TOPIC_PARTITIONS, "topic_partitions", 0, 0, 0),
    (ApiKey.CLUSTER_HELLO, "cluster", 0, 0, 0),
    (ApiKey.IMAGE_DELTA, "cluster", 0, 0, 0),
    (ApiKey.FORWARD, "cluster", 0, 0, 0),
    (ApiKey.CONTROLLED_SHUTDOWN, "cluster", 0, 0, 0),
    (ApiKey.OFFLINE_REPLICAS, "cluster", 0, 0, 0),
)

APIS: Mapping[ApiKey, Api] = MappingProxyType({row[0]: Api(*row) for row in _ROWS})
"""Every API that this package can speak."""
