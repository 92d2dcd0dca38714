"""The coordinator of groups follows the image, and partitions that come later (rule J1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random

from tests.replication.helpers import World, topic_image
from tests.replication.test_manager import FullDisk

from tidemill.config import BrokerConfig
from tidemill.coordinators.coordinator import OFFSETS_TOPIC, GroupCoordinator, runtime_settings
from tidemill.coordinators.runtime import Machinery
from tidemill.errors import ErrorCode
from tidemill.image import without_topics
from tidemill.timers import TimingWheel

PARTITIONS = 3
OFFSETS = topic_image(OFFSETS_TOPIC, 99, PARTITIONS, cleanup_policy="compact")


class Broker:
    """The replicas of one broker on a disk that may be full, and its groups."""

    def __init__(self) -> None:
        self.disk = FullDisk(Random(1))
        self.world = World(disk=self.disk)
        self._soon: deque[Callable[[], object]] = deque()
        config = BrokerConfig()
        self.groups = GroupCoordinator(
            config,
            Random(3),
            Machinery(
                self.world.clock,
                TimingWheel(self.world.clock),
                self.world.executor,
                self._soon.append,
                runtime_settings(config),
            ),
            self.world.replicas.get,
        )

    def add_offsets_topic(self) -> None:
        self.world.add(OFFSETS)
        self.groups.apply(self.world.image)
        self.settle()

    def make_room(self) -> None:
        """Logs that found no room are made now, as they are tried again."""
        self.disk.is_full = False
        self.world.run_later()
        assert len(self.world.replicas) == PARTITIONS

    def settle(self) -> None:
        while self.world.moved or self._soon:
            if self.world.moved:
                self.groups.partition_moved(self.world.moved.pop(0))
            else:
                self._soon.popleft()()

    def states(self) -> list[ErrorCode]:
        return [self.groups._runtime.state_of(index) for index in range(PARTITIONS)]


def without_room() -> Broker:
    broker = Broker()
    broker.disk.is_full = True
    broker.add_offsets_topic()
    assert broker.states() == [ErrorCode.NOT_COORDINATOR] * PARTITIONS
    return broker


def test_a_partition_whose_log_could_only_be_made_later_is_coordinated() -> None:
    """rule J1: it is led, so its groups find their coordinator here, whenever it came."""
    broker = without_room()
    broker.make_room()
    broker.settle()
    assert broker.states() == [ErrorCode.NONE] * PARTITIONS


def test_a_log_that_was_made_too_late_is_not_coordinated() -> None:
    """The broker stops, or the topic is gone, before the turn in which it would be loaded."""
    stopping = without_room()
    stopping.make_room()
    stopping.groups.close()
    stopping.settle()
    assert stopping.states() == [ErrorCode.NOT_COORDINATOR] * PARTITIONS

    deleted = without_room()
    deleted.make_room()
    for partition in deleted.world.moved:
        deleted.groups.partition_moved(partition)
    deleted.world.apply(without_topics(deleted.world.image, [OFFSETS_TOPIC]))
    deleted.groups.apply(deleted.world.image)
    deleted.settle()
    assert deleted.states() == [ErrorCode.NOT_COORDINATOR] * PARTITIONS


def test_a_coordinator_that_is_closed_follows_no_image() -> None:
    broker = Broker()
    broker.groups.close()
    broker.add_offsets_topic()
    assert broker.states() == [ErrorCode.NOT_COORDINATOR] * PARTITIONS
