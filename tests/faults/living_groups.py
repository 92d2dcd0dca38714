"""Groups of real clients that go on while something is done to their brokers or to themselves.

`Group` is two members of one kind, in processes of their own. That nothing was rebalanced is read
from the group itself: its generation (as the coordinator wrote it to `__consumer_offsets`) or its
epoch, and what its members say in their diaries.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import confluent_kafka
from tests.faults.churn import Kind, Watcher, create_topics, eventually, unrest
from tests.faults.group_member import Diary, Place, Plan, Seen, spawn

from tidemill.client import ClientError, Consumer
from tidemill.coordinators.records import GroupMetadataKey, GroupMetadataValue, decode_record
from tidemill.types import TopicPartition

TOPIC = "restarted"
PARTITIONS = 6
PLACES: frozenset[Place] = frozenset((TOPIC, partition) for partition in range(PARTITIONS))
SESSION_MS = 12_000
"""Longer than a broker takes to come back on a busy machine."""

LIMIT_S = 30
OFFSETS_TOPIC = "__consumer_offsets"
COORDINATOR_MOVES = {
    confluent_kafka.KafkaError.NOT_COORDINATOR,
    confluent_kafka.KafkaError.COORDINATOR_NOT_AVAILABLE,
    confluent_kafka.KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}

KINDS = {
    "confluent": Kind("confluent"),
    "confluent-cooperative": Kind("confluent", strategy="cooperative-sticky"),
    "confluent-consumer": Kind("confluent", "consumer"),
    "kafka-python": Kind("kafka-python"),
    "aiokafka": Kind("aiokafka"),
    "tidemill": Kind("tidemill"),
    "tidemill-consumer": Kind("tidemill", "consumer"),
}


@dataclass(slots=True)
class Live:
    """A member that runs."""

    plan: Plan
    process: subprocess.Popen[bytes]
    diary: Diary

    def owned(self) -> frozenset[Place]:
        self.diary.catch_up()
        return self.diary.owned

    def changes(self) -> int:
        self.diary.catch_up()
        return len(self.diary.assigned)

    def seen(self) -> list[Seen]:
        self.diary.catch_up()
        return [seen for _, seen in self.diary.read]

    def complaints(self) -> str:
        return Path(f"{self.plan.diary}.err").read_text()[-1000:]


class Group:
    """Two members of one kind, and what the broker says of them."""

    def __init__(
        self,
        name: str,
        bootstrap: str,
        folder: Path,
        kind: Kind,
        *,
        static: bool,
        session_ms: int = SESSION_MS,
    ) -> None:
        self.name = name
        self._bootstrap = bootstrap
        self._folder = folder
        self._kind = kind
        self._static = static
        self._session_ms = session_ms
        self._watcher = Watcher(bootstrap, name)
        self._number = 0
        self.members: dict[str, Live] = {}

    def start(self, *names: str) -> None:
        for name in names:
            self._number += 1
            plan = Plan(
                client=self._kind.client,
                name=name,
                bootstrap=self._bootstrap,
                group=self.name,
                topics=(TOPIC,),
                diary=str(self._folder / f"{self.name}-{name}-{self._number}"),
                protocol=self._kind.protocol,
                strategy=self._kind.strategy,
                session_ms=self._session_ms,
                commit_ms=200,
                instance=name if self._static else None,
            )
            self.members[name] = Live(plan, spawn(plan), Diary(Path(plan.diary)))

    def settle(self) -> None:
        """Until all have their share and know it."""
        eventually(self._unrest, LIMIT_S)

    def _unrest(self) -> str:
        try:
            reason = unrest(self._watcher.describe(), set(self.members), PLACES)
        except ClientError as error:
            reason = str(error)
        told = [place for member in self.members.values() for place in member.owned()]
        if not reason and sorted(told) != sorted(PLACES):
            reason = f"the members believe they have {sorted(told)}"
        return reason and f"{self.name}: {reason}; {self._complaints()}"

    def _complaints(self) -> list[str]:
        return [member.complaints() for member in self.members.values()]

    def seen(self) -> list[Seen]:
        return [seen for member in self.members.values() for seen in member.seen()]

    def epoch(self) -> int:
        """What grows with every rebalance."""
        epoch = self._watcher.describe().epoch
        return generation(self._bootstrap, self.name) if epoch is None else epoch

    def assignment_changes(self) -> dict[str, int]:
        return {name: member.changes() for name, member in self.members.items()}

    def committed(self) -> dict[int, int]:
        return committed(self._bootstrap, self.name)

    def end(self) -> None:
        for member in self.members.values():
            member.process.terminate()
        for member in self.members.values():
            finish(member.process)
        self._watcher.close()


def committed(bootstrap: str, group: str) -> dict[int, int]:
    """A group's offset in each partition of the topic, read by somebody who has just come."""
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0}
    consumer = confluent_kafka.Consumer(settings)
    wanted = [confluent_kafka.TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
    found: dict[int, int] = {}

    def moving() -> str:
        """While a group changes its coordinator, librdkafka hands a refusal on to who asks."""
        try:
            answer = consumer.committed(wanted, timeout=LIMIT_S)
        except confluent_kafka.KafkaException as error:
            if error.args[0].code() not in COORDINATOR_MOVES:
                raise
            return str(error)
        found.update({each.partition: each.offset for each in answer})
        return ""

    eventually(moving, LIMIT_S)
    consumer.close()
    return found


def finish(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def generation(bootstrap: str, group: str) -> int:
    """The last generation of a classic group that the coordinator has written."""
    return asyncio.run(_generation(bootstrap, group))


async def _generation(bootstrap: str, group: str) -> int:
    found = -1
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        parts = [
            TopicPartition(OFFSETS_TOPIC, p) for p in await consumer.partitions_for(OFFSETS_TOPIC)
        ]
        consumer.assign(parts)
        ends = await consumer.end_offsets(parts)
        while any([await consumer.position(part) < end for part, end in ends.items()]):
            for record in await consumer.poll(timeout_ms=1_000):
                decoded = decode_record(record.key, record.value)
                if decoded is None or not isinstance(decoded.key, GroupMetadataKey):
                    continue
                if decoded.key.group == group and isinstance(decoded.value, GroupMetadataValue):
                    found = decoded.value.generation
    return found


def produce(bootstrap: str, count: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(TOPIC, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(LIMIT_S) == 0


@contextmanager
def living_groups(
    bootstrap: str,
    folder: Path,
    kinds: Mapping[str, Kind],
    *,
    static: bool,
    session_ms: int = SESSION_MS,
) -> Iterator[list[Group]]:
    """A group of each kind, at rest, on a topic that is made for them."""
    with ExitStack() as ends:
        create_topics(bootstrap, [TOPIC], PARTITIONS)
        groups = [
            Group(f"g-{name}", bootstrap, folder, kind, static=static, session_ms=session_ms)
            for name, kind in kinds.items()
        ]
        for group in groups:
            ends.callback(group.end)
            group.start("one", "two")
        for group in groups:
            group.settle()
        yield groups


def read_to(groups: list[Group], count: int) -> None:
    """All groups have read and committed so many records."""
    per_partition = dict.fromkeys(range(PARTITIONS), count // PARTITIONS)

    def missing() -> str:
        for group in groups:
            if len(set(group.seen())) < count:
                return f"{group.name} has read {len(set(group.seen()))}"
            if group.committed() != per_partition:
                return f"{group.name} has committed {group.committed()}"
        return ""

    eventually(missing, LIMIT_S)
