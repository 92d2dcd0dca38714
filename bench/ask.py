"""Questions to one broker over a plain socket: what the benchmarks look at while clusters change.

No client library stands between, so that the answer is this broker's own and of this moment.
"""

from __future__ import annotations

import socket
import struct
from typing import Any, Self

from tidemill.wire.apis import ApiKey
from tidemill.wire.declare import Message
from tidemill.wire.frame import decode_response, encode_request
from tidemill.wire.messages.log_dirs import DescribeLogDirsRequest
from tidemill.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)

TIMEOUT_S = 10.0
RECEIVE_BYTES = 65_536


class RawConnection:
    """One blocking socket and the protocol's frames; a broker that is gone raises `OSError`."""

    def __init__(self, address: str, timeout_s: float = TIMEOUT_S) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.socket.close()

    def exchange(self, request: bytes) -> bytes:
        """Send a whole frame, and return the whole frame that answers it."""
        self.socket.sendall(request)
        answer = self._receive()
        (size,) = struct.unpack_from(">i", answer)
        if len(answer) < size + 4:
            parts = [answer]
            while (missing := size + 4 - sum(map(len, parts))) > 0:
                parts.append(self._receive(missing))
            answer = b"".join(parts)
        return answer

    def _receive(self, size_bytes: int = RECEIVE_BYTES) -> bytes:
        chunk = self.socket.recv(min(size_bytes, RECEIVE_BYTES))
        if not chunk:
            raise ConnectionResetError("the broker has closed the connection")
        return chunk

    def ask(self, key: ApiKey, version: int, message: Message) -> Any:
        answer = self.exchange(encode_request(key, version, 1, "bench", message))
        return decode_response(key, version, memoryview(answer)[4:])[1]

    def metadata(self, *topics: str) -> MetadataResponse:
        wanted = [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        answer: MetadataResponse = self.ask(ApiKey.METADATA, 12, request)
        return answer

    def topic(self, name: str) -> MetadataResponseTopic:
        [found] = self.metadata(name).topics
        return found

    def replica_bytes(self, topic: str) -> dict[int, int]:
        """How much this broker has of each partition of the topic."""
        answer = self.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest(topics=None))
        return {
            partition.partition_index: partition.partition_size
            for directory in answer.results
            for found in directory.topics
            if found.name == topic
            for partition in found.partitions
        }
