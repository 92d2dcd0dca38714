"""Consumer groups of real clients over a live broker: joins, leaves, kills, restarts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.compat.group_clients import (
    MEMBERS,
    SESSION_MS,
    ConfluentMember,
    Member,
    killable,
)
from tests.waiting import eventually

from tidemill.testing.process import BrokerProcess

PARTITIONS = 6
ALL = frozenset(range(PARTITIONS))


@pytest.fixture(scope="module")
def group_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data_dir = tmp_path_factory.mktemp("groups") / "data"
    settings = {
        "group.initial.rebalance.delay.ms": "100",
        "group.consumer.assignment.interval.ms": "0",
        "group.consumer.heartbeat.interval.ms": "500",
        "group.consumer.min.heartbeat.interval.ms": "500",
        "offsets.topic.num.partitions": "5",
    }
    with BrokerProcess(data_dir, settings) as process:
        yield process


@pytest.fixture
def topic(group_broker: BrokerProcess, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("[", "-").replace("]", "").replace("_", "-")
    admin = AdminClient({"bootstrap.servers": group_broker.bootstrap})
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 1)]).values():
        future.result(10)
    return str(name)


def produce(broker: BrokerProcess, topic: str, count: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(20) == 0


def split_among(*members: Member) -> bool:
    """Whether the members have all partitions, each once."""
    parts = [member.assigned for member in members]
    return all(parts) and frozenset().union(*parts) == ALL and sum(map(len, parts)) == PARTITIONS


def committed(broker: BrokerProcess, group: str, topic: str) -> dict[int, int]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    wanted = [confluent_kafka.TopicPartition(topic, index) for index in range(PARTITIONS)]
    found = {each.partition: each.offset for each in consumer.committed(wanted, timeout=10)}
    consumer.close()
    return found


@pytest.mark.parametrize("client", MEMBERS)
def test_a_group_shares_grows_and_shrinks(
    group_broker: BrokerProcess, topic: str, client: str
) -> None:
    make, group = MEMBERS[client], f"g-{topic}"
    produce(group_broker, topic, 60)
    first = make(group_broker.bootstrap, group, topic)
    first.start()
    eventually(lambda: len(set(first.seen)) == 60, "one member reads all")
    second = make(group_broker.bootstrap, group, topic)
    second.start()
    eventually(lambda: split_among(first, second), "two members share")
    second.stop()
    eventually(lambda: first.assigned == ALL, "the first takes over")
    first.stop()
    assert committed(group_broker, group, topic) == dict.fromkeys(range(PARTITIONS), 10)


@pytest.mark.parametrize("strategy", ["roundrobin", "cooperative-sticky"])
def test_strategies(group_broker: BrokerProcess, topic: str, strategy: str) -> None:
    settings = {"partition.assignment.strategy": strategy}
    members = [
        ConfluentMember(group_broker.bootstrap, f"g-{topic}", topic, **settings) for _ in range(2)
    ]
    for member in members:
        member.start()
    eventually(lambda: split_among(*members), "the members share")
    for member in members:
        member.stop()


def test_clients_mix_in_one_group(group_broker: BrokerProcess, topic: str) -> None:
    produce(group_broker, topic, 60)
    members = [make(group_broker.bootstrap, f"g-{topic}", topic) for make in MEMBERS.values()]
    for member in members:
        member.start()
    eventually(lambda: split_among(*members), "three kinds of clients share")
    eventually(
        lambda: len({each for member in members for each in member.seen}) == 60, "all is read"
    )
    for member in members:
        member.stop()


def test_a_killed_member_is_replaced_within_its_session(
    group_broker: BrokerProcess, topic: str
) -> None:
    group = f"g-{topic}"
    victim = killable(group_broker.bootstrap, group, topic)
    heir = ConfluentMember(group_broker.bootstrap, group, topic)
    heir.start()
    try:
        eventually(lambda: 0 < len(heir.assigned) < PARTITIONS, "both have a share")
    finally:
        victim.kill()
        victim.wait()
        assert victim.stdout is not None
        victim.stdout.close()
    eventually(lambda: heir.assigned == ALL, "the heir has all", within_s=SESSION_MS / 1000 + 4)
    heir.stop()


def test_a_static_member_restarts_without_a_rebalance(
    group_broker: BrokerProcess, topic: str
) -> None:
    """rule J3: the same instance comes back, and nobody else notices."""
    group = f"g-{topic}"

    def member(instance: str) -> ConfluentMember:
        made = ConfluentMember(
            group_broker.bootstrap, group, topic, **{"group.instance.id": instance}
        )
        made.start()
        return made

    one, two = member("one"), member("two")
    eventually(lambda: split_among(one, two), "two static members share")
    had, rebalances = two.assigned, one.rebalances
    two.stop()
    two = member("two")
    eventually(lambda: two.assigned == had, "the same partitions again")
    assert one.rebalances == rebalances
    one.stop()
    two.stop()


def test_the_newer_protocol(group_broker: BrokerProcess, topic: str) -> None:
    produce(group_broker, topic, 60)
    settings = {"group.protocol": "consumer"}
    first, second = (
        ConfluentMember(group_broker.bootstrap, f"g-{topic}", topic, **settings) for _ in range(2)
    )
    first.start()
    eventually(lambda: first.assigned == ALL, "one member has all")
    second.start()
    eventually(lambda: split_among(first, second), "two members share")
    eventually(lambda: len(set(first.seen) | set(second.seen)) == 60, "all is read")
    second.stop()
    eventually(lambda: first.assigned == ALL, "the first takes over")
    first.stop()
    assert committed(group_broker, f"g-{topic}", topic) == dict.fromkeys(range(PARTITIONS), 10)


@pytest.mark.parametrize("client", MEMBERS)
def test_a_group_moves_to_the_newer_protocol_and_back(
    group_broker: BrokerProcess, topic: str, client: str
) -> None:
    """KIP-848: members of both protocols in one live group, on the way up and on the way down."""
    group = f"g-{topic}"
    produce(group_broker, topic, 60)
    old = MEMBERS[client](group_broker.bootstrap, group, topic)
    old.start()
    eventually(lambda: old.assigned == ALL, "a classic member has all")
    settings = {"group.protocol": "consumer"}
    new = ConfluentMember(group_broker.bootstrap, group, topic, **settings)
    new.start()
    eventually(lambda: split_among(old, new), "members of both protocols share")
    new.stop()
    eventually(lambda: old.assigned == ALL, "the classic member has all again")
    new = ConfluentMember(group_broker.bootstrap, group, topic, **settings)
    new.start()
    eventually(lambda: split_among(old, new), "they share again")
    old.stop()
    eventually(lambda: new.assigned == ALL, "the newer protocol has all")
    tens = dict.fromkeys(range(PARTITIONS), 10)
    eventually(lambda: committed(group_broker, group, topic) == tens, "all is read")
    new.stop()


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_broker_restart_under_a_stable_group(tmp_path: Path, how: str) -> None:
    """rule J7: no rebalance and no lost commit, whether the broker went in good order or not."""
    with BrokerProcess(tmp_path / "data", {"group.initial.rebalance.delay.ms": "100"}) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for future in admin.create_topics([NewTopic("t", PARTITIONS, 1)]).values():
            future.result(10)
        produce(broker, "t", 60)
        first, second = (ConfluentMember(broker.bootstrap, "g", "t") for _ in range(2))
        first.start()
        second.start()
        eventually(lambda: split_among(first, second), "two members share")
        eventually(lambda: len(set(first.seen) | set(second.seen)) == 60, "all is read")
        tens = dict.fromkeys(range(PARTITIONS), 10)
        eventually(lambda: committed(broker, "g", "t") == tens, "all is committed")
        rebalances = first.rebalances, second.rebalances
        getattr(broker, how)()
        broker.start()
        assert committed(broker, "g", "t") == tens
        produce(broker, "t", 60)
        eventually(lambda: len(set(first.seen) | set(second.seen)) == 120, "they read on")
        assert (first.rebalances, second.rebalances) == rebalances
        assert len(first.seen) + len(second.seen) == 120, "nothing is read twice"
        first.stop()
        second.stop()
