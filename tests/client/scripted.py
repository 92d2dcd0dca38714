"""A broker for tests that misbehaves on command: real sockets, real frames, a log in memory.

It keeps the rules of an idempotent partition (five remembered batches, gapless sequences), so that
a client under faults can be judged by what is in the log. `ScriptedBroker.fault` is asked before
each request and may return a `Fault`.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from tidemill.errors import ErrorCode
from tidemill.types import TopicPartition
from tidemill.wire.apis import APIS, ApiKey
from tidemill.wire.batch import iter_headers, read_header, stamp
from tidemill.wire.codec import decode
from tidemill.wire.declare import Message
from tidemill.wire.frame import decode_request_header, encode_response
from tidemill.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from tidemill.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tidemill.wire.messages.leader_epochs import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from tidemill.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tidemill.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tidemill.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tidemill.wire.messages.producers import InitProducerIdResponse
from tidemill.wire.records import Record, iter_records

HOST = "127.0.0.1"
SERVED = (
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.METADATA,
    ApiKey.API_VERSIONS,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
)


@dataclass(frozen=True)
class Fault:
    """What to do instead of answering properly."""

    error: ErrorCode | None = None
    drop: bool = False
    apply: bool = False
    """Take effect first, then lose the answer, or answer with the error."""
    silent: bool = False
    """Never answer."""


@dataclass
class ScriptedPartition:
    """A log of stamped batches, and what a leader remembers of producers."""

    leader_epoch: int = 0
    log_start: int = 0
    batches: list[bytes] = field(default_factory=list)
    producers: dict[int, tuple[int, list[tuple[int, int, int]]]] = field(default_factory=dict)
    epoch_ends: dict[int, int] = field(default_factory=dict)
    max_batch_bytes: int = 1 << 30

    @property
    def end(self) -> int:
        return read_header(self.batches[-1]).next_offset if self.batches else self.log_start

    def append(self, data: bytes) -> tuple[ErrorCode, int]:
        """The error and base offset of one produced batch."""
        header = read_header(data)
        if len(data) > self.max_batch_bytes:
            return ErrorCode.MESSAGE_TOO_LARGE, -1
        if header.producer_id >= 0:
            epoch, window = self.producers.get(header.producer_id, (-1, []))
            if header.producer_epoch < epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH, -1
            if header.producer_epoch > epoch:
                if epoch >= 0 and header.base_sequence != 0:
                    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
                window = []
            for first, last, offset in window:
                if (first, last) == (header.base_sequence, header.last_sequence):
                    return ErrorCode.NONE, offset
            if window and header.base_sequence != (window[-1][1] + 1) % 2**31:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            window = [*window[-4:], (header.base_sequence, header.last_sequence, self.end)]
            self.producers[header.producer_id] = (header.producer_epoch, window)
        base = self.end
        writable = bytearray(data)
        stamp(writable, 0, base, self.leader_epoch)
        self.batches.append(bytes(writable))
        return ErrorCode.NONE, base

    def records(self) -> list[Record]:
        return [
            record
            for data in self.batches
            for record in iter_records(data, 0, read_header(data), limit_bytes=1 << 30)
        ]


class ScriptedBroker:
    """One broker on a free port; a second one given the first as `beside` is of its cluster.

    Brokers of a cluster share the logs, as if replication took no time; `lead` moves a partition.
    """

    def __init__(
        self, topics: dict[str, int] | None = None, *, beside: ScriptedBroker | None = None
    ) -> None:
        self.port = 0
        self._serving: set[asyncio.Task[Any]] = set()
        self.brokers: list[ScriptedBroker] = beside.brokers if beside else []
        self.node_id = len(self.brokers)
        self.brokers.append(self)
        self.leaders: dict[TopicPartition, int] = beside.leaders if beside else {}
        self.topic_ids: dict[str, UUID] = beside.topic_ids if beside else {}
        self.partitions: dict[TopicPartition, ScriptedPartition] = (
            beside.partitions if beside else {}
        )
        self.requests: list[tuple[ApiKey, int, Message]] = []
        self.fault: Callable[[ApiKey, Any], Fault | None] = lambda _key, _request: None
        self.max_versions: dict[ApiKey, int] = {}
        self.next_producer_id = 1000
        self.throttle_ms = 0
        self.sessions: dict[int, dict[TopicPartition, int]] = {}
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        for name, count in (topics or {}).items():
            self.create(name, count)

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.port}"

    def create(self, name: str, count: int = 1) -> None:
        self.topic_ids[name] = UUID(int=len(self.topic_ids) + 1)
        for index in range(count):
            self.partitions[TopicPartition(name, index)] = ScriptedPartition()

    def lead(self, partition: TopicPartition) -> None:
        """Become the partition's leader, in a new epoch."""
        self.leaders[partition] = self.node_id
        self.partitions[partition].leader_epoch += 1

    def _not_leader(self, partition: TopicPartition) -> ErrorCode | None:
        if self.leaders.get(partition, 0) == self.node_id:
            return None
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def seen(self, key: ApiKey) -> list[Any]:
        """The requests of one kind that came so far."""
        return [request for api_key, _, request in self.requests if api_key is key]

    async def __aenter__(self) -> ScriptedBroker:
        await self.listen()
        return self

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, HOST, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self.drop_connections()
            await self._server.wait_closed()
            await asyncio.gather(*self._serving, return_exceptions=True)

    def drop_connections(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    # --- serving ---------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(size)
                await self._handle(frame, writer)
        except (asyncio.IncompleteReadError, ConnectionError, _DroppedError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _handle(self, frame: bytes, writer: asyncio.StreamWriter) -> None:
        header, pos = decode_request_header(frame)
        key, version = ApiKey(header.api_key), header.api_version
        if key is ApiKey.API_VERSIONS and version > self._max_version(key):
            answer: Message | None = self._versions(ErrorCode.UNSUPPORTED_VERSION)
            version = 0
        else:
            request = decode(APIS[key].request, version, frame, pos)
            self.requests.append((key, version, request))
            fault = self.fault(key, request)
            if fault is not None and fault.drop:
                if fault.apply:
                    await self._answer(key, request, None)
                writer.transport.abort()
                raise _DroppedError
            if fault is not None and fault.silent:
                return
            if fault is not None and fault.apply:
                await self._answer(key, request, None)
            answer = await self._answer(key, request, fault)
        if answer is not None:
            for part in encode_response(key, version, header.correlation_id, answer):
                writer.write(part)
            await writer.drain()

    def _max_version(self, key: ApiKey) -> int:
        return self.max_versions.get(key, APIS[key].max_version)

    def _versions(self, error: ErrorCode = ErrorCode.NONE) -> ApiVersionsResponse:
        keys = [
            ApiVersion(
                api_key=key, min_version=APIS[key].min_version, max_version=self._max_version(key)
            )
            for key in SERVED
        ]
        return ApiVersionsResponse(error_code=error, api_keys=keys)

    async def _answer(self, key: ApiKey, request: Any, fault: Fault | None) -> Message | None:
        error = fault.error if fault is not None else None
        match key:
            case ApiKey.API_VERSIONS:
                return self._versions()
            case ApiKey.METADATA:
                return self._metadata(request)
            case ApiKey.INIT_PRODUCER_ID:
                self.next_producer_id += 1
                return InitProducerIdResponse(
                    error_code=error or 0, producer_id=self.next_producer_id, producer_epoch=0
                )
            case ApiKey.PRODUCE:
                return self._produce(request, error)
            case ApiKey.FETCH:
                return await self._fetch(request, error)
            case ApiKey.LIST_OFFSETS:
                return self._list_offsets(request)
            case ApiKey.OFFSET_FOR_LEADER_EPOCH:
                return self._epochs(request)
        raise AssertionError(key)

    def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        names = [t.name or "" for t in request.topics] if request.topics is not None else None
        topics = []
        for name in self.topic_ids if names is None else names:
            if name not in self.topic_ids:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                topics.append(MetadataResponseTopic(error_code=code, name=name))
                continue
            found = [(p.partition, s) for p, s in self.partitions.items() if p.topic == name]
            topics.append(
                MetadataResponseTopic(
                    name=name,
                    topic_id=self.topic_ids[name],
                    partitions=[
                        MetadataResponsePartition(
                            partition_index=index,
                            leader_id=self.leaders.get(TopicPartition(name, index), 0),
                            leader_epoch=state.leader_epoch,
                            replica_nodes=[0],
                            isr_nodes=[0],
                        )
                        for index, state in found
                    ],
                )
            )
        brokers = [
            MetadataResponseBroker(node_id=broker.node_id, host=HOST, port=broker.port)
            for broker in self.brokers
        ]
        return MetadataResponse(
            brokers=brokers, cluster_id="scripted", controller_id=0, topics=topics
        )

    def _name(self, name: str, topic_id: UUID) -> str:
        by_id = {known_id: known for known, known_id in self.topic_ids.items()}
        return name or by_id[topic_id]

    def _produce(self, request: ProduceRequest, error: ErrorCode | None) -> ProduceResponse | None:
        responses = []
        for topic in request.topic_data:
            name = self._name(topic.name, topic.topic_id)
            results = []
            for data in topic.partition_data:
                tp = TopicPartition(name, data.index)
                code, base = error or self._not_leader(tp), -1
                if code is None:
                    partition = self.partitions[tp]
                    assert len(list(iter_headers(data.records or b""))) == 1
                    code, base = partition.append(bytes(data.records or b""))
                results.append(
                    PartitionProduceResponse(index=data.index, error_code=code, base_offset=base)
                )
            responses.append(
                TopicProduceResponse(
                    name=name, topic_id=topic.topic_id, partition_responses=results
                )
            )
        if request.acks == 0:
            return None
        return ProduceResponse(responses=responses, throttle_time_ms=self.throttle_ms)

    async def _fetch(self, request: FetchRequest, error: ErrorCode | None) -> FetchResponse:
        if error in (
            ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
            ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ):
            return FetchResponse(error_code=error)
        if request.session_epoch == 0:
            session_id = len(self.sessions) + 1
            self.sessions[session_id] = {}
        else:
            session_id = request.session_id
        session = self.sessions.setdefault(session_id, {})
        for topic in request.topics:
            name = self._name(topic.topic, topic.topic_id)
            for part in topic.partitions:
                tp = TopicPartition(name, part.partition)
                session[tp] = part.fetch_offset
                if part.current_leader_epoch < self.partitions[tp].leader_epoch:
                    error = ErrorCode.FENCED_LEADER_EPOCH
        for gone in request.forgotten_topics_data:
            for index in gone.partitions:
                session.pop(TopicPartition(self._name(gone.topic, gone.topic_id), index), None)
        answer = self._fetch_now(session, error)
        if not answer:
            await asyncio.sleep(min(request.max_wait_ms, 50) / 1000)
            answer = self._fetch_now(session, error)
        return FetchResponse(session_id=session_id, responses=answer)

    def _fetch_now(
        self, session: dict[TopicPartition, int], error: ErrorCode | None
    ) -> list[FetchableTopicResponse]:
        responses = []
        for tp, offset in session.items():
            state = self.partitions[tp]
            code = error or self._not_leader(tp) or ErrorCode.NONE
            records = b"".join(
                batch for batch in state.batches if read_header(batch).next_offset > offset
            )
            if not state.log_start <= offset <= state.end:
                code, records = ErrorCode.OFFSET_OUT_OF_RANGE, b""
            if code or records:
                data = PartitionData(
                    partition_index=tp.partition,
                    error_code=code,
                    high_watermark=state.end,
                    last_stable_offset=state.end,
                    log_start_offset=state.log_start,
                    records=b"" if code else records,
                )
                responses.append(
                    FetchableTopicResponse(
                        topic=tp.topic, topic_id=self.topic_ids[tp.topic], partitions=[data]
                    )
                )
        return responses

    def _list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        topics = []
        for topic in request.topics:
            found = []
            for part in topic.partitions:
                state = self.partitions[TopicPartition(topic.name, part.partition_index)]
                offset = state.log_start if part.timestamp == -2 else state.end
                found.append(
                    ListOffsetsPartitionResponse(
                        partition_index=part.partition_index,
                        offset=offset,
                        leader_epoch=state.leader_epoch,
                    )
                )
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=found))
        return ListOffsetsResponse(topics=topics)

    def _epochs(self, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        topics = []
        for topic in request.topics:
            found = []
            for part in topic.partitions:
                state = self.partitions[TopicPartition(topic.topic, part.partition)]
                end = state.epoch_ends.get(part.leader_epoch, state.end)
                found.append(
                    EpochEndOffset(
                        partition=part.partition, leader_epoch=part.leader_epoch, end_offset=end
                    )
                )
            topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=found))
        return OffsetForLeaderEpochResponse(topics=topics)


class _DroppedError(Exception):
    """The connection was cut on purpose."""
