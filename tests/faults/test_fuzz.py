"""Structure-aware fuzzing of a live broker: every request and version it offers, then damaged.

The requests are well-formed first (built from the declarations, with odd values), then bytes are
flipped, cut, doubled or replaced. Whatever comes in, the broker answers with a frame that makes
sense or closes that connection, in time; it never dies, never fails unforeseen, never grows beyond
a bound, and a good client is answered in the middle of it. Batches of records are damaged on their
own, half of them under a checksum that fits, so that what lies behind the checksum is reached. The
run is reproducible: the seed is the test's parameter. `make soak` runs twenty times as many.
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final
from uuid import UUID

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.faults.bystander import Bystander, connect, forget_peak, peak_bytes, read_frame
from tests.faults.test_hostile import MEMORY_LIMIT_BYTES, assert_good_client_works

from tidemill.errors import ErrorCode, WireError
from tidemill.testing.process import KEEPS_ALL, BrokerProcess
from tidemill.wire.apis import APIS, ApiKey
from tidemill.wire.batch import HEADER_BYTES, LENGTH_POS, LOG_OVERHEAD_BYTES, write_crc
from tidemill.wire.codec import decode
from tidemill.wire.compression import Codec
from tidemill.wire.declare import FieldSpec, Message, Struct, version_range
from tidemill.wire.frame import decode_request_header, decode_response, encode_request
from tidemill.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidemill.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tidemill.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from tidemill.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidemill.wire.records import Record, build_batch

ODD_STRINGS = ["", "plain", "a/b", "..", "x" * 300, "ß☃", "plain\0", "__consumer_offsets"]
GOOD_S = 2
ODD_NUMBERS = [0, 1, -1, 2, 7, 127, -128]


class RequestMaker:
    """Makes requests from their declarations: valid in form, odd in content."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def struct(self, kind: type[Struct], version: int, depth: int = 0) -> Any:
        values = {
            spec.name: self.value(spec, version, depth)
            for spec in kind.FIELDS
            if version in version_range(spec.versions)
        }
        return kind(**values)

    def value(self, spec: FieldSpec, version: int, depth: int) -> Any:
        chance = self.random
        if spec.nullable and version in version_range(spec.nullable) and chance.random() < 0.1:
            return None
        if spec.kind == "array":
            count = chance.choice([0, 1, 1, 2, 3]) if depth < 3 else 0
            return [self.element(spec, version, depth) for _ in range(count)]
        if spec.kind == "struct":
            assert isinstance(spec.element, type)
            return self.struct(spec.element, version, depth + 1)
        return self.primitive(spec.kind)

    def element(self, spec: FieldSpec, version: int, depth: int) -> Any:
        if isinstance(spec.element, str):
            return self.primitive(spec.element)
        assert spec.element is not None
        return self.struct(spec.element, version, depth + 1)

    def primitive(self, kind: str) -> Any:
        chance = self.random
        if kind == "string":
            return chance.choice(ODD_STRINGS)
        if kind == "bytes":
            return chance.randbytes(chance.choice([0, 1, 50]))
        if kind == "records":
            return self.records()
        if kind == "bool":
            return chance.random() < 0.5
        if kind == "uuid":
            return UUID(int=chance.choice([0, 1, chance.getrandbits(128)]))
        if kind == "float64":
            return chance.choice([0.0, -1.5, float("inf")])
        bits = {"int8": 8, "int16": 16, "uint16": 15, "int32": 32, "int64": 64}[kind]
        extreme = [2 ** (bits - 1) - 1] if kind != "uint16" else [65535]
        small = [number for number in ODD_NUMBERS if kind != "uint16" or number >= 0]
        return chance.choice(small * 2 + extreme)

    def records(self) -> bytes:
        batch = self.sound_batch()
        return self.damage(batch) if self.random.random() < 0.5 else batch

    def sound_batch(self) -> bytes:
        chance = self.random
        return build_batch(
            [Record(n, n, b"k", chance.randbytes(20), (("h", None),)) for n in range(3)],
            codec=chance.choice(list(Codec)),
            producer_id=chance.choice([-1, 5]),
            producer_epoch=chance.choice([-1, 0]),
            base_sequence=chance.choice([-1, 0, 2**31 - 1]),
        )

    def damage(self, data: bytes) -> bytes:
        """Flip, cut, double or overwrite some of the bytes."""
        chance, changed = self.random, bytearray(data)
        for _ in range(chance.choice([1, 1, 2, 5])):
            if not changed:
                break
            at = chance.randrange(len(changed))
            how = chance.randrange(4)
            if how == 0:
                changed[at] ^= 1 << chance.randrange(8)
            elif how == 1:
                del changed[at : at + chance.choice([1, 2, 8])]
            elif how == 2:
                changed[at:at] = changed[at : at + chance.choice([1, 4, 16])]
            else:
                changed[at : at + 4] = chance.choice([b"\xff" * 4, b"\x7f\xff\xff\xff", b"\0" * 4])
        return bytes(changed)


SILENT_S: Final = 0.05
"""How long to wait for an answer that need not come."""

REQUEST_BYTES_MAX: Final = 104_857_600
"""A broker that is told of more closes the connection, and waits for no more of it."""

MAY_WAIT: Final = {ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP}
"""A broker may hold their answers back for as long as the request says, or until others come."""

FORESEEN: Final = {
    ErrorCode.NONE,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    ErrorCode.INVALID_RECORD,
}
"""What damaged records may be refused with."""

COMPACTED: Final = {"cleanup.policy": "compact"}
TOPICS: Final = {"ordinary": {}, "compacted": COMPACTED, "squeezed": {"compression.type": "lz4"}}
"""Where damaged records go; no fuzzed request knows the names, and deletes one of them."""


def offered(broker: BrokerProcess) -> list[tuple[ApiKey, int]]:
    """Every (API, version) that the broker says it answers."""
    answer = answer_to(broker, ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
    assert isinstance(answer, ApiVersionsResponse)
    return [
        (ApiKey(api.api_key), version)
        for api in answer.api_keys
        for version in range(
            max(api.min_version, APIS[ApiKey(api.api_key)].request.version_range().low),
            api.max_version + 1,
        )
    ]


def answer_to(broker: BrokerProcess, api: ApiKey, version: int, request: Message) -> Message:
    with connect(broker) as connection:
        connection.sendall(encode_request(api, version, 9, "fuzz", request))
        correlation_id, answer = decode_response(api, version, read_frame(connection))
    assert correlation_id == 9
    return answer


def poke(broker: BrokerProcess, request: bytes, good: Bystander) -> None:
    """Send it; a good client is answered meanwhile, and then this one is, or is cut off."""
    with connect(broker) as connection:
        may_be_silent = needs_no_answer(request)
        if may_be_silent:
            connection.settimeout(SILENT_S)
        try:
            connection.sendall(request)
            good.ask()
            check_answer(request, read_frame(connection))
        except TimeoutError:
            assert may_be_silent, f"neither an answer nor a close: {request.hex()}"
        except ConnectionError:
            return


def needs_no_answer(request: bytes) -> bool:
    """Whether the broker may wait for more, or has nothing to say to the first frame in there."""
    if len(request) < 4:
        return True
    (size,) = struct.unpack_from(">i", request)
    if not 0 <= size <= len(request) - 4:
        return bool(0 <= size <= REQUEST_BYTES_MAX)
    frame = request[4 : 4 + size]
    try:
        header, at = decode_request_header(frame)
        if header.api_key != ApiKey.PRODUCE:
            return header.api_key in MAY_WAIT
        asked = decode(ProduceRequest, header.api_version, frame, at)
    except WireError:
        return False
    return bool(asked.acks == 0)


def check_answer(request: bytes, answer: memoryview) -> None:
    """It is the one to this request, and every byte of it makes sense."""
    api_key, version, correlation_id = struct.unpack_from(">hhi", request, 4)
    if api_key == ApiKey.API_VERSIONS and not 0 <= version <= APIS[ApiKey(api_key)].max_version:
        version = 0  # It is told in the oldest version which ones there are.
    told_id, message = decode_response(api_key, version, answer)
    assert told_id == correlation_id
    assert_foreseen(message, request)


def assert_foreseen(message: Any, request: bytes) -> None:
    """No answer says, at any depth, that the broker has no idea what happened."""
    if isinstance(message, list):
        for each in message:
            assert_foreseen(each, request)
    elif isinstance(message, Struct):
        code = getattr(message, "error_code", 0)
        assert code != ErrorCode.UNKNOWN_SERVER_ERROR, f"{message} to {request.hex()}"
        for spec in type(message).FIELDS:
            assert_foreseen(getattr(message, spec.name), request)


def well_formed_then_damaged(maker: RequestMaker, api: ApiKey, version: int) -> Iterator[bytes]:
    request = maker.struct(APIS[api].request, version)
    if "max_wait_ms" in type(request).__slots__:
        request.max_wait_ms = 0
    frame = encode_request(api, version, 9, "fuzz", request)
    yield frame
    body = maker.damage(frame[4:])
    yield struct.pack(">i", len(body)) + body
    yield maker.damage(frame)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data_dir = tmp_path_factory.mktemp("fuzz") / "data"
    settings = {
        **KEEPS_ALL,
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
    }
    with BrokerProcess(data_dir, settings) as process:
        admin = AdminClient({"bootstrap.servers": process.bootstrap})
        topics = [NewTopic(name, 1, 1, config=config) for name, config in TOPICS.items()]
        for future in admin.create_topics(
            [*topics, NewTopic("plain", 1, 1), NewTopic("good", 1, 1)]
        ).values():
            future.result()
        yield process
        assert "Traceback" not in process.log_path.read_text(), "an error that nobody foresaw"


@pytest.fixture
def good(broker: BrokerProcess) -> Iterator[Bystander]:
    """A client that minds its own business; the broker's memory is watched as long as it does."""
    forget_peak(broker)
    bystander = Bystander(broker)
    yield bystander
    bystander.close()
    assert broker.running
    assert peak_bytes(broker) < MEMORY_LIMIT_BYTES
    assert bystander.longest_s < GOOD_S
    assert_good_client_works(broker, topic="good")


def fuzz(broker: BrokerProcess, good: Bystander, seed: int) -> int:
    maker = RequestMaker(seed)
    sent = 0
    for api, version in offered(broker):
        for request in well_formed_then_damaged(maker, api, version):
            poke(broker, request, good)
            sent += 1
        assert broker.running, f"died of {api.name} v{version}, seed {seed}"
    return sent


@pytest.mark.parametrize("seed", [1, 2])
def test_fuzzed_requests(broker: BrokerProcess, good: Bystander, seed: int) -> None:
    assert fuzz(broker, good, seed) > 100


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_fuzzed_requests_for_long(broker: BrokerProcess, good: Bystander) -> None:
    sent = sum(fuzz(broker, good, seed) for seed in range(100, 140))
    print(f"\n{sent} fuzzed requests, broker alive, {peak_bytes(broker) / 1e6:.0f} MB at most")


# --- records ------------------------------------------------------------------------------------


def damaged_batch(maker: RequestMaker) -> bytes:
    """A batch with damage behind its front; under a length and a checksum that fit, or not."""
    chance = maker.random
    batch = bytearray(maker.sound_batch())
    if chance.random() < 0.2:
        return bytes(batch)
    where = chance.choice([LOG_OVERHEAD_BYTES, HEADER_BYTES])
    batch[where:] = maker.damage(bytes(batch[where:]))
    if chance.random() < 0.5 and len(batch) > HEADER_BYTES:
        batch[16] = 2
        struct.pack_into(">i", batch, LENGTH_POS, len(batch) - LOG_OVERHEAD_BYTES)
        write_crc(batch, 0, len(batch))
    return bytes(batch)


def fuzz_records(broker: BrokerProcess, good: Bystander, seed: int, rounds: int) -> Counter[str]:
    """Damaged batches for topics that exist, by name and by id; what they were answered with."""
    maker, told = RequestMaker(seed), Counter[str]()
    ids = topic_ids(broker)
    versions = [version for api, version in offered(broker) if api is ApiKey.PRODUCE]
    for _ in range(rounds):
        for name in TOPICS:
            version = maker.random.choice([*versions, versions[-1]])
            partition = PartitionProduceData(index=0, records=damaged_batch(maker))
            topic = TopicProduceData(
                name=name if version < 13 else "",
                topic_id=ids[name] if version >= 13 else UUID(int=0),
                partition_data=[partition],
            )
            request = ProduceRequest(
                acks=maker.random.choice([1, -1]), timeout_ms=5000, topic_data=[topic]
            )
            good.ask()
            answer = answer_to(broker, ApiKey.PRODUCE, version, request)
            assert isinstance(answer, ProduceResponse)
            code = ErrorCode(answer.responses[0].partition_responses[0].error_code)
            assert code in FORESEEN, (code, seed, bytes(partition.records or b"").hex())
            told[f"{name} {code.name}"] += 1
    return told


def topic_ids(broker: BrokerProcess) -> dict[str, UUID]:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in TOPICS])
    answer = answer_to(broker, ApiKey.METADATA, 12, request)
    assert isinstance(answer, MetadataResponse)
    return {topic.name or "": topic.topic_id for topic in answer.topics}


def look_into(broker: BrokerProcess) -> None:
    """Have every batch that was stored looked into, which an ordinary topic's never were."""
    for name in TOPICS:
        for timestamp in (-3, 0, 2):
            partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
            request = ListOffsetsRequest(
                replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=[partition])]
            )
            assert_foreseen(answer_to(broker, ApiKey.LIST_OFFSETS, 7, request), name.encode())


def check_reached(told: Counter[str]) -> None:
    """Every topic has taken some, and has refused some for what is inside or for their checksum."""
    for name in TOPICS:
        for code in (ErrorCode.NONE, ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE):
            assert told[f"{name} {code.name}"], told


@pytest.mark.parametrize("seed", [1, 2])
def test_fuzzed_records(broker: BrokerProcess, good: Bystander, seed: int) -> None:
    check_reached(fuzz_records(broker, good, seed, rounds=150))
    look_into(broker)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_fuzzed_records_for_long(broker: BrokerProcess, good: Bystander) -> None:
    told = fuzz_records(broker, good, seed=3, rounds=10_000)
    check_reached(told)
    look_into(broker)
    print(f"\n{told}")
