"""What a follower fetched, checked and put into its log, with the high watermark beside it.

`whole_batches` judges fetched records by their headers before anything is written: they must go on
where the log ends or later (rule D6) and come from no later term than the one that was asked.
`ReplicaCopy` then writes and cuts; the high watermark and the log move together (rules B4 and B6).
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.errors import ApiError, ErrorCode, WireError
from tidemill.invariant import InvariantError
from tidemill.replication.alignment import StartOver, TruncateTo
from tidemill.replication.progress import countable_end
from tidemill.storage.log import Log
from tidemill.wire.batch import BatchHeader, iter_headers


class MisplacedRecordsError(InvariantError):
    """The leader sent records that cannot follow the log's end: one of the two logs is wrong."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """Whole batches that may be appended."""

    records: memoryview
    starts_over_at: int | None
    """Where an empty log must start instead, for the first batch began before its first offset."""


def whole_batches(log: Log, records: memoryview, leader_epoch: int) -> Fetched | None:
    """The batches of a fetch in `leader_epoch` that the log can take, None if there are none.

    A leader that was deposed while it sent its answer may have put a later term's records into it.
    They are left out: nothing is known yet of that term. Raises CORRUPT_MESSAGE for what is no
    sequence of batches, and `MisplacedRecordsError` for batches of another place.
    """
    expected = log.log_end_offset
    last_epoch = log.leader_epochs.latest
    starts_over_at: int | None = None
    size_bytes = 0
    for position, header in _headers(records):
        epoch = header.partition_leader_epoch
        if epoch > leader_epoch:
            break
        if 0 <= epoch < last_epoch:
            raise _corrupt(f"epoch {epoch} at offset {header.base_offset} after {last_epoch}")
        # Offsets may be left out: compaction did that, perhaps before the topic's policy changed.
        if header.base_offset < expected:
            if position or not _covers_start(log, header):
                raise MisplacedRecordsError(
                    f"{log.topic_partition} ends at {expected}, but its leader sent a batch with "
                    f"offsets {header.base_offset} to {header.last_offset}"
                )
            starts_over_at = header.base_offset
        expected = header.next_offset
        last_epoch = max(last_epoch, epoch)
        size_bytes = position + header.size_bytes
    return Fetched(records[:size_bytes], starts_over_at) if size_bytes else None


def _headers(records: memoryview) -> list[tuple[int, BatchHeader]]:
    try:
        headers = list(iter_headers(records))
    except WireError as error:
        raise _corrupt(str(error)) from error
    if not headers and len(records):
        raise _corrupt(f"{len(records)} bytes without a whole batch")
    return headers


def _corrupt(what: str) -> ApiError:
    return ApiError(ErrorCode.CORRUPT_MESSAGE, f"the leader sent no valid batches: {what}")


def _covers_start(log: Log, header: BatchHeader) -> bool:
    """Whether an empty log begins in the middle of this batch, as after DeleteRecords."""
    is_empty = log.log_start_offset == log.log_end_offset
    return is_empty and header.base_offset < log.log_start_offset < header.next_offset


class ReplicaCopy:
    """A follower's log and the high watermark as far as its leader has told."""

    __slots__ = ("high_watermark", "log")

    def __init__(self, log: Log, high_watermark: int) -> None:
        self.log = log
        self.high_watermark = min(max(high_watermark, log.log_start_offset), log.log_end_offset)

    @property
    def is_settled(self) -> bool:
        """Whether all of the log may be reported: under `ack`, nothing waits for a flush (E7).

        A fetch asks from the end that it reports, so there is none while the two differ.
        """
        return countable_end(self.log) == self.log.log_end_offset

    def append(self, fetched: Fetched) -> None:
        """Write what `whole_batches` let through; the storage checks every checksum first (E2)."""
        start = self.log.log_start_offset
        if fetched.starts_over_at is not None:
            self.log.truncate_fully_and_start_at(fetched.starts_over_at)
        self.log.append_as_follower(fetched.records)
        if fetched.starts_over_at is not None:
            self.log.advance_log_start(start)

    def advance(self, leader_high_watermark: int, leader_log_start: int) -> bool:
        """Follow what the leader says is committed and what it deleted; True if either moved.

        Ours cannot be above our own end (rule B4). A new leader may know less than its predecessor
        told us; what was committed stays so, and nobody sees the offset go back (rule B5).
        """
        before = self.high_watermark, self.log.log_start_offset
        told = min(leader_high_watermark, self.log.log_end_offset)
        self.high_watermark = max(self.high_watermark, told)
        self.log.advance_log_start(min(leader_log_start, self.high_watermark))
        return before != (self.high_watermark, self.log.log_start_offset)

    def cut(self, decision: TruncateTo | StartOver) -> bool:
        """Cut the log as alignment decided; True if committed records went with it.

        That happens only after an unclean election, and is worth a line in the log.
        """
        loses_committed = decision.offset < self.high_watermark
        if isinstance(decision, TruncateTo):
            self.log.truncate_to(decision.offset)
        else:
            loses_committed = False  # The leader itself has deleted them.
            self.log.truncate_fully_and_start_at(decision.offset)
        self.high_watermark = max(
            self.log.log_start_offset, min(self.high_watermark, self.log.log_end_offset)
        )
        return loses_committed
