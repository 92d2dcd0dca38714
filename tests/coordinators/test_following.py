"""The coordinator of groups follows the image, and partitions that come later (rule J1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from tests.replication.helpers import SELF, World, partition_image, topic_image
from tests.replication.test_manager import FullDisk

from tidemill.config import BrokerConfig
from tidemill.coordinators.coordinator import OFFSETS_TOPIC, GroupCoordinator, runtime_settings
from tidemill.coordinators.records import GroupMetadataKey, GroupMetadataValue
from tidemill.coordinators.result import CoordinatorRecord, RequestInfo, Result
from tidemill.coordinators.runtime import Machinery
from tidemill.errors import ErrorCode
from tidemill.image import without_topics
from tidemill.timers import TimingWheel
from tidemill.wire.messages.groups import JoinGroupRequest, JoinGroupRequestProtocol

PARTITIONS = 3
OFFSETS = topic_image(OFFSETS_TOPIC, 99, PARTITIONS, cleanup_policy="compact")


class Broker:
    """The replicas of one broker on a disk that may be full, and its groups."""

    def __init__(self) -> None:
        self.disk = FullDisk(Random(1))
        self.world = World(disk=self.disk)
        self.wheel = TimingWheel(self.world.clock)
        self._soon: deque[Callable[[], object]] = deque()
        config = BrokerConfig()
        self.groups = GroupCoordinator(
            config,
            Random(3),
            Machinery(
                self.world.clock,
                self.wheel,
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


# A new leader epoch.


class Joining(Broker):
    """With a group whose first member waits for others, in the partition of the group `g`."""

    def __init__(self) -> None:
        super().__init__()
        self.add_offsets_topic()
        index = self.groups.partition_for("g")
        assert index is not None
        self.index = index
        self.answers: list[Any] = []
        request = JoinGroupRequest(
            group_id="g", session_timeout_ms=30_000, rebalance_timeout_ms=30_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )  # fmt: skip
        info = RequestInfo("client", "/host", self.world.clock.now_ms(), 2)
        self.groups.run(
            "g",
            lambda shard: shard.join(request, info, self.answers.append),
            lambda _: None,
            lambda code, _: self.answers.append(code),
        )
        self.settle()
        assert self.answers == []

    def hear_of(self, *, leader: int = SELF, epoch: int) -> None:
        """The replicas follow an image; the coordinator is not told yet."""
        image = partition_image(
            self.index, leader=leader, leader_epoch=epoch, partition_epoch=epoch,
            replicas=(SELF, 1), isr=(leader,),
        )  # fmt: skip
        topic = self.world.image.topics[OFFSETS_TOPIC]
        partitions = list(topic.partitions)
        partitions[self.index] = image
        self.world.add(replace(topic, partitions=tuple(partitions)))

    def follow(self, *, told: bool) -> None:
        if not told:
            self.world.moved.clear()
        self.groups.apply(self.world.image)
        self.settle()

    def wait(self, duration_ms: int) -> None:
        self.world.clock.advance(duration_ms)
        self.wheel.advance(self.world.clock.monotonic_ms())
        self.settle()

    @property
    def state(self) -> ErrorCode:
        return self.states()[self.index]


def test_a_new_epoch_of_the_same_leader_changes_nothing_for_its_groups() -> None:
    """Rule J7: replicas are added to the offsets topic, and nobody who waits is sent away."""
    broker = Joining()
    broker.hear_of(epoch=1)
    broker.follow(told=True)
    assert (broker.answers, broker.state) == ([], ErrorCode.NONE)
    broker.wait(3_000)
    (answer,) = broker.answers
    assert (answer.error_code, answer.generation_id) == (0, 1)


def test_what_is_written_before_the_image_is_followed_is_written_in_the_new_epoch() -> None:
    broker = Joining()
    broker.hear_of(epoch=1)
    record = CoordinatorRecord(GroupMetadataKey(group="h"), GroupMetadataValue())
    written: list[Any] = []
    broker.groups.run(
        "g",
        lambda shard: Result("written", [record]),
        written.append,
        lambda code, _: written.append(code),
    )
    broker.follow(told=True)
    assert written == ["written"]
    assert (broker.answers, broker.state) == ([], ErrorCode.NONE)


@pytest.mark.parametrize("told", [True, False])
def test_a_partition_that_was_led_elsewhere_meanwhile_is_loaded_again(told: bool) -> None:
    """Rule J1: whatever the other has done is in the log, and not in our memory."""
    broker = Joining()
    broker.hear_of(leader=1, epoch=1)
    broker.hear_of(epoch=2)
    broker.follow(told=told)
    broker.settle()
    assert [getattr(answer, "error_code", answer) for answer in broker.answers] == [
        ErrorCode.NOT_COORDINATOR
    ]
    assert broker.state is ErrorCode.NONE


def test_epochs_of_which_one_was_not_heard_may_have_been_led_by_anybody() -> None:
    broker = Joining()
    broker.hear_of(epoch=2)
    broker.follow(told=True)
    assert [getattr(answer, "error_code", answer) for answer in broker.answers] == [
        ErrorCode.NOT_COORDINATOR
    ]
