"""Each client's own admin calls: topics, partitions, configs, offsets, records deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import aiokafka.admin
import confluent_kafka
import kafka
import kafka.admin
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from tests.compat.clients import Sent, confluent_produce
from tests.waiting import eventually

from tidemill.testing.process import BrokerProcess

# The foreign clients leave sockets to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

SET, APPEND = AlterConfigOpType.SET, AlterConfigOpType.APPEND


@contextmanager
def kafka_python_admin(broker: BrokerProcess) -> Iterator[kafka.KafkaAdminClient]:
    admin = kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        yield admin
    finally:
        admin.close()


def confluent_admin(broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def test_confluent_topics_and_partitions(broker: BrokerProcess) -> None:
    admin = confluent_admin(broker)
    admin.create_topics([NewTopic("c-topics", 3, 1)])["c-topics"].result()

    def partitions() -> int:
        return len(admin.list_topics("c-topics", timeout=10).topics["c-topics"].partitions)

    eventually(lambda: partitions() == 3, "3 partitions")
    admin.create_partitions([NewPartitions("c-topics", 5)])["c-topics"].result()
    eventually(lambda: partitions() == 5, "5 partitions")
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        admin.create_partitions([NewPartitions("c-topics", 2)])["c-topics"].result()
    assert refused.value.args[0].code() == confluent_kafka.KafkaError.INVALID_PARTITIONS
    with pytest.raises(confluent_kafka.KafkaException) as exists:
        admin.create_topics([NewTopic("c-topics", 3, 1)])["c-topics"].result()
    assert exists.value.args[0].code() == confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS
    admin.delete_topics(["c-topics"])["c-topics"].result()
    eventually(lambda: "c-topics" not in admin.list_topics(timeout=10).topics, "deleted")


def test_confluent_configs_of_topics_and_brokers(broker: BrokerProcess) -> None:
    admin = confluent_admin(broker)
    admin.create_topics([NewTopic("c-configs", 1, 1, config={"retention.ms": "1000"})])[
        "c-configs"
    ].result()
    resource = ConfigResource(ResourceType.TOPIC, "c-configs")
    found = admin.describe_configs([resource])[resource].result()
    assert found["retention.ms"].value == "1000"
    assert found["cleanup.policy"].value == "delete"
    change = ConfigResource(
        ResourceType.TOPIC,
        "c-configs",
        incremental_configs=[
            ConfigEntry("retention.ms", "2000", incremental_operation=AlterConfigOpType.SET),
            ConfigEntry(
                "cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND
            ),
        ],
    )
    admin.incremental_alter_configs([change])[change].result()
    found = admin.describe_configs([resource])[resource].result()
    assert found["retention.ms"].value == "2000"
    assert sorted(found["cleanup.policy"].value.split(",")) == ["compact", "delete"]
    broker_id = str(next(iter(admin.list_topics(timeout=10).brokers)))
    of_broker = ConfigResource(ResourceType.BROKER, broker_id)
    assert admin.describe_configs([of_broker])[of_broker].result()["num.partitions"].value == "4"


def test_confluent_offsets_cluster_and_deleted_records(broker: BrokerProcess) -> None:
    admin = confluent_admin(broker)
    admin.create_topics([NewTopic("c-offsets", 1, 1)])["c-offsets"].result()
    sent = [Sent(b"%d" % number, timestamp_ms=1_700_000_000_000 + number) for number in range(10)]
    confluent_produce(broker.bootstrap, "c-offsets", 0, "lz4", sent)
    where = TopicPartition("c-offsets", 0)

    def ask(spec: OffsetSpec) -> int:
        return int(admin.list_offsets({where: spec})[where].result().offset)

    assert ask(OffsetSpec.earliest()) == 0
    assert ask(OffsetSpec.latest()) == 10
    assert ask(OffsetSpec.for_timestamp(1_700_000_000_004)) == 4
    assert ask(OffsetSpec.max_timestamp()) == 9
    cut = admin.delete_records([TopicPartition("c-offsets", 0, 6)])
    assert next(iter(cut.values())).result().low_watermark == 6
    assert ask(OffsetSpec.earliest()) == 6
    cluster = admin.describe_cluster().result()
    assert len(cluster.nodes) == 1
    assert cluster.cluster_id
    described = admin.describe_topics(confluent_kafka.TopicCollection(["c-offsets"]))["c-offsets"]
    assert described.result().partitions[0].leader.id == cluster.controller.id


def test_kafka_python_admin(broker: BrokerProcess) -> None:
    with kafka_python_admin(broker) as admin:
        admin.create_topics([kafka.admin.NewTopic("k-topics", 2, 1)])
        assert "k-topics" in admin.list_topics()
        described = admin.describe_topics(["k-topics"])
        assert len(described[0]["partitions"]) == 2
        resource = kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, "k-topics")
        assert admin.describe_configs([resource])
        admin.create_partitions({"k-topics": kafka.admin.NewPartitions(4)})
        eventually(
            lambda: len(admin.describe_topics(["k-topics"])[0]["partitions"]) == 4, "4 partitions"
        )
        assert admin.describe_cluster()["cluster_id"]
        assert admin.describe_log_dirs()
        admin.delete_topics(["k-topics"])
        eventually(lambda: "k-topics" not in admin.list_topics(), "deleted")


def test_aiokafka_admin(broker: BrokerProcess) -> None:
    async def run() -> None:
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        try:
            await admin.create_topics([aiokafka.admin.NewTopic("a-topics", 2, 1)])
            assert "a-topics" in await admin.list_topics()
            described = await admin.describe_topics(["a-topics"])
            assert len(described[0]["partitions"]) == 2
            await admin.create_partitions({"a-topics": aiokafka.admin.NewPartitions(3)})
            resource = aiokafka.admin.config_resource.ConfigResource(
                aiokafka.admin.config_resource.ConfigResourceType.TOPIC, "a-topics"
            )
            assert await admin.describe_configs([resource])
            await admin.delete_topics(["a-topics"])
            for _ in range(100):
                if "a-topics" not in await admin.list_topics():
                    return
                await asyncio.sleep(0.05)
            raise AssertionError("a-topics was not deleted")
        finally:
            await admin.close()

    asyncio.run(run())


def test_a_topic_is_created_by_asking_for_it(broker: BrokerProcess) -> None:
    offsets = confluent_produce(broker.bootstrap, "made-by-asking", 3, "none", [Sent(b"first")])
    assert offsets == [0]
    found = confluent_admin(broker).list_topics("made-by-asking", timeout=10)
    assert len(found.topics["made-by-asking"].partitions) == 4
