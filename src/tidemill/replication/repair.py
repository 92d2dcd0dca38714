"""Damage that the scrub found in a replica with peers is repaired with what they have (rule E2).

Where others are in sync they go on without the damaged replica (`Partition.stand_aside`), which
neither leads nor fetches meanwhile; alone, it serves what is sound and refuses the damaged offsets,
so nobody is told anything wrong. The offsets are read from another replica as a consumer would read
them, and their batches put where the damaged ones were, if they fit exactly. If they do not, since
one of the two was compacted, the replica is copied anew from its leader. One partition is repaired
at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from tidemill.errors import ApiError, ErrorCode, TidemillError
from tidemill.executor import Executor
from tidemill.replication.alignment import StartOver
from tidemill.replication.channels import LeaderLink
from tidemill.replication.offload import in_thread
from tidemill.replication.partition import Partition
from tidemill.storage.disk_errors import DiskError
from tidemill.storage.repair import NoRepairError, SegmentRepair
from tidemill.types import BrokerId
from tidemill.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

log = logging.getLogger(__name__)

READ_BYTES = 1 << 20
RETRY_S = 10.0


class Repairs:
    """The damaged replicas of this broker, repaired one after the other."""

    def __init__(
        self,
        broker_id: BrokerId,
        link: LeaderLink,
        executor: Executor,
        on_repaired: Callable[[Partition], object],
    ) -> None:
        """`on_repaired` is told of a partition that is sound again."""
        self._broker_id = broker_id
        self._on_repaired = on_repaired
        self._link = link
        self._executor = executor
        self._waiting: dict[Partition, int] = {}
        """And how often each was tried in vain."""
        self._task: asyncio.Task[None] | None = None
        self.repaired = 0
        """Segments that were made whole again."""

    def attend(self, partition: Partition) -> None:
        """Look whether there is something to repair, and whether it can be done by now.

        To be called on the loop, as often as anything changes: who waits keeps its place.
        """
        if not partition.log.damage or len(partition.replicas) < 2:
            return
        self._waiting.setdefault(partition, 0)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def close(self) -> None:
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _work(self) -> None:
        """One after the other; who cannot be repaired now gets another turn, for as long as it
        takes: it does not fetch meanwhile."""
        while self._waiting:
            partition, attempt = next(iter(self._waiting.items()))
            del self._waiting[partition]
            try:
                await self._repair(partition, attempt)
            except NoRepairError as error:
                log.error("%s cannot be repaired: %s", partition.topic_partition, error)
                self._copy_anew(partition)
            except TidemillError as error:
                log.info("%s is not repaired yet: %s", partition.topic_partition, error)
                self._waiting.setdefault(partition, attempt + 1)
            except Exception:
                log.exception("repairing %s failed", partition.topic_partition)
            if not partition.log.damage:
                self._on_repaired(partition)
            if self._waiting and all(self._waiting.values()):
                await asyncio.sleep(RETRY_S)

    def _copy_anew(self, partition: Partition) -> None:
        """Throw the replica away, if others have all of it and nobody counts on this one."""
        is_needed = self._broker_id in (*partition.isr, *partition.elr) or not partition.isr
        if is_needed or partition.is_leader or partition.is_gone or partition.is_offline:
            return
        log.warning("%s is copied anew from broker %d", partition.topic_partition, partition.leader)
        try:
            partition.cut(StartOver(partition.log.log_start_offset))
        except ApiError as error:
            log.error("%s could not be emptied: %s", partition.topic_partition, error)

    async def _repair(self, partition: Partition, attempt: int) -> None:
        while partition.log.damage and not (partition.is_gone or partition.is_offline):
            await self._repair_segment(partition, attempt)

    async def _repair_segment(self, partition: Partition, attempt: int) -> None:
        found = partition.log.damaged_segment()
        if found is None:
            raise NoRepairError("the damage is not in a closed segment")
        segment, repair = found
        is_unchanged = partition.log.watch(segment)
        await in_thread(self._executor, repair.survey)
        while not repair.is_complete:
            repair.take(await self._read(partition, repair, attempt))
        if not is_unchanged():
            return  # The log was cut or cleaned meanwhile; if it is still damaged, look again.
        try:
            repair.write()
            still_wrong = await in_thread(self._executor, repair.verify)
        except DiskError as error:
            if is_unchanged():
                partition.log.dir.fail(error)  # A flush that failed is never tried again (E1).
            raise
        if is_unchanged():
            before = partition.log.damage
            partition.log.note_damage(segment, still_wrong)
            if partition.log.damage == before:
                raise NoRepairError(f"{segment.log_path} is as wrong as before")
            self.repaired += 1
            log.warning("%s was repaired with another replica's records", segment.log_path)

    async def _read(self, partition: Partition, repair: SegmentRepair, attempt: int) -> bytes:
        """Records from the next offset on, from one of the others in sync, not always the same."""
        sources = self._sources(partition)
        if not sources:
            raise ApiError(ErrorCode.REPLICA_NOT_AVAILABLE, "no other replica is in sync")
        asked = FetchPartition(
            partition=partition.topic_partition.partition,
            current_leader_epoch=partition.leader_epoch,
            fetch_offset=repair.next_offset,
            partition_max_bytes=READ_BYTES,
        )
        topic = FetchTopic(topic_id=partition.topic_id, partitions=[asked])
        request = FetchRequest(max_wait_ms=0, max_bytes=READ_BYTES, topics=[topic])
        response = await self._link.fetch(sources[attempt % len(sources)], request)
        for answer in response.responses:
            for data in answer.partitions:
                if data.error_code:
                    raise ApiError(ErrorCode(data.error_code))
                return bytes(data.records or b"")
        raise ApiError(ErrorCode(response.error_code or ErrorCode.UNKNOWN_SERVER_ERROR))

    def _sources(self, partition: Partition) -> list[BrokerId]:
        """The leader first, since it has everything."""
        others = [one for one in partition.isr if one != self._broker_id]
        return sorted(others, key=lambda one: one != partition.leader)
