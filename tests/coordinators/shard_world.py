"""A coordinator's shard on a real partition over an in-memory disk; the test owns time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from tests.replication.helpers import StepExecutor, World, partition_image, topic_image

from tidemill.coordinators.coordinator import OFFSETS_TOPIC
from tidemill.coordinators.records import GROUP_RECORDS
from tidemill.coordinators.result import RequestInfo, Result
from tidemill.coordinators.runtime import Machinery, Runtime, RuntimeSettings
from tidemill.coordinators.shard import GroupShard, ShardSettings, Surroundings
from tidemill.errors import ErrorCode
from tidemill.executor import InlineExecutor, Then
from tidemill.image import TopicImage, with_topic, without_topics
from tidemill.replication.partition import Partition
from tidemill.timers import TimingWheel
from tidemill.types import BrokerId


class SoonExecutor:
    """Work is done at once, and its outcome told in a later turn of the loop, as in a broker."""

    def __init__(self, soon: deque[Callable[[], object]]) -> None:
        self._soon = soon

    def submit(self, work: Callable[[], Any], then: Then[Any]) -> None:
        self._soon.append(lambda: InlineExecutor().submit(work, then))


class ShardWorld:
    """One partition of the offsets topic, coordinated by `runtime`."""

    def __init__(
        self,
        settings: ShardSettings | None = None,
        *,
        runtime_settings: RuntimeSettings | None = None,
        executor: StepExecutor | None = None,
        dirs: tuple[str, ...] = ("/data",),
    ) -> None:
        self.soon: deque[Callable[[], object]] = deque()
        self.world = World(
            flush_policy="ack", executor=executor or SoonExecutor(self.soon), dirs=dirs
        )
        self.clock = self.world.clock
        self.wheel = TimingWheel(self.clock)
        self.around = Surroundings(self.clock, Random(3), settings or ShardSettings())
        self._runtime_settings = runtime_settings or RuntimeSettings()
        self.world.add(topic_image(OFFSETS_TOPIC, 99, cleanup_policy="compact"))
        self.around.image = self.world.image
        self.runtime = self._start()
        self.pump()

    def _start(self) -> Runtime[GroupShard]:
        machinery = Machinery(
            self.clock,
            self.wheel,
            self.world.executor,
            self.soon.append,
            self._runtime_settings,
        )
        runtime = Runtime(machinery, lambda timers: GroupShard(self.around, timers), GROUP_RECORDS)
        runtime.follow({0: self.partition})
        return runtime

    @property
    def partition(self) -> Partition:
        found = self.world.replicas.get(OFFSETS_TOPIC, 0)
        assert found is not None
        return found

    @property
    def shard(self) -> GroupShard:
        return self.runtime._hosts[0].shard

    def info(self, client: str = "client", version: int = 5) -> RequestInfo:
        return RequestInfo(client, "/127.0.0.1", self.clock.now_ms(), version)

    # Time.

    def pump(self) -> None:
        """Let everything happen that is due now."""
        while self.soon or self.world.moved:
            while self.world.moved:
                self.runtime.partition_moved(self.world.moved.pop(0))
            if self.soon:
                self.soon.popleft()()

    def wait(self, duration_ms: int) -> None:
        """Let time pass, timer by timer."""
        end_ms = self.clock.monotonic_ms() + duration_ms
        while (due_ms := self.wheel.next_deadline_ms()) is not None and due_ms <= end_ms:
            self.clock.advance(max(0, due_ms - self.clock.monotonic_ms()))
            self.wheel.advance(self.clock.monotonic_ms())
            self.pump()
        self.clock.advance(end_ms - self.clock.monotonic_ms())
        self.wheel.advance(self.clock.monotonic_ms())
        self.pump()

    # Requests.

    def run(
        self, operation: Callable[[GroupShard], Result[Any]], *, gather: bool = False
    ) -> list[Any]:
        """Run an operation; the list holds its answer or its error once that is there."""
        answers: list[Any] = []
        self.runtime.run(
            0, operation, answers.append, lambda code, _: answers.append(code), gather=gather
        )
        self.pump()
        return answers

    # Events.

    def restart(self) -> None:
        """The coordinator is gone and comes back on the same log."""
        self.runtime.close()
        self.pump()
        self.runtime = self._start()
        self.pump()

    def topic(self, name: str, number: int, partitions: int = 3) -> TopicImage:
        """Create a topic that offsets can be committed for."""
        made = topic_image(name, number, partitions)
        self.around.image = with_topic(self.around.image, made)
        return made

    def drop_topic(self, name: str) -> None:
        self.around.image = without_topics(self.around.image, [name])
        self.runtime.steps(0, lambda shard: shard.forget_deleted_topics([name]))
        self.pump()

    def lose_leadership(self, epoch: int = 1) -> None:
        self.partition.apply(
            partition_image(leader=BrokerId(1), leader_epoch=epoch, partition_epoch=epoch,
                            replicas=(0, 1), isr=(1,))
        )  # fmt: skip
        self.pump()

    def regain_leadership(self, epoch: int = 2) -> None:
        self.partition.apply(partition_image(leader_epoch=epoch, partition_epoch=epoch))
        self.runtime.follow({0: self.partition})
        self.pump()

    def refuse_appends(self, *, refuse: bool = True) -> None:
        """Too few replicas are in sync from now on: nothing can be written."""
        self.partition._has_enough_in_sync = not refuse

    def state(self) -> ErrorCode:
        return self.runtime.state_of(0)
