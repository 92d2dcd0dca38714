"""How each fault of the plan is done to a cluster, and undone.

`strike` returns when the fault is over: processes run again, links are open, the disk has room, the
damaged segment is as it was. Whether the cluster has got over it is for the caller to see.
"""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from tidemill.client import ClientError
from tidemill.testing.faults.cluster import (
    CLIENTS,
    PARTITIONS,
    TOPICS,
    BrokenClusterError,
    FaultCluster,
    peer,
)
from tidemill.testing.faults.plan import Kind, Strike
from tidemill.testing.view import View
from tidemill.types import TopicPartition

REPAIR_S_MAX = 120
MOVE_S_MAX = 90
_HEADER_BYTES = 61
_OUTSIDE_CRC = (*range(8), *range(12, 16))
"""Base offset and leader epoch, which a batch's own checksum does not cover."""


@dataclass(slots=True)
class Struck:
    """What a fault did, for the report; times are monotonic milliseconds."""

    number: int
    kind: Kind
    victim: int
    began_ms: int
    ended_ms: int = 0
    whole_ms: int | None = None
    was_whole: bool = True
    """Whether the cluster had got over the fault before."""
    led: list[TopicPartition] = field(default_factory=list)
    """What the victim led."""
    note: str = ""


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


async def strike(cluster: FaultCluster, planned: Strike, view: View) -> Struck:
    """Do it, hold it, undo it."""
    victim = _victim(planned, view, cluster)
    struck = Struck(planned.number, planned.kind, victim, now_ms(), was_whole=view.is_whole)
    struck.led = [key for key in view.led_by(victim) if key.topic in TOPICS]
    await _HOW[planned.kind](cluster, planned, struck)
    struck.ended_ms = now_ms()
    return struck


def _victim(planned: Strike, view: View, cluster: FaultCluster) -> int:
    match planned.kind:
        case Kind.KILL_CONTROLLER | Kind.PAUSE_CONTROLLER if view.controller in cluster.ids:
            assert view.controller is not None
            return view.controller
        case Kind.KILL_LEADER | Kind.PAUSE_LEADER | Kind.CUT_CLIENTS:
            leaders = [
                each.leader
                for key, each in sorted(view.partitions.items())
                if key.topic in TOPICS and each.leader is not None
            ]
            return planned.pick(leaders or cluster.ids)
        case Kind.KILL_FOLLOWER:
            bosses = {view.controller}
            return planned.pick([each for each in cluster.ids if each not in bosses])
        case Kind.DISK_FULL if cluster.small_disk is not None:
            return cluster.small_disk
        case _:
            return planned.pick(cluster.ids)


# Processes.


async def _kill(cluster: FaultCluster, planned: Strike, struck: Struck) -> None:
    await asyncio.to_thread(cluster.brokers[struck.victim].kill)
    await asyncio.sleep(planned.hold_s)
    await cluster.restart(struck.victim)


async def _pause(cluster: FaultCluster, planned: Strike, struck: Struck) -> None:
    pid = cluster.brokers[struck.victim].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(planned.hold_s)
    finally:
        os.kill(pid, signal.SIGCONT)


async def _roll(cluster: FaultCluster, planned: Strike, struck: Struck) -> None:
    for broker in cluster.ids:
        status = await asyncio.to_thread(cluster.brokers[broker].stop)
        if status:
            raise BrokenClusterError(f"broker {broker} stopped with status {status}")
        await asyncio.sleep(planned.hold_s)
        await cluster.restart(broker)
        await cluster.whole()


async def _reassign(cluster: FaultCluster, planned: Strike, struck: Struck) -> None:
    """Take a replica away from the victim, give it back, and kill a broker in between."""
    others = [each for each in cluster.ids if each != struck.victim]
    keys = [TopicPartition(topic, index) for topic in TOPICS for index in range(PARTITIONS)]
    moved = keys[int(planned.choice * len(keys))]
    killed = struck.victim if planned.drops else others[0]
    struck.note = f"{moved} from it and back, broker {killed} killed"
    await _move(cluster, moved, others)
    await _until_moved(cluster, moved)
    await _move(cluster, moved, [*others, struck.victim])
    await asyncio.to_thread(cluster.brokers[killed].kill)
    await asyncio.sleep(planned.hold_s)
    await cluster.restart(killed)
    await _until_moved(cluster, moved)


async def _move(cluster: FaultCluster, moved: TopicPartition, replicas: list[int]) -> None:
    deadline = time.monotonic() + MOVE_S_MAX
    while True:
        try:
            answer = await cluster.admin.alter_partition_reassignments({moved: replicas})
            answer.raise_first()
            return
        except ClientError as error:
            if time.monotonic() > deadline:
                raise BrokenClusterError(f"{moved} cannot be moved: {error}") from error
        await asyncio.sleep(0.2)


async def _until_moved(cluster: FaultCluster, moved: TopicPartition) -> None:
    """A move ends by itself, whoever falls on its way, once all are back (rule C8)."""
    deadline = time.monotonic() + MOVE_S_MAX
    seen: object = None
    while time.monotonic() < deadline:
        try:
            seen = await cluster.admin.list_partition_reassignments([moved])
            if not seen:
                return
        except ClientError as error:
            seen = error
        await asyncio.sleep(0.2)
    raise BrokenClusterError(f"{moved} still moves after {MOVE_S_MAX} s: {seen}")


# Links.


async def _cut_clients(cluster: FaultCluster, planned: Strike, struck: Struck) -> None:
    link = cluster.links[struck.victim]
    link.partition(planned.way, drop=planned.drops, who=CLIENTS)
    await asyncio.sleep(planned.hold_s)
    link.heal()
    struck.note = planned.way


async def _cut_peers(cluster: FaultCluster, planned: Strike, struck: Struck) -> None:
    others = [each for each in cluster.ids if each != struck.victim]
    other = others[planned.number % len(others)]
    _part(cluster, struck.victim, other, planned)
    struck.note = f"and {other}, {planned.way}"
    await _hold_and_heal(cluster, planned)


async def _isolate(cluster: FaultCluster, planned: Strike, struck: Struck) -> None:
    for other in cluster.ids:
        if other != struck.victim:
            _part(cluster, struck.victim, other, planned)
    struck.note = planned.way
    await _hold_and_heal(cluster, planned)


def _part(cluster: FaultCluster, one: int, other: int, planned: Strike) -> None:
    """Let nothing pass between two brokers; one-way means nothing to `one`, or nothing from it.

    Both may have opened connections: what goes to `one` is a request on those that the other
    opened, and an answer on its own.
    """
    for way in planned.way.ways():
        cluster.links[one].partition(way, drop=planned.drops, who=peer(other))
        cluster.links[other].partition(way.back(), drop=planned.drops, who=peer(one))


async def _hold_and_heal(cluster: FaultCluster, planned: Strike) -> None:
    await asyncio.sleep(planned.hold_s)
    for link in cluster.links.values():
        link.heal()


# Disks.


async def _fill_disk(cluster: FaultCluster, planned: Strike, struck: Struck) -> None:
    await asyncio.to_thread(cluster.fill_disk, struck.victim)
    struck.note = "a full file system" if struck.victim == cluster.small_disk else "a quota"
    try:
        await asyncio.sleep(planned.hold_s)
    finally:
        cluster.empty_disk(struck.victim)


async def _damage(cluster: FaultCluster, planned: Strike, struck: Struck) -> None:
    """Flip a bit in a closed segment, and see that the broker puts it right from a peer."""
    found = _closed_segment(cluster, planned, struck.victim)
    if found is None:
        struck.note = "no closed segment yet"
        return
    path, sound = found
    at, bit = _place(sound, planned)
    with path.open("r+b") as segment:
        segment.seek(at)
        segment.write(bytes((sound[at] ^ bit,)))
    deadline = time.monotonic() + REPAIR_S_MAX
    while path.read_bytes() != sound:
        if time.monotonic() > deadline:
            raise BrokenClusterError(f"byte {at} of {path} is still wrong after {REPAIR_S_MAX} s")
        await asyncio.sleep(0.1)
    struck.note = f"byte {at} of {path.parent.name}/{path.name}"


def _closed_segment(
    cluster: FaultCluster, planned: Strike, broker: int
) -> tuple[Path, bytes] | None:
    """A segment that is complete and has its checksums, and what it holds."""
    segments = [
        path
        for topic in TOPICS
        for index in range(PARTITIONS)
        for path in cluster.logs_of(broker, TopicPartition(topic, index))[:-1]
        if path.with_suffix(".checksums").exists()
    ]
    if not segments:
        return None
    path = segments[int(planned.choice * len(segments))]
    return path, path.read_bytes()


def _place(sound: bytes, planned: Strike) -> tuple[int, int]:
    """Which byte, and which bit of it: in a batch's records, or in its header outside the CRC."""
    starts = []
    position = 0
    while position + _HEADER_BYTES <= len(sound):
        starts.append(position)
        position += 12 + struct.unpack_from(">i", sound, position + 8)[0]
    place = planned.choice * len(starts)
    start, chance = starts[int(place)], place % 1
    if planned.kind is Kind.DAMAGE_HEADER:
        return start + _OUTSIDE_CRC[int(chance * len(_OUTSIDE_CRC))], 1 << planned.number % 8
    return start + _HEADER_BYTES, 1 << planned.number % 8


# ZooKeeper.


async def _kill_zookeeper(cluster: FaultCluster, planned: Strike, struck: Struck) -> None:
    ensemble = cluster.ensemble
    assert ensemble is not None
    leader = await asyncio.to_thread(ensemble.leader)
    if planned.kind is Kind.ZOOKEEPER_KILL_LEADER:
        server = leader
    else:
        followers = [each for each in ensemble.servers if each is not leader]
        server = followers[planned.number % len(followers)]
    struck.note = f"server {server.server_id}"
    struck.victim, struck.led = 0, []
    await asyncio.to_thread(server.kill)
    await asyncio.sleep(planned.hold_s)
    await asyncio.to_thread(server.start)


async def _cut_zookeeper(cluster: FaultCluster, planned: Strike, struck: Struck) -> None:
    links = cluster.store_links[struck.victim]
    for link in links:
        link.partition(planned.way, drop=planned.drops)
    struck.note = planned.way
    await asyncio.sleep(planned.hold_s)
    for link in links:
        link.heal()


_HOW: dict[Kind, Callable[[FaultCluster, Strike, Struck], Awaitable[None]]] = {
    Kind.KILL_LEADER: _kill,
    Kind.KILL_CONTROLLER: _kill,
    Kind.KILL_FOLLOWER: _kill,
    Kind.PAUSE_SHORT: _pause,
    Kind.PAUSE_LEADER: _pause,
    Kind.PAUSE_CONTROLLER: _pause,
    Kind.ROLLING_RESTART: _roll,
    Kind.REASSIGN: _reassign,
    Kind.CUT_CLIENTS: _cut_clients,
    Kind.CUT_PEERS: _cut_peers,
    Kind.ISOLATE: _isolate,
    Kind.DISK_FULL: _fill_disk,
    Kind.DAMAGE_RECORDS: _damage,
    Kind.DAMAGE_HEADER: _damage,
    Kind.ZOOKEEPER_KILL_LEADER: _kill_zookeeper,
    Kind.ZOOKEEPER_KILL_FOLLOWER: _kill_zookeeper,
    Kind.ZOOKEEPER_CUT: _cut_zookeeper,
}
