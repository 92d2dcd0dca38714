"""ApiVersions, Metadata, DescribeCluster, DescribeTopicPartitions, FindCoordinator, log dirs."""

from __future__ import annotations

import struct
import time
from typing import Any
from uuid import UUID

import pytest
from tests.reference.answers import NOBODY, batch, create, known_id, produce
from tests.reference.pair import Case, Pair, Peer

from tidemill.wire.apis import APIS, ApiKey
from tidemill.wire.messages.api_versions import ApiVersionsRequest
from tidemill.wire.messages.cluster import DescribeClusterRequest
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest
from tidemill.wire.messages.log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from tidemill.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidemill.wire.messages.topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)


@pytest.mark.parametrize("version", range(5))
def test_api_versions(pair: Pair, version: int) -> None:
    """Whatever Tidemill offers, it offers in exactly the versions of Kafka 4.3."""
    request = ApiVersionsRequest(client_software_name="ref", client_software_version="1.0")
    theirs, ours = pair.both(ApiKey.API_VERSIONS, version, request)
    assert ours.error_code == theirs.error_code == 0
    ranges = {api.api_key: (api.min_version, api.max_version) for api in theirs.api_keys}
    for api in ours.api_keys:
        assert (api.min_version, api.max_version) == ranges[api.api_key], ApiKey(api.api_key).name
    assert [api.api_key for api in ours.api_keys] == sorted(api.api_key for api in ours.api_keys)
    known = {feature.name: feature.max_version_level for feature in theirs.finalized_features}
    for feature in ours.finalized_features:
        assert known[feature.name] == feature.max_version_level


def raw_request(api: int, version: int, body: bytes = b"") -> bytes:
    header = struct.pack(">hhih", api, version, 77, 3) + b"ref"
    return struct.pack(">i", len(header) + len(body)) + header + body


@pytest.mark.parametrize("version", [5, 6, 99, 32767])
def test_an_unknown_version_of_api_versions(pair: Pair, version: int) -> None:
    """KIP-511: error 35 in the layout of version 0, listing ApiVersions itself."""
    theirs, ours = (
        peer.exchange(raw_request(ApiKey.API_VERSIONS, version, b"\0\0\0\0"))
        for peer in (pair.kafka, pair.tidemill)
    )
    assert theirs is not None
    assert ours is not None
    assert bytes(ours) == bytes(theirs)


@pytest.mark.parametrize(
    ("api", "version"), [(999, 0), (-1, 0), (0, 99), (1, 3), (3, 14), (19, 1), (32, 0)]
)
def test_what_is_not_offered_closes_the_connection(pair: Pair, api: int, version: int) -> None:
    theirs, ours = (
        peer.exchange(raw_request(api, version, b"\0" * 8)) for peer in (pair.kafka, pair.tidemill)
    )
    assert (ours is None) == (theirs is None)


@pytest.mark.parametrize("name_and_version", [("", "1"), ("a b", "1"), ("ok", "-1"), ("x", "")])
def test_a_bad_client_software_name(pair: Pair, name_and_version: tuple[str, str]) -> None:
    software, version = name_and_version
    request = ApiVersionsRequest(client_software_name=software, client_software_version=version)
    theirs, ours = pair.both(ApiKey.API_VERSIONS, 3, request)
    assert ours.error_code == theirs.error_code
    assert bool(ours.api_keys) == bool(theirs.api_keys)


@pytest.mark.parametrize("version", range(APIS[ApiKey.METADATA].max_version + 1))
def test_metadata(pair: Pair, name: str, version: int) -> None:
    pair.create(create(name, 3))

    def case(title: str, *names: str | None, **more: Any) -> Case:
        topics = [MetadataRequestTopic(name=each) for each in names]
        more.setdefault("allow_auto_topic_creation", version < 4)
        return Case(title, MetadataRequest(topics=topics, **more))

    cases = [case("one topic", name), case("a bad name", "a/b"), case("an empty name", "")]
    if version >= 1:
        cases.append(case("no topics"))
    if version >= 4:
        cases += [
            case("no such topic", f"{name}-missing"),
            case("some of each", name, f"{name}-missing", "a b"),
            case("the same twice", name, name),
        ]
    if version >= 8:
        cases.append(case("authorized operations", name, include_topic_authorized_operations=True))
    if 8 <= version <= 10:
        cases.append(case("of the cluster", include_cluster_authorized_operations=True))
    if version >= 10:
        cases += [Case("by id", by_id(name)), Case("by an unknown id", by_id(None))]
    pair.compare(ApiKey.METADATA, version, cases)


def by_id(topic: str | None) -> Any:
    def made(peer: Peer) -> MetadataRequest:
        topic_id = NOBODY if topic is None else known_id(peer, topic)
        topics = [MetadataRequestTopic(topic_id=topic_id, name=None)]
        return MetadataRequest(topics=topics, allow_auto_topic_creation=False)

    return made


@pytest.mark.parametrize("version", range(4, APIS[ApiKey.METADATA].max_version + 1))
def test_auto_creation(pair: Pair, name: str, version: int) -> None:
    """The first answer about a topic that is being created, and what is there in the end."""
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=True
    )
    theirs, ours = pair.both(ApiKey.METADATA, version, request)
    assert ours.topics[0].error_code == theirs.topics[0].error_code
    for peer in (pair.kafka, pair.tidemill):
        for _ in range(500):
            topic = peer.ask(ApiKey.METADATA, version, request).topics[0]
            if topic.error_code == 0 and topic.partitions:
                break
            time.sleep(0.02)
        assert len(topic.partitions) == 1, peer.name


@pytest.mark.parametrize("version", range(APIS[ApiKey.DESCRIBE_CLUSTER].max_version + 1))
def test_describe_cluster(pair: Pair, version: int) -> None:
    cases = [
        Case("plain", DescribeClusterRequest()),
        Case("operations", DescribeClusterRequest(include_cluster_authorized_operations=True)),
    ]
    if version >= 1:
        cases.append(Case("controllers", DescribeClusterRequest(endpoint_type=2)))
        cases.append(Case("unknown endpoints", DescribeClusterRequest(endpoint_type=9)))
    if version >= 2:
        cases.append(Case("fenced too", DescribeClusterRequest(include_fenced_brokers=True)))
    pair.compare(ApiKey.DESCRIBE_CLUSTER, version, cases)


def test_describe_topic_partitions(pair: Pair, name: str) -> None:
    pair.create(create(name, 5))
    pair.create(create(f"{name}-b", 2))

    def ask(*names: str, limit: int = 2000, start: int | None = None) -> Any:
        topics = [TopicRequest(name=each) for each in names]
        cursor = None if start is None else Cursor(topic_name=name, partition_index=start)
        return DescribeTopicPartitionsRequest(
            topics=topics, response_partition_limit=limit, cursor=cursor
        )

    pair.compare(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        [
            Case("one", ask(name)),
            Case("unsorted", ask(f"{name}-b", name)),
            Case("first page", ask(name, f"{name}-b", limit=3)),
            Case("second page", ask(name, start=3)),
            Case("cursor past the end", ask(name, start=50)),
            Case("negative cursor", ask(name, start=-1)),
            Case("no such topic", ask(f"{name}-missing")),
            Case("bad name", ask("a/b")),
        ],
    )


@pytest.mark.parametrize("version", range(APIS[ApiKey.FIND_COORDINATOR].max_version + 1))
def test_find_coordinator(pair: Pair, version: int) -> None:
    def ask(key: str, key_type: int) -> FindCoordinatorRequest:
        if version >= 4:
            return FindCoordinatorRequest(coordinator_keys=[key], key_type=key_type)
        return FindCoordinatorRequest(key=key, key_type=key_type)

    # The first question creates the internal topic on Kafka; ask until it is there.
    for _ in range(200):
        answer = pair.kafka.ask(ApiKey.FIND_COORDINATOR, version, ask("group", 0))
        found = answer.coordinators[0] if version >= 4 else answer
        if found.error_code == 0:
            break
        time.sleep(0.05)
    cases = [Case("a group", ask("group", 0))]
    if version >= 1:
        cases.append(Case("unknown type", ask("x", 9)))
    pair.compare(ApiKey.FIND_COORDINATOR, version, cases)


@pytest.mark.parametrize("version", range(1, APIS[ApiKey.DESCRIBE_LOG_DIRS].max_version + 1))
def test_describe_log_dirs(pair: Pair, name: str, version: int) -> None:
    pair.create(create(name, 2))
    pair.both(ApiKey.PRODUCE, 9, produce(name, batch(10)))

    def ask(topic: str, *partitions: int) -> DescribeLogDirsRequest:
        wanted = DescribableLogDirTopic(topic=topic, partitions=list(partitions))
        return DescribeLogDirsRequest(topics=[wanted])

    pair.compare(
        ApiKey.DESCRIBE_LOG_DIRS,
        version,
        [
            Case("one partition", ask(name, 0)),
            Case("no such topic", ask(f"{name}-missing", 0)),
            Case("no topics", DescribeLogDirsRequest(topics=[])),
        ],
    )


def test_topic_ids_are_stable(pair: Pair, name: str) -> None:
    """rule A11: the id is there from the first answer on and belongs to this topic alone."""
    pair.create(create(name))
    first = pair.tidemill.topic_id(name)
    assert first != UUID(int=0)
    assert pair.tidemill.topic_id(name) == first
