"""Columns against real brokers: what one side writes, every other side reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import confluent_kafka
import numpy
import pyarrow
import pytest
from tests.reference.kafka import SharedKafka

from tidemill.client import blocking
from tidemill.client.admin_types import NewTopic
from tidemill.client.columnar import ColumnarProducer, ColumnarReader, OffsetsLost
from tidemill.client.errors import ClientError, ClosedError, SettingsError
from tidemill.client.partitioner import positive_hash
from tidemill.errors import ErrorCode
from tidemill.testing.process import BrokerProcess
from tidemill.types import TopicPartition
from tidemill.wire.columns import ColumnBatch

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
HEADERS = pyarrow.list_(pyarrow.struct({"key": pyarrow.string(), "value": pyarrow.binary()}))

Row = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def create(bootstrap: str, topic: str, partitions: int = 1, **configs: str) -> None:
    named = {key.replace("_", "."): value for key, value in configs.items()}
    with blocking.Admin(bootstrap) as admin:
        admin.create_topics([NewTopic(topic, partitions, 1, configs=named)]).raise_first()


def rows(pieces: Iterator[ColumnBatch]) -> list[Row]:
    """Offset, timestamp, key, value and headers of each record."""
    found: list[Row] = []
    for piece in pieces:
        lists = [] if piece.headers is None else piece.headers.to_pylist()
        headers = [[(h["key"], h["value"]) for h in each] for each in lists]
        found += zip(
            piece.offset.tolist(),
            piece.timestamp_ms.tolist(),
            piece.key.to_pylist(),
            piece.value.to_pylist(),
            headers or [[]] * piece.row_count,
            strict=True,
        )
    return found


def read(bootstrap: str, topic: str, partition: int, start: int, end: int) -> list[Row]:
    with ColumnarReader(bootstrap) as reader:
        return rows(reader.read(topic, partition, start, end, headers=True))


def plain_rows(bootstrap: str, topic: str, partition: int, count: int) -> list[Row]:
    """The same by the record-by-record consumer."""
    found: list[Row] = []
    with blocking.Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, partition)])
        while len(found) < count:
            records = consumer.poll(timeout_ms=5000)
            assert records, f"only {len(found)} of {count} records came"
            found += [(r.offset, r.timestamp_ms, r.key, r.value, list(r.headers)) for r in records]
    return found


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_written_by_columns_is_read_by_columns_and_by_record(
    bootstrap: str, topic: str, codec: str
) -> None:
    create(bootstrap, topic)
    count = 5000
    keys = pyarrow.array([None if n % 7 == 0 else b"k%d" % n for n in range(count)])
    values = pyarrow.array([None if n % 11 == 0 else b"v" * (n % 300) for n in range(count)])
    lists = [[("h", b"%d" % n), ("n", None)] if n % 3 == 0 else [] for n in range(count)]
    times = numpy.arange(1_700_000_000_000, 1_700_000_000_000 + count)[::-1]
    settings = {"compression.type": codec, "batch.size": "60000"}
    with ColumnarProducer(bootstrap, settings=settings) as producer:
        producer.send(topic, None, keys, values, pyarrow.array(lists, HEADERS), times)
        assert producer.flush() == {TopicPartition(topic, 0): count - 1}
        assert producer.flush() == {}
        assert producer.buffered_bytes == 0
    expected = list(
        zip(
            range(count),
            times.tolist(),
            keys.to_pylist(),
            values.to_pylist(),
            lists,
            strict=True,
        )
    )
    assert read(bootstrap, topic, 0, 0, count) == expected
    assert plain_rows(bootstrap, topic, 0, count) == expected


@pytest.mark.parametrize("codec", CODECS)
def test_what_another_client_has_written_is_read_range_by_range(
    bootstrap: str, topic: str, codec: str
) -> None:
    """Ranges begin and end in the middle of batches, and one reader reads many of them."""
    create(bootstrap, topic, partitions=2)
    theirs = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": codec,
            "batch.num.messages": 100,
            "enable.idempotence": True,  # Without it, a batch that is sent again comes later.
        }
    )
    for number in range(2000):
        theirs.produce(topic, b"%d" % number, partition=number % 2)
    assert theirs.flush(30) == 0
    with ColumnarReader(bootstrap) as reader:
        for partition in (0, 1):
            found: list[Row] = []
            for start, end in ((0, 1), (1, 1), (1, 450), (450, 999), (999, 1000)):
                found += rows(reader.read(topic, partition, start, end))
            assert [row[0] for row in found] == list(range(1000))
            assert [int(row[3] or b"") for row in found] == list(range(partition, 2000, 2))


def test_a_range_that_was_left_in_the_middle_does_not_disturb_the_next(
    tidemill_broker: BrokerProcess, topic: str
) -> None:
    bootstrap = tidemill_broker.bootstrap
    create(bootstrap, topic)
    with ColumnarProducer(bootstrap, settings={"batch.size": "20000"}) as producer:
        producer.send(topic, None, None, pyarrow.array([b"x" * 100] * 30_000))
    with ColumnarReader(bootstrap) as reader:
        first = reader.read(topic, 0, 0, 30_000)
        next(first)
        assert [row[0] for row in rows(reader.read(topic, 0, 7, 12))] == list(range(7, 12))
        with pytest.raises(ValueError, match="another range"):
            next(first)
        assert len(rows(reader.read(topic, 0, 100, 30_000))) == 29_900


def test_a_range_of_a_topic_that_was_made_anew_is_read(
    tidemill_broker: BrokerProcess, topic: str
) -> None:
    """Whoever asks knows the new topic; that the reader still knows the old one is its affair."""
    bootstrap = tidemill_broker.bootstrap
    with ColumnarReader(bootstrap) as reader:
        for count in (10, 25):
            create(bootstrap, topic)
            values = pyarrow.array([b"%d" % n for n in range(count)], pyarrow.binary())
            with ColumnarProducer(bootstrap) as producer:
                producer.send(topic, None, None, values, None, None)
                producer.flush()
            found = [row[3] for row in rows(reader.read(topic, 0, 0, count))]
            assert found == values.to_pylist()
            with blocking.Admin(bootstrap) as admin:
                admin.delete_topics([topic]).raise_first()


def test_a_reader_that_was_closed_says_so(tidemill_broker: BrokerProcess, topic: str) -> None:
    bootstrap = tidemill_broker.bootstrap
    create(bootstrap, topic)
    with ColumnarProducer(bootstrap) as producer:
        producer.send(topic, None, None, pyarrow.array([b"1", b"2"]))
    with ColumnarReader(bootstrap) as reader:
        pieces = reader.read(topic, 0, 0, 100)
        assert next(pieces).row_count == 2
    with pytest.raises(ClosedError):
        next(pieces)
    with pytest.raises(ClosedError):
        next(reader.read(topic, 0, 0, 100))


def test_records_that_are_gone_are_reported(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic)
    with ColumnarProducer(bootstrap) as producer:
        producer.send(topic, None, None, pyarrow.array([b"%d" % n for n in range(100)]))
    with blocking.Admin(bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): 60}).raise_first()
    with ColumnarReader(bootstrap) as reader:
        with pytest.raises(OffsetsLost) as lost:
            rows(reader.read(topic, 0, 50, 100))
        assert (lost.value.topic, lost.value.partition) == (topic, 0)
        assert (lost.value.start, lost.value.earliest) == (50, 60)
        assert len(rows(reader.read(topic, 0, 60, 100))) == 40


def test_a_range_beyond_the_end_is_waited_for_and_then_reported(
    tidemill_broker: BrokerProcess, topic: str
) -> None:
    bootstrap = tidemill_broker.bootstrap
    create(bootstrap, topic)
    with ColumnarProducer(bootstrap) as producer:
        producer.send(topic, None, None, pyarrow.array([b"1", b"2"]))
    settings = {"default.api.timeout.ms": "1500"}
    with ColumnarReader(bootstrap, settings=settings) as reader:
        pieces = reader.read(topic, 0, 0, 5)
        assert next(pieces).row_count == 2
        with pytest.raises(ClientError, match=r"from offset 2 on.*its end was 2"):
            next(pieces)


def test_keys_decide_unless_a_partition_is_given(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic, partitions=5)
    keys = [None if n % 10 == 0 else b"key-%d" % n for n in range(1000)]
    values = pyarrow.array([b"%d" % n for n in range(1000)])
    given = numpy.full(1000, -1, numpy.int32)
    given[::4] = 3
    with ColumnarProducer(bootstrap) as producer:
        producer.send(topic, given, pyarrow.array(keys), values)
        last = producer.flush()
    placed: dict[int, int] = {}
    for (_, partition), offset in last.items():
        found = read(bootstrap, topic, partition, 0, offset + 1)
        numbers = [int(row[3] or b"") for row in found]
        kept = [number for number in numbers if keys[number] is not None]
        assert kept == sorted(kept), "a partition keeps the order"
        placed |= dict.fromkeys(numbers, partition)
    assert sorted(placed) == list(range(1000))
    for number, key in enumerate(keys):
        if number % 4 == 0:
            assert placed[number] == 3
        elif key is not None:
            assert placed[number] == positive_hash(key) % 5
    assert len({placed[n] for n in range(1000) if n % 10 == 0 and n % 4}) == 1


def test_records_without_keys_take_turns_by_batch(
    tidemill_broker: BrokerProcess, topic: str
) -> None:
    bootstrap = tidemill_broker.bootstrap
    create(bootstrap, topic, partitions=3)
    with ColumnarProducer(bootstrap, settings={"batch.size": "10000"}) as producer:
        for _ in range(3):
            producer.send(topic, None, None, pyarrow.array([b"x" * 90] * 1000))
        last = producer.flush()
    counts = sorted(offset + 1 for offset in last.values())
    assert sum(counts) == 3000
    assert counts[-1] - counts[0] <= 200, "one batch more or less"


def test_what_cannot_be_sent_is_refused_at_once(tidemill_broker: BrokerProcess, topic: str) -> None:
    bootstrap = tidemill_broker.bootstrap
    create(bootstrap, topic, partitions=2)
    values = pyarrow.array([b"1", b"2"])
    with ColumnarProducer(bootstrap) as producer:
        for wrong in ([0, 2], [-2, 0], [0]):
            with pytest.raises(ClientError, match="topic has 0 to 1"):
                producer.send(topic, numpy.array(wrong, numpy.int32), None, values)
        with pytest.raises(ClientError) as too_large:
            producer.send(topic, None, None, pyarrow.array([bytes(2_000_000)]))
        assert too_large.value.code is ErrorCode.MESSAGE_TOO_LARGE
        producer.send(topic, None, None, pyarrow.array([], pyarrow.binary()))
        assert producer.flush() == {}
    with pytest.raises(SettingsError, match=r"batch\.size"):
        ColumnarProducer(bootstrap, settings={"batch.sice": "1"}).start()


def test_a_refusal_is_raised_once(bootstrap: str, topic: str) -> None:
    """A compacted topic takes no record without a key."""
    create(bootstrap, topic, cleanup_policy="compact")
    with ColumnarProducer(bootstrap) as producer:
        producer.send(topic, None, None, pyarrow.array([b"keyless"]))
        with pytest.raises(ClientError) as refused:
            producer.flush()
        assert refused.value.code is ErrorCode.INVALID_RECORD
        producer.send(topic, None, pyarrow.array([b"k"]), pyarrow.array([b"v"]))
        assert producer.flush() == {TopicPartition(topic, 0): 0}


def test_a_batch_that_is_too_large_for_the_topic_is_split(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic, max_message_bytes="5000")
    values = [b"%04d" % n + b"x" * 96 for n in range(300)]
    with ColumnarProducer(bootstrap) as producer:
        producer.send(topic, None, None, pyarrow.array(values))
        assert producer.flush() == {TopicPartition(topic, 0): 299}
    assert [row[3] for row in read(bootstrap, topic, 0, 0, 300)] == values


def test_no_more_than_the_buffer_is_under_way(tidemill_broker: BrokerProcess, topic: str) -> None:
    bootstrap = tidemill_broker.bootstrap
    create(bootstrap, topic)
    settings = {"batch.size": "50000", "buffer.memory": "200000"}
    with ColumnarProducer(bootstrap, settings=settings) as producer:
        for _ in range(20):
            producer.send(topic, None, None, pyarrow.array([b"x" * 100] * 5000))
            assert producer.buffered_bytes <= 200_000
        assert producer.flush() == {TopicPartition(topic, 0): 99_999}


@pytest.mark.reference
def test_aborted_transactions_and_markers_are_passed_over(
    apache_kafka: SharedKafka, topic: str
) -> None:
    """The range ends with a marker that nobody sees, and the reader notices its end at once."""
    create(apache_kafka.bootstrap, topic)
    theirs = confluent_kafka.Producer(
        {"bootstrap.servers": apache_kafka.bootstrap, "transactional.id": topic}
    )
    theirs.init_transactions(30)
    for number in range(10):
        theirs.begin_transaction()
        theirs.produce(topic, b"%d" % number)
        theirs.flush(30)
        if number % 2:
            theirs.abort_transaction(30)
        else:
            theirs.commit_transaction(30)

    def seen(level: str) -> list[tuple[int, bytes | None]]:
        settings = {"isolation.level": level, "default.api.timeout.ms": "10000"}
        with ColumnarReader(apache_kafka.bootstrap, settings=settings) as reader:
            return [(row[0], row[3]) for row in rows(reader.read(topic, 0, 0, 20))]

    assert seen("read_committed") == [(2 * n, b"%d" % n) for n in range(0, 10, 2)]
    assert seen("read_uncommitted") == [(2 * n, b"%d" % n) for n in range(10)]


def test_an_identity_may_come_from_elsewhere(tidemill_broker: BrokerProcess, topic: str) -> None:
    """Where transactions come in: the producer's id and epoch are somebody else's to give."""
    bootstrap = tidemill_broker.bootstrap
    create(bootstrap, topic)
    asked: list[Any] = []

    async def given(cluster: object) -> tuple[int, int]:
        asked.append(cluster)
        return 123_456, 3

    with ColumnarProducer(bootstrap, identity_source=given) as producer:
        producer.send(topic, None, None, pyarrow.array([b"1", b"2"]))
        producer.flush()
    with blocking.Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        (batch,) = consumer.poll_batches(timeout_ms=10_000)
    assert len(asked) == 1
    assert (batch.header.producer_id, batch.header.producer_epoch) == (123_456, 3)


def test_a_broker_that_dies_is_survived_on_both_sides(tmp_path: Any, topic: str) -> None:
    """The broker is killed while a range is read, and again while columns are sent."""
    count = 60_000
    values = pyarrow.array([b"%08d" % n + b"x" * 92 for n in range(count)])
    with BrokerProcess(tmp_path / "data") as broker:
        create(broker.bootstrap, topic)
        with ColumnarProducer(broker.bootstrap, settings={"batch.size": "20000"}) as producer:
            producer.send(topic, None, None, values)
            producer.flush()
            producer.send(topic, None, None, values)
            broker.kill()
            broker.start()
            assert producer.flush() == {TopicPartition(topic, 0): 2 * count - 1}
        settings = {"max.partition.fetch.bytes": "100000", "prefetch.max.bytes": "200000"}
        with ColumnarReader(broker.bootstrap, settings=settings) as reader:
            pieces = reader.read(topic, 0, 0, 2 * count)
            found = [next(pieces)]
            broker.kill()
            broker.start()
            found += pieces
    numbers = [offset for piece in found for offset in piece.offset.tolist()]
    assert numbers == list(range(2 * count))
    read_back = [value for piece in found for value in piece.value.to_pylist()]
    assert read_back == values.to_pylist() * 2
