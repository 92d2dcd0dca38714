"""A producer under faults: what is acknowledged is in the log once, in order, at its offset."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.client.scripted import Fault, ScriptedBroker
from tests.waiting import LONG_S

from tidemill.client.errors import (
    BufferFullError,
    ClientError,
    ClosedError,
    RequestTimeoutError,
    SettingsError,
    UnreachableError,
)
from tidemill.client.interceptors import OutgoingRecord
from tidemill.client.producer import Producer
from tidemill.client.producer_types import RecordMetadata
from tidemill.errors import ErrorCode
from tidemill.types import TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.batch import read_header

T0 = TopicPartition("t", 0)
QUICK: dict[str, Any] = {
    "retry_backoff_ms": 1,
    "retry_backoff_max_ms": 5,
    "reconnect_backoff_ms": 1,
    "reconnect_backoff_max_ms": 5,
}


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker({"t": 1}) as running:
        yield running


def producing(broker: ScriptedBroker, **settings: object) -> Producer:
    return Producer(broker.bootstrap, random=Random(5), **{**QUICK, **settings})


def faults(*sequence: Fault | None, key: ApiKey = ApiKey.PRODUCE) -> Any:
    """These faults, one per request of the given kind, then none."""
    left: Iterator[Fault | None] = iter(sequence)
    return lambda api_key, _request: next(left, None) if api_key is key else None


async def send_numbers(producer: Producer, count: int) -> list[RecordMetadata]:
    deliveries = [producer.send_soon("t", b"%d" % number) for number in range(count)]
    return list(await asyncio.gather(*deliveries))


def fill(producer: Producer) -> None:
    for _ in range(1000):
        producer.send_soon("t", b"x" * 100)


def let_time_run_out(producer: Producer, *, spare: int = 0) -> None:
    """Every batch but those to `spare`, the youngest, has had its time, here and now."""
    assert producer._sender is not None
    deadlines = producer._sender.outcomes._deadlines
    spared = [deadlines._by_age.pop() for _ in range(spare)]
    limit_ms, deadlines._limit_ms = deadlines._limit_ms, 0
    deadlines._look()
    deadlines._limit_ms = limit_ms
    deadlines._by_age.extend(reversed(spared))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LONG_S):
        while not condition():  # noqa: ASYNC110 - the scripted broker tells nobody
            await asyncio.sleep(0.01)


def numbers(broker: ScriptedBroker) -> list[int]:
    return [int(record.value or b"-1") for record in broker.partitions[T0].records()]


FAULTS = st.sampled_from(
    [
        None,
        None,
        Fault(drop=True),
        Fault(drop=True, apply=True),
        Fault(error=ErrorCode.NOT_LEADER_OR_FOLLOWER),
        Fault(error=ErrorCode.NOT_ENOUGH_REPLICAS),
        Fault(error=ErrorCode.REQUEST_TIMED_OUT),
        Fault(error=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        Fault(error=ErrorCode.UNKNOWN_PRODUCER_ID),
    ]
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    script=st.lists(FAULTS, max_size=25),
    batch_size=st.sampled_from([1, 100, 400]),
    in_flight=st.integers(1, 5),
)
async def test_everything_once_and_in_order_under_faults(
    script: list[Fault | None], batch_size: int, in_flight: int
) -> None:
    """Rule G7 seen from the client; answers lost after the write are the interesting ones."""
    async with ScriptedBroker({"t": 1}) as broker:
        broker.fault = faults(*script)
        async with producing(
            broker, batch_size=batch_size, linger_ms=1, max_in_flight=in_flight
        ) as producer:
            metadata = await send_numbers(producer, 60)
        # A forged "unknown producer" after a lost answer makes a duplicate nobody can prevent.
        forged = {ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER}
        if any(fault and fault.apply for fault in script) and any(
            fault and fault.error in forged for fault in script
        ):
            return
        assert numbers(broker) == list(range(60))
        assert [entry.offset for entry in metadata] == list(range(60))


async def test_a_lost_answer_is_recognised_not_written_twice(broker: ScriptedBroker) -> None:
    """Rule G2: the same numbers are sent again."""
    broker.fault = faults(Fault(drop=True, apply=True))
    async with producing(broker) as producer:
        metadata = await producer.send("t", b"1")
    assert metadata.offset == 0
    assert numbers(broker) == [1]
    first, second = broker.seen(ApiKey.PRODUCE)
    headers = [read_header(r.topic_data[0].partition_data[0].records) for r in (first, second)]
    assert headers[0].base_sequence == headers[1].base_sequence == 0


@pytest.mark.parametrize(
    "code", [ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
)
async def test_a_forgotten_producer_goes_on_with_a_new_epoch(
    broker: ScriptedBroker, code: ErrorCode
) -> None:
    broker.fault = faults(None, Fault(error=code))
    async with producing(broker) as producer:
        await producer.send("t", b"0")
        await producer.send("t", b"1")
    assert numbers(broker) == [0, 1]
    header = read_header(broker.partitions[T0].batches[-1])
    assert (header.producer_epoch, header.base_sequence) == (1, 0)


async def test_a_batch_that_is_too_large_is_split(broker: ScriptedBroker) -> None:
    broker.partitions[T0].max_batch_bytes = 300
    async with producing(broker, batch_size=4000, linger_ms=5) as producer:
        metadata = await send_numbers(producer, 100)
    assert numbers(broker) == list(range(100))
    assert [entry.offset for entry in metadata] == list(range(100))
    assert 4 <= len(broker.partitions[T0].batches) < 50


async def test_a_single_record_that_is_too_large_fails_alone(broker: ScriptedBroker) -> None:
    broker.partitions[T0].max_batch_bytes = 300
    async with producing(broker, batch_size=4000, linger_ms=5) as producer:
        deliveries = [producer.send_soon("t", b"1") for _ in range(3)]
        large = producer.send_soon("t", b"2" * 400)
        deliveries += [producer.send_soon("t", b"3") for _ in range(3)]
        with pytest.raises(ClientError) as caught:
            await large
        await asyncio.gather(*deliveries)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert not caught.value.retriable
    assert "max.message.bytes" in (caught.value.hint or "")
    assert numbers(broker) == [1, 1, 1, 3, 3, 3]


async def test_a_record_beyond_max_request_size_is_refused_at_once(
    broker: ScriptedBroker,
) -> None:
    async with producing(broker, max_request_size=1000) as producer:
        with pytest.raises(ClientError, match=r"max\.request\.size=1000"):
            producer.send_soon("t", b"x" * 1000)


async def test_delivery_timeout_fails_the_record_and_later_ones_go_on(
    broker: ScriptedBroker,
) -> None:
    def refuse_hundred(key: ApiKey, request: Any) -> Fault | None:
        # By what it holds: one that is on its way when its time is up may come later still.
        refused = key is ApiKey.PRODUCE and any(
            b"100" in bytes(data.records)
            for topic in request.topic_data
            for data in topic.partition_data
        )
        return Fault(error=ErrorCode.NOT_ENOUGH_REPLICAS) if refused else None

    broker.fault = refuse_hundred
    async with producing(broker, delivery_timeout_ms=2_000, linger_ms=1) as producer:
        with pytest.raises(RequestTimeoutError, match=r"delivery\.timeout\.ms=2000"):
            await producer.send("t", b"100")
        await producer.send("t", b"1")
    assert numbers(broker) == [1]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
    ],
)
async def test_the_number_of_a_batch_that_was_written_is_not_given_to_another(
    broker: ScriptedBroker, code: ErrorCode
) -> None:
    """Rule G2: the leader would take the next batch for the one before, and drop it."""
    async with producing(broker, linger_ms=0) as producer:
        await producer.send("t", b"0")
        broker.fault = lambda key, _: (
            Fault(error=code, apply=True) if key is ApiKey.PRODUCE else None
        )
        late = producer.send_soon("t", b"1")
        await until(lambda: len(broker.seen(ApiKey.PRODUCE)) > 2)  # It was refused, and tried on.
        let_time_run_out(producer)
        with pytest.raises(RequestTimeoutError):
            await late
        broker.fault = faults()
        await producer.send("t", b"2")
    assert numbers(broker) == [0, 1, 2]


@pytest.mark.parametrize("break_first", [True, False])
async def test_what_arrives_late_behind_a_batch_given_up_is_not_written_twice(
    broker: ScriptedBroker, *, break_first: bool
) -> None:
    """Rule G2: a connection breaks, and what was sent over it comes to the leader all the same.

    The first of it has run out of time, before the break or after it; the second is sent again
    meanwhile, and refused because the leader misses the first. Then both arrive, the old way.
    """

    def under_way() -> list[Any]:
        return broker.seen(ApiKey.PRODUCE)[1:]

    async with producing(broker, linger_ms=0, batch_size=1) as producer:
        await producer.send("t", b"0")
        broker.fault = lambda key, _: Fault(silent=True) if key is ApiKey.PRODUCE else None
        first, second = (producer.send_soon("t", b"%d" % number) for number in (1, 2))
        await until(lambda: len(under_way()) == 2)
        late = under_way()
        if break_first:
            broker.drop_connections()
            await until(lambda: len(under_way()) > 2)  # The first is on its way again.
        let_time_run_out(producer, spare=1)
        with pytest.raises(RequestTimeoutError, match=r"delivery\.timeout"):
            await first
        broker.fault = faults()
        broker.drop_connections()
        with pytest.raises(RequestTimeoutError, match="may be written or not"):
            await second
        for request in late:
            broker._produce(request, None)
        await producer.send("t", b"3")
        for request in late:
            broker._produce(request, None)
    assert numbers(broker) == [0, 1, 2, 3]


async def test_what_is_at_large_is_not_written_twice_where_retries_run_out(
    broker: ScriptedBroker,
) -> None:
    """Rule G2: also if the batch that is refused has no attempt left, the next must not go on.

    The first has two connections break under it, and is given up; the second is refused for its
    sake and given up, too; what was sent on the first connection arrives before the third is sent.
    """

    def under_way() -> list[Any]:
        return broker.seen(ApiKey.PRODUCE)[1:]

    async with producing(broker, linger_ms=0, batch_size=1, retries=1) as producer:
        await producer.send("t", b"0")
        broker.fault = lambda key, _: Fault(silent=True) if key is ApiKey.PRODUCE else None
        deliveries = [producer.send_soon("t", b"%d" % number) for number in (1, 2, 3)]
        await until(lambda: len(under_way()) == 3)
        late = under_way()
        broker.drop_connections()
        await until(lambda: len(under_way()) == 4)
        broker.fault = faults()
        broker.drop_connections()
        outcomes = await asyncio.gather(*deliveries, return_exceptions=True)
        for request in late:
            broker._produce(request, None)
        await producer.send("t", b"4")
    assert [type(outcome) for outcome in outcomes[1:]] == [RequestTimeoutError] * 2
    assert all("may be written or not" in str(outcome) for outcome in outcomes[1:])
    assert numbers(broker) == [0, 1, 2, 3, 4]


async def test_the_parts_of_a_batch_that_arrives_whole_are_not_written_again(
    broker: ScriptedBroker,
) -> None:
    """Rule G2: too large when it was sent again, it comes by the old connection after all."""
    async with producing(broker, linger_ms=20) as producer:
        await producer.send("t", b"0")
        broker.fault = lambda key, _: Fault(silent=True) if key is ApiKey.PRODUCE else None
        deliveries = [producer.send_soon("t", b"%d" % number) for number in (1, 2)]
        await until(lambda: len(broker.seen(ApiKey.PRODUCE)) == 2)
        whole = broker.seen(ApiKey.PRODUCE)[1]

        def too_large_and_then_there(key: ApiKey, _request: Any) -> Fault | None:
            sent = len(broker.seen(ApiKey.PRODUCE))
            if key is ApiKey.PRODUCE and sent == 3:
                return Fault(error=ErrorCode.MESSAGE_TOO_LARGE)
            if key is ApiKey.PRODUCE and sent == 4:
                broker._produce(whole, None)
            return None

        broker.fault = too_large_and_then_there
        broker.drop_connections()
        outcomes = await asyncio.gather(*deliveries, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [RequestTimeoutError] * 2
    assert numbers(broker) == [0, 1, 2]


async def test_a_callback_that_raises_harms_nobody_else(
    broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the other batches of the same answer, nor those whose time is still to run out."""
    broker.create("two", 2)

    def raises(_delivery: object) -> None:
        raise ValueError("a mistake of the user's")

    async with producing(broker, linger_ms=20) as producer:
        for topic in ("t", "two"):
            await producer.partitions_for(topic)
        for _ in range(2):
            first, second = (producer.send_soon("two", b"1", partition=index) for index in (0, 1))
            first.add_done_callback(raises)
            async with asyncio.timeout(LONG_S):
                await second
        broker.fault = lambda key, _: Fault(silent=True) if key is ApiKey.PRODUCE else None
        for _ in range(2):
            late = producer.send_soon("t", b"2")
            late.add_done_callback(raises)
            await asyncio.sleep(0.01)
            let_time_run_out(producer)
            assert isinstance(late.exception(), RequestTimeoutError)
    assert caplog.text.count("a delivery callback for") == 4


async def test_silence_ends_the_connection_and_the_batch_is_sent_again(
    broker: ScriptedBroker,
) -> None:
    broker.fault = faults(Fault(silent=True))
    async with producing(broker, request_timeout_ms=50) as producer:
        assert (await producer.send("t", b"1")).offset == 0
    assert numbers(broker) == [1]


async def test_a_leader_that_is_stuck_while_we_connect_may_be_replaced(
    broker: ScriptedBroker,
) -> None:
    """A stopped process lets clients connect and answers nothing; meanwhile another one leads."""
    stuck = Fault(silent=True)
    async with (
        ScriptedBroker(beside=broker) as other,
        Producer(f"{broker.bootstrap},{other.bootstrap}", random=Random(5), **QUICK) as producer,
    ):
        await producer.send("t", b"0")
        asked = asyncio.Event()

        def say_nothing(key: ApiKey, _request: Any) -> Fault:
            if key is ApiKey.API_VERSIONS:
                asked.set()
            return stuck

        broker.fault = say_nothing
        broker.drop_connections()
        delivery = producer.send_soon("t", b"1")
        await asked.wait()
        await asyncio.sleep(0.05)  # What was known when the connection broke is known by now.
        other.lead(T0)
        async with asyncio.timeout(5):
            await delivery
    assert numbers(other) == [0, 1]


async def test_a_broker_that_comes_back_gets_what_waited(broker: ScriptedBroker) -> None:
    async with producing(broker) as producer:
        await producer.send("t", b"0")
        await broker.stop()
        waiting = asyncio.ensure_future(producer.send("t", b"1"))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await broker.listen()
        assert (await waiting).offset == 1


async def test_send_soon_says_that_memory_is_full(broker: ScriptedBroker) -> None:
    async with producing(broker, buffer_memory=20_000, linger_ms=10_000) as producer:
        with pytest.raises(BufferFullError, match="wait_for_room"):
            fill(producer)
        assert 10_000 < producer.buffered_bytes <= 20_000
        waiting = asyncio.ensure_future(producer.send("t", b"y" * 5_000))
        await asyncio.sleep(0)
        assert not waiting.done()
        await producer.flush()
        await producer.wait_for_room()
        assert producer.buffered_bytes <= 10_000
        await producer.flush()
        assert (await waiting).offset > 0


async def test_room_is_waited_for_no_longer_than_max_block(broker: ScriptedBroker) -> None:
    broker.fault = lambda key, _: Fault(silent=True) if key is ApiKey.PRODUCE else None
    async with producing(broker, buffer_memory=300, max_block_ms=500, linger_ms=0) as producer:
        pending = producer.send_soon("t", b"x" * 150)
        with pytest.raises(BufferFullError):
            await producer.send("t", b"x" * 150)
        broker.fault = lambda _key, _request: None
        broker.drop_connections()
        await pending


async def test_acks_0_has_no_offset(broker: ScriptedBroker) -> None:
    async with producing(broker, acks="0") as producer:
        metadata = await producer.send("t", b"7")
        assert metadata.offset == -1
        for _ in range(100):
            if numbers(broker) == [7]:
                break
            await asyncio.sleep(0.01)
    assert numbers(broker) == [7]


async def test_order_without_idempotence_and_one_request_at_a_time(
    broker: ScriptedBroker,
) -> None:
    broker.fault = faults(*[Fault(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)] * 3)
    async with producing(
        broker, enable_idempotence=False, max_in_flight=1, batch_size=50, linger_ms=1
    ) as producer:
        await send_numbers(producer, 30)
    assert numbers(broker) == list(range(30))
    assert broker.seen(ApiKey.INIT_PRODUCER_ID) == []


async def test_a_failure_nobody_saw_is_raised_by_flush(broker: ScriptedBroker) -> None:
    broker.fault = faults(Fault(error=ErrorCode.INVALID_RECORD))
    async with producing(broker) as producer:
        producer.send_soon("t", b"0")
        with pytest.raises(ClientError, match="INVALID_RECORD"):
            await producer.flush()
        await producer.flush()
        await producer.send("t", b"1")
    assert numbers(broker) == [1]


async def test_a_failure_nobody_saw_is_raised_on_leaving(broker: ScriptedBroker) -> None:
    broker.fault = faults(Fault(error=ErrorCode.INVALID_RECORD))
    with pytest.raises(ClientError, match="INVALID_RECORD"):
        async with producing(broker) as producer:
            producer.send_soon("t", b"0")


async def test_a_failure_somebody_saw_is_not_raised_again(broker: ScriptedBroker) -> None:
    broker.fault = faults(Fault(error=ErrorCode.INVALID_RECORD))
    async with producing(broker) as producer:
        delivery = producer.send_soon("t", b"0")
        seen = []
        delivery.add_done_callback(lambda done: seen.append(done.exception()))
        with pytest.raises(ClientError):
            await delivery
        await producer.flush()
    assert [type(error) for error in seen] == [ClientError]


async def test_an_unknown_topic_fails_after_max_block(broker: ScriptedBroker) -> None:
    async with producing(broker, max_block_ms=1_000) as producer:
        with pytest.raises(ClientError) as caught:
            await producer.send("nosuch", b"0")
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "topic list" in str(caught.value)


async def test_records_wait_in_order_for_their_topic_to_appear(broker: ScriptedBroker) -> None:
    async with producing(broker) as producer:
        deliveries = [producer.send_soon("late", b"%d" % number) for number in range(20)]
        await asyncio.sleep(0.02)
        assert not deliveries[0].done()
        with pytest.raises(asyncio.InvalidStateError):
            deliveries[0].result()
        broker.create("late", 1)
        metadata = await asyncio.gather(*deliveries)
    assert [entry.offset for entry in metadata] == list(range(20))


async def test_a_partition_that_does_not_exist(broker: ScriptedBroker) -> None:
    async with producing(broker) as producer:
        with pytest.raises(ClientError, match="has no partition 5"):
            await producer.send("t", b"0", partition=5)
        with pytest.raises(ClientError, match="has no partition 5"):
            producer.send_soon("t", b"0", partition=5)


async def test_many_awaited_sends_share_batches_and_one_does_not_linger(
    broker: ScriptedBroker,
) -> None:
    async with producing(broker) as producer:
        await producer.send("t", b"0")
        before = len(broker.partitions[T0].batches)
        await asyncio.gather(*[producer.send("t", b"%d" % n) for n in range(200)])
    assert len(broker.partitions[T0].batches) - before <= 3


async def test_serializers_interceptors_and_headers(broker: ScriptedBroker) -> None:
    class Stamp:
        def __init__(self) -> None:
            self.delivered: list[int] = []

        def on_send(self, record: OutgoingRecord) -> OutgoingRecord:
            return record._replace(headers={"trace": "1"})

        def on_delivery(self, metadata: RecordMetadata | None, error: ClientError | None) -> None:
            assert metadata is not None
            self.delivered.append(metadata.offset)
            raise RuntimeError("a broken interceptor must not stop the traffic")

    stamp = Stamp()
    async with producing(
        broker,
        key_serializer=lambda _topic, key: str(key).encode(),
        value_serializer=lambda _topic, value: b"" if value is None else str(value).encode(),
        interceptors=[stamp],
    ) as producer:
        await producer.send("t", 1, key=2)
        await producer.send_soon("t", 3, key=4)
    first, second = broker.partitions[T0].records()
    assert (first.value, first.key, first.headers) == (b"1", b"2", (("trace", b"1"),))
    assert second.value == b"3"
    assert stamp.delivered == [0, 1]


async def test_only_bytes_and_text_without_a_serializer(broker: ScriptedBroker) -> None:
    async with producing(broker) as producer:
        with pytest.raises(TypeError, match="value_serializer"):
            await producer.send("t", {"a": 1})
        with pytest.raises(ValueError, match="milliseconds since 1970"):
            producer.send_soon("t", b"x", timestamp_ms=-1)
        await producer.send("t", "text", key=bytearray(b"k"))
        await producer.send("t", None, key=memoryview(b"k"))
    assert [r.value for r in broker.partitions[T0].records()] == [b"text", None]


async def test_compression_of_large_batches_happens_off_the_loop(broker: ScriptedBroker) -> None:
    async with producing(
        broker, compression_type="zstd", batch_size=500_000, linger_ms=5
    ) as producer:
        deliveries = [producer.send_soon("t", b"x" * 1000) for _ in range(300)]
        metadata = await asyncio.gather(*deliveries)
    assert [entry.offset for entry in metadata] == list(range(300))
    assert len(broker.partitions[T0].batches[0]) < 10_000


@pytest.mark.parametrize("produce_version", [9, 13])
async def test_a_broker_without_topic_ids_is_asked_by_name(
    broker: ScriptedBroker, produce_version: int
) -> None:
    """However new its Produce is: what knows topics by their ids alone cannot name this one."""
    broker.max_versions[ApiKey.PRODUCE] = produce_version
    broker.max_versions[ApiKey.METADATA] = 8
    async with producing(broker) as producer:
        await producer.send("t", b"1")
    (request,) = broker.seen(ApiKey.PRODUCE)
    assert request.topic_data[0].name == "t"


def test_idempotence_refuses_what_breaks_it_and_yields_when_it_was_not_asked_for() -> None:
    with pytest.raises(SettingsError, match="acks=all"):
        Producer("h:1", acks=1, enable_idempotence=True)
    with pytest.raises(SettingsError, match="at most 5"):
        Producer("h:1", max_in_flight=6, enable_idempotence=True)
    assert not Producer("h:1", acks=1).settings.enable_idempotence
    with pytest.raises(SettingsError, match="no broker address"):
        Producer()


async def test_outside_its_block_a_producer_says_so(broker: ScriptedBroker) -> None:
    producer = producing(broker)
    with pytest.raises(ClosedError, match="async with"):
        producer.send_soon("t", b"0")
    with pytest.raises(ClosedError, match="async with"):
        await producer.send("t", b"0")


async def test_nobody_there_is_said_at_once_and_in_plain_words(broker: ScriptedBroker) -> None:
    await broker.stop()
    with pytest.raises(UnreachableError) as caught:
        async with producing(broker):
            pass
    assert str(caught.value) == (
        f"cannot reach {broker.bootstrap}: connection refused;"
        " is a broker running? try `tidemill up`"
    )


async def test_partitioners_by_name_and_by_function() -> None:
    async with ScriptedBroker({"t": 3}) as broker:
        async with producing(broker, partitioner="round-robin") as producer:
            placed = [(await producer.send("t", b"0", key=b"same")).partition for _ in range(6)]
            assert sorted(placed) == [0, 0, 1, 1, 2, 2]
        async with producing(
            broker, partitioner=lambda _topic, key, _value, count: int(key or b"0") % count
        ) as producer:
            assert (await producer.send("t", b"0", key=b"5")).partition == 2
    with pytest.raises(SettingsError, match="round-robin"):
        async with ScriptedBroker() as broker, producing(broker, partitioner="magic"):
            pass
