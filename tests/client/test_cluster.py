"""The cluster's picture: one refresh at a time, no step back in time, and a way back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random
from uuid import UUID

import pytest
from tests.client.scripted import Fault, ScriptedBroker
from tests.store.helpers import until

from tidemill.client.cluster import Cluster
from tidemill.client.errors import ClientError, ClosedError, UnreachableError
from tidemill.client.metadata import ClusterView, merge
from tidemill.client.retry import Backoff
from tidemill.client.settings import AdminSettings
from tidemill.errors import ErrorCode
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

SLOW = MetadataRequest(topics=[], include_topic_authorized_operations=True)


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker({"t": 2}) as running:
        yield running


def cluster_of(broker: ScriptedBroker, *more: str, **settings: int | str) -> Cluster:
    quick = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5, "reconnect_backoff_ms": 1}
    servers = (broker.bootstrap, *more)
    return Cluster(
        AdminSettings(bootstrap_servers=servers, **{**quick, **settings}),  # type: ignore[arg-type]
        random=Random(3),
    )


def answer(epoch: int, leader: int, topic_id: int = 1) -> MetadataResponse:
    partition = MetadataResponsePartition(
        partition_index=0, leader_id=leader, leader_epoch=epoch, replica_nodes=[1, 2]
    )
    topic = MetadataResponseTopic(name="t", topic_id=UUID(int=topic_id), partitions=[partition])
    brokers = [MetadataResponseBroker(node_id=n, host="h", port=n) for n in (1, 2)]
    return MetadataResponse(brokers=brokers, topics=[topic])


def test_an_older_leader_epoch_never_replaces_a_newer_one() -> None:
    view = merge(ClusterView(), answer(epoch=5, leader=2), all_topics=False)
    stale = merge(view, answer(epoch=4, leader=1), all_topics=False)
    assert stale.topics["t"].partitions[0].leader == 2
    newer = merge(view, answer(epoch=6, leader=1), all_topics=False)
    assert newer.topics["t"].partitions[0].leader == 1


def test_a_topic_created_anew_begins_again() -> None:
    view = merge(ClusterView(), answer(epoch=5, leader=2), all_topics=False)
    anew = merge(view, answer(epoch=0, leader=1, topic_id=9), all_topics=False)
    assert anew.topics["t"].partitions[0].leader_epoch == 0


def test_an_error_takes_the_topic_out_of_the_view() -> None:
    view = merge(ClusterView(), answer(epoch=5, leader=2), all_topics=False)
    gone = MetadataResponseTopic(name="t", error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    after = merge(view, MetadataResponse(topics=[gone]), all_topics=False)
    assert "t" not in after.topics
    assert after.errors["t"].retriable
    assert after.nodes == view.nodes


def test_backoff_grows_to_its_limit_with_jitter() -> None:
    backoff = Backoff(100, 1000, Random(1))
    for failures, middle in [(1, 100), (2, 200), (4, 800), (5, 1000), (500, 1000)]:
        delays = {backoff.delay_ms(failures) for _ in range(50)}
        assert middle * 0.8 <= min(delays) < max(delays) <= middle * 1.2


async def test_many_ask_one_request_goes_out(broker: ScriptedBroker) -> None:
    async with cluster_of(broker) as cluster:
        await cluster.topic("t", timeout_ms=1000)
        before = len(broker.seen(ApiKey.METADATA))
        await asyncio.gather(*[cluster.refresh() for _ in range(100)])
        assert len(broker.seen(ApiKey.METADATA)) - before == 1
        assert cluster.view.leader("t", 1) is not None
        assert cluster.view.leader("t", 2) is None


async def test_rounds_that_follow_each_other_are_spaced(broker: ScriptedBroker) -> None:
    async with cluster_of(broker, retry_backoff_ms=40, retry_backoff_max_ms=40) as cluster:
        loop = asyncio.get_running_loop()
        await cluster.refresh()
        start = loop.time()
        await cluster.refresh()
        assert loop.time() - start > 0.02


async def test_a_new_topic_does_not_wait_for_the_pause(broker: ScriptedBroker) -> None:
    async with cluster_of(broker, retry_backoff_ms=5000, retry_backoff_max_ms=5000) as cluster:
        await cluster.refresh()
        info = await cluster.topic("t", timeout_ms=1000)
        assert sorted(info.partitions) == [0, 1]


async def test_an_unknown_topic(broker: ScriptedBroker) -> None:
    async with cluster_of(broker) as cluster:
        with pytest.raises(ClientError) as caught:
            await cluster.topic("nosuch", timeout_ms=1_000)
        assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_one_reachable_address_is_enough(broker: ScriptedBroker) -> None:
    async with cluster_of(broker, "127.0.0.1:1", "127.0.0.1:2") as cluster:
        assert list(cluster.view.nodes) == [0]


async def test_no_reachable_address_names_them_all() -> None:
    settings = AdminSettings(bootstrap_servers=("127.0.0.1:1", "127.0.0.1:2"))
    with pytest.raises(UnreachableError) as caught:
        await Cluster(settings).start()
    assert "127.0.0.1:1" in str(caught.value)
    assert "127.0.0.1:2" in str(caught.value)


async def test_connections_are_shared_and_replaced_when_broken(broker: ScriptedBroker) -> None:
    async with cluster_of(broker) as cluster:
        first, second = await asyncio.gather(cluster.connection(0), cluster.connection(0))
        assert first is second
        assert await cluster.connection(0, "fetch") is not first
        broker.drop_connections()
        await until(lambda: not first.is_open)
        assert (await cluster.connection(0)).is_open
        with pytest.raises(ClientError, match="broker 7 is not part"):
            await cluster.connection(7)


async def test_a_cluster_that_moved_is_found_through_its_bootstrap_address(
    broker: ScriptedBroker,
) -> None:
    """All brokers we knew are gone: the list we began with may know the new ones."""
    async with cluster_of(broker) as cluster:
        moved = answer(epoch=0, leader=1)
        moved.brokers = [MetadataResponseBroker(node_id=1, host="127.0.0.1", port=1)]
        cluster.view = merge(ClusterView(), moved, all_topics=False)
        await cluster.refresh()
        assert list(cluster.view.nodes) == [0]


async def test_a_closed_cluster_says_so(broker: ScriptedBroker) -> None:
    cluster = cluster_of(broker)
    await cluster.start()
    await cluster.close()
    with pytest.raises(ClosedError):
        await cluster.any_connection()
    with pytest.raises(ClosedError):
        await cluster.refresh()


async def test_a_connection_that_is_waited_on_is_not_idle(broker: ScriptedBroker) -> None:
    async with cluster_of(broker, connections_max_idle_ms=20, metadata_max_age_ms=60) as cluster:
        used = await cluster.connection(0, "fetch")
        idle = await cluster.connection(0, "other")
        broker.fault = lambda _key, request: Fault(silent=True) if request == SLOW else None
        waiting = asyncio.create_task(used.request(SLOW))
        await until(lambda: not idle.is_open)
        assert used.is_open
        used.close()
        await asyncio.gather(waiting, return_exceptions=True)


async def test_a_failed_attempt_is_followed_by_a_pause(broker: ScriptedBroker) -> None:
    async with cluster_of(
        broker, reconnect_backoff_ms=300, reconnect_backoff_max_ms=300
    ) as cluster:
        await broker.stop()
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        began = loop.time()
        for _ in range(3):
            with pytest.raises(UnreachableError):
                await cluster.connection(0, "fetch")
        assert loop.time() - began > 2 * 0.3 * 0.75


async def test_idle_connections_are_closed(broker: ScriptedBroker) -> None:
    async with cluster_of(broker, connections_max_idle_ms=20, metadata_max_age_ms=60) as cluster:
        idle = await cluster.connection(0, "fetch")
        await until(lambda: not idle.is_open)


async def test_a_broker_that_owes_an_answer_is_not_asked_what_others_can_answer(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped process keeps its connections: asking it would take the whole request timeout."""
    monkeypatch.setattr("tidemill.client.connection.STUCK_MS", 20)
    async with ScriptedBroker(beside=broker) as other, cluster_of(broker) as cluster:
        stuck = await cluster.connection(0)
        broker.fault = lambda _key, _request: Fault(silent=True)
        waiting = asyncio.create_task(stuck.request(MetadataRequest()))
        await asyncio.sleep(0.05)
        async with asyncio.timeout(20):  # Less than a request's time.
            await cluster.refresh()
        assert other.seen(ApiKey.METADATA)
        assert not waiting.done()
        stuck.close()
        await asyncio.gather(waiting, return_exceptions=True)


async def test_the_broker_that_answered_last_is_asked(broker: ScriptedBroker) -> None:
    async with ScriptedBroker(beside=broker) as other, cluster_of(broker) as cluster:
        await cluster.connection(0)
        await asyncio.sleep(0.005)
        latest = await cluster.connection(1)
        assert await cluster.any_connection() is latest
        assert other.port == latest.address.port
