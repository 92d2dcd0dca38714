"""Records of transactions, held back while a log is read until their marker says what they are.

Apache Kafka writes the offsets that a transaction commits into the log of groups when they come,
and the marker when the transaction ends. Until then they are nobody's; an abort drops them (rule
H11). A commit makes them true as of when they were written: what the log says about the same key
after that stays.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemill.coordinators.result import CoordinatorRecord


class Dated(NamedTuple):
    """A record, and when it was written."""

    record: CoordinatorRecord
    written_ms: int


class Stored(NamedTuple):
    """A record where the log has it."""

    offset: int
    key: bytes
    dated: Dated


class OpenTransactions:
    """What is held back, by producer and key."""

    def __init__(self) -> None:
        self._held: dict[int, dict[bytes, Stored]] = {}

    def hold(self, producer_id: int, stored: Stored) -> None:
        self._held.setdefault(producer_id, {})[stored.key] = stored

    def seen(self, stored: Stored) -> None:
        """The log says this for good: what was held of the key before it counts no more."""
        for held in self._held.values():
            known = held.get(stored.key)
            if known is not None and known.offset < stored.offset:
                del held[stored.key]

    def end(self, producer_id: int, *, is_commit: bool) -> list[Dated]:
        """What became true with the producer's marker, in its order."""
        held = self._held.pop(producer_id, {})
        if not is_commit:
            return []
        for stored in held.values():
            self.seen(stored)
        return [stored.dated for stored in sorted(held.values(), key=lambda each: each.offset)]
