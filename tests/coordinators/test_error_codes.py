"""Bad input to groups gets Kafka's error code, on a live broker: one test per API and code.

What is refused and why is in `refusals.py`; the same is played beside Apache Kafka in
`tests/reference/test_group_error_codes.py`. Codes that need a broker in trouble are below.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.broker.harness import Client, connect, create_topic, running_broker
from tests.coordinators.refusals import (
    BEFORE_THE_TOPIC,
    NOT_IN_KAFKA,
    REFUSALS,
    WHEN_FULL,
    Refusal,
    Scene,
)
from tests.reference.group_steps import joining, leaving, wait_for_coordinator
from tests.reference.pair import Peer

from tidemill.broker.server import BrokerServer
from tidemill.errors import ErrorCode
from tidemill.testing.process import BrokerProcess
from tidemill.wire.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
)
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest
from tidemill.wire.messages.group_admin import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from tidemill.wire.messages.groups import HeartbeatRequest, MemberIdentity, SyncGroupRequest
from tidemill.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)

QUICK = {"group.initial.rebalance.delay.ms": "0"}
FULL = {"group.max.size": "1", "group.consumer.max.size": "1"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("codes") / "data", QUICK) as process:
        wait_until_coordinated(process.port)
        yield process


@pytest.fixture(scope="module")
def new_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Nobody has asked it for a coordinator yet; when somebody does, groups are full with one."""
    directory = tmp_path_factory.mktemp("new") / "data"
    with BrokerProcess(directory, QUICK | FULL) as process:
        yield process


def wait_until_coordinated(port: int) -> None:
    peer = Peer("tidemill", port)
    wait_for_coordinator(peer)
    peer.close()


def play(refusal: Refusal, port: int) -> None:
    scene = Scene(Peer("tidemill", port), refusal.play.__name__.replace("_", "-"))
    try:
        assert ErrorCode(refusal.play(scene)) is refusal.code
    finally:
        scene.close()
        scene.peer.close()


@pytest.mark.parametrize("refusal", REFUSALS + NOT_IN_KAFKA, ids=lambda each: each.name)
def test_refusals(broker: BrokerProcess, refusal: Refusal) -> None:
    play(refusal, broker.port)


def test_before_and_after_there_is_a_coordinator(new_broker: BrokerProcess) -> None:
    """In this order on one broker: the first question for a coordinator makes the topic."""
    for refusal in BEFORE_THE_TOPIC:
        play(refusal, new_broker.port)
    wait_until_coordinated(new_broker.port)
    for refusal in WHEN_FULL:
        play(refusal, new_broker.port)


# A broker in trouble: one request of each kind, and where its answer has the code.

Ask = tuple[Any, int, Callable[[Any], int]]

_OFFSET = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
_TO_DELETE = OffsetDeleteRequestPartition(partition_index=0)


def one_of_each(group: str) -> dict[str, Ask]:
    joining_newer = ConsumerGroupHeartbeatRequest(
        group_id=group, member_id="m", rebalance_timeout_ms=1_000, topic_partitions=[],
        subscribed_topic_names=["t"],
    )  # fmt: skip
    topic = OffsetFetchRequestTopics(name="t", partition_indexes=[0])
    fetch = OffsetFetchRequestGroup(group_id=group, topics=[topic])
    return {
        "JoinGroup": (joining(group), 5, lambda a: a.error_code),
        "SyncGroup": (
            SyncGroupRequest(group_id=group, generation_id=1, member_id="m"),
            3,
            lambda a: a.error_code,
        ),
        "LeaveGroup": (
            leaving(group, MemberIdentity(member_id="m")), 4, lambda a: a.error_code,
        ),
        "OffsetCommit": (
            OffsetCommitRequest(
                group_id=group,
                topics=[OffsetCommitRequestTopic(name="t", partitions=[_OFFSET])],
            ),
            8,
            lambda a: a.topics[0].partitions[0].error_code,
        ),
        "OffsetFetch": (OffsetFetchRequest(groups=[fetch]), 8, lambda a: a.groups[0].error_code),
        "OffsetDelete": (
            OffsetDeleteRequest(
                group_id=group,
                topics=[OffsetDeleteRequestTopic(name="t", partitions=[_TO_DELETE])],
            ),
            0,
            lambda a: a.error_code,
        ),
        "DescribeGroups": (
            DescribeGroupsRequest(groups=[group]), 5, lambda a: a.groups[0].error_code,
        ),
        "ListGroups": (ListGroupsRequest(), 5, lambda a: a.error_code),
        "DeleteGroups": (
            DeleteGroupsRequest(groups_names=[group]), 2, lambda a: a.results[0].error_code,
        ),
        "ConsumerGroupHeartbeat": (joining_newer, 1, lambda a: a.error_code),
        "ConsumerGroupDescribe": (
            ConsumerGroupDescribeRequest(group_ids=[group]), 1, lambda a: a.groups[0].error_code,
        ),
    }  # fmt: skip


KINDS = list(one_of_each("g"))


class _NeverDone:
    """An executor that takes work and does not get round to it."""

    def submit(self, work: object, then: object) -> None: ...


async def coordinate(client: Client) -> None:
    request = FindCoordinatorRequest(coordinator_keys=["g"], key_type=0)
    found = (await client.ask(request, 4)).coordinators[0]
    assert found.error_code == 0


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[BrokerServer]:
    settings = {**QUICK, "offsets.topic.num.partitions": "1"}
    async with running_broker(tmp_path, settings) as running:
        await create_topic(running, "t", 1)
        yield running


async def codes(client: Client) -> dict[str, ErrorCode]:
    found = {}
    for kind, (request, version, code_of) in one_of_each("g").items():
        found[kind] = ErrorCode(code_of(await client.ask(request, version)))
    return found


async def test_while_the_coordinator_loads(server: BrokerServer) -> None:
    """rule J1: COORDINATOR_LOAD_IN_PROGRESS from everyone; a heartbeat costs nobody his place."""
    async with connect(server.port) as client:
        await coordinate(client)
        request, version, _ = one_of_each("g")["OffsetCommit"]
        await client.ask(request, version)
        runtime = server.groups._runtime
        runtime._machinery = replace(runtime._machinery, executor=_NeverDone())
        server.groups._follow(0)
        server.groups._follow(1)
        assert await codes(client) == dict.fromkeys(KINDS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        beat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        assert (await client.ask(beat, 4)).error_code == 0


async def test_when_the_coordinator_has_moved(server: BrokerServer) -> None:
    """rule J1: NOT_COORDINATOR at once; the list of groups is that of the groups that are here."""
    async with connect(server.port) as client:
        await coordinate(client)
        server.groups._runtime.follow({})
        wanted = dict.fromkeys(KINDS, ErrorCode.NOT_COORDINATOR) | {"ListGroups": ErrorCode.NONE}
        assert await codes(client) == wanted
        beat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        assert (await client.ask(beat, 4)).error_code == ErrorCode.NOT_COORDINATOR


async def test_when_the_coordinator_cannot_write(server: BrokerServer) -> None:
    """COORDINATOR_NOT_AVAILABLE for what has to be stored; nothing has changed."""
    async with connect(server.port) as client:
        await coordinate(client)
        assert server.replicas is not None
        partition = server.replicas.get("__consumer_offsets", 0)
        assert partition is not None
        partition._has_enough_in_sync = False
        found = await codes(client)
        for kind in ("OffsetCommit", "ConsumerGroupHeartbeat"):
            assert found[kind] is ErrorCode.COORDINATOR_NOT_AVAILABLE, kind
        static = joining("g", instance_id="one")
        joined = await client.ask(static, 5)
        assert joined.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        partition._has_enough_in_sync = True
        listed = await client.ask(ListGroupsRequest(), 5)
        assert (listed.error_code, listed.groups) == (0, [])


async def test_too_few_brokers_for_the_offsets_topic(tmp_path: Path) -> None:
    """FindCoordinator says COORDINATOR_NOT_AVAILABLE until there are as many as were asked for."""
    settings = {"offsets.topic.replication.factor": "3"}
    async with running_broker(tmp_path, settings) as server, connect(server.port) as client:
        many = FindCoordinatorRequest(coordinator_keys=["g", "h"], key_type=0)
        answer = await client.ask(many, 4)
        not_available = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert [each.error_code for each in answer.coordinators] == [not_available] * 2
        one = await client.ask(FindCoordinatorRequest(key="g", key_type=0), 3)
        assert (one.error_code, one.node_id) == (not_available, -1)


async def test_a_protocol_that_is_not_offered(tmp_path: Path) -> None:
    """UNSUPPORTED_VERSION where `group.coordinator.rebalance.protocols` has no `consumer`."""
    settings = {"group.coordinator.rebalance.protocols": "classic"}
    async with running_broker(tmp_path, settings) as server, connect(server.port) as client:
        await coordinate(client)
        for kind in ("ConsumerGroupHeartbeat", "ConsumerGroupDescribe"):
            request, version, code_of = one_of_each("g")[kind]
            code = code_of(await client.ask(request, version))
            assert code == ErrorCode.UNSUPPORTED_VERSION, kind
