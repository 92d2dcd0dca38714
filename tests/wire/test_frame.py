"""Headers and sizes around messages, checked against kio's headers and by hand."""

from __future__ import annotations

import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.request_header.v1.header import RequestHeader as KioHeaderV1
from kio.schema.request_header.v2.header import RequestHeader as KioHeaderV2
from kio.serial import entity_writer

from tidemill.errors import WireError
from tidemill.wire.apis import APIS, ApiKey
from tidemill.wire.codec import decode, encode
from tidemill.wire.frame import (
    HEADER_TAGS_MAX,
    RequestHeader,
    decode_request_header,
    decode_response,
    encode_request,
    encode_request_parts,
    encode_response,
)
from tidemill.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidemill.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from tidemill.wire.messages.metadata import MetadataRequest, MetadataResponse
from tidemill.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tidemill.wire.primitives import write_varint

CLIENT_IDS = st.none() | st.text(st.characters(codec="utf-8"), max_size=40)


@given(st.sampled_from([1, 9]), st.integers(-(2**31), 2**31 - 1), CLIENT_IDS)
def test_a_request_header_reads_as_kio_writes_it(
    version: int, correlation_id: int, client_id: str | None
) -> None:
    kio = KioHeaderV2 if version >= 9 else KioHeaderV1
    header = kio(
        request_api_key=3,
        request_api_version=version,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    buffer = io.BytesIO()
    entity_writer(kio)(buffer, header)
    foreign = buffer.getvalue()
    assert decode_request_header(foreign) == (
        RequestHeader(3, version, correlation_id, client_id),
        len(foreign),
    )
    body = encode(MetadataRequest(topics=[]), version)
    frame = encode_request(3, version, correlation_id, client_id, MetadataRequest(topics=[]))
    assert frame == struct.pack(">i", len(foreign + body)) + foreign + body


def test_the_client_id_is_not_compact_even_in_a_flexible_header() -> None:
    frame = encode_request(ApiKey.API_VERSIONS, 3, 1, "abc", ApiVersionsRequest())
    assert frame[12:18] == b"\x00\x03abc\x00"


def test_a_request_round_trips_for_every_api_and_version() -> None:
    for api in APIS.values():
        low, high = api.request.version_range()
        for version in range(low, high + 1):
            frame = encode_request(api.key, version, 7, "me", api.request())
            header, pos = decode_request_header(frame[4:])
            assert header == RequestHeader(api.key, version, 7, "me")
            assert len(frame) == 4 + int.from_bytes(frame[:4], "big")
            assert encode(decode(api.request, version, frame[4:], pos), version) == frame[4 + pos :]


def test_a_response_round_trips_for_every_api_and_version() -> None:
    for api in APIS.values():
        low, high = api.response.version_range()
        for version in range(low, high + 1):
            frame = b"".join(encode_response(api.key, version, -9, api.response()))
            assert len(frame) == 4 + int.from_bytes(frame[:4], "big")
            correlation_id, message = decode_response(api.key, version, frame[4:])
            assert correlation_id == -9
            assert isinstance(message, api.response)
            assert frame.endswith(encode(message, version))


def test_the_response_to_api_versions_has_the_old_header_in_every_version() -> None:
    for version in range(5):
        (frame,) = encode_response(ApiKey.API_VERSIONS, version, 5, ApiVersionsResponse())
        assert frame[8:] == encode(ApiVersionsResponse(), version)


def test_a_flexible_response_has_a_byte_for_tags() -> None:
    (frame,) = encode_response(ApiKey.METADATA, 9, 5, MetadataResponse())
    assert frame[4:9] == b"\0\0\0\5\0"
    assert frame[9:] == encode(MetadataResponse(), 9)


def test_the_size_covers_records_that_are_passed_through() -> None:
    records = bytes(10_000)
    partition = PartitionData(records=records)
    message = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[partition])])
    pieces = encode_response(ApiKey.FETCH, 12, 1, message)
    assert any(piece is records for piece in pieces)
    assert int.from_bytes(pieces[0][:4], "big") == sum(map(len, pieces)) - 4
    _, decoded = decode_response(ApiKey.FETCH, 12, b"".join(pieces)[4:])
    assert decoded == message


def test_the_header_of_an_unknown_api_can_be_read() -> None:
    frame = struct.pack(">hhih", 999, 0, 5, 1) + b"c"
    assert decode_request_header(frame) == (RequestHeader(999, 0, 5, "c"), len(frame))


def test_an_unknown_version_of_api_versions_has_a_flexible_header() -> None:
    """A newer client asks with a version that we do not know, and wants its correlation id."""
    frame = struct.pack(">hhih", 18, 99, 5, 1) + b"c\0rest"
    header, pos = decode_request_header(frame)
    assert header == RequestHeader(18, 99, 5, "c")
    assert frame[pos:] == b"rest"


def test_header_tags_are_skipped_up_to_a_limit() -> None:
    """rule 3.4.2: tags are counted, also in headers."""

    def header(count: int) -> bytes:
        tags = b"".join(write_varint(tag) + b"\x01x" for tag in range(count))
        return struct.pack(">hhih", 3, 12, 5, -1) + write_varint(count) + tags

    for count in (1, HEADER_TAGS_MAX):
        assert decode_request_header(header(count) + b"body")[1] == len(header(count))
    with pytest.raises(WireError, match="tagged fields"):
        decode_request_header(header(HEADER_TAGS_MAX + 1))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_headers_are_read_from_any_buffer(kind: type) -> None:
    frame = encode_request(3, 12, 5, "client", MetadataRequest(topics=None))[4:]
    header, pos = decode_request_header(kind(frame))
    assert header.client_id == "client"
    assert decode(MetadataRequest, 12, kind(frame), pos).topics is None


def test_a_header_cut_short_anywhere_is_an_error() -> None:
    frame = encode_request(3, 12, 5, "client", MetadataRequest(topics=None))[4:]
    _, pos = decode_request_header(frame)
    for size in range(pos):
        with pytest.raises(WireError):
            decode_request_header(frame[:size])
    response = b"".join(encode_response(3, 12, 5, MetadataResponse()))[4:]
    for size in range(len(response)):
        with pytest.raises(WireError):
            decode_response(3, 12, response[:size])


def test_a_client_id_must_be_true() -> None:
    with pytest.raises(WireError, match="claims 32767 bytes"):
        decode_request_header(struct.pack(">hhih", 3, 1, 5, 32767) + b"short")
    with pytest.raises(WireError, match="not UTF-8"):
        decode_request_header(struct.pack(">hhih", 3, 1, 5, 2) + b"\xff\xfe")
    with pytest.raises(WireError, match="at most 32767"):
        encode_request(3, 1, 5, "x" * 40_000, MetadataRequest(topics=[]))


def test_a_request_passes_large_records_through_uncopied() -> None:
    records = bytes(100_000)
    topic = TopicProduceData(
        name="t", partition_data=[PartitionProduceData(index=0, records=records)]
    )
    request = ProduceRequest(acks=1, timeout_ms=5, topic_data=[topic])
    parts = encode_request_parts(ApiKey.PRODUCE, 9, 1, "me", request)
    assert any(part is records for part in parts)
    assert b"".join(parts) == encode_request(ApiKey.PRODUCE, 9, 1, "me", request)
