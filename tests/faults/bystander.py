"""What a hostile peer must not touch: the broker's memory, and the client beside it."""

from __future__ import annotations

import socket
import struct
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from tidemill.testing.process import BrokerProcess
from tidemill.wire.apis import ApiKey
from tidemill.wire.frame import decode_response, encode_request
from tidemill.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

ANSWER_S = 10
"""More than any answer takes that nobody has a reason to hold back."""

_VERSION = 2


def connect(broker: BrokerProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", broker.port), timeout=ANSWER_S)


def read_frame(connection: socket.socket) -> memoryview:
    """One answer without its size; `ConnectionResetError` where the broker has closed instead."""
    data = bytearray()
    while len(data) < 4 or len(data) < 4 + struct.unpack_from(">i", data)[0]:
        piece = connection.recv(1 << 20)
        if not piece:
            assert not data, "the broker closed in the middle of an answer"
            raise ConnectionResetError
        data += piece
    size = struct.unpack_from(">i", data)[0]
    return memoryview(bytes(data[4 : 4 + size]))


def forget_peak(broker: BrokerProcess) -> None:
    """Let the peak of the broker's memory begin anew, at what it takes now."""
    Path(f"/proc/{broker.pid}/clear_refs").write_text("5")


def peak_bytes(broker: BrokerProcess) -> int:
    """The most memory that the broker has taken since."""
    status = Path(f"/proc/{broker.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


class Served(NamedTuple):
    """One answer that the bystander got."""

    asked_s: float
    answered_s: float


class Bystander:
    """A good client with a connection of its own, which asks as long as the context lasts."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.served: list[Served] = []
        self._connection = connect(broker)
        self._correlation_id = 0
        self._stopped = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def ask(self) -> None:
        """One question, and its answer."""
        self._correlation_id += 1
        asked_s = time.monotonic()
        self._connection.sendall(
            encode_request(
                ApiKey.API_VERSIONS, _VERSION, self._correlation_id, "good", ApiVersionsRequest()
            )
        )
        frame = read_frame(self._connection)
        correlation_id, answer = decode_response(ApiKey.API_VERSIONS, _VERSION, frame)
        assert correlation_id == self._correlation_id
        assert isinstance(answer, ApiVersionsResponse)
        assert answer.error_code == 0
        self.served.append(Served(asked_s, time.monotonic()))

    def __enter__(self) -> Self:
        self.ask()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._thread.join()
        self._connection.close()
        if self._error is not None and error is None:
            raise self._error

    def close(self) -> None:
        self._connection.close()

    def served_between(self, start_s: float, end_s: float) -> int:
        return sum(start_s <= one.asked_s and one.answered_s <= end_s for one in self.served)

    @property
    def longest_s(self) -> float:
        return max(one.answered_s - one.asked_s for one in self.served)

    def _run(self) -> None:
        try:
            while not self._stopped.wait(0.005):
                self.ask()
        except BaseException as error:  # noqa: BLE001 - whoever leaves the context hears of it
            self._error = error
