"""Who fetches, and what that lets them see: consumers what is committed, followers everything.

A `FetchJob` asks one of these what a partition's answer may hold, and what is worth waking up for.
"""

from __future__ import annotations

from typing import Protocol

from tidemill.broker.context import Broker
from tidemill.broker.dispatch import RequestContext
from tidemill.broker.fetch_sessions import Wanted
from tidemill.broker.handlers.read_replicas import nearest_replica
from tidemill.errors import ApiError, ErrorCode
from tidemill.replication.partition import Partition
from tidemill.replication.progress import FetchPosition
from tidemill.storage.slice import LogSlice
from tidemill.types import NO_BROKER, BrokerEpoch, BrokerId
from tidemill.wire.messages.fetch import FetchRequest

NEWS_WAIT_MS = 5
"""How long a follower's fetch waits for records when all there is to say is what is committed."""
LED_LATELY_WAIT_MS = 20
"""How long it waits while we lead partitions of which the follower may not have heard yet."""

_FOLLOWERS_READ_FROM_VERSION = 11


class Reads(Protocol):
    """One kind of reader."""

    is_replica: bool

    def check(self, want: Wanted, partition: Partition) -> None:
        """Raise unless this reader may read the partition here."""
        ...

    def is_quiet(self, want: Wanted, partition: Partition) -> bool:
        """Whether a session's answer would leave the partition out, seen without reading it."""
        ...

    def readable_end(self, partition: Partition) -> int: ...

    def read(
        self, want: Wanted, partition: Partition, max_bytes: int, at_least_one: bool
    ) -> LogSlice: ...

    def better_replica(self, want: Wanted, partition: Partition) -> BrokerId:
        """Another broker that this reader should rather read from, or -1."""
        ...

    def check_last(self, want: Wanted, partition: Partition) -> None:
        """There is nothing to read and no more time: raise if that needs an explanation."""
        ...

    def wait_ms(self, max_wait_ms: int, has_news: bool) -> int:
        """How long to wait for records; `has_news` if there is something else to tell."""
        ...


class ConsumerReads:
    """Reads below the high watermark or the last stable offset (rule B8)."""

    is_replica = False

    def __init__(self, broker: Broker, context: RequestContext, request: FetchRequest) -> None:
        self._broker = broker
        self._listener = context.listener
        self._rack_id = request.rack_id
        self._isolation_level = request.isolation_level
        self._may_read_followers = context.version >= _FOLLOWERS_READ_FROM_VERSION

    def check(self, want: Wanted, partition: Partition) -> None:
        if self._may_read_followers and not partition.is_leader and partition.follows:
            partition.check_replica(want.current_leader_epoch)
        else:
            partition.check_leader(want.current_leader_epoch)

    def is_quiet(self, want: Wanted, partition: Partition) -> bool:
        return want.has_nothing_new(partition)

    def readable_end(self, partition: Partition) -> int:
        return partition.readable_end(self._isolation_level)

    def read(
        self, want: Wanted, partition: Partition, max_bytes: int, at_least_one: bool
    ) -> LogSlice:
        return partition.read(
            want.fetch_offset,
            max_bytes=max_bytes,
            isolation_level=self._isolation_level,
            at_least_one=at_least_one,
        )

    def better_replica(self, want: Wanted, partition: Partition) -> BrokerId:
        if not (self._rack_id and self._may_read_followers):
            return NO_BROKER
        return nearest_replica(
            self._broker, partition, want.fetch_offset, self._rack_id, self._listener
        )

    def check_last(self, want: Wanted, partition: Partition) -> None:
        """A new leader that does not know yet what is committed must not seem to go back (B5)."""
        if want.fetch_offset > partition.high_watermark and not partition.knows_high_watermark:
            raise ApiError(ErrorCode.OFFSET_NOT_AVAILABLE)

    def wait_ms(self, max_wait_ms: int, has_news: bool) -> int:
        return max_wait_ms


class ReplicaReads:
    """A follower reads to the log's end, and says by that what it has (rules B3 and B8)."""

    is_replica = True

    def __init__(self, broker: Broker, replica_id: int, replica_epoch: int) -> None:
        self._broker = broker
        self._replica_id = BrokerId(replica_id)
        self._replica_epoch = BrokerEpoch(replica_epoch)
        self._has_arrived = False

    def check(self, want: Wanted, partition: Partition) -> None:
        partition.check_leader(want.current_leader_epoch)

    def is_quiet(self, want: Wanted, partition: Partition) -> bool:
        if not want.has_nothing_new_to_copy(partition):
            return False
        try:
            self._note(want, partition, want.fetch_offset)
        except ApiError:
            return False  # Reading it will bring out the same, as an answer.
        return True

    def readable_end(self, partition: Partition) -> int:
        return 0 if self._is_throttled(partition) else partition.log.log_end_offset

    def read(
        self, want: Wanted, partition: Partition, max_bytes: int, at_least_one: bool
    ) -> LogSlice:
        leader_end = partition.log.log_end_offset
        is_throttled = self._is_throttled(partition)
        found = partition.read_to_end(
            want.fetch_offset,
            max_bytes=0 if is_throttled else max_bytes,
            at_least_one=at_least_one and not is_throttled,
        )
        # Only a fetch that can be answered is progress; it counts with our end before the read.
        self._note(want, partition, leader_end)
        want.agreed_epoch = partition.leader_epoch
        if partition.settings.leader_throttled.has(self._index(partition), self._replica_id):
            self._broker.replicas.leader_throttle.take(found.size_bytes)
        return found

    def _note(self, want: Wanted, partition: Partition, leader_end: int) -> None:
        """What a fetch says is true when it arrives, and noted then, once."""
        if not self._has_arrived:
            position = FetchPosition(want.fetch_offset, want.log_start_offset, self._replica_epoch)
            partition.record_follower_fetch(self._replica_id, position, leader_end)

    def _is_throttled(self, partition: Partition) -> bool:
        return (
            partition.settings.leader_throttled.has(self._index(partition), self._replica_id)
            and self._replica_id not in partition.isr
            and self._broker.replicas.leader_throttle.wait_ms() > 0
        )

    @staticmethod
    def _index(partition: Partition) -> int:
        return partition.topic_partition.partition

    def better_replica(self, want: Wanted, partition: Partition) -> BrokerId:
        return NO_BROKER

    def check_last(self, want: Wanted, partition: Partition) -> None:
        """A follower is content with nothing."""

    def wait_ms(self, max_wait_ms: int, has_news: bool) -> int:
        self._has_arrived = True
        if has_news:
            return min(max_wait_ms, NEWS_WAIT_MS)
        if self._broker.replicas.led_lately:
            return min(max_wait_ms, LED_LATELY_WAIT_MS)
        return max_wait_ms
