"""Produce: v3-13 (v0-2 are advertised and not answered, as in Kafka: KAFKA-18659).

Behaviour: each partition's single record batch is checked, given its offsets and appended. acks=1
answers then; acks=all once the records are committed, or with REQUEST_TIMED_OUT after
`timeout_ms`; acks=0 is never answered, and an error closes the connection, which is the only way to
tell. An idempotent producer's repeated batch is answered with its first offsets (rule G2).

Version notes: v7 zstd (KIP-110); v8 record errors (KIP-467); v10 current leader (KIP-951); v12
implicit transactions (KIP-890); v13 topic ids (KIP-516).

Deviations: records inside a batch are looked at one by one only on compacted and internal topics,
on conversion, and with `record.validation=full`. Transactional batches are refused, as Kafka
refuses those without a transactional id: no transaction can have begun.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from tidemill.broker.context import Broker
from tidemill.broker.deferred import Deferred
from tidemill.broker.dispatch import RequestContext, handles
from tidemill.broker.handlers.leader_hints import node_of, partition_image
from tidemill.broker.handlers.produce_checks import check_batch
from tidemill.errors import ApiError, ErrorCode
from tidemill.replication.partition import ACKS_ALL, AppendOutcome, Partition, PendingAppend
from tidemill.storage.log import AppendInfo
from tidemill.storage.validate import RecordsRefusedError
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

_TELLS_LOG_START = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.INVALID_RECORD,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    }
)
"""Errors about the records, not about the partition: Kafka's answer has the log start with them."""

_TOPIC_IDS_FROM_VERSION = 13
_LEADER_HINT_FROM_VERSION = 10
_PARTITION_BYTES = 512
"""What one partition of a request takes until the answer, its records aside."""


@handles(ApiKey.PRODUCE, 3, 13, advertised_min_version=0)
def produce(
    broker: Broker, context: RequestContext, request: ProduceRequest
) -> ProduceResponse | Deferred[ProduceResponse | None] | None:
    return ProduceJob(broker, context, request).run()


class _Uncommitted(NamedTuple):
    """An append that is in the log and may not be acked yet."""

    partition: Partition
    result: PartitionProduceResponse
    info: AppendInfo
    failed_flushes: int
    """How many flushes of the partition had failed when it was appended."""


class ProduceJob:
    """One produce request: the appends, and the wait for those that are not committed yet."""

    __slots__ = (
        "_acks",
        "_broker",
        "_context",
        "_deferred",
        "_held_bytes",
        "_pending",
        "_request",
        "_response",
        "_uncommitted",
    )

    def __init__(self, broker: Broker, context: RequestContext, request: ProduceRequest) -> None:
        self._broker = broker
        self._context = context
        self._request = request
        self._acks = request.acks
        self._response = ProduceResponse()
        self._uncommitted: list[_Uncommitted] = []
        self._pending = 0
        self._held_bytes = 0
        self._deferred: Deferred[ProduceResponse | None] | None = None

    def run(self) -> ProduceResponse | Deferred[ProduceResponse | None] | None:
        """Append everything; the answer, or the promise of it.

        With acks=0 there is none, but what is not over yet is owed all the same: it counts among
        the requests that the connection may have under way, and its errors come late.
        """
        responses = self._response.responses
        for topic in self._request.topic_data:
            results = [self._append(topic, asked) for asked in topic.partition_data]
            self._held_bytes += _PARTITION_BYTES * len(results)
            responses.append(
                TopicProduceResponse(
                    name=topic.name, topic_id=topic.topic_id, partition_responses=results
                )
            )
        if not (self._uncommitted or self._pending):
            return self._answer()
        self._deferred = Deferred(held_bytes=self._held_bytes)
        watched = {entry.partition: None for entry in self._uncommitted}
        self._broker.purgatory.watch(self, watched, self._request.timeout_ms)
        return self._deferred

    def _answer(self) -> ProduceResponse | None:
        return None if self._acks == 0 else self._response

    # Appending.

    def _append(
        self, topic: TopicProduceData, asked: PartitionProduceData
    ) -> PartitionProduceResponse:
        result = PartitionProduceResponse(index=asked.index, base_offset=-1)
        # The request lives on until the answer: it must not keep the buffer that it came in.
        data, asked.records = asked.records, None
        try:
            if not -1 <= self._acks <= 1:
                raise ApiError(ErrorCode.INVALID_REQUIRED_ACKS)
            partition = self._find(topic, asked.index)
            records = check_batch(data, self._context.version)
        except ApiError as error:
            self._fail(result, None, error)
            if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                self._hint_stranger(result, topic)
            return result
        failed_flushes = partition.failed_flushes
        try:
            outcome = partition.append(records, required_acks=self._acks)
        except ApiError as error:
            self._fail(result, partition, error)
            return result
        if isinstance(outcome, PendingAppend):
            size = len(outcome.records)
            self._pending += 1
            self._held_bytes += size
            self._context.connection.keep(size)
            outcome.then = partial(self._append_done, partition, result, failed_flushes, size)
        else:
            self._succeed(result, partition, outcome, failed_flushes)
        return result

    def _find(self, topic: TopicProduceData, index: int) -> Partition:
        broker = self._broker
        by_id = self._context.version >= _TOPIC_IDS_FROM_VERSION
        if by_id:
            partition = broker.replicas.get_by_id(topic.topic_id, index)
            if partition is None and topic.topic_id not in broker.image.topic_names:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
        else:
            partition = broker.replicas.get(topic.name, index)
        if partition is None:
            asked = topic.topic_id if by_id else topic.name
            raise ApiError(broker.replicas.why_missing(asked, index))
        if partition.settings.log.is_internal:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        return partition

    def _succeed(
        self,
        result: PartitionProduceResponse,
        partition: Partition,
        info: AppendInfo,
        failed_flushes: int,
    ) -> None:
        result.base_offset = info.base_offset
        result.log_append_time_ms = info.append_time_ms
        result.log_start_offset = info.log_start_offset
        if not partition.may_ack(self._acks, info):
            entry = _Uncommitted(partition, result, info, failed_flushes)
            if partition.failed_flushes == failed_flushes or not self._settle(entry):
                self._uncommitted.append(entry)

    def _fail(
        self, result: PartitionProduceResponse, partition: Partition | None, error: ApiError
    ) -> None:
        result.error_code = int(error.code)
        result.base_offset = -1
        if self._acks == 0:
            self._context.connection.abort(f"a produce request with acks=0 failed: {error}")
        if isinstance(error, RecordsRefusedError):
            result.error_message = error.message
            result.record_errors = [
                BatchIndexAndErrorMessage(batch_index=place, batch_index_error_message=why)
                for place, why in error.record_errors
            ]
        if partition is None:
            return
        if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            self._hint_leader(result, partition.leader, partition.leader_epoch)
        elif error.code in _TELLS_LOG_START:
            result.log_start_offset = partition.log.log_start_offset

    def _hint_stranger(self, result: PartitionProduceResponse, topic: TopicProduceData) -> None:
        """The partition has no replica here, but we know who leads it."""
        by_id = self._context.version >= _TOPIC_IDS_FROM_VERSION
        image = partition_image(self._broker, topic.topic_id if by_id else topic.name, result.index)
        if image is not None:
            self._hint_leader(result, image.leader, image.leader_epoch)

    def _hint_leader(self, result: PartitionProduceResponse, leader: int, epoch: int) -> None:
        """Say who leads and where, so that the client need not ask (KIP-951)."""
        if self._context.version < _LEADER_HINT_FROM_VERSION:
            return
        result.current_leader = LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)
        node = node_of(self._broker, leader, self._context.listener)
        if node is not None:
            endpoint = NodeEndpoint(**node._asdict())
            if endpoint not in self._response.node_endpoints:
                self._response.node_endpoints.append(endpoint)

    def _append_done(
        self,
        partition: Partition,
        result: PartitionProduceResponse,
        failed_flushes: int,
        size: int,
        outcome: AppendOutcome,
    ) -> None:
        """A conversion is through: its batch is in the log now, or refused."""
        self._pending -= 1
        self._context.connection.let_go(size)
        if isinstance(outcome, ApiError):
            self._fail(result, partition, outcome)
        else:
            self._succeed(result, partition, outcome, failed_flushes)
            if self._uncommitted and self._uncommitted[-1].result is result:
                self._broker.purgatory.watch(self, (partition,), self._request.timeout_ms)
        self._maybe_complete()

    # Waiting (`purgatory.Waiter`).

    def moved(self, partition: Partition) -> bool:
        """Settle what the partition's move commits or makes impossible; True when all is."""
        still_open = []
        for entry in self._uncommitted:
            if entry.partition is not partition or not self._settle(entry):
                still_open.append(entry)
        self._uncommitted = still_open
        return not still_open and self._pending == 0

    def _settle(self, entry: _Uncommitted) -> bool:
        partition = entry.partition
        try:
            # A leader that was deposed while the client waited must not ack (rule B10).
            partition.check_leader()
            if not partition.may_ack(self._acks, entry.info):
                partition.check_flushes(entry.failed_flushes)
                return False
            if self._acks == ACKS_ALL:
                partition.check_still_enough_in_sync()
        except ApiError as error:
            self._fail(entry.result, partition, error)
        return True

    def finish(self) -> None:
        """Answer; what is still not committed has timed out."""
        for entry in self._uncommitted:
            entry.result.error_code = int(ErrorCode.REQUEST_TIMED_OUT)
        self._uncommitted = []
        if self._deferred is not None and self._pending == 0:
            self._deferred.complete(self._answer())

    def fail(self, error: Exception) -> None:
        if self._deferred is not None:
            self._deferred.fail(error)

    def _maybe_complete(self) -> None:
        if self._deferred is not None and not self._uncommitted and self._pending == 0:
            self._deferred.complete(self._answer())
