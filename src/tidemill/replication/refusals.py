"""What was refused of an idempotent producer, so that what it had sent behind it is refused, too.

A producer has several requests on their way. If the first is refused because there is no room, too
few are in sync, or another broker leads, and that ends a moment later, the second one arrives with
a gap before it. Said so (OUT_OF_ORDER_SEQUENCE_NUMBER), it looks to some clients like lost records:
they begin a new epoch and send again what may have been written, so that it is there twice. And
from a producer that is not known yet any sequence would be taken, with the first batch behind the
second (rule G3). Both are answered like the batch in front of them instead: come again.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.errors import ApiError, ErrorCode, WireError
from tidemill.replication.conversion import Records
from tidemill.storage.producer_state import ProducerStates
from tidemill.wire.batch import SEQUENCE_MAX, BatchHeader, read_header

PRODUCERS_MAX = 1_000
REMEMBERED_MS = 30_000
"""What was sent behind a refused batch has arrived by then, or its request has timed out."""

_PASSING = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Reasons that have nothing to do with the batch, and may be over with the next one."""


@dataclass(frozen=True, slots=True)
class _Refused:
    """The first batch of a producer that has to come again."""

    epoch: int
    sequence: int
    code: ErrorCode
    until_ms: int

    def is_before(self, header: BatchHeader, now_ms: int) -> bool:
        """Whether the batch was sent behind this one."""
        distance = (header.base_sequence - self.sequence) & SEQUENCE_MAX
        is_behind = 0 < distance <= SEQUENCE_MAX // 2
        return header.producer_epoch == self.epoch and is_behind and now_ms < self.until_ms

    def error(self) -> ApiError:
        return ApiError(self.code, f"the batch with sequence {self.sequence} has to come first")


class Refusals:
    """The refused batches of one partition, by producer."""

    __slots__ = ("_by_producer",)

    def __init__(self) -> None:
        self._by_producer: dict[int, _Refused] = {}

    def __bool__(self) -> bool:
        return bool(self._by_producer)

    def check(self, records: Records, known: ProducerStates, now_ms: int) -> None:
        """Raise if a producer without any state here would begin behind what was refused."""
        header = _header(records)
        if header is None or known.get(header.producer_id) is not None:
            return
        refused = self._by_producer.get(header.producer_id)
        if refused is not None and refused.is_before(header, now_ms):
            raise refused.error()

    def judged(self, records: Records, error: ApiError, now_ms: int) -> ApiError:
        """What to answer for an append that failed with `error`."""
        header = _header(records)
        if header is None or header.producer_id < 0:
            return error
        refused = self._by_producer.get(header.producer_id)
        is_behind = refused is not None and refused.is_before(header, now_ms)
        if refused is not None and is_behind:
            is_gap = error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            return refused.error() if is_gap else error
        if error.code in _PASSING:
            self._note(header, error.code, now_ms)
        return error

    def accepted(self, records: Records) -> None:
        """The producer goes on."""
        header = _header(records)
        if header is not None:
            self._by_producer.pop(header.producer_id, None)

    def _note(self, header: BatchHeader, code: ErrorCode, now_ms: int) -> None:
        self._by_producer.pop(header.producer_id, None)
        if len(self._by_producer) >= PRODUCERS_MAX:
            del self._by_producer[next(iter(self._by_producer))]
        self._by_producer[header.producer_id] = _Refused(
            header.producer_epoch, header.base_sequence, code, now_ms + REMEMBERED_MS
        )


def _header(records: Records) -> BatchHeader | None:
    try:
        return read_header(records)
    except WireError:
        return None
