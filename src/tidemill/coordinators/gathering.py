"""Small writes that are put into one batch: those of one turn of the loop, or of some ms."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tidemill.coordinators.machinery import Machinery
from tidemill.coordinators.result import CoordinatorRecord, Encoded, Settled
from tidemill.errors import ErrorCode
from tidemill.timers import TimerHandle

GATHERED_BYTES_MAX = 256 << 10


class Gathered(NamedTuple):
    """What is written together; `settle` tells all of them."""

    records: list[CoordinatorRecord]
    encoded: list[Encoded]
    settle: Settled


class Gathering:
    """What waits to be written together; `due` is called when it has waited long enough."""

    def __init__(self, machinery: Machinery, due: Callable[[], None]) -> None:
        self._machinery = machinery
        self._due = due
        self._lingers: TimerHandle | None = None
        self._begin()

    def _begin(self) -> None:
        self._records: list[CoordinatorRecord] = []
        self._encoded: list[Encoded] = []
        self._settles: list[Settled] = []
        self._size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._settles)

    def has_room_for(self, encoded: list[Encoded]) -> bool:
        return not self or self._size_bytes + bytes_of(encoded) <= GATHERED_BYTES_MAX

    def add(
        self, records: list[CoordinatorRecord], encoded: list[Encoded], settle: Settled
    ) -> None:
        if not self:
            self._linger()
        self._records += records
        self._encoded += encoded
        self._settles.append(settle)
        self._size_bytes += bytes_of(encoded)

    def _linger(self) -> None:
        linger_ms = self._machinery.settings.append_linger_ms
        if linger_ms > 0:
            self._lingers = self._machinery.timers.schedule(linger_ms, self._due)
        else:
            self._machinery.call_soon(self._due)

    def take(self) -> Gathered:
        """All that has come until now; what comes later is gathered anew."""
        settles = self._settles
        taken = Gathered(self._records, self._encoded, lambda code: _tell(settles, code))
        self._begin()
        if self._lingers is not None:
            self._lingers.cancel()
            self._lingers = None
        return taken


def _tell(settles: list[Settled], code: ErrorCode) -> None:
    for settle in settles:
        settle(code)


def bytes_of(encoded: list[Encoded]) -> int:
    return sum(len(key) + len(value or b"") for key, value in encoded)
