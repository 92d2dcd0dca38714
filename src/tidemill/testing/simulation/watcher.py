"""What must hold at every moment, looked at from outside: the store's states and every replica.

With each commit of the store: a partition's epochs grow, each epoch has one leader, and the leader
is in sync. Every few milliseconds, on every broker that is up: one leader per epoch, a high
watermark and an epoch that never fall, offsets that clients are told and that never go back
(rule B5), and the same committed records on every replica in sync (rule B1). What is committed is
what any leader's high watermark has passed: those batches are remembered, and compared for ever.
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tidemill.controller import tree
from tidemill.replication.partition import Partition
from tidemill.storage.log import Log
from tidemill.store.base import Event
from tidemill.testing.disk import CrashDisk
from tidemill.testing.simulation.world import Machine, World
from tidemill.types import NO_BROKER

LOOK_S = 0.02
LOOKS_PER_COMPARISON = 25

_STATE = re.compile(r"/brokers/topics/([^/]+)/partitions/(\d+)/state")
_header = struct.Struct(">qiibIhi")

Key = tuple[str, int]


class State(NamedTuple):
    """What the store says of a partition."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    is_recovering: bool
    version: int


class Batch(NamedTuple):
    """A record batch, as far as replicas must agree on it."""

    base_offset: int
    last_offset: int
    epoch: int
    crc: int


class Watcher:
    """Looks, from `start` to the end of the world, and tells the world of what must not be."""

    def __init__(self, world: World) -> None:
        self.states: dict[Key, State] = {}
        self._world = world
        self._committed: dict[Key, list[Batch]] = defaultdict(list)
        self._leaders: dict[tuple[Key, int], int] = {}
        self._known: dict[Partition, tuple[int, int]] = {}
        """The high watermark and epoch of each replica, for as long as its broker keeps it."""
        self._told: dict[Key, dict[int, int]] = defaultdict(dict)
        self._looks = 0
        world.ensemble.on_commit.append(self._commit)

    async def run(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    # The store

    def _commit(self, events: Sequence[Event]) -> None:
        for event in events:
            found = _STATE.fullmatch(event.path)
            if found is None:
                continue
            node = self._world.ensemble.tree.read(event.path)
            if node is None:
                self._forget((found[1], int(found[2])))
                continue
            value = tree.load(node.value)
            after = State(
                value["leader"],
                value["leader_epoch"],
                tuple(value["isr"]),
                bool(value.get("leader_recovery_state", 0)),
                node.stat.version,
            )
            self._changed((found[1], int(found[2])), after)

    def _forget(self, key: Key) -> None:
        """The topic was half made, and never there: another of its name begins anew."""
        self._world.note(f"{key[0]}-{key[1]} is no partition any more")
        if self._committed[key]:
            self._world.fail(f"the state of {key} went, which has records")
        self.states.pop(key, None)
        self._leaders = {
            known: leader for known, leader in self._leaders.items() if known[0] != key
        }

    def _changed(self, key: Key, after: State) -> None:
        before = self.states.get(key)
        self.states[key] = after
        self._world.note(f"{key[0]}-{key[1]} {_shown(after)}")
        if after.leader != NO_BROKER:
            self._check_one_leader(key, after.leader_epoch, after.leader)
            if after.leader not in after.isr:
                self._world.fail(f"{key} has a leader that is not in sync: {after}")
        if before is None:
            return
        if after.leader_epoch < before.leader_epoch:
            self._world.fail(f"the leader epoch of {key} fell: {before}, {after}")
        self._count(before, after)

    def _count(self, before: State, after: State) -> None:
        counts = self._world.counts
        if after.leader != before.leader:
            counts["elections" if after.leader != NO_BROKER else "partitions offline"] += 1
            counts["unclean elections"] += after.is_recovering and not before.is_recovering
        counts["ISR shrinks"] += bool(set(before.isr) - set(after.isr))
        counts["ISR expands"] += bool(set(after.isr) - set(before.isr))

    def _check_one_leader(self, key: Key, epoch: int, leader: int) -> None:
        known = self._leaders.setdefault((key, epoch), leader)
        if known != leader:
            self._world.fail(f"{key} has two leaders in epoch {epoch}: {known} and {leader}")

    # The replicas

    def look(self) -> None:
        """See to every replica once; now and then compare all that was committed."""
        self._looks += 1
        for machine in self._world.machines:
            for partition in machine.partitions():
                self._look_at(machine, partition)
        if self._looks % LOOKS_PER_COMPARISON == 0:
            self.compare()

    def _look_at(self, machine: Machine, partition: Partition) -> None:
        key: Key = (partition.topic_partition.topic, partition.topic_partition.partition)
        mark, epoch = partition.high_watermark, partition.leader_epoch
        known_mark, known_epoch = self._known.get(partition, (0, -1))
        if mark < known_mark:
            self._world.fail(f"the high watermark of {key} fell on {machine}")
        if epoch < known_epoch:
            self._world.fail(f"the leader epoch of {key} fell on {machine}")
        self._known[partition] = mark, epoch
        if partition.is_leader and partition.term is not None:
            self._check_one_leader(key, epoch, machine.broker_id)
            if partition.knows_high_watermark:
                self._advertised(machine, partition, key)

    def _advertised(self, machine: Machine, partition: Partition, key: Key) -> None:
        """A leader would tell clients of this high watermark; a deposed one may tell of less."""
        mark, epoch, told = partition.high_watermark, partition.leader_epoch, self._told[key]
        known = told.get(epoch)
        if known == mark:
            return
        floor = max((one for at, one in told.items() if at <= epoch), default=0)
        if mark < floor:
            self._world.fail(f"{machine} tells that {key} ends at {mark}, after {floor} was told")
        told[epoch] = mark
        committed = self._committed[key]
        end = committed[-1].last_offset + 1 if committed else 0
        if mark > end:
            fresh = _batches(machine.disk, partition.log, end)
            committed += (batch for batch in fresh if batch.last_offset < mark)

    def compare(self) -> None:
        """All replicas in sync have what is committed, and nothing else in its place."""
        machines = {machine.broker_id: machine for machine in self._world.machines}
        for key, state in self.states.items():
            committed = self._committed[key]
            for broker_id in state.isr if committed else ():
                machine = machines[broker_id]
                if machine.is_up and not machine.host.domain.is_paused:
                    self._compare_one(machine, key, committed)

    def _compare_one(self, machine: Machine, key: Key, committed: list[Batch]) -> None:
        held = [one for one in machine.partitions() if tuple(one.topic_partition) == key]
        if not held:
            self._world.fail(f"{machine} is in sync with {key} and has no replica of it")
            return
        found = list(_batches(machine.disk, held[0].log, 0))
        for mine, theirs in zip(found, committed, strict=False):
            if mine != theirs:
                self._world.fail(f"{machine} has {mine} of {key} where {theirs} was committed")
                return
        if len(found) < len(committed):
            lacks = committed[len(found)]
            self._world.fail(
                f"{machine} is in sync with {key} and lacks what is committed: {lacks}"
            )

    def is_whole(self) -> bool:
        """Everybody is up, every partition is led, and all its replicas are in sync with it."""
        if not all(machine.is_up for machine in self._world.machines):
            return False
        for topic, index in self.states:
            state = self.states[topic, index]
            node = self._world.ensemble.tree.read(tree.topic_path(topic))
            value = {} if node is None else tree.load(node.value)
            replicas = value.get("partitions", {}).get(str(index), [])
            is_moving = value.get("adding_replicas") or value.get("removing_replicas")
            if state.leader == NO_BROKER or is_moving or set(state.isr) != set(replicas):
                return False
        return True


def _batches(disk: CrashDisk, log: Log, start: int) -> Iterator[Batch]:
    """The batches of a log from an offset on, as they are on its disk."""
    for segment in log.segments:
        content = disk.read_file(segment.log_path)[: segment.size]
        position = 0
        while position < len(content):
            base, length, epoch, _, crc, _, delta = _header.unpack_from(content, position)
            if base >= start:
                yield Batch(base, base + delta, epoch, crc)
            position += 12 + length


def _shown(state: State) -> str:
    recovering = ", recovering" if state.is_recovering else ""
    in_sync = ",".join(map(str, state.isr))
    return f"is led by {state.leader} in epoch {state.leader_epoch}, in sync {in_sync}{recovering}"
