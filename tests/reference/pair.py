"""Apache Kafka and Tidemill side by side: the same request to both, the answers compared.

A `Case` is a name and a request (or a function that makes it for one of the two, when it needs a
topic's id). `Pair.compare` sends a list of cases to both systems in order, turns each answer into
plain values with everything normalised that cannot be equal (hosts, ports, ids, times), and reports
what differs. Intended differences stand in `differences.py`, one line and a reason each.
"""

from __future__ import annotations

import re
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from tests.reference.differences import SETTINGS_LEFT_OUT, is_intended

from tidemill.wire.apis import ApiKey
from tidemill.wire.declare import Struct
from tidemill.wire.frame import decode_response, encode_request
from tidemill.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tidemill.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidemill.wire.messages.topics import CreateTopicsRequest

CLOSED = "the connection was closed"
ANSWER_LIMIT_S = 10

# A wall-clock time in milliseconds inside a message.
MOMENT = re.compile(r"-?\d{13,}")

# Fields whose values belong to one installation and say nothing about behaviour.
OWN_VALUES = {
    "host",
    "port",
    "rack",
    "cluster_id",
    "throttle_time_ms",
    "log_dir",
    "total_bytes",
    "usable_bytes",
    "session_id",
    "producer_id",
    "producer_id_start",
    "last_timestamp",
    "finalized_features_epoch",
    "documentation",
}


class Peer:
    """One of the two systems, spoken to with plain frames."""

    def __init__(self, name: str, port: int) -> None:
        self.name = name
        self.port = port
        self._socket: socket.socket | None = None

    def ask(self, api: ApiKey, version: int, request: Any) -> Any:
        """The decoded answer, or `CLOSED`."""
        frame = self.exchange(encode_request(api, version, 77, "reference", request))
        if frame is None:
            return CLOSED
        correlation_id, answer = decode_response(api, version, frame)
        assert correlation_id == 77
        return answer

    def exchange(self, request: bytes) -> memoryview | None:
        """The raw answer's frame; None when the peer closes the connection instead."""
        if self._socket is None:
            self._socket = socket.create_connection(("127.0.0.1", self.port), ANSWER_LIMIT_S)
        try:
            self._socket.sendall(request)
            (size,) = struct.unpack(">i", self._receive(4))
            return memoryview(self._receive(size))
        except (ConnectionError, EOFError):
            self.close()
            return None

    def _receive(self, size: int) -> bytes:
        assert self._socket is not None
        pieces = bytearray()
        while len(pieces) < size:
            piece = self._socket.recv(size - len(pieces))
            if not piece:
                raise EOFError
            pieces += piece
        return bytes(pieces)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def topic_id(self, topic: str) -> UUID:
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
        )
        answer = self.ask(ApiKey.METADATA, 12, request)
        found: UUID = answer.topics[0].topic_id
        return found

    def wait_for_leaders(self, topic: str) -> None:
        """Metadata is published after the answer to CreateTopics; only then can data be sent."""
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
        )
        for _ in range(500):
            found = self.ask(ApiKey.METADATA, 12, request).topics[0]
            leaders = [partition.leader_id for partition in found.partitions]
            led = found.error_code == 0 and leaders and min(leaders) >= 0
            if led and all(self._is_open(topic, index) for index in range(len(leaders))):
                return
            time.sleep(0.01)
        raise AssertionError(f"{topic} got no leaders on {self.name}")

    def _is_open(self, topic: str, partition: int) -> bool:
        where = ListOffsetsPartition(partition_index=partition, timestamp=-2)
        request = ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[where])]
        )
        answer = self.ask(ApiKey.LIST_OFFSETS, 7, request)
        return bool(answer.topics[0].partitions[0].error_code == 0)


class Case(NamedTuple):
    """A request with a name; `request` may be made for one of the peers."""

    name: str
    request: Any | Callable[[Peer], Any]


class Pair:
    """The reference and us."""

    def __init__(self, kafka: Peer, tidemill: Peer) -> None:
        self.kafka = kafka
        self.tidemill = tidemill

    def both(self, api: ApiKey, version: int, request: Any) -> list[Any]:
        """Send one request to both, for set-up; the raw answers."""
        return [peer.ask(api, version, request) for peer in (self.kafka, self.tidemill)]

    def create(self, request: CreateTopicsRequest) -> None:
        """Create topics on both, and wait until their partitions have leaders everywhere."""
        for peer in self._peers():
            answer = peer.ask(ApiKey.CREATE_TOPICS, 7, request)
            assert all(topic.error_code == 0 for topic in answer.topics), answer
            for topic in request.topics:
                peer.wait_for_leaders(topic.name)

    def compare(self, api: ApiKey, version: int, cases: Sequence[Case]) -> None:
        """Fail with every difference that is not intended."""
        problems: list[str] = []
        for case in cases:
            theirs, ours = (self._answer(peer, api, version, case) for peer in self._peers())
            for path, kafka_value, tidemill_value in differences(theirs, ours):
                if not is_intended(api.name, version, case.name, path):
                    problems.append(
                        f"{api.name} v{version}, {case.name}: {path or 'answer'} is "
                        f"{tidemill_value!r}, Kafka says {kafka_value!r}"
                    )
        assert not problems, "\n".join(problems)

    def _peers(self) -> tuple[Peer, Peer]:
        return self.kafka, self.tidemill

    def _answer(self, peer: Peer, api: ApiKey, version: int, case: Case) -> Any:
        request = case.request(peer) if callable(case.request) else case.request
        answer = peer.ask(api, version, request)
        return plain(answer) if answer != CLOSED else CLOSED


def plain(value: Any) -> Any:
    """Structs become dicts; what belongs to one installation becomes a placeholder."""
    if isinstance(value, Struct):
        return {
            spec.name: own(getattr(value, spec.name))
            if spec.name in OWN_VALUES
            else plain(getattr(value, spec.name))
            for spec in type(value).FIELDS
        }
    if isinstance(value, list):
        return in_order([plain(item) for item in value])
    if isinstance(value, memoryview | bytearray):
        return bytes(value)
    if isinstance(value, UUID):
        return own(value) if value.int else "no id"
    if isinstance(value, str):
        return MOMENT.sub("<moment>", value)
    return value


def in_order(items: list[Any]) -> list[Any]:
    """Settings come in the order of a hash map: sort them, without those that differ by intent."""
    if not items or not isinstance(items[0], dict) or "is_sensitive" not in items[0]:
        return items
    return sorted(
        (item for item in items if item["name"] not in SETTINGS_LEFT_OUT),
        key=lambda item: item["name"],
    )


def own(value: Any) -> str:
    """A value that need not be equal, but must be there or missing on both sides alike."""
    return "none" if value in (None, "", -1) else "some"


def differences(theirs: Any, ours: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """Where two plain values differ: (path, Kafka's, ours)."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return [
            found
            for name in theirs
            for found in differences(theirs[name], ours.get(name), f"{path}.{name}".lstrip("."))
        ]
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        return [
            found
            for number, (one, other) in enumerate(zip(theirs, ours, strict=True))
            for found in differences(one, other, f"{path}[{number}]")
        ]
    return [] if theirs == ours else [(path, theirs, ours)]
