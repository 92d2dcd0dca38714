"""What `Admin` takes and gives: plain frozen values, one per noun.

Calls about many things answer with `Results`: a dict whose values are the result, or the
`ClientError` that befell just this one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Generic, NamedTuple, TypeVar
from uuid import UUID

from tidemill.client.errors import ClientError
from tidemill.types import ZERO_TOPIC_ID, TopicPartition

K = TypeVar("K")
V = TypeVar("V")


class Results(dict[K, V | ClientError], Generic[K, V]):
    """Per key a result or the error of that key alone; `raise_first` for all-or-nothing callers."""

    def raise_first(self) -> dict[K, V]:
        """Raise the first error there is; otherwise return the results."""
        for value in self.values():
            if isinstance(value, ClientError):
                raise value
        return self.successes()

    def successes(self) -> dict[K, V]:
        return {key: value for key, value in self.items() if not isinstance(value, ClientError)}

    def errors(self) -> dict[K, ClientError]:
        return {key: value for key, value in self.items() if isinstance(value, ClientError)}


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; -1 means the brokers' default. `assignments` names the replicas."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignments: Mapping[int, Sequence[int]] | None = None
    configs: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """Grow a topic to `total` partitions; `assignments` has one list of replicas per new one."""

    total: int
    assignments: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """What a broker made of a `NewTopic`; numbers are -1 when an old broker does not say."""

    name: str
    topic_id: UUID
    partitions: int
    replication_factor: int
    configs: tuple[ConfigEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicListing:
    name: str
    topic_id: UUID = ZERO_TOPIC_ID
    is_internal: bool = False


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition; `leader` is None while there is none."""

    index: int
    leader: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...] = ()
    elr: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class TopicDescription:
    name: str
    topic_id: UUID
    is_internal: bool
    partitions: tuple[PartitionDescription, ...]

    @property
    def replication_factor(self) -> int:
        return len(self.partitions[0].replicas) if self.partitions else 0


class OffsetSpec(int):
    """Which offset of a partition is wanted: one of the names below, or `at_time(ms)`."""

    EARLIEST: OffsetSpec
    LATEST: OffsetSpec
    MAX_TIMESTAMP: OffsetSpec
    EARLIEST_LOCAL: OffsetSpec
    LATEST_TIERED: OffsetSpec

    @classmethod
    def at_time(cls, timestamp_ms: int) -> OffsetSpec:
        """The first record whose timestamp is this or later."""
        if timestamp_ms < 0:
            raise ValueError(f"a time is milliseconds since 1970, not {timestamp_ms}")
        return cls(timestamp_ms)


OffsetSpec.LATEST = OffsetSpec(-1)
OffsetSpec.EARLIEST = OffsetSpec(-2)
OffsetSpec.MAX_TIMESTAMP = OffsetSpec(-3)
OffsetSpec.EARLIEST_LOCAL = OffsetSpec(-4)
OffsetSpec.LATEST_TIERED = OffsetSpec(-5)


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """`offset` is -1 when no record answers the question (no record that late, say)."""

    offset: int
    timestamp_ms: int = -1
    leader_epoch: int = -1


class ResourceType(IntEnum):
    """What a configuration belongs to."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """A topic, a broker (its id as text), or with an empty name all brokers' default."""

    type: ResourceType
    name: str

    @classmethod
    def topic(cls, name: str) -> ConfigResource:
        return cls(ResourceType.TOPIC, name)

    @classmethod
    def broker(cls, broker_id: int | None = None) -> ConfigResource:
        """One broker, or with None the cluster-wide default of all brokers."""
        return cls(ResourceType.BROKER, "" if broker_id is None else str(broker_id))


class ConfigSource(IntEnum):
    """Where a value in force comes from."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8


class ConfigType(IntEnum):
    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One key of a resource; `value` is None when it is sensitive or unset."""

    name: str
    value: str | None
    source: ConfigSource = ConfigSource.UNKNOWN
    read_only: bool = False
    sensitive: bool = False
    synonyms: tuple[ConfigSynonym, ...] = ()
    type: ConfigType = ConfigType.UNKNOWN
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        return self.source is ConfigSource.DEFAULT_CONFIG


class AlterOpType(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class AlterOp:
    """One change of one key; append and subtract work on list-valued keys."""

    op: AlterOpType
    name: str
    value: str | None = None

    @classmethod
    def set(cls, name: str, value: str) -> AlterOp:
        return cls(AlterOpType.SET, name, value)

    @classmethod
    def delete(cls, name: str) -> AlterOp:
        return cls(AlterOpType.DELETE, name)

    @classmethod
    def append(cls, name: str, value: str) -> AlterOp:
        return cls(AlterOpType.APPEND, name, value)

    @classmethod
    def subtract(cls, name: str, value: str) -> AlterOp:
        return cls(AlterOpType.SUBTRACT, name, value)


@dataclass(frozen=True, slots=True)
class BrokerDescription:
    broker_id: int
    host: str
    port: int
    rack: str | None = None
    is_fenced: bool = False


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    cluster_id: str | None
    controller_id: int | None
    brokers: tuple[BrokerDescription, ...]
    unclean_elections: int = 0
    """How many elections may have cost records so far; only Tidemill tells it."""


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """One replica's share of a log directory; `offset_lag` is behind the leader or the future."""

    size_bytes: int
    offset_lag: int
    is_future: bool = False


@dataclass(frozen=True, slots=True)
class LogDirDescription:
    """One directory of one broker; sizes are -1 when the broker does not say."""

    path: str
    error: ClientError | None
    replicas: Mapping[TopicPartition, ReplicaInfo]
    total_bytes: int = -1
    usable_bytes: int = -1
    is_cordoned: bool = False


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A partition on its way: all its replicas, those being added, those being removed."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


class ElectionType(IntEnum):
    """Back to the preferred leader, or any leader at all: that one may lose records."""

    PREFERRED = 0
    UNCLEAN = 1


class Replica(NamedTuple):
    """One partition's copy on one broker."""

    topic: str
    partition: int
    broker_id: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}-{self.broker_id}"


@dataclass(frozen=True, slots=True)
class ProducerDescription:
    """What a leader remembers of one producer on one partition; -1 stands for none."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    txn_start_offset: int


@dataclass(frozen=True, slots=True)
class ApiVersionRange:
    """What a broker offers for one API; `usable` is the version that we would speak, if any."""

    api_key: int
    name: str
    min_version: int
    max_version: int
    usable: int | None


@dataclass(frozen=True, slots=True)
class FeatureRange:
    """A cluster feature: the levels a broker can do, and the one that is finalized (or -1)."""

    name: str
    min_supported: int
    max_supported: int
    finalized: int = -1


@dataclass(frozen=True, slots=True)
class BrokerApiVersions:
    broker: BrokerDescription
    apis: tuple[ApiVersionRange, ...]
    features: tuple[FeatureRange, ...] = ()
