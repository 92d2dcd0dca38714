"""AlterReplicaLogDirs as Apache Kafka answers it, and requests that only brokers may send."""

from __future__ import annotations

from typing import Any

import pytest
from tests.reference.answers import create
from tests.reference.pair import CLOSED, Case, Pair, Peer

from tidemill.errors import ErrorCode
from tidemill.wire.apis import APIS, ApiKey
from tidemill.wire.messages.api_versions import ApiVersionsRequest
from tidemill.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tidemill.wire.messages.isr import AlterPartitionRequest
from tidemill.wire.messages.log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    DescribeLogDirsRequest,
)
from tidemill.wire.messages.producers import AllocateProducerIdsRequest

LOG_DIR_MOVES = APIS[ApiKey.ALTER_REPLICA_LOG_DIRS]


def to(path: str, topic: str, *partitions: int) -> AlterReplicaLogDirsRequest:
    wanted = AlterReplicaLogDirTopic(name=topic, partitions=list(partitions))
    return AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=[wanted])])


def home(peer: Peer) -> str:
    """The one log directory that the broker has."""
    answer = peer.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest(topics=None))
    path: str = answer.results[0].log_dir
    return path


@pytest.mark.parametrize("version", range(1, LOG_DIR_MOVES.max_version + 1))
def test_alter_replica_log_dirs(pair: Pair, name: str, version: int) -> None:
    pair.create(create(name, 2))
    cases = [
        Case("to where it is", lambda peer: to(home(peer), name, 1)),
        Case("to a directory that is none of the broker's", to("/nowhere", name, 0)),
        Case("to a relative path", to("somewhere", name, 0)),
        Case("an unknown partition", lambda peer: to(home(peer), name, 9)),
        Case("an unknown topic", lambda peer: to(home(peer), f"{name}-none", 0)),
        Case("an unknown topic to nowhere", to("/nowhere", f"{name}-none", 0)),
        Case("nothing", AlterReplicaLogDirsRequest()),
    ]
    pair.compare(ApiKey.ALTER_REPLICA_LOG_DIRS, version, cases)


@pytest.mark.parametrize(
    ("api", "version", "request_"),
    [
        (ApiKey.ALTER_PARTITION, 2, AlterPartitionRequest()),
        (ApiKey.ALTER_PARTITION, 3, AlterPartitionRequest()),
        (ApiKey.ALLOCATE_PRODUCER_IDS, 0, AllocateProducerIdsRequest()),
    ],
)
def test_what_only_brokers_may_ask_is_refused(
    pair: Pair, api: ApiKey, version: int, request_: Any
) -> None:
    """Whoever has not proved the cluster's secret; Kafka hangs up, we say why."""
    theirs, ours = pair.both(api, version, request_)
    assert theirs == CLOSED
    assert ours.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    advertised = pair.tidemill.ask(ApiKey.API_VERSIONS, 3, ApiVersionsRequest())
    assert api not in {one.api_key for one in advertised.api_keys}


def test_nobody_fetches_in_a_brokers_name(pair: Pair, name: str) -> None:
    """Rule A3: a fetch says what a replica has, so only that replica may send it."""
    pair.create(create(name, 1))
    asked = FetchTopic(topic=name, partitions=[FetchPartition(partition=0)])
    request = FetchRequest(replica_id=2, max_wait_ms=0, topics=[asked])
    theirs, ours = pair.both(ApiKey.FETCH, 11, request)
    assert theirs.responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert ours.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
