"""Moving replicas, as `cluster reassign` and `kafka-reassign-partitions` both need it.

The plan of a move is Kafka's JSON document, so that files of one tool work with the other. `parse`
and `to_document` are its two ends; `states` says how far the moves of a document are; `Throttle`
limits what they may take, through the same settings as Kafka's tool.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from tidemill.errors import TidemillError
from tidemill.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.client import Admin
    from tidemill.client.admin_types import Reassignment, Replica, TopicDescription

T = TypeVar("T")

VERSION = 1
ANY_DIRECTORY = "any"

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
DIRECTORY_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"

Assignment = Mapping[TopicPartition, tuple[int, ...]]


class DocumentError(TidemillError):
    """A document that says nothing that could be done; in Kafka's words."""


@dataclass(frozen=True, slots=True)
class Document:
    """Where partitions shall be: every entry as written, and the directories that are named."""

    entries: tuple[tuple[TopicPartition, tuple[int, ...]], ...]
    directories: Mapping[Replica, str] = field(default_factory=dict)

    @property
    def assignment(self) -> dict[TopicPartition, tuple[int, ...]]:
        return dict(self.entries)

    @property
    def topics(self) -> list[str]:
        return sorted({tp.topic for tp, _ in self.entries})


# --- the document ---------------------------------------------------------------------------------


def parse(text: str) -> Document:
    """Read a document; a partition may still be in it twice, or without replicas."""
    from tidemill.client.admin_types import Replica

    entries: list[tuple[TopicPartition, tuple[int, ...]]] = []
    directories: dict[Replica, str] = {}
    for row in _rows(text, "partitions"):
        tp = TopicPartition(_field(row, "topic", str), _field(row, "partition", int))
        replicas = [_value(each, int, "replicas") for each in _field(row, "replicas", list)]
        paths = row.get("log_dirs") or [ANY_DIRECTORY] * len(replicas)
        if len(paths) != len(replicas):
            raise DocumentError(
                f"Size of replicas list {replicas} is different from size of log dirs list "
                f"[{', '.join(map(str, paths))}] for partition {tp}"
            )
        entries.append((tp, tuple(replicas)))
        directories |= {
            Replica(*tp, broker): str(path)
            for broker, path in zip(replicas, paths, strict=True)
            if path != ANY_DIRECTORY
        }
    return Document(tuple(entries), directories)


def parse_topics(text: str) -> list[str]:
    """The topics of a document for `--generate`; one may be named twice."""
    return [_field(row, "topic", str) for row in _rows(text, "topics")]


def _rows(text: str, name: str) -> list[dict[str, Any]]:
    try:
        document = json.loads(text)
    except ValueError:
        raise DocumentError("The input string is not a valid JSON") from None
    if not isinstance(document, dict):
        raise DocumentError("The input string is not a valid JSON")
    version = document.get("version", VERSION)
    if version != VERSION:
        raise DocumentError(f"Not supported version field value {version}")
    rows = document.get(name, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DocumentError(f"{name} is no list of objects")
    return rows


def _field(row: Mapping[str, Any], name: str, kind: type) -> Any:
    if name not in row:
        raise DocumentError(f"No such field exists: `{name}`")
    return _value(row[name], kind, name)


def _value(value: Any, kind: type, name: str) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise DocumentError(f"{name}: {json.dumps(value)} is no {kind.__name__}")
    return value


def check_executable(document: Document) -> None:
    """Refuse what cannot be begun: nothing, no replicas, anything twice."""
    if not document.entries:
        raise DocumentError("Partition reassignment list cannot be empty")
    if any(not replicas for _, replicas in document.entries):
        raise DocumentError("Partition replica list cannot be empty")
    twice = doubles(tp for tp, _ in document.entries)
    if twice:
        listed = ",".join(map(str, twice))
        raise DocumentError(f"Partition reassignment contains duplicate topic partitions: {listed}")
    repeated = [
        f"{tp} contains multiple entries for {','.join(map(str, again))}"
        for tp, replicas in document.entries
        if (again := doubles(replicas))
    ]
    if repeated:
        listed = ". ".join(repeated)
        raise DocumentError(f"Partition replica lists may not contain duplicate entries: {listed}")


def doubles(items: Iterable[T]) -> list[T]:
    """What is there more than once, each named once."""
    seen: set[T] = set()
    found: dict[T, None] = {}
    for item in items:
        if item in seen:
            found[item] = None
        seen.add(item)
    return list(found)


def to_document(assignment: Assignment, directories: Mapping[Replica, str] | None = None) -> str:
    """The document of an assignment, on one line, as Kafka prints it."""
    from tidemill.client.admin_types import Replica

    known = directories or {}
    rows = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "replicas": list(assignment[tp]),
            "log_dirs": [
                known.get(Replica(*tp, broker), ANY_DIRECTORY) for broker in assignment[tp]
            ],
        }
        for tp in sorted(assignment)
    ]
    return json.dumps({"version": VERSION, "partitions": rows}, separators=(",", ":"))


# --- how things are -------------------------------------------------------------------------------


def assignment_of(topics: Iterable[TopicDescription]) -> dict[TopicPartition, tuple[int, ...]]:
    return {
        TopicPartition(topic.name, partition.index): partition.replicas
        for topic in topics
        for partition in topic.partitions
    }


async def sizes(admin: Admin) -> dict[Replica, int]:
    """Bytes of each replica, of every broker that answers."""
    from tidemill.client.admin_types import Replica

    return {
        Replica(*tp, broker): replica.size_bytes
        for broker, directories in (await admin.describe_log_dirs()).successes().items()
        for directory in directories.values()
        for tp, replica in directory.replicas.items()
        if not replica.is_future
    }


def largest(replicas: Mapping[Replica, int]) -> dict[TopicPartition, int]:
    """Bytes of each partition: those of its largest replica."""
    found: dict[TopicPartition, int] = {}
    for replica, size in replicas.items():
        tp = TopicPartition(replica.topic, replica.partition)
        found[tp] = max(found.get(tp, 0), size)
    return found


@dataclass(frozen=True, slots=True)
class State:
    """How far one partition of a document is."""

    current: tuple[int, ...]
    target: tuple[int, ...]
    done: bool

    @property
    def reached(self) -> bool:
        return self.done and self.current == self.target


async def states(
    admin: Admin, document: Document, ongoing: Mapping[TopicPartition, Reassignment]
) -> dict[TopicPartition, State]:
    """The state of each partition; one that does not exist has no replicas at all."""
    targets = document.assignment
    names = sorted({tp.topic for tp in targets if tp not in ongoing})
    current = assignment_of((await admin.describe_topics(names)).successes().values())
    return {
        tp: State(ongoing[tp].replicas, targets[tp], done=False)
        if tp in ongoing
        else State(current.get(tp, ()), targets[tp], done=True)
        for tp in sorted(targets)
    }


# --- throttles ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Throttle:
    """Which replicas send and which receive, by topic: what a rate is to apply to."""

    leaders: Mapping[str, str]
    followers: Mapping[str, str]
    brokers: tuple[int, ...]


def throttle_of(
    ongoing: Mapping[TopicPartition, Reassignment], current: Assignment, proposed: Assignment
) -> Throttle:
    """Those that take part in the moves under way and in the proposed ones."""
    sources = {tp: set(each.replicas) - set(each.adding) for tp, each in ongoing.items()}
    targets = {tp: set(each.adding) for tp, each in ongoing.items()}
    for tp, replicas in proposed.items():
        sources.setdefault(tp, set(current.get(tp, ())))
        targets[tp] = set(replicas) - sources[tp]
    brokers = set[int]().union(*sources.values(), *targets.values())
    return Throttle(_by_topic(sources), _by_topic(targets), tuple(sorted(brokers)))


def _by_topic(replicas: Mapping[TopicPartition, set[int]]) -> dict[str, str]:
    found: dict[str, set[str]] = {}
    for tp, brokers in replicas.items():
        pairs = found.setdefault(tp.topic, set())
        pairs.update(f"{tp.partition}:{broker}" for broker in brokers)
    return {topic: ",".join(sorted(pairs)) for topic, pairs in found.items()}


async def set_throttle(admin: Admin, throttle: Throttle, bytes_per_s: int) -> None:
    from tidemill.client.admin_types import AlterOp, ConfigResource

    rates = [AlterOp.set(key, str(bytes_per_s)) for key in (LEADER_RATE, FOLLOWER_RATE)]
    changes = {ConfigResource.broker(broker): rates for broker in throttle.brokers}
    for topic in {*throttle.leaders, *throttle.followers}:
        changes[ConfigResource.topic(topic)] = [
            AlterOp.set(LEADER_REPLICAS, throttle.leaders.get(topic, "")),
            AlterOp.set(FOLLOWER_REPLICAS, throttle.followers.get(topic, "")),
        ]
    (await admin.alter_configs(changes)).raise_first()


async def set_directory_throttle(admin: Admin, brokers: Iterable[int], bytes_per_s: int) -> None:
    from tidemill.client.admin_types import AlterOp, ConfigResource

    rate = [AlterOp.set(DIRECTORY_RATE, str(bytes_per_s))]
    changes = {ConfigResource.broker(broker): rate for broker in brokers}
    (await admin.alter_configs(changes)).raise_first()


async def clear_throttles(admin: Admin, brokers: Sequence[int], topics: Sequence[str]) -> None:
    """Take every throttle off; nobody knows any more which brokers an earlier move had set."""
    from tidemill.client.admin_types import AlterOp, ConfigResource

    rates = [AlterOp.delete(key) for key in (LEADER_RATE, FOLLOWER_RATE, DIRECTORY_RATE)]
    replicas = [AlterOp.delete(key) for key in (LEADER_REPLICAS, FOLLOWER_REPLICAS)]
    changes = {ConfigResource.broker(broker): rates for broker in brokers}
    changes |= {ConfigResource.topic(topic): replicas for topic in topics}
    (await admin.alter_configs(changes)).raise_first()
