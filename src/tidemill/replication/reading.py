"""What may be read of a partition, and by whom: consumers what is committed, followers all."""

from __future__ import annotations

from tidemill.storage.log import Log
from tidemill.storage.slice import LogSlice
from tidemill.types import Offset

READ_COMMITTED = 1


class Readable:
    """A log, and how far it is committed."""

    log: Log
    high_watermark: Offset

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
