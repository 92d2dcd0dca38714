"""What the replication tests share: a replica manager over an in-memory disk, and images for it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any
from uuid import UUID

from tidemill.executor import Executor, InlineExecutor, Then
from tidemill.image import ClusterImage, PartitionImage, TopicImage, with_topic
from tidemill.replication.manager import ReplicaManager
from tidemill.replication.partition import Partition, PartitionSettings
from tidemill.storage.log_config import LogConfig
from tidemill.storage.manager import LogManager
from tidemill.testing.clock import ManualClock
from tidemill.testing.disk import CrashDisk
from tidemill.types import BrokerId, LeaderEpoch, PartitionEpoch, PartitionIndex
from tidemill.wire.records import Record, build_batch

SELF = BrokerId(0)
OTHER = BrokerId(1)


class StepExecutor:
    """Keeps work until the test says go: a flush or a conversion that is under way."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def submit(self, work: Callable[[], Any], then: Then[Any]) -> None:
        self.waiting.append(lambda: InlineExecutor().submit(work, then))

    def run_all(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()


def partition_image(
    index: int = 0,
    *,
    leader: int = SELF,
    leader_epoch: int = 0,
    partition_epoch: int = 0,
    replicas: tuple[int, ...] = (SELF,),
    isr: tuple[int, ...] = (SELF,),
) -> PartitionImage:
    return PartitionImage(
        PartitionIndex(index),
        BrokerId(leader),
        LeaderEpoch(leader_epoch),
        tuple(map(BrokerId, replicas)),
        tuple(map(BrokerId, isr)),
        PartitionEpoch(partition_epoch),
    )


def topic_image(
    name: str = "t", number: int = 1, partitions: int = 1, **configs: str
) -> TopicImage:
    images = tuple(partition_image(index) for index in range(partitions))
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    return TopicImage(name, UUID(int=number), images, settings)


class World:
    """One broker's replicas, its disk, and what its partitions reported."""

    def __init__(
        self,
        *,
        disk: CrashDisk | None = None,
        executor: Executor | None = None,
        flush_policy: str = "async",
        min_insync_replicas: int = 1,
        dirs: tuple[str, ...] = ("/data",),
    ) -> None:
        self.clock = ManualClock()
        self.disk = disk or CrashDisk(Random(1))
        self.executor: Executor = executor or InlineExecutor()
        self.flush_policy = flush_policy
        self.min_insync_replicas = min_insync_replicas
        self.moved: list[Partition] = []
        self.later: list[Callable[[], None]] = []
        self.image = ClusterImage(cluster_id="c")
        self.logs = LogManager(
            dirs,
            files=self.disk,
            clock=self.clock,
            random=Random(2),
            executor=self.executor,
        )
        self.logs.start()
        self.replicas = ReplicaManager(
            SELF,
            self.logs,
            self.clock,
            self.executor,
            self._settings,
            self.moved.append,
            lambda delay_ms, callback: self.later.append(callback),
        )

    def _settings(self, topic: TopicImage) -> PartitionSettings:
        config = LogConfig(
            flush_policy=self.flush_policy,  # type: ignore[arg-type]
            compression_type=topic.configs.get("compression.type", "producer"),
            max_message_bytes=int(topic.configs.get("max.message.bytes", 1_048_588)),
            cleanup_compact="compact" in topic.configs.get("cleanup.policy", "delete"),
            is_internal=topic.is_internal,
        )
        return PartitionSettings(config, self.min_insync_replicas)

    def apply(self, image: ClusterImage) -> None:
        self.image = image
        self.replicas.apply(image)

    def add(self, topic: TopicImage) -> None:
        self.apply(with_topic(self.image, topic))

    def only(self) -> Partition:
        """The one partition of topic `t`, which is made if it is not there yet."""
        if "t" not in self.image.topics:
            self.add(topic_image())
        partition = self.replicas.get("t", 0)
        assert partition is not None
        return partition

    def run_later(self) -> None:
        while self.later:
            self.later.pop(0)()


def records(*values: bytes, **options: Any) -> bytearray:
    return bytearray(
        build_batch(
            [Record(place, 1_000, b"k", value, ()) for place, value in enumerate(values)],
            **options,
        )
    )
