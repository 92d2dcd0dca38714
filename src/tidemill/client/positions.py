"""Where a consumer stands in each partition: a state machine without I/O.

Two offsets matter: `position` is the next one to hand out, `fetch_offset` the next one to ask for;
between them lie the batches that were fetched ahead. `generation` counts seeks: what was asked
before a seek is recognised by it and thrown away.
"""

from __future__ import annotations

from collections import deque
from uuid import UUID

from tidemill.client.admin_types import OffsetSpec
from tidemill.client.consumer_types import ConsumerRecord
from tidemill.client.errors import ClientError
from tidemill.client.fetched import FetchedBatch
from tidemill.types import ZERO_TOPIC_ID, TopicPartition

FORMER_TOPICS_MAX = 8


class PartitionState:
    """One assigned partition."""

    __slots__ = (
        "asked_of",
        "awaits_start",
        "backing_off",
        "batches",
        "buffered_bytes",
        "checked_epoch",
        "dropped",
        "error",
        "fetch_epoch",
        "fetch_offset",
        "fetch_until",
        "former_topic_ids",
        "generation",
        "high_watermark",
        "last_stable_offset",
        "log_start_offset",
        "partition",
        "paused",
        "position",
        "position_epoch",
        "read_from",
        "records",
        "reset_to",
        "stalled",
        "suspect",
        "taken",
        "topic_id",
        "validating",
    )

    def __init__(self, partition: TopicPartition, reset_to: OffsetSpec | None) -> None:
        self.partition = partition
        self.topic_id = ZERO_TOPIC_ID
        self.former_topic_ids: tuple[UUID, ...] = ()
        self.position: int | None = None
        self.position_epoch = -1
        """The leader epoch of the record before the position, as far as that was seen."""
        self.fetch_offset = -1
        self.fetch_until: int | None = None
        """Where to stop asking for more; what comes from there on is not wanted."""
        self.fetch_epoch = -1
        self.checked_epoch = -1
        self.generation = 0
        self.reset_to = reset_to
        self.validating = False
        self.awaits_start = False
        """Where to begin is what the group has committed, which is yet to be asked."""
        self.paused = False
        self.backing_off = False
        self.stalled = False
        self.suspect = False
        self.asked_of: int | None = None
        """The broker that owes us an answer about it."""
        self.error: ClientError | None = None
        self.read_from: int | None = None
        self.high_watermark: int | None = None
        self.last_stable_offset: int | None = None
        self.log_start_offset: int | None = None
        self.batches: deque[FetchedBatch] = deque()
        self.dropped: list[FetchedBatch] = []
        """What was taken from the stock and is not yet known to have been handed out."""
        self.buffered_bytes = 0
        self.records: list[ConsumerRecord] | None = None
        self.taken = 0

    # --- moving ----------------------------------------------------------------------------------

    def seek(self, offset: int, epoch: int = -1) -> None:
        """Go to an offset; whatever was fetched or asked before is void."""
        self._let_go()
        self.position = self.fetch_offset = offset
        self.fetch_epoch = self.position_epoch = epoch
        self.reset_to = None

    def seek_to(self, spec: OffsetSpec) -> None:
        """Go to the beginning or the end, wherever that will be found to be."""
        self._let_go()
        self.position = None
        self.position_epoch = -1
        self.reset_to = spec

    def _let_go(self) -> None:
        self.generation += 1
        self.batches.clear()
        self.buffered_bytes = 0
        self.records = None
        self.taken = 0
        self.validating = self.stalled = self.suspect = self.awaits_start = False
        self.error = None
        self.read_from = None

    def refetch(self) -> None:
        """Throw away what was fetched ahead and ask again from the position."""
        position = self.position
        self._let_go()
        if position is not None:
            self.fetch_offset = position

    def go_back(self, position: int | None, epoch: int) -> None:
        """What was taken from here on has reached nobody: fetch it again."""
        self.dropped.clear()
        self.position, self.position_epoch = position, epoch
        self.refetch()

    def move_to(self, node_id: int) -> None:
        """Another broker is to be asked from now on: what the one before may still say is void."""
        if self.asked_of is not None and self.asked_of != node_id:
            self.asked_of = None
            self.generation += 1

    def restock(self, position: int | None, epoch: int) -> int:
        """Like `go_back` with what was taken still at hand; returns its bytes."""
        self.batches.extendleft(reversed(self.dropped))
        restocked = sum(len(batch.data) for batch in self.dropped)
        self.dropped.clear()
        self.buffered_bytes += restocked
        self.records, self.taken = None, 0
        self.position, self.position_epoch = position, epoch
        return restocked

    def adopt(self, topic_id: UUID) -> bool:
        """Learn the topic's id; True if this is another topic than the one that was read.

        A broker that lags behind may still speak of the one before: it is not listened to.
        """
        if topic_id in (ZERO_TOPIC_ID, self.topic_id, *self.former_topic_ids):
            return False
        before, self.topic_id = self.topic_id, topic_id
        if before == ZERO_TOPIC_ID:
            return False
        self.former_topic_ids = (before, *self.former_topic_ids)[:FORMER_TOPICS_MAX]
        return True

    def begin_anew(self, spec: OffsetSpec | None, *, ask_group: bool) -> None:
        """The topic was deleted and made again: no offset of the first one means anything."""
        self._let_go()
        self.position = None
        self.reset_to = spec
        self.awaits_start = ask_group
        self.fetch_epoch = self.checked_epoch = self.position_epoch = -1
        self.high_watermark = self.last_stable_offset = self.log_start_offset = None

    # --- fetching --------------------------------------------------------------------------------

    def can_fetch(self, ahead_bytes: int) -> bool:
        """Whether to ask for more, having at most `ahead_bytes` in stock."""
        return (
            self.position is not None
            and not self.paused
            and self.asked_of is None
            and not self.validating
            and not self.backing_off
            and not self.stalled
            and self.error is None
            and self.buffered_bytes < ahead_bytes
            and (self.fetch_until is None or self.fetch_offset < self.fetch_until)
        )

    def add(self, batches: list[FetchedBatch]) -> int:
        """Stock fetched batches; returns their bytes."""
        added = 0
        for batch in batches:
            # A broker may send what we have already: the batch around the offset we asked for.
            if batch.header.next_offset <= self.fetch_offset:
                continue
            self.batches.append(batch)
            added += len(batch.data)
            self.fetch_offset = batch.header.next_offset
            self.fetch_epoch = max(self.fetch_epoch, batch.header.partition_leader_epoch)
        self.buffered_bytes += added
        return added

    def drop_first(self) -> None:
        """The first batch was handed out, or skipped."""
        batch = self.batches.popleft()
        self.dropped.append(batch)
        self.buffered_bytes -= len(batch.data)
        self.position = batch.header.next_offset
        self.position_epoch = batch.header.partition_leader_epoch
        self.records = None
        self.taken = 0
        if not self.batches:
            self.stalled = False

    def cut_at(self, end_offset: int) -> bool:
        """The log now ends at `end_offset` for our epoch; True if we had read beyond it."""
        assert self.position is not None
        read_beyond = self.position > end_offset
        while self.batches and self.batches[-1].header.next_offset > end_offset:
            self.buffered_bytes -= len(self.batches.pop().data)
        if not self.batches:
            self.records = None
            self.taken = 0
        self.fetch_offset = min(self.fetch_offset, max(end_offset, 0))
        self.generation += 1
        return read_beyond

    @property
    def lag(self) -> int | None:
        """Records between the position and the end, as of the last answer."""
        if self.position is None or self.high_watermark is None:
            return None
        return max(self.high_watermark - self.position, 0)
