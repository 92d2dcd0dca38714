"""Every client produces and every client consumes, without a group, whatever a record can be."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.compat.clients import (
    BATCH_PRODUCERS,
    CODECS,
    CONSUMERS,
    ODD_RECORDS,
    PRODUCERS,
    Seen,
    Sent,
)
from tests.compat.stored import stored_batches

from tidemill.testing.process import BrokerProcess

# The foreign clients leave sockets to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

fresh_names = (f"records-{number}" for number in itertools.count())


def new_topic(broker: BrokerProcess, **config: str) -> str:
    name = next(fresh_names)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, 2, 1, config=config)])[name].result()
    return name


def expected(records: Sequence[Sent], first_offset: int = 0) -> list[Seen]:
    return [
        Seen(first_offset + number, sent.value, sent.key, sent.headers, sent.timestamp_ms)
        for number, sent in enumerate(records)
    ]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("producer", PRODUCERS)
def test_what_one_client_sends_every_client_reads(
    broker: BrokerProcess, producer: str, codec: str
) -> None:
    topic = new_topic(broker)
    offsets = PRODUCERS[producer](broker.bootstrap, topic, 1, codec, ODD_RECORDS)
    assert offsets == list(range(len(ODD_RECORDS)))
    for consumer, consume in CONSUMERS.items():
        seen = consume(broker.bootstrap, topic, 1, 0, len(ODD_RECORDS))
        assert seen == expected(ODD_RECORDS), consumer


@pytest.mark.parametrize("producer", PRODUCERS)
def test_megabyte_records(broker: BrokerProcess, producer: str) -> None:
    topic = new_topic(broker)
    records = [Sent(bytes([65 + number]) * 1_000_000, key=b"big") for number in range(5)]
    PRODUCERS[producer](broker.bootstrap, topic, 0, "none", records)
    for consumer, consume in CONSUMERS.items():
        seen = consume(broker.bootstrap, topic, 0, 0, len(records))
        assert seen == expected(records), consumer


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("producer", BATCH_PRODUCERS)
def test_batches_of_ten_thousand_records(broker: BrokerProcess, producer: str, codec: str) -> None:
    topic = new_topic(broker)
    records = [Sent(b"value %d" % number) for number in range(10_000)]
    BATCH_PRODUCERS[producer](broker.bootstrap, topic, 0, codec, records)
    (batch,) = stored_batches(broker, topic)
    assert (batch["count"], batch["codec"]) == (10_000, codec)
    for consumer, consume in CONSUMERS.items():
        seen = consume(broker.bootstrap, topic, 0, 0, len(records))
        assert seen == expected(records), consumer


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_reading_from_the_middle_of_a_batch(broker: BrokerProcess, consumer: str) -> None:
    topic = new_topic(broker)
    records = [Sent(b"%d" % number) for number in range(100)]
    PRODUCERS["confluent-kafka"](broker.bootstrap, topic, 0, "zstd", records)
    seen = CONSUMERS[consumer](broker.bootstrap, topic, 0, 63, 37)
    assert seen == expected(records)[63:]


@pytest.mark.parametrize("stored", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
@pytest.mark.parametrize("sent", ["none", "lz4"])
def test_the_topic_decides_the_codec(broker: BrokerProcess, stored: str, sent: str) -> None:
    """`compression.type` of the topic converts what the producer sent."""
    topic = new_topic(broker, **{"compression.type": stored})
    records = [Sent(b"squeeze me " * 50, key=b"%d" % number) for number in range(50)]
    PRODUCERS["confluent-kafka"](broker.bootstrap, topic, 0, sent, records)
    for consumer, consume in CONSUMERS.items():
        seen = consume(broker.bootstrap, topic, 0, 0, len(records))
        assert seen == expected(records), consumer


def test_append_time_replaces_the_producers_timestamp(broker: BrokerProcess) -> None:
    topic = new_topic(broker, **{"message.timestamp.type": "LogAppendTime"})
    PRODUCERS["kafka-python"](broker.bootstrap, topic, 0, "gzip", ODD_RECORDS)
    for consumer, consume in CONSUMERS.items():
        seen = consume(broker.bootstrap, topic, 0, 0, len(ODD_RECORDS))
        times = {record.timestamp_ms for record in seen}
        assert min(times) > 1_750_000_000_000, consumer
        assert [record.value for record in seen] == [record.value for record in ODD_RECORDS]
