"""Structure-aware fuzzing of a live broker: every request and version it offers, then damaged.

The requests are well-formed first (built from the declarations, with odd values), then bytes are
flipped, cut, doubled or replaced. Whatever comes in, the broker answers with a frame or closes that
connection; it never dies, never grows beyond a bound, and never disturbs a good client. The run is
reproducible: the seed is the test's parameter. `make soak` runs twenty times as many.
"""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from tests.faults.test_hostile import (
    MEMORY_LIMIT_BYTES,
    assert_good_client_works,
    connect,
    memory_bytes,
)

from tidemill.testing.process import BrokerProcess
from tidemill.wire.apis import APIS, ApiKey
from tidemill.wire.compression import Codec
from tidemill.wire.declare import FieldSpec, Struct, version_range
from tidemill.wire.frame import decode_response, encode_request
from tidemill.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidemill.wire.records import Record, build_batch

ODD_STRINGS = ["", "plain", "a/b", "..", "x" * 300, "ß☃", "plain\0", "__consumer_offsets"]
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
        chance = self.random
        batch = build_batch(
            [Record(n, n, b"k", chance.randbytes(20), (("h", None),)) for n in range(3)],
            codec=chance.choice(list(Codec)),
            producer_id=chance.choice([-1, 5]),
            producer_epoch=chance.choice([-1, 0]),
            base_sequence=chance.choice([-1, 0, 2**31 - 1]),
        )
        return self.damage(batch) if chance.random() < 0.5 else batch

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


def offered(broker: BrokerProcess) -> list[tuple[ApiKey, int]]:
    """Every (API, version) that the broker says it answers."""
    with connect(broker) as connection:
        connection.sendall(encode_request(ApiKey.API_VERSIONS, 0, 1, "fuzz", ApiVersionsRequest()))
        _, answer = decode_response(ApiKey.API_VERSIONS, 0, read_frame(connection))
    assert isinstance(answer, ApiVersionsResponse)
    return [
        (ApiKey(api.api_key), version)
        for api in answer.api_keys
        for version in range(
            max(api.min_version, APIS[ApiKey(api.api_key)].request.version_range().low),
            api.max_version + 1,
        )
    ]


def read_frame(connection: socket.socket) -> memoryview:
    data = b""
    while len(data) < 4 or len(data) < 4 + struct.unpack_from(">i", data)[0]:
        piece = connection.recv(1 << 20)
        if not piece:
            raise ConnectionResetError
        data += piece
    return memoryview(data)[4:]


def poke(broker: BrokerProcess, request: bytes) -> None:
    """Send it and see: an answer, a closed connection, or silence. Then hang up."""
    with connect(broker) as connection:
        connection.settimeout(0.05)
        try:
            connection.sendall(request)
            read_frame(connection)
        except (TimeoutError, ConnectionError):
            return


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
    with BrokerProcess(data_dir, {"auto.create.topics.enable": "false"}) as process:
        yield process


def fuzz(broker: BrokerProcess, seed: int) -> int:
    maker = RequestMaker(seed)
    sent = 0
    for api, version in offered(broker):
        for request in well_formed_then_damaged(maker, api, version):
            poke(broker, request)
            sent += 1
        assert broker.running, f"died of {api.name} v{version}, seed {seed}"
    assert memory_bytes(broker) < MEMORY_LIMIT_BYTES
    return sent


@pytest.fixture(scope="module")
def topics(broker: BrokerProcess) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_topics([NewTopic("plain", 1, 1), NewTopic("good", 1, 1)]).values():
        future.result()


@pytest.mark.usefixtures("topics")
@pytest.mark.parametrize("seed", [1, 2])
def test_fuzzed_requests(broker: BrokerProcess, seed: int) -> None:
    assert fuzz(broker, seed) > 100
    assert_good_client_works(broker, topic="good")


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("topics")
def test_fuzzed_requests_for_long(broker: BrokerProcess) -> None:
    sent = sum(fuzz(broker, seed) for seed in range(100, 140))
    assert_good_client_works(broker, topic="good")
    print(f"\n{sent} fuzzed requests, broker alive, {memory_bytes(broker) / 1e6:.0f} MB")
