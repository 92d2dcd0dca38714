"""Every intended difference from Apache Kafka 4.3.1; `docs/differences.md` tells users why.

A line names the API, the case ("*" for all), a pattern for the path of the field, and the reason.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Difference(NamedTuple):
    """One field of one answer that is meant to differ."""

    api: str
    case: str
    path: str
    reason: str


OUR_KEYS = frozenset({"flush.policy", "record.validation"})
"""Topic settings that Kafka does not have."""

SETTINGS_LEFT_OUT = OUR_KEYS | {"min.insync.replicas"}
"""Not compared: ours, and the one that Kafka writes into the cluster's defaults at formatting."""

_OFFSETS_IN_ORDER = "Kafka gives the records new offsets; we refuse what contradicts its batch"
_NO_RECORDS = "Kafka fails with UNKNOWN_SERVER_ERROR; we say INVALID_RECORD"
_OWN_WORDS = "the same error in our own words"

INTENDED: list[Difference] = [
    Difference(
        "FETCH",
        "limit between batches",
        r"responses\[0\]\.partitions\[0\]\.records",
        "Kafka cuts the last batch at the limit and clients drop the piece; we send whole batches",
    ),
    Difference(
        "PRODUCE",
        "unknown codec",
        r".*\.(error_code|log_start_offset)",
        "Kafka fails with UNKNOWN_SERVER_ERROR; we say UNSUPPORTED_COMPRESSION_TYPE",
    ),
    Difference("PRODUCE", "offsets that jump", r".*\.(error_code|base_offset)", _OFFSETS_IN_ORDER),
    Difference(
        "PRODUCE", "the same offset twice", r".*\.(error_code|base_offset)", _OFFSETS_IN_ORDER
    ),
    Difference("PRODUCE", "garbage", r".*\.error_code", _NO_RECORDS),
    Difference("PRODUCE", "compressed garbage", r".*\.error_code", _NO_RECORDS),
    Difference("PRODUCE", "compressed, cut off", r".*\.error_code", _NO_RECORDS),
    Difference(
        "INCREMENTAL_ALTER_CONFIGS",
        "unknown operation",
        r".*\.error_(code|message)",
        "Kafka fails with UNKNOWN_SERVER_ERROR; we say INVALID_REQUEST and which operation it was",
    ),
    Difference(
        "INCREMENTAL_ALTER_CONFIGS",
        "unknown broker key",
        r".*\.error_(code|message)",
        "Kafka keeps a setting that nothing reads; we refuse it, since it is a typing error",
    ),
    Difference(
        "INCREMENTAL_ALTER_CONFIGS",
        "for share groups",
        r".*\.error_(code|message)",
        "Kafka keeps it for groups that we do not have; we refuse what would have no effect",
    ),
    Difference(
        "LIST_CONFIG_RESOURCES",
        "nothing was set",
        "config_resources",
        "Kafka has kept the setting for share groups that we refuse",
    ),
    Difference(
        "DESCRIBE_CONFIGS",
        "the default broker",
        r"results\[0\]\.configs",
        "Kafka writes min.insync.replicas into the cluster's defaults when it formats its storage",
    ),
    Difference("DESCRIBE_CONFIGS", "unknown kind", r".*\.error_message", _OWN_WORDS),
    Difference("CONSUMER_GROUP_HEARTBEAT", "bad pattern", "error_message", _OWN_WORDS),
    Difference("CONSUMER_GROUP_HEARTBEAT", "while it is there", "error_message", _OWN_WORDS),
    Difference("DESCRIBE_CLUSTER", "controllers", "error_message", _OWN_WORDS),
    Difference("FIND_COORDINATOR", "unknown type", r"(.*\.)?error_message", _OWN_WORDS),
    Difference("DESCRIBE_PRODUCERS", "no such topic", r".*\.error_message", _OWN_WORDS),
    Difference("DESCRIBE_PRODUCERS", "bad name", r".*\.error_message", _OWN_WORDS),
]

ELSEWHERE = {
    "AlterPartition, AllocateProducerIds from a client": "tests/reference/test_replica_requests.py",
    "a fetch in a replica's name from a client": "tests/reference/test_replica_requests.py",
    "the end of a reassignment": "tests/reference/test_elections.py",
    "a reassignment that replaces another": "tests/controller/test_reassignment.py",
    "eligible leader replicas": "tests/reference/test_elections.py",
    "an AlterPartition on an old epoch that asks for what is already so": (
        "tests/controller/test_isr_changes.py"
    ),
    "`kafka-reassign-partitions --generate`": "tests/cli/test_reassign_reference.py",
    "replicas of new partitions where no broker has a rack": "tests/controller/test_placement.py",
    "how many elections were unclean": "tests/wire/test_messages.py",
    "when an idempotent producer is forgotten": "tests/storage/test_producer_state.py",
    "the partitions in fetch sessions": "tests/broker/test_fetch_sessions.py",
}
"""Differences that no single answer shows: the line in `docs/differences.md`, and its test."""


HANDLERS: dict[str, dict[str, list[str]]] = {
    "configs": {
        "client metrics have no settings": ["settings of client metrics"],
        "A group's keys for share": ["settings of share and streams groups"],
        "A broker key that nobody knows": ["an unknown key in a broker's dynamic config"],
        "An unknown operation": ["an unknown config operation"],
        "The same resource twice": ["the same resource twice in AlterConfigs"],
        "An answer has a largest size": ["the size of an answer to DescribeConfigs"],
    },
    "producers": {
        "an answer has a largest size": ["the size of an answer to DescribeProducers"],
    },
    "fetch": {
        "one partition's share": ["one partition's share of a fetch"],
        "A new leader": [
            "a fetch from a new leader that does not know yet what is committed, "
            "by a consumer that is ahead of it"
        ],
    },
    "find_coordinator": {
        "Kafka says COORDINATOR_NOT": ["FindCoordinator before `__consumer_offsets` exists"],
    },
    "group_admin": {
        "answers come in the order": [
            "the order of the answers in DescribeGroups and DeleteGroups"
        ],
    },
    "group_offsets": {
        "the offsets of a group": ["expiry of offsets in a group of the next-generation protocol"],
        "There are no transactions yet": ["`require_stable` in OffsetFetch"],
    },
    "groups": {
        "a member that is removed": [
            "a member that is removed while its SyncGroup waits",
            "a JoinGroup that is repeated while the first one waits",
        ],
        "A group keeps at most": ["member ids that were given out and not used yet"],
        "A member that finds no room": [
            "a member for which a rebalance has no room (`group.max.size`)"
        ],
    },
    "loggers": {
        "the loggers are": ["the loggers of a broker"],
        "TRACE is": ["the loggers of a broker"],
    },
    "metadata": {"the controller id": ["the controller's id in Metadata"]},
    "produce": {
        "records inside a batch": ["records of a batch on produce"],
        "Transactional batches": ["transactional batches on produce"],
    },
    "topics": {
        "DeleteTopics answers": ["the order of the answers in DeleteTopics"],
        "A topic may be created": [
            "most partitions in one CreateTopics",
            "too many new partitions in one CreatePartitions",
        ],
        "The time limit": ["the time limit in CreateTopics, CreatePartitions, DeleteTopics"],
    },
}
"""How each sentence begins that a handler says of its deviations, and its lines in the document."""


def is_intended(api: str, version: int, case: str, path: str) -> bool:
    """Whether the table has a line for this field."""
    return any(
        line.api == api and line.case in ("*", case) and re.fullmatch(line.path, path) is not None
        for line in INTENDED
    )
