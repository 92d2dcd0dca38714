"""Several brokers as one system, over real sockets: office, forwarding, fail-over, the secret."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from tests.broker.harness import batch, connect, fetch, metadata_of, produce

from tidemill.broker.hello import NONCE_BYTES, Greeting
from tidemill.broker.peers import Identity, Peers
from tidemill.clock import SystemClock
from tidemill.errors import ApiError, ErrorCode
from tidemill.image import with_partitions
from tidemill.testing.in_process import InProcessCluster, until
from tidemill.types import BrokerEpoch, BrokerId
from tidemill.wire.apis import PRIVATE_FROM, ApiKey
from tidemill.wire.declare import Message
from tidemill.wire.messages.api_versions import ApiVersionsRequest
from tidemill.wire.messages.cluster import (
    ClusterHelloRequest,
    ControlledShutdownRequest,
    DescribeClusterRequest,
    ForwardRequest,
    ImageDeltaRequest,
    OfflineReplicasRequest,
)
from tidemill.wire.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest
from tidemill.wire.messages.isr import AlterPartitionRequest, AlterPartitionResponse
from tidemill.wire.messages.producers import AllocateProducerIdsRequest, InitProducerIdRequest
from tidemill.wire.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tidemill.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[InProcessCluster]:
    async with InProcessCluster(tmp_path) as running:
        yield running


async def create(
    brokers: InProcessCluster, name: str, *replicas: int, port: int | None = None
) -> None:
    """One partition with these replicas, asked of whoever listens at `port`."""
    request = CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name=name,
                num_partitions=-1,
                replication_factor=-1,
                assignments=[
                    CreatableReplicaAssignment(partition_index=0, broker_ids=list(replicas))
                ],
            )
        ]
    )
    async with connect(port or brokers.in_office.port) as client:
        [result] = (await client.ask(request, 7)).topics
    assert result.error_code == 0, result.error_message


async def test_every_broker_tells_of_all_and_of_the_one_in_office(
    brokers: InProcessCluster,
) -> None:
    ports = {broker_id: server.port for broker_id, server in brokers.servers.items()}
    for server in brokers.servers.values():
        async with connect(server.port) as client:
            told = await client.ask(metadata_of(), 12)
            described = await client.ask(DescribeClusterRequest(), 2)
        assert {each.node_id: each.port for each in told.brokers} == ports
        assert told.controller_id == brokers.in_office.controller.broker_id
        assert described.controller_id == told.controller_id
        assert {each.broker_id for each in described.brokers} == set(ports)


async def test_topics_are_made_and_deleted_through_any_broker(brokers: InProcessCluster) -> None:
    asked = brokers.others()[-1]
    await create(brokers, "t", 3, 1, 2, port=asked.port)
    assert asked.broker.image.topic("t") is not None, "it shows where it was asked for"
    await brokers.settled()
    async with connect(asked.port) as client:
        request = CreateTopicsRequest(topics=[CreatableTopic(name="t", num_partitions=1)])
        [again] = (await client.ask(request, 7)).topics
        assert (again.error_code, again.error_message) == (
            ErrorCode.TOPIC_ALREADY_EXISTS,
            "Topic 't' already exists.",
        )
        gone = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")])
        [deleted] = (await client.ask(gone, 6)).responses
    assert deleted.error_code == 0
    assert asked.broker.image.topic("t") is None


async def test_settings_are_altered_through_any_broker(brokers: InProcessCluster) -> None:
    """A broker's own settings through that broker; another's not, whoever is in office."""
    asked = brokers.others()[0]
    await create(brokers, "t", 1, 2, 3)
    await brokers.settled()
    own, other = asked.broker.broker_id, brokers.in_office.broker.broker_id

    def change(kind: int, name: str, key: str, value: str) -> IncrementalAlterConfigsResource:
        entry = IncrementalAlterableConfig(name=key, config_operation=0, value=value)
        return IncrementalAlterConfigsResource(
            resource_type=kind, resource_name=name, configs=[entry]
        )

    async with connect(asked.port) as client:
        request = IncrementalAlterConfigsRequest(
            resources=[
                change(2, "t", "retention.ms", "77"),
                change(4, str(own), "log.retention.ms", "78"),
                change(4, str(other), "log.retention.ms", "79"),
            ]
        )
        answers = (await client.ask(request, 1)).responses
        assert [each.error_code for each in answers] == [0, 0, ErrorCode.INVALID_REQUEST]
        described = await client.ask(
            DescribeConfigsRequest(
                resources=[
                    DescribeConfigsResource(
                        resource_type=2, resource_name="t", configuration_keys=["retention.ms"]
                    )
                ]
            ),
            4,
        )
    assert described.results[0].configs[0].value == "77"
    assert asked.config.int("log.retention.ms") == 78


STRANGERS: list[tuple[Message, int]] = [
    (ImageDeltaRequest(), 0),
    (ForwardRequest(), 0),
    (ControlledShutdownRequest(), 0),
    (OfflineReplicasRequest(), 0),
    (AlterPartitionRequest(), 3),
    (AllocateProducerIdsRequest(), 0),
]


async def test_what_brokers_say_to_each_other_is_not_for_strangers(
    brokers: InProcessCluster,
) -> None:
    """A client that passed for a broker could lose everybody's data (CVE-2018-1288)."""
    async with connect(brokers[2].port) as client:
        for request, version in STRANGERS:
            answer = await client.ask(request, version)
            assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED, request
        advertised = {each.api_key for each in (await client.ask(ApiVersionsRequest(), 4)).api_keys}
    assert not {key for key in advertised if key >= PRIVATE_FROM}
    assert not advertised & {ApiKey.ALTER_PARTITION, ApiKey.ALLOCATE_PRODUCER_IDS}


async def test_a_wrong_proof_and_one_that_was_overheard_let_nobody_in(
    brokers: InProcessCluster,
) -> None:
    server = brokers[1]
    nonce = bytes(NONCE_BYTES)
    async with connect(server.port) as client:
        hello = ClusterHelloRequest(broker_id=2, broker_epoch=1, nonce=nonce)
        shown = await client.ask(hello, 0)
        assert shown.error_code == 0
        greeting = Greeting(2, 1, nonce, shown.nonce)
        right = greeting.proof_of_asking(server.controller.secret)
        assert shown.proof != right, "what one side shows does not serve the other"
        for proof in (b"x" * 32, right):
            # The second one is right, but its nonce was used up by the first attempt.
            hello.proof = proof
            refused = await client.ask(hello, 0)
            assert refused.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        refused = await client.ask(ImageDeltaRequest(), 0)
        assert refused.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def test_a_peer_speaks_for_itself_alone(brokers: InProcessCluster) -> None:
    one, two = brokers[1], brokers[2]
    assert two.peers is not None
    request = ControlledShutdownRequest(
        broker_id=3, broker_epoch=brokers[3].controller.broker_epoch
    )
    answer = await two.peers.request(one.broker.broker_id, request, timeout_ms=5_000)
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def test_a_broker_of_another_cluster_is_recognised(brokers: InProcessCluster) -> None:
    image = brokers.image
    stranger = Peers(
        Identity(9, lambda: BrokerEpoch(1), lambda: b"another secret"),
        lambda: image,
        SystemClock(),
        Random(1),
    )
    try:
        with pytest.raises(ApiError, match="is not broker 1 of this cluster") as caught:
            await stranger.request(1, ImageDeltaRequest(), timeout_ms=5_000)
        assert caught.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    finally:
        stranger.close()


async def test_a_broker_that_stops_hands_over_and_comes_back(brokers: InProcessCluster) -> None:
    """Rules K1 and K2: nothing is lost, nobody waits for a session to run out."""
    leaving = brokers.others()[0].broker.broker_id
    staying = [each for each in (1, 2, 3) if each != leaving]
    await create(brokers, "t", leaving, *staying)
    await brokers.settled()
    async with connect(brokers[leaving].port) as client:
        assert (await produce(client, "t", batch([b"one"]))).error_code == 0
    await brokers.stop(leaving)
    await until(lambda: brokers.partition("t").leader == staying[0])
    state = brokers.partition("t")
    assert (state.leader_epoch, set(state.isr)) == (1, set(staying))
    await brokers.settled()
    async with connect(brokers[staying[0]].port) as client:
        assert (await produce(client, "t", batch([b"two"]))).error_code == 0
        answer = await fetch(client, "t", 0)
        assert answer.responses[0].partitions[0].high_watermark == 2
    await brokers.start(leaving)
    await brokers.settled()
    await until(lambda: set(brokers.partition("t").isr) == {1, 2, 3})


async def test_the_office_changes_hands_and_requests_wait_for_it(brokers: InProcessCluster) -> None:
    """Rule A2: the next controller has a higher epoch, and whoever asks meanwhile is answered."""
    before = brokers.in_office.controller.broker_id
    epoch = brokers.image.controller_epoch
    await create(brokers, "t", before, *[each for each in (1, 2, 3) if each != before])
    await brokers.settled()
    asked = brokers.others()[0]
    falling = asyncio.ensure_future(brokers.fall(before))
    await create(brokers, "meanwhile", asked.broker.broker_id, port=asked.port)
    await falling
    await brokers.settled()
    assert brokers.image.controller_epoch == epoch + 1
    assert brokers.partition("t").leader != before
    async with connect(brokers[brokers.partition("t").leader].port) as client:
        told = await client.ask(metadata_of("t"), 12)
    assert told.controller_id == brokers.in_office.controller.broker_id
    assert before not in {each.node_id for each in told.brokers}
    assert told.topics[0].partitions[0].offline_replicas == [before]


@pytest.mark.parametrize("count", [1, 2])
async def test_a_broker_that_lost_its_session_leads_again_once_it_is_registered_anew(
    tmp_path: Path, count: int
) -> None:
    """Rule A9: also what nobody else has, and whether it is the controller or not."""
    async with InProcessCluster(tmp_path, count) as brokers:
        server = brokers[count]
        await create(brokers, "solo", count)
        await brokers.settled()
        before = server.controller.broker_epoch
        await brokers.lose_session(count)
        await until(lambda: server.controller.broker_epoch > before)
        await brokers.settled()
        await until(lambda: brokers.partition("solo").leader == count)
        assert brokers.partition("solo").leader_epoch > 0
        await brokers.settled()
        async with connect(server.port) as client:
            assert (await produce(client, "solo", batch([b"on we go"]))).error_code == 0


async def test_an_isr_change_does_not_wait_for_a_controller_that_was_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule C5: it stands still with the proposal; whoever comes after it is told it, soon."""
    async with InProcessCluster(tmp_path, settings={"replica.lag.time.max.ms": "500"}) as brokers:
        boss = brokers.in_office
        leader, follower = brokers.others()
        await create(brokers, "t", leader.controller.broker_id, follower.controller.broker_id)
        await brokers.settled()
        arrived = asyncio.Event()
        answer = boss.controller.alter_partition

        async def stand_still(request: AlterPartitionRequest) -> AlterPartitionResponse:
            if arrived.is_set():
                return await answer(request)
            arrived.set()
            await asyncio.Event().wait()
            raise AssertionError

        monkeypatch.setattr(boss.controller, "alter_partition", stand_still)
        await follower.broker.replicas.close()
        async with connect(leader.port) as client:
            assert (await produce(client, "t", batch([b"x"]), acks=1)).error_code == 0
        await until(arrived.is_set)
        await brokers.lose_session(brokers.controller_id)
        alone = (leader.controller.broker_id,)

        def has_shrunk() -> bool:
            found = leader.controller.image.partition("t", 0)
            return found is not None and found.isr == alone

        await until(has_shrunk, within_s=10)


async def test_a_second_broker_with_the_same_id_is_refused(brokers: InProcessCluster) -> None:
    """Rule K5: it names whoever holds the id."""
    waits = {"broker.session.timeout.ms": "3000"}  # For so long the other one might be dead.
    twin = brokers.make(2, {"log.dirs": str(brokers._directory / "twin"), **waits})
    with pytest.raises(ApiError, match=rf"127\.0\.0\.1:{brokers[2].port}") as caught:
        await twin.start()
    await twin.stop()
    assert caught.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    await brokers.settled()


async def test_moves_and_elections_are_asked_of_any_broker(brokers: InProcessCluster) -> None:
    asked = brokers.others()[0]
    await create(brokers, "t", 1, 2)
    await brokers.settled()
    move = ReassignablePartition(partition_index=0, replicas=[3, 2])
    async with connect(asked.port) as client:
        started = await client.ask(
            AlterPartitionReassignmentsRequest(
                topics=[ReassignableTopic(name="t", partitions=[move])]
            ),
            1,
        )
        assert started.responses[0].partitions[0].error_code == 0
        await until(lambda: brokers.partition("t").replicas == (3, 2))
        await brokers.settled()
        office = asked.controller._office
        late = replace(brokers.partition("t"), adding=(BrokerId(3),))
        office.image = with_partitions(office.image, "t", [late])
        listed = await client.ask(ListPartitionReassignmentsRequest(topics=None), 0)
        assert listed.topics == [], "the controller knows better than a broker that hears late"
        elected = await client.ask(ElectLeadersRequest(topic_partitions=None), 2)
    assert elected.error_code == 0
    await until(lambda: brokers.partition("t").leader == 3)


@pytest.mark.parametrize("enabled", ["true", "false"])
async def test_leadership_goes_back_by_itself_if_that_is_wanted(
    tmp_path: Path, enabled: str
) -> None:
    """Rule K4: the preferred replica leads again a while after it came back, in sync."""
    settings = {
        "leader.imbalance.check.interval.seconds": "1",
        "auto.leader.rebalance.enable": enabled,
    }
    async with InProcessCluster(tmp_path, 2, settings) as brokers:
        away = brokers.others()[0].controller.broker_id
        stays = brokers.in_office.controller.broker_id
        await create(brokers, "t", away, stays)
        await create(brokers, "u", away, stays)
        await brokers.stop(away)
        await brokers.settled()
        assert brokers.partition("t").leader == stays
        await brokers.start(away)
        await brokers.settled()
        await until(lambda: set(brokers.partition("t").isr) == {away, stays})
        if enabled == "true":
            await until(lambda: brokers.partition("t").leader == away)
        else:
            await asyncio.sleep(1.5)
            moved = await brokers.in_office.controller.move_leaders_back()
            assert moved == 2, "nobody had done it before"


async def test_groups_are_coordinated_by_the_leader_of_their_partition(
    brokers: InProcessCluster,
) -> None:
    found = set()
    for server in brokers.servers.values():
        async with connect(server.port) as client:
            request = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
            [one] = (await client.ask(request, 4)).coordinators
        assert one.error_code == 0
        found.add(one.node_id)
        await brokers.settled()
    assert len(found) == 1
    topic = brokers.image.topics["__consumer_offsets"]
    assert topic.replication_factor == 3


async def test_transactions_are_refused_wherever_one_asks(brokers: InProcessCluster) -> None:
    """All brokers name the same coordinator, and that gives a final answer: nobody hangs."""
    keys = [f"tx{number}" for number in range(20)]
    named = []
    for server in brokers.servers.values():
        async with connect(server.port) as client:
            request = FindCoordinatorRequest(key_type=1, coordinator_keys=keys)
            found = (await client.ask(request, 4)).coordinators
        assert {one.error_code for one in found} == {0}
        named.append([(one.key, one.node_id, one.port) for one in found])
    assert named[0] == named[1] == named[2]
    assert len({node_id for _, node_id, _ in named[0]}) == 3, "not one broker for all"
    key, _, port = named[0][0]
    async with connect(port) as client:
        begun = await client.ask(InitProducerIdRequest(transactional_id=key), 4)
    assert begun.error_code == ErrorCode.UNSUPPORTED_VERSION


async def test_a_broker_without_a_number_gets_one(tmp_path: Path) -> None:
    """Numbers above `reserved.broker.max.id`; a data directory keeps the one it got."""
    brokers = InProcessCluster(tmp_path)
    try:
        await brokers.start(1)
        overrides = {"node.id": "", "log.dirs": str(tmp_path / "new")}
        for _ in range(2):
            server = brokers.make(0, overrides)
            await server.start()
            assert server.controller.broker_id == 1001
            await server.stop()
    finally:
        await brokers.close()
