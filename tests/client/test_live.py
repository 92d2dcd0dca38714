"""The client against real brokers: the same expectations of Tidemill and of Apache Kafka."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import confluent_kafka
import pytest
from tests.waiting import eventually_async

from tidemill.client import Admin, ClientError, Consumer, ConsumerRecord, Producer, blocking
from tidemill.client.admin_types import (
    AlterOp,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from tidemill.errors import ErrorCode
from tidemill.types import TopicPartition

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


async def create(bootstrap: str, topic: str, partitions: int = 1, **configs: str) -> None:
    named = {key.replace("_", "."): value for key, value in configs.items()}
    async with Admin(bootstrap) as admin:
        created = await admin.create_topics([NewTopic(topic, partitions, 1, configs=named)])
        created.raise_first()


async def _partition_count(admin: Admin, topic: str) -> int | None:
    described = (await admin.describe_topics([topic])).successes()
    return len(described[topic].partitions) if topic in described else None


async def _has_partitions(admin: Admin, topic: str, count: int | None) -> bool:
    return await _partition_count(admin, topic) == count


async def read_all(bootstrap: str, topic: str, count: int, **settings: Any) -> list[ConsumerRecord]:
    """The first `count` records of all partitions."""
    async with Consumer(bootstrap, auto_offset_reset="earliest", **settings) as consumer:
        partitions = await consumer.partitions_for(topic)
        consumer.assign([(topic, index) for index in partitions])
        records: list[ConsumerRecord] = []
        while len(records) < count:
            some = await consumer.poll(timeout_ms=30_000)
            assert some, f"only {len(records)} of {count} records came"
            records += some
        return records


@pytest.mark.parametrize("codec", CODECS)
async def test_every_shape_of_record_in_every_codec(bootstrap: str, topic: str, codec: str) -> None:
    await create(bootstrap, topic)
    sent: list[dict[str, Any]] = [
        {"value": b"plain"},
        {"value": b"keyed", "key": b"k"},
        {"value": None, "key": b"tombstone"},
        {"value": b"", "key": b""},
        {"value": b"headed", "headers": {"a": b"1", "n": None}},
        {"value": b"doubly", "headers": [("a", b"1"), ("a", "text")]},
        {"value": b"timed", "timestamp_ms": 1_700_000_000_123},
        {"value": bytes(range(256)) * 3000},
    ]
    async with Producer(bootstrap, compression_type=codec, batch_size=1_000_000) as producer:
        deliveries = [producer.send_soon(topic, **record) for record in sent]
        metadata = await asyncio.gather(*deliveries)
    assert [entry.offset for entry in metadata] == list(range(len(sent)))
    records = await read_all(bootstrap, topic, len(sent))
    for record, wanted in zip(records, sent, strict=True):
        assert record.value == wanted["value"]
        assert record.key == wanted.get("key")
    assert records[4].headers == (("a", b"1"), ("n", None))
    assert records[5].headers == (("a", b"1"), ("a", b"text"))
    assert records[6].timestamp_ms == 1_700_000_000_123
    assert [entry.timestamp_ms for entry in metadata] == [r.timestamp_ms for r in records]


@pytest.mark.parametrize("codec", CODECS)
async def test_another_client_reads_what_we_write_and_the_reverse(
    bootstrap: str, topic: str, codec: str
) -> None:
    await create(bootstrap, topic)
    async with Producer(bootstrap, compression_type=codec) as producer:
        for number in range(500):
            producer.send_soon(topic, b"%d" % number, key=b"k", headers={"h": b"v"})
    theirs = await asyncio.to_thread(_read_with_confluent, bootstrap, topic, 500)
    assert theirs == [b"%d" % number for number in range(500)]
    await asyncio.to_thread(_write_with_confluent, bootstrap, topic, codec, 500)
    records = await read_all(bootstrap, topic, 1000)
    assert [record.value for record in records[500:]] == theirs


def _read_with_confluent(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        values: list[bytes] = []
        while len(values) < count:
            messages = consumer.consume(count, timeout=10)
            assert messages
            values += [message.value() for message in messages]
        return values
    finally:
        consumer.close()


def _write_with_confluent(bootstrap: str, topic: str, codec: str, count: int) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 20}
    )
    for number in range(count):
        producer.produce(topic, b"%d" % number)
    assert producer.flush(20) == 0


@pytest.mark.parametrize("acks", ["0", "1", "all"])
async def test_every_level_of_acknowledgement(bootstrap: str, topic: str, acks: str) -> None:
    await create(bootstrap, topic)
    async with Producer(bootstrap, acks=acks) as producer:
        for number in range(100):
            producer.send_soon(topic, b"%d" % number)
    records = await read_all(bootstrap, topic, 100)
    assert [record.value for record in records] == [b"%d" % number for number in range(100)]


async def test_keys_go_where_another_client_puts_them(bootstrap: str, topic: str) -> None:
    await create(bootstrap, topic, partitions=7)
    keys = [b"key-%d" % number for number in range(100)]
    async with Producer(bootstrap) as producer:
        ours = await asyncio.gather(*[producer.send(topic, b"", key=key) for key in keys])
    placed: dict[bytes, int] = {}
    theirs = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"}
    )

    def note(_: object, message: confluent_kafka.Message) -> None:
        placed[message.key()] = message.partition()

    def produce() -> None:
        for key in keys:
            theirs.produce(topic, b"", key=key, on_delivery=note)
        theirs.flush(20)

    await asyncio.to_thread(produce)
    assert {key: entry.partition for key, entry in zip(keys, ours, strict=True)} == placed


async def test_many_records_stay_in_order_per_partition(bootstrap: str, topic: str) -> None:
    await create(bootstrap, topic, partitions=4)
    async with Producer(bootstrap, linger_ms=2) as producer:
        for number in range(20_000):
            producer.send_soon(topic, b"%d" % number)
            if number % 1000 == 0:
                await producer.wait_for_room()
        await producer.flush()
    records = await read_all(bootstrap, topic, 20_000)
    assert len({record.value for record in records}) == 20_000
    for index in range(4):
        values = [int(record.value) for record in records if record.partition == index]
        assert values == sorted(values)
        assert len(values) > 1000


async def test_a_topic_is_created_by_sending_to_it(bootstrap: str, topic: str) -> None:
    async with Producer(bootstrap) as producer:
        assert (await producer.send(topic, b"first")).offset == 0
        assert await producer.partitions_for(topic) == [0]


async def test_broker_refusals_reach_the_caller(bootstrap: str, topic: str) -> None:
    await create(bootstrap, topic, max_message_bytes="2000", cleanup_policy="compact")
    async with Producer(bootstrap, batch_size=100_000, linger_ms=20) as producer:
        with pytest.raises(ClientError) as caught:
            await producer.send(topic, b"no key")
        assert caught.value.code is ErrorCode.INVALID_RECORD
        with pytest.raises(ClientError) as caught:
            await producer.send(topic, b"x" * 3000, key=b"k")
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
        split = [producer.send_soon(topic, b"x" * 100, key=b"k") for _ in range(100)]
        metadata = await asyncio.gather(*split)
    assert [entry.offset for entry in metadata] == list(range(100))


async def test_offsets_and_times(bootstrap: str, topic: str) -> None:
    await create(bootstrap, topic)
    tp = TopicPartition(topic, 0)
    async with Producer(bootstrap) as producer:
        for number in range(10):
            await producer.send(topic, b"%d" % number, timestamp_ms=1_700_000_000_000 + number * 10)
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([tp])
        assert await consumer.beginning_offsets([tp]) == {tp: 0}
        assert await consumer.end_offsets([tp]) == {tp: 10}
        times = await consumer.offsets_for_times({tp: 1_700_000_000_035})
        assert times == {tp: 4}
        assert await consumer.offsets_for_times({tp: 1_800_000_000_000}) == {tp: None}
        await consumer.seek_to_time(1_700_000_000_080, tp)
        assert [r.offset for r in await consumer.poll(timeout_ms=5000)] == [8, 9]
        await consumer.seek_to_time(1_800_000_000_000)
        assert await consumer.position(tp) == 10
    async with Admin(bootstrap) as admin:
        newest = await admin.list_offsets({tp: OffsetSpec.MAX_TIMESTAMP})
        assert newest.raise_first()[tp].offset == 9
        assert (await admin.delete_records({tp: 6})).raise_first() == {tp: 6}
        specs = {tp: OffsetSpec.EARLIEST, TopicPartition(topic, 9): OffsetSpec.EARLIEST}
        found = await admin.list_offsets(specs)
        assert found.successes()[tp].offset == 6
        unknown = found.errors()[TopicPartition(topic, 9)]
        assert unknown.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    records = await read_all(bootstrap, topic, 4)
    assert [record.offset for record in records] == [6, 7, 8, 9]


async def test_a_position_that_was_deleted_is_reset(bootstrap: str, topic: str) -> None:
    await create(bootstrap, topic)
    tp = TopicPartition(topic, 0)
    async with Producer(bootstrap) as producer:
        for number in range(10):
            await producer.send(topic, b"%d" % number)
    async with Admin(bootstrap) as admin:
        await admin.delete_records({tp: 7})
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 2)
        assert (await consumer.poll(timeout_ms=5000))[0].offset == 7


async def test_whole_batches(bootstrap: str, topic: str) -> None:
    await create(bootstrap, topic)
    async with Producer(bootstrap) as producer:
        for _ in range(10_000):
            producer.send_soon(topic, b"x" * 100)
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        next_offset = 0
        while next_offset < 10_000:
            batches = await consumer.poll_batches(timeout_ms=5000)
            assert batches
            for batch in batches:
                assert batch.start_offset == batch.header.base_offset == next_offset
                next_offset = batch.header.next_offset


async def test_the_life_of_a_topic(bootstrap: str, topic: str) -> None:
    async with Admin(bootstrap) as admin:
        rehearsed = await admin.create_topics([NewTopic(topic, 2, 1)], validate_only=True)
        assert rehearsed.raise_first()[topic].partitions == 2
        assert topic not in [listing.name for listing in await admin.list_topics()]
        results = await admin.create_topics(
            [
                NewTopic(topic, 2, 1, configs={"retention.ms": "1000000"}),
                NewTopic("not a name"),
                NewTopic(topic + "-x", 1, 99),
            ]
        )
        assert results.successes()[topic].partitions == 2
        codes = {name: error.code for name, error in results.errors().items()}
        assert codes == {
            "not a name": ErrorCode.INVALID_TOPIC_EXCEPTION,
            topic + "-x": ErrorCode.INVALID_REPLICATION_FACTOR,
        }
        again = await admin.create_topics([NewTopic(topic, 2, 1)])
        with pytest.raises(ClientError, match="TOPIC_ALREADY_EXISTS"):
            again.raise_first()
        # Apache Kafka's controller answers before its broker has heard of the topic.
        await eventually_async(lambda: _has_partitions(admin, topic, 2))
        described = (await admin.describe_topics([topic])).raise_first()[topic]
        assert [entry.index for entry in described.partitions] == [0, 1]
        assert described.replication_factor == 1
        assert described.topic_id == results.successes()[topic].topic_id
        grown = await admin.create_partitions({topic: NewPartitions(5)})
        grown.raise_first()
        await eventually_async(lambda: _has_partitions(admin, topic, 5))
        shrunk = await admin.create_partitions({topic: NewPartitions(1)})
        assert shrunk.errors()[topic].code is ErrorCode.INVALID_PARTITIONS
        gone = await admin.delete_topics([topic, "no-such-topic"])
        assert gone[topic] is None
        assert gone.errors()["no-such-topic"].code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await eventually_async(lambda: _has_partitions(admin, topic, None))


async def test_deleting_by_id(bootstrap: str, topic: str) -> None:
    async with Admin(bootstrap) as admin:
        created = (await admin.create_topics([NewTopic(topic, 1, 1)])).raise_first()[topic]
        deleted = await admin.delete_topics([created.topic_id])
        assert deleted.raise_first() == {created.topic_id: None}


async def test_configurations(bootstrap: str, topic: str) -> None:
    await create(bootstrap, topic, delete_retention_ms="1000000")
    resource = ConfigResource.topic(topic)
    async with Admin(bootstrap) as admin:
        before = (await admin.describe_configs([resource], include_synonyms=True)).raise_first()
        assert before[resource]["delete.retention.ms"].value == "1000000"
        assert before[resource]["delete.retention.ms"].source is ConfigSource.DYNAMIC_TOPIC_CONFIG
        assert before[resource]["segment.bytes"].is_default
        refused = await admin.alter_configs(
            {resource: [AlterOp.set("segment.bytes", "not a number")]}, validate_only=True
        )
        assert refused.errors()[resource].code is ErrorCode.INVALID_CONFIG
        changed = await admin.alter_configs(
            {
                resource: [
                    AlterOp.delete("delete.retention.ms"),
                    AlterOp.set("max.message.bytes", "5000"),
                    AlterOp.append("cleanup.policy", "compact"),
                ]
            }
        )
        changed.raise_first()
        after = (await admin.describe_configs([resource])).raise_first()[resource]
        assert after["delete.retention.ms"].is_default
        assert after["max.message.bytes"].value == "5000"
        assert after["cleanup.policy"].value == "delete,compact"
        assert resource in await admin.list_config_resources([ResourceType.TOPIC])


async def test_the_cluster_and_its_brokers(bootstrap: str, topic: str) -> None:
    await create(bootstrap, topic, partitions=2)
    tp = TopicPartition(topic, 0)
    async with Producer(bootstrap) as producer:
        await producer.send(topic, b"x" * 1000, partition=0)
        async with Admin(bootstrap) as admin:
            cluster = await admin.describe_cluster()
            (broker,) = cluster.brokers
            assert f"{broker.host}:{broker.port}" == bootstrap
            (state,) = (await admin.describe_producers([tp])).raise_first()[tp]
            assert state.last_sequence == 0
            dirs = (await admin.describe_log_dirs()).raise_first()[broker.broker_id]
            sizes = {p: r.size_bytes for d in dirs.values() for p, r in d.replicas.items()}
            assert sizes[tp] > 1000
            assert sizes[TopicPartition(topic, 1)] == 0
            versions = await admin.api_versions(broker.broker_id)
            ranges = {entry.name: entry for entry in versions.apis}
            assert (ranges["PRODUCE"].min_version, ranges["PRODUCE"].max_version) == (0, 13)
            own = ConfigResource.broker(broker.broker_id)
            settings = (await admin.describe_configs([own])).raise_first()[own]
            assert settings["num.partitions"].value == "1"


def test_the_blocking_twin(bootstrap: str, topic: str) -> None:
    before = threading.active_count()
    with blocking.Admin(bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)]).raise_first()
    with blocking.Producer(bootstrap, buffer_memory=100_000) as producer:
        assert producer.send(topic, "0").offset == 0
        deliveries = [producer.send_soon(topic, str(number)) for number in range(1, 3000)]
        assert deliveries[-1].result().offset == 2999
        assert all(delivery.done() for delivery in deliveries)
        wrong = producer.send_soon(topic, object())
        assert isinstance(wrong.exception(), TypeError)
        producer.send_soon(topic, object())
        with pytest.raises(TypeError, match="value_serializer"):
            producer.flush()
    tp = TopicPartition(topic, 0)
    with blocking.Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([tp])
        values = []
        for record in consumer:
            values.append(int(record.value))
            if len(values) == 3000:
                break
        assert values == list(range(3000))
        consumer.seek(tp, 5)
        assert consumer.poll(1, timeout_ms=5000)[0].offset == 5
        assert consumer.end_offsets([tp]) == {tp: 3000}
    assert threading.active_count() == before


@pytest.mark.reference
async def test_committed_reading_hides_aborted_transactions(apache_kafka: Any, topic: str) -> None:
    """Transactions made by another client on Apache Kafka; its consumer is the yardstick."""
    bootstrap = apache_kafka.bootstrap
    await create(bootstrap, topic)
    await asyncio.to_thread(_write_transactions, bootstrap, topic)
    committed = await read_all(bootstrap, topic, 40, isolation_level="read_committed")
    assert {record.value[:1] for record in committed} == {b"c", b"p"}
    assert len(committed) == 40
    everything = await read_all(bootstrap, topic, 60)
    assert len(everything) == 60


def _write_transactions(bootstrap: str, topic: str) -> None:
    """Twenty plain records, twenty committed and twenty aborted ones, mingled."""
    plain = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    transactional = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-tx"}
    )
    transactional.init_transactions()
    for number in range(20):
        transactional.begin_transaction()
        kind = "c" if number % 2 else "a"
        transactional.produce(topic, f"{kind}{number}-1")
        transactional.flush()
        plain.produce(topic, f"p{number}")
        plain.flush()
        transactional.produce(topic, f"{kind}{number}-2")
        transactional.flush()
        if number % 2:
            transactional.commit_transaction()
        else:
            transactional.abort_transaction()


async def test_a_partition_that_is_new_to_us(bootstrap: str, topic: str) -> None:
    """Its position is given, so nobody looks it up: the fetcher itself has to ask who leads it."""
    await create(bootstrap, topic)
    async with Consumer(bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 0)
        async with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
            await producer.send(topic, b"old", partition=0)
            assert [record.value for record in await consumer.poll(timeout_ms=10_000)] == [b"old"]
            (await admin.create_partitions({topic: NewPartitions(2)})).raise_first()
            await eventually_async(lambda: _has_partitions(admin, topic, 2))
        async with Producer(bootstrap) as producer:
            await producer.send(topic, b"new", partition=1)
        consumer.assign([TopicPartition(topic, 1)])
        consumer.seek(TopicPartition(topic, 1), 0)
        assert [record.value for record in await consumer.poll(timeout_ms=10_000)] == [b"new"]
