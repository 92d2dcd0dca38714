"""Replication under everything at once, from seeds: what was acked is there, and all agree.

Brokers lose power, are cut off, are taken for dead while they live, and hear of elections late.
After each step the end that clients are told must not have gone back (rule B5); at the end, with
everything whole again, every acked record must be where its producer was told, once (rule B1), and
all three logs must be the same (rule D3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

import pytest
from tests.broker.replica_world import Pending, World

from tidemill.errors import ErrorCode
from tidemill.replication.alignment import TruncateTo
from tidemill.replication.driver import LeaderDriver, key_of
from tidemill.replication.partition import Partition
from tidemill.testing.loop import SimLoop
from tidemill.types import BrokerId

STEPS = 60
SEEDS = 12
SOAK_SEEDS = 400
MISTAKE_SEEDS = 100
HEALING_ROUNDS = 60


class Storm:
    """One seed's life of a cluster."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.loop = SimLoop()
        self.world = World(self.loop)
        self.world.create_topic(flush_policy="ack")
        self.sent: list[tuple[bytes, Pending]] = []
        self.told = 0
        self.trace: list[str] = []

    def close(self) -> None:
        self.loop.close()
        assert self.loop.unhandled == []

    # What can happen.

    def produce(self) -> None:
        leader = self.world.state().leader
        if self.random.random() < 0.2:
            leader = BrokerId(self.random.randrange(3))
        if leader < 0 or not self.world.nodes[leader].is_up:
            return
        value = b"%d" % len(self.sent)
        acks = self.random.choice((-1, -1, -1, 1))
        answer = self.world.produce(value, at=leader, acks=acks, timeout_ms=5_000)
        if acks == -1:
            self.sent.append((value, answer))
        else:
            self.sent.append((value, Pending(self.world)))

    def elect(self) -> None:
        state = self.world.state()
        alive = [one for one in state.isr if one in self.world.image.brokers]
        if len(alive) > 1:
            late = [number for number in range(3) if self.random.random() < 0.2]
            self.world.lead(self.random.choice(alive), late=late)

    def deliver(self) -> None:
        """Somebody hears the newest news that it had missed."""
        node = self.random.choice(self.world.nodes)
        if node.is_up:
            node.domain.call_soon(node.apply, self.world.image)

    def cut(self) -> None:
        one, other = self.random.sample(range(3), 2)
        self.world.cut.add((one, other))
        if self.random.random() < 0.5:
            self.world.cut.add((other, one))

    def heal(self) -> None:
        self.world.cut.clear()

    def crash(self) -> None:
        up = [node.broker_id for node in self.world.nodes if node.is_up]
        if len(up) == 3:
            self.world.crash(self.random.choice(up))

    def restart(self) -> None:
        for node in self.world.nodes:
            if not node.is_up:
                self.world.restart(node.broker_id)

    def expire(self) -> None:
        """A live broker is taken for dead; it finds out at once, or with the next image."""
        alive = [node for node in self.world.nodes if node.is_up]
        if len(alive) == 3 and len(self.world.image.brokers) == 3:
            node = self.random.choice(alive)
            if self.random.random() < 0.5:
                node.domain.call_soon(node.replicas.stop_leading)
            self.world.fail(node.broker_id)

    def rejoin(self) -> None:
        for node in self.world.nodes:
            if node.is_up and node.broker_id not in self.world.image.brokers:
                self.world.register(node.broker_id)

    def silence(self) -> None:
        """The controller does not answer for a while."""
        self.world.controller_answers = not self.world.controller_answers

    def wait(self) -> None:
        self.world.run_ms(self.random.choice((1, 5, 20, 100, 1_000, 6_000)))

    ACTIONS: tuple[tuple[int, str], ...] = (
        (14, "produce"),
        (4, "elect"),
        (4, "deliver"),
        (2, "cut"),
        (3, "heal"),
        (1, "crash"),
        (3, "restart"),
        (1, "expire"),
        (3, "rejoin"),
        (1, "silence"),
        (12, "wait"),
    )

    def run(self) -> None:
        names = [name for weight, name in self.ACTIONS for _ in range(weight)]
        for _ in range(STEPS):
            name = self.random.choice(names)
            self.trace.append(name)
            action: Callable[[], None] = getattr(self, name)
            action()
            self.world.run_ms(2)
            self.look()
        self.make_whole()
        self.check()

    # Promises.

    def look(self) -> None:
        leader = self.world.state().leader
        if leader < 0 or not self.world.nodes[leader].is_up:
            return
        answer = self.world.end_offset(at=leader)
        if answer.error_code == 0:
            assert answer.offset >= self.told, self.trace
            self.told = answer.offset
        else:
            assert answer.error_code in (
                ErrorCode.OFFSET_NOT_AVAILABLE,
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
            )

    def make_whole(self) -> None:
        world = self.world
        world.controller_answers = True
        world.cut.clear()
        self.restart()
        self.rejoin()
        world.publish(world.image)
        for _ in range(HEALING_ROUNDS):
            world.run_ms(1_000)
            if self._is_whole():
                break
        assert self._is_whole(), (self.trace, world.state())
        last = world.produce(b"last")
        world.run_ms(10_000)  # A request that was lost in the storm may still be waited for.
        assert last.produced.error_code == 0

    def _is_whole(self) -> bool:
        ends = {node.partition().log.log_end_offset for node in self.world.nodes}
        marks = {node.partition().high_watermark for node in self.world.nodes}
        return len(self.world.state().isr) == 3 and len(ends) == 1 and marks == ends

    def check(self) -> None:
        self.world.run_ms(1_000)
        logs = [node.values() for node in self.world.nodes]
        assert logs[0] == logs[1] == logs[2], self.trace
        for value, answer in self.sent:
            if answer.is_there and answer.produced.error_code == 0:
                offset = answer.produced.base_offset
                assert logs[0][offset] == value, self.trace
        values = [value for value in logs[0] if value is not None]
        assert len(values) == len(set(values)), "nothing is there twice"


def survive(seed: int) -> int:
    storm = Storm(seed)
    try:
        storm.run()
    finally:
        storm.close()
    return sum(answer.is_there for _, answer in storm.sent)


def survive_all(seeds: Iterable[int]) -> int:
    return sum(survive(seed) for seed in seeds)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_was_acked_survives(seed: int) -> None:
    survive(seed)


def no_divergence_check(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("tidemill.broker.handlers.fetch.diverging", lambda *about: None)


def truncate_to_high_watermark(patch: pytest.MonkeyPatch) -> None:
    follow = LeaderDriver.follow

    def cut_and_follow(driver: LeaderDriver, partition: Partition) -> None:
        known = driver.fetcher.get(key_of(partition))
        if known is None or known.leader_epoch < partition.leader_epoch:
            partition.cut(TruncateTo(partition.high_watermark))
        follow(driver, partition)

    patch.setattr(LeaderDriver, "follow", cut_and_follow)


@pytest.mark.parametrize("flaw", [no_divergence_check, truncate_to_high_watermark])
def test_a_mistake_is_found(
    flaw: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storm can fail: rules D3 and D5, broken on purpose, cost acked records in some seed."""
    flaw(monkeypatch)
    with pytest.raises(AssertionError):
        survive_all(range(MISTAKE_SEEDS))


@pytest.mark.soak
def test_what_was_acked_survives_many_storms() -> None:
    assert survive_all(range(1_000, 1_000 + SOAK_SEEDS)) > SOAK_SEEDS
