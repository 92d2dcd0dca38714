"""Which batches of a fetched answer a reader may see. Pure, and the only place that decides it.

Control batches are nobody's to see. Batches of aborted transactions are hidden from whoever reads
committed records only: an answer names them by producer and first offset, and each ends with its
producer's abort marker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tidemill.wire.batch import BatchHeader, iter_headers
from tidemill.wire.control import ControlType, read_marker
from tidemill.wire.messages.fetch import AbortedTransaction


def iter_visible(
    view: memoryview, aborted: Iterable[AbortedTransaction], *, committed_only: bool
) -> Iterator[tuple[int, BatchHeader, bool]]:
    """Position and header of each whole batch, and whether its records may be seen."""
    pending = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
    aborting: set[int] = set()
    for pos, header in iter_headers(view):
        is_visible = not header.is_control
        if committed_only:
            while pending and pending[-1].first_offset <= header.last_offset:
                aborting.add(pending.pop().producer_id)
            if header.is_control:
                _end_transaction(view, pos, header, aborting)
            elif header.is_transactional and header.producer_id in aborting:
                is_visible = False
        yield pos, header, is_visible


def _end_transaction(view: memoryview, pos: int, header: BatchHeader, aborting: set[int]) -> None:
    """An abort marker ends its producer's aborted transaction: what follows is a new one."""
    if header.record_count == 0:
        return  # The marker itself was compacted away.
    marker = read_marker(view, pos, header)
    if marker is not None and marker.control_type is ControlType.ABORT:
        aborting.discard(header.producer_id)
