"""Thousands of group members in one process: joins, heartbeats and commits at a given rate.

Members of one group never share a connection, since a broker answers one request of a connection
after the other and a join waits for the others. `python -m bench.group_load OPTIONS` establishes
the groups, prints `established`, keeps them alive for `seconds`, and prints what it saw as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import struct
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from tidemill.wire.apis import ApiKey
from tidemill.wire.declare import Message
from tidemill.wire.frame import decode_response, encode_request
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest
from tidemill.wire.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from tidemill.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

TICK_S = 0.001
"""Members do not beat in step: what is due is sent every millisecond."""

MEMBER_ID_REQUIRED = 79
REBALANCE_IN_PROGRESS = 27
COORDINATOR_NOT_READY = (14, 15, 16)
JOINS_AT_ONCE = 64
JOIN_LIMIT_S = 300
HEARD_EVERY_S = 0.02
"""How often members of a group that rebalances ask whether they are to join again."""

Answered = Callable[[bytes], None]


@dataclass
class Seen:
    """Latencies by kind of request, and the errors among the answers."""

    latencies_ns: dict[str, list[int]] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)

    def note(self, kind: str, elapsed_ns: int, error: int) -> None:
        self.latencies_ns.setdefault(kind, []).append(elapsed_ns)
        if error:
            self.errors[f"{kind} {error}"] += 1

    def summary(self, seconds: float) -> dict[str, Any]:
        result: dict[str, Any] = {"errors": dict(self.errors)}
        for kind, times in self.latencies_ns.items():
            times.sort()
            result[kind] = {
                "per_second": len(times) / seconds,
                "p50_ms": times[len(times) // 2] / 1e6,
                "p99_ms": times[len(times) * 99 // 100] / 1e6,
                "max_ms": times[-1] / 1e6,
            }
        return result


class Lane(asyncio.Protocol):
    """One connection: frames out, answers to whoever asked, in order."""

    def __init__(self) -> None:
        self._waiting: deque[Answered] = deque()
        self._held = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods without the base class.
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        while self._waiting:
            self._waiting.popleft()(b"")

    def send(self, frame: bytes, answered: Answered) -> None:
        self._waiting.append(answered)
        self.transport.write(frame)

    def data_received(self, data: bytes) -> None:
        data = self._held + data if self._held else data
        start = 0
        while len(data) - start >= 4:
            end = start + 4 + struct.unpack_from(">i", data, start)[0]
            if end > len(data):
                break
            self._waiting.popleft()(data[start:end])
            start = end
        self._held = data[start:]

    async def ask(self, key: ApiKey, version: int, request: Message) -> Any:
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.send(encode_request(key, version, 1, "bench", request), future.set_result)
        frame = await asyncio.wait_for(future, JOIN_LIMIT_S)
        if not frame:
            raise ConnectionError("the broker closed the connection")
        return decode_response(key, version, memoryview(frame)[4:])[1]


@dataclass
class Member:
    """One member of one group, and the frames it sends again and again."""

    group: str
    lane: Lane
    topic: str
    session_timeout_ms: int
    member_id: str = ""
    generation: int = -1
    leads: bool = False
    heartbeat: bytes = b""
    commit: bytes = b""

    async def join(self) -> None:
        """Join and take the assignment; when the others have moved on meanwhile, join again."""
        while not await self._joined_and_synced():
            pass

    async def is_current(self) -> bool:
        """Whether the group still is at this member's generation."""
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.lane.send(self.heartbeat, answered.set_result)
        return heartbeat_error(await answered) == 0

    async def _joined_and_synced(self) -> bool:
        joined = await self._joined()
        self.leads = joined.leader == self.member_id
        assignments = [
            SyncGroupRequestAssignment(member_id=each.member_id, assignment=b"-")
            for each in joined.members
        ]
        sync = SyncGroupRequest(
            group_id=self.group,
            generation_id=joined.generation_id,
            member_id=self.member_id,
            protocol_type="bench",
            protocol_name="any",
            assignments=assignments,
        )
        synced: SyncGroupResponse = await self.lane.ask(ApiKey.SYNC_GROUP, 5, sync)
        if synced.error_code not in (0, REBALANCE_IN_PROGRESS):
            raise RuntimeError(f"{self.group}: sync answered {synced.error_code}")
        self.generation = joined.generation_id
        self._prepare()
        return synced.error_code == 0

    async def _joined(self) -> JoinGroupResponse:
        while True:
            request = JoinGroupRequest(
                group_id=self.group,
                session_timeout_ms=self.session_timeout_ms,
                rebalance_timeout_ms=60_000,
                member_id=self.member_id,
                protocol_type="bench",
                protocols=[JoinGroupRequestProtocol(name="any", metadata=b"-")],
            )
            answer: JoinGroupResponse = await self.lane.ask(ApiKey.JOIN_GROUP, 9, request)
            self.member_id = answer.member_id
            if answer.error_code == 0:
                return answer
            if answer.error_code in COORDINATOR_NOT_READY:
                await asyncio.sleep(0.2)
            elif answer.error_code != MEMBER_ID_REQUIRED:
                raise RuntimeError(f"{self.group}: join answered {answer.error_code}")

    def _prepare(self) -> None:
        heartbeat = HeartbeatRequest(
            group_id=self.group, generation_id=self.generation, member_id=self.member_id
        )
        self.heartbeat = encode_request(ApiKey.HEARTBEAT, 4, 1, "bench", heartbeat)
        partition = OffsetCommitRequestPartition(
            partition_index=0, committed_offset=1, committed_metadata=""
        )
        commit = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            topics=[OffsetCommitRequestTopic(name=self.topic, partitions=[partition])],
        )
        self.commit = encode_request(ApiKey.OFFSET_COMMIT, 8, 1, "bench", commit)


def heartbeat_error(frame: bytes) -> int:
    """The error code of a Heartbeat v4 answer: after size, correlation id, tags and throttle."""
    return int(struct.unpack_from(">h", frame, 13)[0]) if frame else -1


def commit_error(frame: bytes, topic: str) -> int:
    """The error code of an OffsetCommit v8 answer about one partition of `topic`."""
    return int(struct.unpack_from(">h", frame, 20 + len(topic))[0]) if frame else -1


class Load:
    """The groups of one run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.seen = Seen()
        self.members: list[Member] = []
        self.loners: list[Member] = []
        self.restless: list[Member] = []

    async def establish(self) -> None:
        """Connect, and bring every group to a stable generation with all its members."""
        options = self.options
        host, port = options.bootstrap.rsplit(":", 1)
        loop = asyncio.get_running_loop()

        async def lane() -> Lane:
            return (await loop.create_connection(Lane, host, int(port)))[1]

        lanes = min(options.groups, JOINS_AT_ONCE)
        # Asking for a coordinator is what creates the offsets topic.
        find = FindCoordinatorRequest(key_type=0, coordinator_keys=[options.prefix])
        await (await lane()).ask(ApiKey.FIND_COORDINATOR, 6, find)
        grid = [[await lane() for _ in range(lanes)] for _ in range(options.members)]
        rows: list[list[list[Member]]] = [[] for _ in range(lanes)]
        for number in range(options.groups):
            group = [
                self._member(f"{options.prefix}-{number}", row[number % lanes]) for row in grid
            ]
            self.members += group
            rows[number % lanes].append(group)
        await asyncio.gather(*(self._join_all(groups) for groups in rows))
        self.loners = [
            self._member(f"{options.prefix}-alone-{number}", await lane())
            for number in range(options.loners)
        ]
        await asyncio.gather(*(member.join() for member in self.loners))
        self.restless = [
            self._member(f"{options.prefix}-restless", await lane())
            for _ in range(options.restless)
        ]
        await self._join_all([self.restless])

    def _member(self, group: str, lane: Lane) -> Member:
        return Member(group, lane, self.options.topic, self.options.session_timeout_ms)

    async def _join_all(self, groups: list[list[Member]]) -> None:
        for group in groups:
            await asyncio.gather(*(member.join() for member in group))
            while len({member.generation for member in group}) > 1:
                await asyncio.gather(*(self._keep_up(member) for member in group))
                await asyncio.sleep(TICK_S)

    async def _keep_up(self, member: Member) -> None:
        """Latecomers start a new generation: those who were early follow when they hear of it."""
        if not await member.is_current():
            await member.join()

    async def run(self) -> dict[str, Any]:
        """Keep the groups alive and commit, for the given time."""
        options = self.options
        begin = time.perf_counter()
        until = begin + options.seconds
        rejoins = asyncio.gather(self._rejoin(until), self._rebalance(until))
        beats = len(self.members) / options.heartbeat_s
        sent_beats = sent_commits = 0
        count = len(self.members)
        while (elapsed := time.perf_counter() - begin) < options.seconds:
            while sent_beats < elapsed * beats:
                self._beat(self.members[sent_beats % count])
                sent_beats += 1
            while sent_commits < elapsed * options.commits_per_s:
                self._commit(self.members[sent_commits * 7 % count])
                sent_commits += 1
            await asyncio.sleep(TICK_S)
        await rejoins
        await asyncio.sleep(1)
        return self.seen.summary(options.seconds)

    async def _rejoin(self, until: float) -> None:
        """Members that are alone in their group join again, one after the other."""
        while self.loners and time.perf_counter() < until:
            for member in self.loners:
                begin = time.perf_counter_ns()
                await member.join()
                self.seen.note("join", time.perf_counter_ns() - begin, 0)
                await asyncio.sleep(TICK_S * 50)

    async def _rebalance(self, until: float) -> None:
        """One group whose leader joins again and again, so that all of its members must."""
        while self.restless and time.perf_counter() < until:
            begin = time.perf_counter_ns()
            leader = next(member for member in self.restless if member.leads)
            joins = asyncio.create_task(leader.join())
            others = [member for member in self.restless if member is not leader]
            await asyncio.gather(joins, *(self._follow(member, joins) for member in others))
            self.seen.note("rebalance", time.perf_counter_ns() - begin, 0)
            await asyncio.sleep(TICK_S * 50)

    async def _follow(self, member: Member, leader_joins: asyncio.Task[None]) -> None:
        while not leader_joins.done():
            await self._keep_up(member)
            await asyncio.sleep(HEARD_EVERY_S)

    def _beat(self, member: Member) -> None:
        begin = time.perf_counter_ns()
        member.lane.send(
            member.heartbeat,
            lambda frame: self.seen.note(
                "heartbeat", time.perf_counter_ns() - begin, heartbeat_error(frame)
            ),
        )

    def _commit(self, member: Member) -> None:
        begin = time.perf_counter_ns()
        member.lane.send(
            member.commit,
            lambda frame: self.seen.note(
                "commit", time.perf_counter_ns() - begin, commit_error(frame, member.topic)
            ),
        )


async def _run(options: argparse.Namespace) -> None:
    load = Load(options)
    begin = time.perf_counter()
    await load.establish()
    print("established", round(time.perf_counter() - begin, 1), flush=True)
    print(json.dumps(await load.run()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--prefix", default="g", help="what the groups' names begin with")
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--loners", type=int, default=0, help="groups of one that join again")
    parser.add_argument("--restless", type=int, default=0, help="members of one that rebalances")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--heartbeat-s", type=float, default=3)
    parser.add_argument("--commits-per-s", type=float, default=5000)
    parser.add_argument("--session-timeout-ms", type=int, default=45_000)
    from uvloop import new_event_loop

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()
