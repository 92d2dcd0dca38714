"""Cut a batch in two when a broker finds it too large."""

from __future__ import annotations

from tidemill.client.batches import NO_SEQUENCE, Batch
from tidemill.client.sequences import after
from tidemill.wire.batch import read_header
from tidemill.wire.records import iter_records


def split(batch: Batch) -> list[tuple[int, Batch]]:
    """Two halves with the index of their first record.

    They keep the batch's age, so that a record's time to be delivered does not start again, and
    its sequence numbers, which the leader has not seen yet, unless in the whole.
    """
    assert batch.builder is not None
    encoded = batch.builder.build()
    header = read_header(encoded)
    records = list(iter_records(encoded, 0, header, limit_bytes=len(encoded)))
    middle = len(records) // 2
    parts = []
    for start, stop in ((0, middle), (middle, len(records))):
        part = Batch(batch.partition, batch.born_ms, (*batch.order, start))
        assert part.builder is not None
        for record in records[start:stop]:
            part.size_bytes = part.builder.append(
                record.timestamp, record.key, record.value, record.headers
            )
        part.record_count = stop - start
        part.closed = True
        part.maybe_written = part.at_large = batch.maybe_written
        if batch.base_sequence != NO_SEQUENCE:
            part.base_sequence = after(batch.base_sequence, start)
        parts.append((start, part))
    return parts
