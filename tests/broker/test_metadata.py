"""Metadata, DescribeCluster, DescribeTopicPartitions, FindCoordinator, ApiVersions."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import pytest
from tests.broker.harness import Client, connect, create_topic, metadata_of, running_broker

from tidemill.broker.dispatch import REGISTRY
from tidemill.broker.handlers import metadata
from tidemill.broker.server import BrokerServer
from tidemill.errors import ErrorCode
from tidemill.image import ClusterImage, TopicImage
from tidemill.wire.apis import APIS, PRIVATE_FROM, ApiKey
from tidemill.wire.messages.api_versions import ApiVersionsRequest
from tidemill.wire.messages.cluster import DescribeClusterRequest
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest
from tidemill.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponseTopic,
)
from tidemill.wire.messages.topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)

NOT_ASKED = -(2**31)


@pytest.mark.parametrize("version", range(5))
async def test_api_versions_is_the_dispatch_table(client: Client, version: int) -> None:
    request = ApiVersionsRequest()
    if version >= 3:
        request = ApiVersionsRequest(client_software_name="x", client_software_version="1")
    response = await client.ask(request, version)
    listed = {entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys}
    assert listed[ApiKey.PRODUCE] == (0, 13)
    assert listed[ApiKey.FETCH] == (4, 18)
    for_peers = {key for key, entry in REGISTRY.items() if entry.peers_only or key >= PRIVATE_FROM}
    assert set(listed) == set(REGISTRY) - for_peers


async def test_a_client_with_a_strange_name_is_refused(client: Client) -> None:
    request = ApiVersionsRequest(client_software_name=" ", client_software_version="1")
    response = await client.ask(request, 3)
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert response.api_keys == []


def test_every_range_is_one_that_the_wire_knows() -> None:
    for entry in REGISTRY.values():
        api = APIS[entry.key]
        assert api.min_version <= entry.min_version <= entry.max_version <= api.max_version


async def test_naming_a_topic_again_and_again_is_work_once(
    server: BrokerServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    described: list[str] = []
    known = metadata._known

    def counted(topic: TopicImage, image: ClusterImage) -> MetadataResponseTopic:
        described.append(topic.name)
        return known(topic, image)

    monkeypatch.setattr(metadata, "_known", counted)
    await create_topic(server, "t", partitions=2)
    response = await client.ask(metadata_of(*["t"] * 1_000), 12)
    assert [topic.name for topic in response.topics] == described == ["t"]


@pytest.mark.parametrize("version", range(14))
async def test_all_topics_and_none(server: BrokerServer, client: Client, version: int) -> None:
    topic_id = await create_topic(server, "t", partitions=2)
    everything = MetadataRequest(topics=[] if version == 0 else None)
    response = await client.ask(everything, version)
    (topic,) = response.topics
    assert (topic.error_code, topic.name, len(topic.partitions)) == (0, "t", 2)
    assert topic.topic_id == (topic_id if version >= 10 else UUID(int=0))
    (broker,) = response.brokers
    assert (broker.node_id, broker.host, broker.port) == (0, "127.0.0.1", server.port)
    if version >= 1:
        assert (await client.ask(MetadataRequest(topics=[]), version)).topics == []
        assert response.controller_id == 0
    if version >= 2:
        assert response.cluster_id == server.broker.cluster_id


async def test_authorized_operations_are_told_when_asked_for(
    server: BrokerServer, client: Client
) -> None:
    await create_topic(server, "t")
    plain = await client.ask(metadata_of("t"), 9)
    assert plain.cluster_authorized_operations == NOT_ASKED
    assert plain.topics[0].topic_authorized_operations == NOT_ASKED
    request = metadata_of("t")
    request.include_cluster_authorized_operations = True
    request.include_topic_authorized_operations = True
    asked = await client.ask(request, 9)
    assert asked.cluster_authorized_operations == 8096
    assert asked.topics[0].topic_authorized_operations == 3576


async def test_topics_by_id(server: BrokerServer, client: Client) -> None:
    topic_id = await create_topic(server, "t")
    unknown = UUID(int=5)
    request = MetadataRequest(
        topics=[MetadataRequestTopic(topic_id=each, name=None) for each in (topic_id, unknown)]
    )
    response = await client.ask(request, 12)
    assert [(t.error_code, t.name, t.topic_id) for t in response.topics] == [
        (ErrorCode.UNKNOWN_TOPIC_ID, None, unknown),
        (0, "t", topic_id),
    ]
    refused = await client.ask(request, 10)
    assert [t.error_code for t in refused.topics] == [ErrorCode.INVALID_REQUEST] * 2


async def test_a_missing_topic_is_created_when_allowed(
    server: BrokerServer, client: Client
) -> None:
    """Checklist: auto-creation with `num.partitions`, found on the second look."""
    first = await client.ask(metadata_of("new", may_create=True), 12)
    assert first.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for _ in range(100):
        response = await client.ask(metadata_of("new", may_create=True), 12)
        if response.topics[0].error_code == 0:
            break
        await asyncio.sleep(0.02)
    assert len(response.topics[0].partitions) == server.config.int("num.partitions")


async def test_a_missing_topic_is_not_created_otherwise(tmp_path: Path) -> None:
    settings = {"auto.create.topics.enable": "false"}
    async with running_broker(tmp_path, settings) as server, connect(server.port) as client:
        for may_create in (True, False):
            response = await client.ask(metadata_of("new", may_create=may_create), 12)
            assert response.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await asyncio.sleep(0.1)
        assert server.broker.image.topics == {}


@pytest.mark.parametrize("name", ["a b", "", "..", "x" * 250, "ä"])
async def test_bad_names(server: BrokerServer, client: Client, name: str) -> None:
    """Rule 3.4.5: such a name never becomes a directory."""
    response = await client.ask(metadata_of(name, may_create=True), 12)
    assert response.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("version", range(3))
async def test_describe_cluster(server: BrokerServer, client: Client, version: int) -> None:
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    response = await client.ask(request, version)
    assert response.cluster_id == server.broker.cluster_id
    assert response.cluster_authorized_operations == 8096
    assert [broker.port for broker in response.brokers] == [server.port]
    if version >= 1:
        for kind, code in ((2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (7, 115)):
            refused = await client.ask(DescribeClusterRequest(endpoint_type=kind), version)
            assert refused.error_code == code


async def test_describe_topic_partitions_goes_page_by_page(
    server: BrokerServer, client: Client
) -> None:
    await create_topic(server, "a", partitions=3)
    await create_topic(server, "b", partitions=2)
    seen: list[tuple[str, int]] = []
    cursor: Cursor | None = None
    for _ in range(10):
        request = DescribeTopicPartitionsRequest(response_partition_limit=2, cursor=cursor)
        response = await client.ask(request, 0)
        for topic in response.topics:
            for partition in topic.partitions:
                seen.append((topic.name, partition.partition_index))
                assert partition.eligible_leader_replicas == []
                assert partition.last_known_elr == []
        cursor = response.next_cursor
        if cursor is None:
            break
    assert seen == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)]


async def test_describe_topic_partitions_refuses_a_strange_cursor(
    server: BrokerServer, client: Client
) -> None:
    await create_topic(server, "a")
    for cursor in (Cursor(topic_name="a", partition_index=-1), Cursor(topic_name="other")):
        request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="a")], cursor=cursor)
        response = await client.ask(request, 0)
        assert [t.error_code for t in response.topics] == [ErrorCode.INVALID_REQUEST]


@pytest.mark.parametrize("version", range(7))
async def test_find_coordinator_names_this_broker(
    server: BrokerServer, client: Client, version: int
) -> None:
    if version < 4:
        response = await client.ask(FindCoordinatorRequest(key="g"), version)
        assert (response.error_code, response.node_id, response.port) == (0, 0, server.port)
        return
    response = await client.ask(FindCoordinatorRequest(coordinator_keys=["g", "h"]), version)
    assert [(c.key, c.error_code, c.port) for c in response.coordinators] == [
        ("g", 0, server.port),
        ("h", 0, server.port),
    ]
    refused = await client.ask(FindCoordinatorRequest(key_type=9, coordinator_keys=["g"]), version)
    assert refused.coordinators[0].error_code == ErrorCode.INVALID_REQUEST
