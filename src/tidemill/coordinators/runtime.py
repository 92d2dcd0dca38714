"""Runs coordinators over the partitions of an internal topic: one shard of state per partition.

A request on a shard goes: decide (`operation`), append the records, replay them, answer once they
are committed. Nothing happens in between, so a decision is never made on a state that is about to
change. An append that fails changes nothing. Answers without records wait, too, for what was
appended before them: nobody is told of a state that a fail-over could take back.

A partition that this broker comes to lead is loaded first (rule J1): its log is read and decoded
off the loop, and replayed in small steps. Until then requests get COORDINATOR_LOAD_IN_PROGRESS. A
load that fails is tried again from the start, as long as this broker leads. On losing the
leadership the shard is dropped at once.

What the records look like is no concern of the runtime: whoever makes one brings a `RecordFormat`.
Groups use it today; the coordinator of transactions will be another kind of shard.

Here is which partitions are coordinated; `host.py` is one of them, `loading.py` how it is read,
`writing.py` how it is written, `commitment.py` how answers wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from tidemill.coordinators.host import Host
from tidemill.coordinators.machinery import Machinery, RuntimeSettings
from tidemill.coordinators.result import RecordFormat, Result, Timers
from tidemill.coordinators.writing import S
from tidemill.errors import ErrorCode
from tidemill.replication.partition import Partition

__all__ = ["Machinery", "Runtime", "RuntimeSettings"]

R = TypeVar("R")


class Runtime(Generic[S]):
    """The shards of the partitions that this broker leads."""

    def __init__(
        self, machinery: Machinery, make_shard: Callable[[Timers], S], records: RecordFormat
    ) -> None:
        self._machinery = machinery
        self._make_shard = make_shard
        self._records = records
        self._hosts: dict[int, Host[S]] = {}

    def follow(self, partitions: dict[int, Partition]) -> None:
        """Coordinate exactly these partitions from now on."""
        for index, host in list(self._hosts.items()):
            if partitions.get(index) is not host.partition or not host.keeps_up():
                del self._hosts[index]
                host.close(ErrorCode.NOT_COORDINATOR)
        for index, partition in partitions.items():
            if index not in self._hosts and partition.is_leader:
                self._host(partition).load()

    def _host(self, partition: Partition) -> Host[S]:
        host = Host(partition, self._machinery, self._make_shard, self._records, self._begin_anew)
        self._hosts[partition.topic_partition.partition] = host
        return host

    def _begin_anew(self, broken: Host[S]) -> None:
        """A host gave up its state, and is closed: another one reads it from the log."""
        index = broken.partition.topic_partition.partition
        if self._hosts.get(index) is broken:
            del self._hosts[index]
            if broken.partition.is_leader:
                self._host(broken.partition).load_instead_of(broken)

    def partition_moved(self, partition: Partition) -> None:
        """Something was committed, or the leadership is lost, or has another epoch."""
        host = self._hosts.get(partition.topic_partition.partition)
        if host is None or host.partition is not partition:
            return
        if not host.keeps_up():
            del self._hosts[partition.topic_partition.partition]
            self._machinery.call_soon(lambda: host.close(ErrorCode.NOT_COORDINATOR))
        else:
            host.wake()

    def run(
        self,
        index: int,
        operation: Callable[[S], Result[R]],
        reply: Callable[[R | None], object],
        fail: Callable[[ErrorCode, str | None], object],
        *,
        gather: bool = False,
    ) -> None:
        """Run an operation on a shard; `reply` or `fail` is called once, now or later."""
        host = self._hosts.get(index)
        if host is None:
            fail(ErrorCode.NOT_COORDINATOR, None)
        elif not host.is_active:
            fail(host.why_not, None)
        else:
            host.run(operation, reply, fail, gather)

    def steps(self, index: int, make_steps: Callable[[S], Iterator[Result[None]]]) -> None:
        """Write what a clean-up yields, if the shard is here."""
        host = self._hosts.get(index)
        if host is not None and host.is_active:
            host.write_steps(make_steps(host.shard))

    def shard(self, index: int) -> S | None:
        """A shard that serves, to look at; what changes it goes through `run` or `steps`."""
        host = self._hosts.get(index)
        return None if host is None or not host.is_active else host.shard

    def indexes(self) -> list[int]:
        return list(self._hosts)

    def state_of(self, index: int) -> ErrorCode:
        """NONE for a shard that serves, else what its clients are told."""
        host = self._hosts.get(index)
        if host is None:
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.NONE if host.is_active else host.why_not

    def close(self) -> None:
        for host in self._hosts.values():
            host.close(ErrorCode.NOT_COORDINATOR)
        self._hosts.clear()
