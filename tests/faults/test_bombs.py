"""Batches that would become large where the broker has to look into them.

On a compacted topic it looks at every record, and so it does where a batch says that it is from
the future; on an ordinary topic a batch is stored unseen, and looked into when somebody asks for a
time. Each time the answer is looked at, the peak of the broker's memory is, and the client beside
is served while the broker is at it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.faults.bystander import Bystander, connect, forget_peak, peak_bytes, read_frame
from tests.faults.test_hostile import assert_good_client_works
from tests.wire.bombs import MB, headers_bomb, records_bomb, zeros_bomb

from tidemill.errors import ErrorCode
from tidemill.testing.process import KEEPS_ALL, BrokerProcess
from tidemill.wire.apis import ApiKey
from tidemill.wire.compression import Codec
from tidemill.wire.declare import Message
from tidemill.wire.frame import decode_response, encode_request
from tidemill.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidemill.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

PEAK_BYTES_MAX = 350 * MB
"""The broker as it is and what a batch may inflate to, put together or while the next one comes."""

BOMB_S = 60
SERVED_S = 2
YEAR_2100_MS = 4_102_444_800_000
MAX_TIMESTAMP = -3
HEADERS = 10_000_000
RECORDS = 1_500_000
UNSEEN = ("future", "headers", "records", "gzip", "zstd")
"""Topics with one batch each, which nobody has looked into."""


@cache
def of_zeros(codec: Codec) -> bytes:
    """Far beyond what a batch may inflate to; of snappy, as much as one can send."""
    return zeros_bomb(codec, (200 if codec is Codec.SNAPPY else 900) * MB)


@cache
def of_headers(timestamp: int = 0) -> bytes:
    return headers_bomb(Codec.ZSTD, HEADERS, timestamp=timestamp)


@cache
def of_records(*, keyed: bool) -> bytes:
    return records_bomb(Codec.ZSTD, RECORDS, keyed=keyed)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("bombs") / "data", KEEPS_ALL) as process:
        admin = AdminClient({"bootstrap.servers": process.bootstrap})
        large = {"max.message.bytes": str(50 * MB)}
        topics = [
            NewTopic("plain", 1, 1, config=large),
            *(NewTopic(name, 1, 1, config=large) for name in UNSEEN),
            NewTopic("compacted", 1, 1, config=large | {"cleanup.policy": "compact"}),
        ]
        for future in admin.create_topics(topics).values():
            future.result()
        yield process


def ask(broker: BrokerProcess, api: ApiKey, version: int, request: Message) -> Message:
    with connect(broker) as connection:
        connection.settimeout(BOMB_S)
        connection.sendall(encode_request(api, version, 1, "bomber", request))
        return decode_response(api, version, read_frame(connection))[1]


def produce(broker: BrokerProcess, topic: str, batch: bytes) -> PartitionProduceResponse:
    partition = PartitionProduceData(index=0, records=batch)
    request = ProduceRequest(
        acks=-1,
        timeout_ms=BOMB_S * 1000,
        topic_data=[TopicProduceData(name=topic, partition_data=[partition])],
    )
    answer = ask(broker, ApiKey.PRODUCE, 9, request)
    assert isinstance(answer, ProduceResponse)
    return answer.responses[0].partition_responses[0]


def look_up(broker: BrokerProcess, topic: str, timestamp: int) -> ListOffsetsPartitionResponse:
    partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[partition])]
    )
    answer = ask(broker, ApiKey.LIST_OFFSETS, 7, request)
    assert isinstance(answer, ListOffsetsResponse)
    return answer.topics[0].partitions[0]


class Guard:
    """Memory stays bounded inside the context, and the bystander is served in the middle of it."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._bystander = Bystander(broker)

    def __enter__(self) -> None:
        forget_peak(self._broker)
        self._bystander.__enter__()
        self._start_s = time.monotonic()

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        end_s = time.monotonic()
        self._bystander.__exit__(kind, None, None)
        peak = peak_bytes(self._broker)
        print(
            f"{end_s - self._start_s:.1f} s, peak {peak / MB:.0f} MB, the client beside waited for "
            f"{self._bystander.longest_s * 1000:.0f} ms at most"
        )
        if kind is None:
            assert peak < PEAK_BYTES_MAX
            assert self._bystander.served_between(self._start_s, end_s), "nobody else was served"
            assert self._bystander.longest_s < SERVED_S
            assert_good_client_works(self._broker, topic="plain")


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_decompression_bomb_is_refused(broker: BrokerProcess, codec: Codec) -> None:
    """Once and again: nothing of the first may be left when the next one comes."""
    bomb = of_zeros(codec)
    with Guard(broker):
        results = [produce(broker, "compacted", bomb) for _ in range(5)]
    assert {result.error_code for result in results} == {ErrorCode.INVALID_RECORD}
    assert {result.base_offset for result in results} == {-1}


def test_headers_without_number_are_counted(broker: BrokerProcess) -> None:
    """There is nothing wrong with them: Kafka knows no limit."""
    bomb = of_headers()
    with Guard(broker):
        result = produce(broker, "compacted", bomb)
    assert result.error_code == ErrorCode.NONE


def test_headers_of_a_record_from_the_future(broker: BrokerProcess) -> None:
    bomb = of_headers(YEAR_2100_MS)
    with Guard(broker):
        result = produce(broker, "future", bomb)
    assert result.error_code == ErrorCode.INVALID_TIMESTAMP
    assert len(result.record_errors) == 1


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
def test_a_time_in_a_batch_that_inflates_too_far(broker: BrokerProcess, codec: Codec) -> None:
    """It was stored unseen, and a lookup is the first that has to look inside."""
    topic = codec.name.lower()
    assert produce(broker, topic, of_zeros(codec)).error_code == ErrorCode.NONE
    with Guard(broker):
        results = [look_up(broker, topic, MAX_TIMESTAMP) for _ in range(5)]
    assert {result.error_code for result in results} == {ErrorCode.CORRUPT_MESSAGE}


@pytest.mark.parametrize("topic", ["headers", "records"])
def test_a_time_among_what_was_stored_unseen(broker: BrokerProcess, topic: str) -> None:
    bomb = of_headers() if topic == "headers" else of_records(keyed=True)
    assert produce(broker, topic, bomb).error_code == ErrorCode.NONE
    with Guard(broker):
        result = look_up(broker, topic, 0)
    assert (result.error_code, result.offset, result.timestamp) == (ErrorCode.NONE, 0, 0)


def test_a_million_records_without_a_key(broker: BrokerProcess) -> None:
    """Each of them is at fault; some are named in the answer."""
    bomb = of_records(keyed=False)
    with Guard(broker):
        result = produce(broker, "compacted", bomb)
    assert result.error_code == ErrorCode.INVALID_RECORD
    assert f"{RECORDS} record errors" in (result.error_message or "")
    assert 0 < len(result.record_errors) < RECORDS
