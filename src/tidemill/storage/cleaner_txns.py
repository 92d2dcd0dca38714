"""Which transactional batches compaction may discard, following a log from its start in order.

The records of an aborted transaction go at once. Its marker, like a commit's, may only go after all
of the transaction's records are gone, and then waits for a delete horizon of its own (rule I3): a
consumer that has read some of the records must still find out how the transaction ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidemill.storage.txn_index import AbortedTransaction
from tidemill.wire.batch import BatchHeader
from tidemill.wire.control import ControlType, EndTransactionMarker


@dataclass(slots=True)
class _Aborted:
    """An aborted transaction whose records we are walking through."""

    entry: AbortedTransaction
    has_records: bool = False


class TransactionTracker:
    """The transactions that are open at the present place in the log."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._waiting = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
        self._aborted: dict[int, _Aborted] = {}
        self._committed: set[int] = set()

    def reads_data(self, header: BatchHeader) -> bool:
        """Walk past a data batch; whether it belongs to an aborted transaction."""
        self._advance(header.last_offset)
        if not header.is_transactional:
            return False
        aborted = self._aborted.get(header.producer_id)
        if aborted is None:
            self._committed.add(header.producer_id)
            return False
        aborted.has_records = True
        return True

    def reads_marker(
        self, header: BatchHeader, marker: EndTransactionMarker | None
    ) -> tuple[bool, AbortedTransaction | None]:
        """Walk past a control batch; whether no record of its transaction is left in the log, and
        the aborted transaction that must stay in the index, if it is the end of one."""
        self._advance(header.last_offset)
        if marker is None:
            # Emptied by an earlier pass, or not a transaction's: only the former may go.
            return header.record_count == 0, None
        if marker.control_type is ControlType.ABORT:
            aborted = self._aborted.pop(header.producer_id, None)
            if aborted is not None and aborted.has_records:
                return False, aborted.entry
            return True, None
        if header.producer_id in self._committed:
            self._committed.discard(header.producer_id)
            return False, None
        return True, None

    def _advance(self, offset: int) -> None:
        """Open the aborted transactions that begin up to `offset`."""
        while self._waiting and self._waiting[-1].first_offset <= offset:
            entry = self._waiting.pop()
            self._aborted.setdefault(entry.producer_id, _Aborted(entry))
