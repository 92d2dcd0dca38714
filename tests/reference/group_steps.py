"""Scenarios of several requests, played on both systems, every answer of each compared.

A scenario is a function of a `Stage`: it sends requests, reads ids out of the answers, and sends
more. The stage keeps every answer under the name of its step. Ids that the systems invent are
replaced by numbers in the order of their first appearance, so that a wrong id in an answer shows.
"""

from __future__ import annotations

import re
import select
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from tests.reference.differences import is_intended
from tests.reference.pair import CLOSED, Pair, Peer, differences, plain

from tidemill.wire.apis import ApiKey
from tidemill.wire.frame import decode_response, encode_request
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest
from tidemill.wire.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)

_INVENTED = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|^[A-Za-z0-9_-]{22}$"
)
SESSION_MS = 10_000


class Line(Peer):
    """A connection of one member, on which an answer may be waited for later."""

    def send(self, api: ApiKey, version: int, request: Any) -> None:
        if self._socket is None:
            self._connect()
        assert self._socket is not None
        self._socket.sendall(encode_request(api, version, 77, "reference", request))
        self._asked = (api, version)

    def _connect(self) -> None:
        self._socket = socket.create_connection(("127.0.0.1", self.port), 10)

    def receive(self) -> Any:
        (size,) = struct.unpack(">i", self._receive(4))
        api, version = self._asked
        return decode_response(api, version, memoryview(self._receive(size)))[1]

    def has_answer(self, within_s: float) -> bool:
        assert self._socket is not None
        waiting = select.poll()  # select() takes no descriptor above 1023
        waiting.register(self._socket, select.POLLIN)
        return bool(waiting.poll(within_s * 1000))


class Stage:
    """One of the two systems, and what it has answered."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.answers: list[tuple[str, ApiKey, int, Any]] = []
        self._ids: dict[str, str] = {}
        self._lines: list[Line] = []

    def line(self) -> Line:
        line = Line(self.peer.name, self.peer.port)
        self._lines.append(line)
        return line

    def ask(self, step: str, api: ApiKey, version: int, request: Any) -> Any:
        answer = self.peer.ask(api, version, request)
        self.note(step, api, version, answer)
        return answer

    def note(self, step: str, api: ApiKey, version: int, answer: Any) -> None:
        shown = answer if answer == CLOSED else self._anonymous(plain(answer))
        self.answers.append((step, api, version, shown))

    def _anonymous(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._anonymous(each) for key, each in value.items()}
        if isinstance(value, list):
            return _in_order([self._anonymous(each) for each in value])
        if isinstance(value, str):
            return _INVENTED.sub(lambda found: self._number(found.group()), value)
        return value

    def _number(self, invented: str) -> str:
        return self._ids.setdefault(invented, f"<id {len(self._ids)}>")

    def close(self) -> None:
        for line in self._lines:
            line.close()

    # Steps that most scenarios need.

    def join(self, step: str, version: int, request: JoinGroupRequest) -> Any:
        """Join, with the second request that newer versions need for an id."""
        answer = self.ask(step, ApiKey.JOIN_GROUP, version, request)
        if answer.error_code == 79:
            request.member_id = answer.member_id
            answer = self.ask(f"{step}, with the id", ApiKey.JOIN_GROUP, version, request)
        return answer

    def stable_member(self, group: str, version: int = 5, **fields: Any) -> tuple[str, int]:
        """A group of one, stable: its member's id and generation."""
        joined = self.join("join", version, joining(group, **fields))
        assigned = SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")
        self.ask(
            "sync", ApiKey.SYNC_GROUP, 3,
            SyncGroupRequest(group_id=group, generation_id=joined.generation_id,
                             member_id=joined.member_id, assignments=[assigned],
                             group_instance_id=fields.get("instance_id")),
        )  # fmt: skip
        return joined.member_id, joined.generation_id


def _in_order(items: list[Any]) -> list[Any]:
    """Members, and offsets when all are asked for, come in the order of a hash map."""
    if not items or not isinstance(items[0], dict):
        return items
    for field in ("member_id", "committed_offset"):
        if field in items[0]:
            return sorted(items, key=lambda item: str(item[field]))
    return items


def play(pair: Pair, scenario: Callable[[Stage], None]) -> None:
    """Play the scenario on both systems and compare all answers."""
    stages = [Stage(pair.kafka), Stage(pair.tidemill)]
    for stage in stages:
        wait_for_coordinator(stage.peer)
        try:
            scenario(stage)
        finally:
            stage.close()
    compare(*stages)


def compare(first: Stage, second: Stage) -> None:
    """Fail with every difference between two systems' answers that is not intended."""
    kafka, tidemill = first.answers, second.answers
    assert [step for step, *_ in kafka] == [step for step, *_ in tidemill]
    problems = [
        f"{step} ({api.name} v{version}): {path or 'answer'} is {ours!r}, Kafka says {theirs!r}"
        for (step, api, version, one), (_, _, _, other) in zip(kafka, tidemill, strict=True)
        for path, theirs, ours in differences(one, other)
        if not is_intended(api.name, version, step, path)
    ]
    assert not problems, "\n".join(problems)


def wait_for_coordinator(peer: Peer) -> None:
    """The first question makes the internal topic; ask until it is there and loaded."""
    heartbeat = HeartbeatRequest(group_id="nobody", generation_id=1, member_id="nobody")
    for _ in range(400):
        request = FindCoordinatorRequest(coordinator_keys=["nobody"], key_type=0)
        found = peer.ask(ApiKey.FIND_COORDINATOR, 4, request).coordinators[0]
        if found.error_code == 0 and peer.ask(ApiKey.HEARTBEAT, 4, heartbeat).error_code == 25:
            return
        time.sleep(0.05)
    raise AssertionError(f"{peer.name} has no coordinator")


def joining(
    group: str,
    *,
    member_id: str = "",
    instance_id: str | None = None,
    session_ms: int = SESSION_MS,
    rebalance_ms: int = 20_000,
    protocol_type: str = "consumer",
    protocols: dict[str, bytes] | None = None,
) -> JoinGroupRequest:
    offered = {"range": b"\0\0\0\0\0\0\0\0\0\0"} if protocols is None else protocols
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms,
        member_id=member_id,
        group_instance_id=instance_id,
        protocol_type=protocol_type,
        protocols=[
            JoinGroupRequestProtocol(name=name, metadata=data) for name, data in offered.items()
        ],
    )


def leaving(group: str, *members: MemberIdentity) -> LeaveGroupRequest:
    return LeaveGroupRequest(group_id=group, members=list(members))
