"""What a producer does not do: too many requests, too large ones, too many tries; and what it does
with a record that no batch can carry."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.client.scripted import Fault, ScriptedBroker
from tests.client.test_producer_faults import (
    T0,
    broker,
    faults,
    let_time_run_out,
    numbers,
    producing,
    until,
)
from tests.waiting import LONG_S

from tidemill.client.errors import ClientError, RequestTimeoutError
from tidemill.errors import ErrorCode
from tidemill.wire.apis import ApiKey
from tidemill.wire.records import BatchBuilder

__all__ = ["broker"]


def always(fault: Fault, key: ApiKey = ApiKey.PRODUCE) -> Any:
    return lambda api_key, _request: fault if api_key is key else None


async def test_a_batch_is_sent_again_only_so_often(broker: ScriptedBroker) -> None:
    broker.fault = always(Fault(error=ErrorCode.NOT_ENOUGH_REPLICAS))
    async with producing(broker, retries=2) as producer:
        with pytest.raises(ClientError) as failed:
            await producer.send("t", b"0")
    assert failed.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert len(broker.seen(ApiKey.PRODUCE)) == 3


async def test_the_halves_of_a_split_batch_have_no_more_time_than_it_had(
    broker: ScriptedBroker,
) -> None:
    broker.partitions[T0].max_batch_bytes = 300
    never = Fault(error=ErrorCode.NOT_ENOUGH_REPLICAS)
    broker.fault = faults(None, *[never] * 100_000)
    async with producing(
        broker, batch_size=4_000, linger_ms=20, delivery_timeout_ms=2_000
    ) as producer:
        deliveries = [producer.send_soon("t", b"%d" % number) for number in range(100)]
        async with asyncio.timeout(20):
            results = await asyncio.gather(*deliveries, return_exceptions=True)
    assert {type(result) for result in results} == {RequestTimeoutError}
    assert len(broker.seen(ApiKey.PRODUCE)) > 2


async def test_a_batch_whose_time_was_up_is_over_whatever_comes_back(
    broker: ScriptedBroker,
) -> None:
    """Its request fails after it did: it is not sent again, and its memory is free only once."""
    async with producing(broker, linger_ms=0) as producer:
        await producer.send("t", b"0")
        broker.fault = always(Fault(silent=True))
        late = producer.send_soon("t", b"1")
        await until(lambda: len(broker.seen(ApiKey.PRODUCE)) == 2)
        let_time_run_out(producer)
        with pytest.raises(RequestTimeoutError):
            await late
        broker.fault = lambda _key, _request: None
        broker.drop_connections()
        await producer.send("t", b"2")
        assert producer.buffered_bytes == 0
    assert numbers(broker) == [0, 2]


@pytest.mark.parametrize("limit", [1, 3])
async def test_so_many_requests_are_under_way_and_no_more(
    broker: ScriptedBroker, limit: int
) -> None:
    broker.fault = always(Fault(silent=True))
    async with producing(
        broker, enable_idempotence=False, max_in_flight=limit, batch_size=1, linger_ms=0
    ) as producer:
        deliveries = [producer.send_soon("t", b"%d" % number) for number in range(10)]
        await until(lambda: len(broker.seen(ApiKey.PRODUCE)) >= limit)
        for _ in range(100):
            await asyncio.sleep(0)  # The broker runs on this loop: what was sent arrives.
        assert len(broker.seen(ApiKey.PRODUCE)) == limit
        broker.fault = lambda _key, _request: None
        broker.drop_connections()
        await asyncio.gather(*deliveries)
    assert sorted(numbers(broker)) == list(range(10))


async def test_a_request_is_no_larger_than_max_request_size() -> None:
    """Batches of several partitions share a request as long as they fit."""
    async with (
        ScriptedBroker({"t": 4}) as broker,
        producing(broker, max_request_size=2_000, linger_ms=20) as producer,
    ):
        await producer.partitions_for("t")
        sent = [producer.send_soon("t", b"x" * 900, partition=index) for index in range(4)]
        await asyncio.gather(*sent)
        for request in broker.seen(ApiKey.PRODUCE):
            parts = [part for topic in request.topic_data for part in topic.partition_data]
            assert sum(len(part.records) for part in parts) <= 2_000


async def test_a_broker_that_throttles_gets_nothing_for_that_long(broker: ScriptedBroker) -> None:
    async with producing(broker, linger_ms=0) as producer:
        await producer.send("t", b"0")
        broker.throttle_ms = 500
        await producer.send("t", b"1")
        broker.throttle_ms = 0
        loop = asyncio.get_running_loop()
        began = loop.time()
        await producer.send("t", b"2")
        assert loop.time() - began > 0.4
        began = loop.time()
    assert numbers(broker) == [0, 1, 2]


@pytest.mark.parametrize("acks", ["0", "all"])
async def test_nothing_is_sent_while_the_socket_does_not_keep_up(
    broker: ScriptedBroker, acks: str
) -> None:
    """With acks=0 no answer paces the producer: only the socket does."""
    async with producing(broker, acks=acks, linger_ms=0) as producer:
        await producer.send("t", b"0")
        connection = producer._cluster.open_connection(0)
        assert connection is not None
        connection.pause_writing()
        waiting = producer.send_soon("t", b"1")
        for _ in range(100):
            await asyncio.sleep(0)
        assert not waiting.done()
        connection.resume_writing()
        async with asyncio.timeout(20):
            await waiting
        await until(lambda: numbers(broker) == [0, 1])


async def test_a_producer_id_that_is_refused_fails_what_waits_for_it(
    broker: ScriptedBroker,
) -> None:
    refused = Fault(error=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    broker.fault = always(refused, ApiKey.INIT_PRODUCER_ID)
    async with producing(broker) as producer:
        async with asyncio.timeout(20):
            with pytest.raises(ClientError, match="CLUSTER_AUTHORIZATION_FAILED"):
                await producer.send("t", b"0")
        broker.fault = lambda _key, _request: None
        await producer.send("t", b"1")
    assert numbers(broker) == [1]


async def test_a_producer_id_is_asked_for_until_it_comes(broker: ScriptedBroker) -> None:
    loading = Fault(error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    broker.fault = faults(loading, loading, key=ApiKey.INIT_PRODUCER_ID)
    async with producing(broker) as producer:
        await producer.send("t", b"0")
    assert len(broker.seen(ApiKey.INIT_PRODUCER_ID)) == 3
    assert numbers(broker) == [0]


async def test_a_failure_of_a_record_that_waited_for_its_topic_is_told_once(
    broker: ScriptedBroker,
) -> None:
    """Somebody awaits it while it has no batch yet; the batch then fails."""
    broker.fault = faults(Fault(error=ErrorCode.INVALID_RECORD))
    async with producing(broker) as producer:
        waiting = asyncio.create_task(producer.send("late", b"0"))
        await until(lambda: len(broker.seen(ApiKey.METADATA)) > 2)
        broker.create("late")
        with pytest.raises(ClientError, match="INVALID_RECORD"):
            await waiting
        await producer.flush()


async def test_room_is_given_in_the_order_in_which_it_was_asked_for(
    broker: ScriptedBroker,
) -> None:
    """A small record does not overtake a large one for ever."""
    broker.fault = always(Fault(silent=True))
    async with producing(broker, buffer_memory=1_000, linger_ms=0, max_block_ms=60_000) as producer:
        full = producer.send_soon("t", b"x" * 700)
        order: list[str] = []

        async def send(name: str, size_bytes: int) -> None:
            await producer._running().room_for(size_bytes)
            order.append(name)

        tasks = [asyncio.create_task(send(*want)) for want in (("large", 900), ("small", 50))]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert order == []
        broker.fault = lambda _key, _request: None
        broker.drop_connections()
        await full
        async with asyncio.timeout(20):
            await asyncio.gather(*tasks)
        assert order == ["large", "small"]


async def test_room_that_was_promised_and_not_taken_goes_to_the_next(
    broker: ScriptedBroker,
) -> None:
    """The buffer is empty then, so nothing would ever tell the next one of its room."""
    broker.fault = always(Fault(silent=True))
    async with producing(broker, buffer_memory=1_000, linger_ms=0, max_block_ms=60_000) as producer:
        full = producer.send_soon("t", b"x" * 700)
        looking = asyncio.create_task(producer.wait_for_room())
        for _ in range(5):
            await asyncio.sleep(0)
        sending = asyncio.create_task(producer.send("t", b"x" * 600))
        await asyncio.sleep(0)
        broker.fault = lambda _key, _request: None
        broker.drop_connections()
        async with asyncio.timeout(20):
            await asyncio.gather(full, looking, sending)


async def test_no_two_are_promised_the_same_room(broker: ScriptedBroker) -> None:
    broker.fault = always(Fault(silent=True))
    async with producing(broker, buffer_memory=1_000, linger_ms=0, max_block_ms=60_000) as producer:
        full = producer.send_soon("t", b"x" * 700)
        sends = [asyncio.create_task(producer.send("t", b"x" * 600)) for _ in range(4)]
        await asyncio.sleep(0)
        broker.fault = lambda _key, _request: None
        broker.drop_connections()
        async with asyncio.timeout(20):
            await asyncio.gather(full, *sends)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({"timestamp_ms": 2**63}, "milliseconds since 1970"),
        ({"timestamp_ms": 2**70}, "milliseconds since 1970"),
        ({"headers": {"count": 5}}, "header 'count' must be bytes"),
        ({"headers": {5: b""}}, "name must be text"),
        ({"headers": {"\ud800": b""}}, "surrogates not allowed"),
        ({"headers": {"h": "\ud800"}}, "surrogates not allowed"),
        ({"value": "\ud800"}, "surrogates not allowed"),
    ],
)
async def test_what_cannot_be_encoded_is_refused_and_harms_nobody(
    broker: ScriptedBroker, bad: dict[str, Any], why: str
) -> None:
    async with producing(broker) as producer:
        for send in (producer.send, producer.send_soon):
            with pytest.raises((TypeError, ValueError), match=why):
                await send("t", **{"value": b"x", **bad})
        await producer.send("t", b"1", headers={"n\u00e9": "\u00e9"})
    assert numbers(broker) == [1]


async def test_a_batch_that_cannot_be_built_fails_alone(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: BatchBuilder, **_: object) -> bytes:
        raise MemoryError("no room to compress")

    async with producing(broker) as producer:
        await producer.send("t", b"0")
        with monkeypatch.context() as patch:
            patch.setattr(BatchBuilder, "build", broken)
            async with asyncio.timeout(LONG_S):
                with pytest.raises(ClientError, match="no room to compress") as failed:
                    await producer.send("t", b"1")
        assert not failed.value.retriable
        async with asyncio.timeout(LONG_S):
            await producer.send("t", b"2")
    assert numbers(broker) == [0, 2]


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_partitioner_that_fails_fails_its_record_only(
    broker: ScriptedBroker, is_known: bool
) -> None:
    """A record that waits for its topic is partitioned later, when nobody is there to catch."""

    def partitioner(_topic: str, key: bytes | None, _value: bytes | None, _count: int) -> int:
        if key == b"bad":
            raise KeyError("no place for it")
        return 0

    async with producing(broker, partitioner=partitioner) as producer:
        if is_known:
            await producer.send("t", b"0")
        results = await asyncio.gather(
            *(producer.send("t", b"1", key=key) for key in (b"a", b"bad", b"c")),
            return_exceptions=True,
        )
        assert [isinstance(result, Exception) for result in results] == [False, True, False]
        assert "no place for it" in str(results[1])
        async with asyncio.timeout(LONG_S):
            await producer.flush()
