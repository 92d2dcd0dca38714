"""What may be read of a partition, and by whom: consumers what is committed, followers all."""

from __future__ import annotations

from tidemill.errors import ApiError, ErrorCode
from tidemill.storage.log import Log
from tidemill.storage.slice import LogSlice
from tidemill.types import LeaderEpoch, Offset

READ_COMMITTED = 1


class Readable:
    """A log, how far it is committed, and who may ask for it here."""

    log: Log
    high_watermark: Offset
    leader_epoch: LeaderEpoch
    is_leader: bool
    is_gone: bool
    is_offline: bool
    _why_gone: ErrorCode

    def check_leader(self, current_leader_epoch: int = -1) -> None:
        """Raise unless this broker leads, and the client knows it in the same epoch (rule A4)."""
        self.check_replica(current_leader_epoch)
        if not self.is_leader:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def check_replica(self, current_leader_epoch: int = -1) -> None:
        """Raise unless this replica can be read, in the epoch that the client knows."""
        if self.is_offline:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "the partition's log directory failed")
        if self.is_gone:
            raise ApiError(self._why_gone)
        if current_leader_epoch >= 0 and current_leader_epoch != self.leader_epoch:
            if current_leader_epoch < self.leader_epoch:
                raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)
            raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    @property
    def last_stable_offset(self) -> Offset:
        """The end of what read_committed may see: below every open transaction (rule H9)."""
        return Offset(self.log.last_stable_offset(self.high_watermark))

    def readable_end(self, isolation_level: int) -> Offset:
        """The first offset that a consumer with this isolation level must not see (rule B8)."""
        if isolation_level == READ_COMMITTED:
            return self.last_stable_offset
        return self.high_watermark

    def read(
        self, offset: int, *, max_bytes: int, isolation_level: int, at_least_one: bool = True
    ) -> LogSlice:
        """The stored batches from the one that holds `offset` on, within the given bounds."""
        return self.log.read(
            offset,
            max_bytes=max_bytes,
            upper_offset=self.readable_end(isolation_level),
            at_least_one=at_least_one,
        )

    def read_to_end(self, offset: int, *, max_bytes: int, at_least_one: bool = True) -> LogSlice:
        """The same for a follower, which has to have what is not committed yet (rule B8)."""
        return self.log.read(
            offset,
            max_bytes=max_bytes,
            upper_offset=self.log.log_end_offset,
            at_least_one=at_least_one,
        )
