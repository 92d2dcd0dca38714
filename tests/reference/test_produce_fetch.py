"""Produce, Fetch and InitProducerId answer as Apache Kafka does, in every version."""

from __future__ import annotations

import struct
import time
from typing import Any

import pytest
from tests.broker.crafted import contradictions
from tests.reference.answers import BASE_TIME_MS, batch, create, fetch, produce
from tests.reference.pair import Case, Pair, Peer

from tidemill.wire.apis import APIS, ApiKey
from tidemill.wire.compression import Codec
from tidemill.wire.messages.fetch import FetchRequest, ForgottenTopic
from tidemill.wire.messages.producers import InitProducerIdRequest

PRODUCE_VERSIONS = range(3, APIS[ApiKey.PRODUCE].max_version + 1)
FETCH_VERSIONS = range(4, APIS[ApiKey.FETCH].max_version + 1)


def corrupt(records: bytes) -> bytes:
    changed = bytearray(records)
    changed[-1] ^= 0xFF
    return bytes(changed)


def with_field(records: bytes, form: str, position: int, value: int) -> bytes:
    """The batch with one header field changed and its checksum made right again."""
    from fastcrc import crc32

    changed = bytearray(records)
    struct.pack_into(form, changed, position, value)
    struct.pack_into(">I", changed, 17, crc32.iscsi(bytes(changed[21:])))
    return bytes(changed)


def old_message_set() -> bytes:
    """One message of format v1, as producers sent them before 2017."""
    import zlib

    body = struct.pack(">bbqi", 1, 0, BASE_TIME_MS, -1) + struct.pack(">i", 3) + b"old"
    message = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", 0, len(message)) + message


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_produce(pair: Pair, name: str, version: int) -> None:
    compacted, small = f"{name}-compact", f"{name}-small"
    pair.create(create(name, 2))
    pair.create(
        create(compacted, configs={"cleanup.policy": "compact"}),
    )
    pair.create(create(small, configs={"max.message.bytes": "1000"}))

    def case(title: str, records: bytes | None, topic: str = name, **more: Any) -> Case:
        return Case(title, produce(topic, records, version=version, **more))

    codecs = [codec for codec in Codec if codec is not Codec.ZSTD or version >= 7]
    pair.compare(
        ApiKey.PRODUCE,
        version,
        [
            case("one record, acks=all", batch()),
            case("one record, acks=1", batch(), acks=1),
            *[case(f"codec {codec.name}", batch(20, codec=codec)) for codec in codecs],
            case("second partition", batch(3), partition=1),
            case("no such partition", batch(), partition=9),
            case("no such topic", batch(), topic=f"{name}-missing"),
            case("acks of 2", batch(), acks=2),
            case("bad checksum", corrupt(batch())),
            case("no records", b""),
            case("two batches", batch() + batch()),
            case("cut off", batch()[:-3]),
            case("header cut off", batch()[:30]),
            case("old message set", old_message_set()),
            case("unknown magic", with_field(batch(), ">b", 16, 9)),
            case("unknown codec", with_field(batch(), ">h", 21, 7)),
            case("control batch", with_field(batch(), ">h", 21, 0x20)),
            case("count differs from offsets", with_field(batch(3), ">i", 57, 2)),
            case("negative count", with_field(batch(), ">i", 57, -1)),
            case("too large", batch(100), topic=small),
            case("compacted with keys", batch(2), topic=compacted),
            case("compacted without key", batch(2, key=None), topic=compacted),
            case("far future", batch(time_ms=BASE_TIME_MS * 3)),
            case("offset is still right", batch()),
        ],
    )


def test_records_that_contradict_their_batch(pair: Pair, name: str) -> None:
    """Rule E2, where each record is looked at: on a compacted topic, as with full validation."""
    pair.create(create(name, configs={"cleanup.policy": "compact"}))
    crafted = contradictions(BASE_TIME_MS).items()
    cases = [Case(title, produce(name, records, version=9)) for title, records in crafted]
    pair.compare(ApiKey.PRODUCE, 9, cases)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_idempotent_produce(pair: Pair, name: str, version: int) -> None:
    """rules G2 and G3: duplicates, gaps, epochs; the producer id is one that nobody was given."""
    pair.create(create(name))
    producer_id = 9_000_000 + version

    def case(title: str, sequence: int, *, epoch: int = 0, count: int = 1) -> Case:
        records = batch(count, producer_id=producer_id, producer_epoch=epoch, sequence=sequence)
        return Case(title, produce(name, records, version=version))

    pair.compare(
        ApiKey.PRODUCE,
        version,
        [
            case("first", 0, count=5),
            case("next", 5, count=5),
            case("the same again", 5, count=5),
            case("the one before again", 0, count=5),
            case("a gap", 20),
            case("overlap", 3, count=4),
            *[case(f"fill {number}", 10 + number) for number in range(6)],
            case("older than five batches", 5, count=5),
            case("new epoch, wrong start", 3, epoch=1),
            case("new epoch", 0, epoch=1),
            case("old epoch", 16, epoch=0),
        ],
    )


@pytest.mark.parametrize("version", range(6))
def test_init_producer_id(pair: Pair, version: int) -> None:
    # Kafka's first answer may be that its coordinator still loads.
    for _ in range(200):
        answer = pair.kafka.ask(
            ApiKey.INIT_PRODUCER_ID, version, InitProducerIdRequest(transactional_id=None)
        )
        if answer.error_code == 0:
            break
        time.sleep(0.05)
    pair.compare(
        ApiKey.INIT_PRODUCER_ID,
        version,
        [
            Case("idempotent", InitProducerIdRequest(transactional_id=None)),
            Case(
                "empty transactional id",
                InitProducerIdRequest(transactional_id="", transaction_timeout_ms=1000),
            ),
        ],
    )


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch(pair: Pair, name: str, version: int) -> None:
    pair.create(create(name, 2))
    for count in (10, 20, 1):
        pair.both(ApiKey.PRODUCE, 9, produce(name, batch(count)))
    pair.both(ApiKey.PRODUCE, 9, produce(name, batch(50, codec=Codec.LZ4)))

    def case(title: str, offset: int, topic: str = name, **more: Any) -> Case:
        return Case(title, fetch(topic, offset, version=version, **more))

    cases = [
        case("from the start", 0),
        case("middle of a batch", 15),
        case("at the end", 81),
        case("past the end", 82),
        case("negative", -5),
        case("one batch larger than the limit", 0, partition_max_bytes=10),
        case("one batch larger than all limits", 0, partition_max_bytes=10, max_bytes=10),
        case("limit between batches", 0, partition_max_bytes=500),
        case("read committed", 0, isolation_level=1),
        case("empty partition", 0, partition=1),
        case("no such partition", 0, partition=7),
        case("no such topic", 0, topic=f"{name}-missing"),
        case("a zero limit", 0, partition_max_bytes=0),
    ]
    if version >= 9:
        cases += [
            case("right epoch", 0, current_leader_epoch=0),
            case("epoch from the future", 0, current_leader_epoch=7),
        ]
    pair.compare(ApiKey.FETCH, version, cases)


@pytest.mark.parametrize("version", [v for v in FETCH_VERSIONS if v >= 7])
def test_fetch_sessions(pair: Pair, name: str, version: int) -> None:
    """KIP-227: what an incremental fetch leaves out, and how wrong sessions are answered."""
    pair.create(create(name))
    pair.both(ApiKey.PRODUCE, 9, produce(name, batch(10)))
    sessions: dict[str, int] = {}

    def opened(peer: Peer) -> FetchRequest:
        return fetch(name, 0, version=version, session_epoch=0)(peer)

    for peer in (pair.kafka, pair.tidemill):
        answer = peer.ask(ApiKey.FETCH, version, opened(peer))
        assert answer.error_code == 0
        assert answer.session_id > 0, f"{peer.name} opened no session"
        sessions[peer.name] = answer.session_id

    def incremental(
        epoch: int, *, forget: bool = False, offset: int | None = None, session: int | None = None
    ) -> Any:
        def made(peer: Peer) -> FetchRequest:
            request = fetch(name, offset or 0, version=version)(peer)
            request.session_id = sessions[peer.name] if session is None else session
            request.session_epoch = epoch
            if forget:
                topic = request.topics[0]
                request.forgotten_topics_data = [
                    ForgottenTopic(topic=topic.topic, topic_id=topic.topic_id, partitions=[0])
                ]
            if offset is None:
                request.topics = []
            return request

        return made

    pair.compare(
        ApiKey.FETCH,
        version,
        [
            Case("unchanged, still at 0", incremental(1)),
            Case("moved to the end", incremental(2, offset=10)),
            Case("nothing new", incremental(3)),
            Case("wrong epoch", incremental(9)),
            Case("unknown session", incremental(1, session=123_456)),
            Case("forgotten", incremental(4, forget=True)),
            Case("closed", incremental(-1)),
            Case("after the close", incremental(5)),
        ],
    )
