"""Bytes that lie: rule 3.4.2. Only WireError may come out, soon, and with little memory."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.wire.message_strategies import all_messages, messages

from tidemill.errors import WireError
from tidemill.wire.codec import ELEMENTS_MAX, decode, encode
from tidemill.wire.compile import decoder_for
from tidemill.wire.declare import Message
from tidemill.wire.frame import decode_request_header
from tidemill.wire.messages.configs import (
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)
from tidemill.wire.messages.fetch import FetchRequest, FetchResponse
from tidemill.wire.messages.group_admin import DescribeGroupsRequest
from tidemill.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidemill.wire.messages.produce import ProduceRequest, ProduceResponse
from tidemill.wire.messages.sasl import SaslAuthenticateRequest
from tidemill.wire.messages.topic_partitions import DescribeTopicPartitionsRequest
from tidemill.wire.messages.topics import CreateTopicsRequest
from tidemill.wire.primitives import read_varint, write_varint

EVERY_MESSAGE = list(all_messages())


def refused(cls: type[Message], version: int, data: bytes, text: str) -> None:
    """Decoding fails with a message that says `text`, without allocating much."""
    decoder_for(cls, version)  # compiling it takes memory, too, and is not what is measured
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match=text):
            decode(cls, version, data)
        assert tracemalloc.get_traced_memory()[1] < 500_000
    finally:
        tracemalloc.stop()


def test_an_array_of_two_billion_entries() -> None:
    """rule 3.4.2, CVE-2026-111108: a count is checked against the bytes that are left."""
    refused(MetadataRequest, 1, struct.pack(">i", 2**31 - 1), "claims 2147483647 elements")
    refused(MetadataRequest, 12, write_varint(2**31), "claims 2147483647 elements")
    refused(MetadataRequest, 12, write_varint(2**35 - 1), "elements")


def test_an_array_of_numbers_that_are_not_there() -> None:
    data = encode(DescribeGroupsRequest(groups=[]), 5)
    refused(DescribeGroupsRequest, 5, write_varint(1000) + data[1:], "claims 999 elements")


def test_a_count_is_multiplied_by_the_smallest_element() -> None:
    """A topic of Metadata v12 takes 18 bytes: 100 of them do not fit into 1000."""
    refused(MetadataRequest, 12, write_varint(101) + bytes(1000), "1000 bytes cannot hold")


def test_a_negative_count_where_null_is_not_allowed() -> None:
    refused(CreateTopicsRequest, 2, struct.pack(">i", -1), "is null, where it must be an array")
    refused(CreateTopicsRequest, 5, b"\0", "is null, where it must be an array")


def test_any_negative_count_is_null_where_null_is_allowed() -> None:
    """Apache Kafka reads -2 as null, too."""
    assert decode(MetadataRequest, 1, struct.pack(">i", -2)).topics is None


def test_a_huge_string() -> None:
    one = struct.pack(">i", 1)
    refused(MetadataRequest, 1, one + struct.pack(">h", 32767) + b"x", "claims 32767 bytes")
    refused(MetadataRequest, 1, one + struct.pack(">h", -1), "negative size")
    flexible = b"\2" + bytes(16)
    tail = bytes(20)
    refused(MetadataRequest, 12, flexible + write_varint(32768) + tail, "claims 32767 bytes")
    refused(MetadataRequest, 12, flexible + write_varint(32769) + tail, "at most 32767")
    refused(MetadataRequest, 12, flexible + write_varint(2**35 - 1) + tail, "at most 32767")


def test_a_string_longer_than_kafka_allows_is_refused_even_if_it_is_there() -> None:
    data = b"\2" + bytes(16) + write_varint(40_001) + b"x" * 40_000 + bytes(4)
    refused(MetadataRequest, 12, data, "at most 32767")


def test_huge_bytes_and_records() -> None:
    refused(SaslAuthenticateRequest, 0, struct.pack(">i", 2**31 - 1), "claims 2147483647 bytes")
    refused(SaslAuthenticateRequest, 0, struct.pack(">i", -1), "negative size")
    refused(SaslAuthenticateRequest, 2, write_varint(2**31), "claims 2147483647 bytes")
    head = encode(ProduceRequest(), 9)[:-2]
    topic = b"\2\2t\2" + struct.pack(">i", 0)
    refused(ProduceRequest, 9, head + topic + write_varint(2**31) + b"xyz", "records claims")


def test_a_string_that_is_not_utf8() -> None:
    refused(MetadataRequest, 1, struct.pack(">ih", 1, 2) + b"\xff\xfe", "not UTF-8")
    refused(MetadataRequest, 1, struct.pack(">ih", 1, 3) + b"\xed\xa0\x80", "not UTF-8")


def test_a_varint_without_end() -> None:
    refused(MetadataRequest, 12, b"\xff" * 50, "more than 5 bytes")
    with pytest.raises(WireError):
        read_varint(b"\x80\x80\x80\x80\x80\x01", 0)
    with pytest.raises(IndexError):  # the codec turns it into WireError
        read_varint(b"\x80\x80", 0)


def test_more_tags_than_bytes() -> None:
    """rule 3.4.2, CVE-2026-111115: tags are counted, measured and not kept."""
    data = encode(MetadataRequest(topics=None), 12)[:-1]
    refused(MetadataRequest, 12, data + write_varint(2**31), "tagged fields claims")
    refused(MetadataRequest, 12, data + b"\x01\x05\xff\xff\xff\x7fabc", "a tagged field claims")


def test_more_known_tags_than_bytes() -> None:
    data = encode(FetchRequest(), 12)[:-1]
    refused(FetchRequest, 12, data + write_varint(2**31), "tags claims")
    refused(FetchRequest, 12, data + b"\x01\x00\xff\xff\xff\x7fabc", "a tag of FetchRequest claims")


def test_many_tags_are_charged_to_the_budget() -> None:
    data = encode(MetadataRequest(topics=None), 12)[:-1]
    tags = b"\x63\x00" * (ELEMENTS_MAX + 1)
    refused(MetadataRequest, 12, data + write_varint(ELEMENTS_MAX + 1) + tags, "may have")


def test_a_known_tag_whose_size_is_wrong() -> None:
    data = encode(FetchRequest(), 12)[:-1]
    for size in (3, 5):
        tag = bytes([1, 0, size]) + b"\x04abc" + bytes(8)
        refused(FetchRequest, 12, data + tag, "tagged field FetchRequest.cluster_id claims")


def test_tags_in_tags_in_tags() -> None:
    """Tagged structs have tags of their own; nesting is as deep as the schema, never deeper."""
    leader = struct.pack(">ii", 1, 2) + b"\x01\x09\x02zz"
    partition = encode(FetchResponse(), 12)
    assert decode(FetchResponse, 12, partition)
    body = struct.pack(">ihi", 0, 0, 0) + b"\2\2t\2" + struct.pack(">ihqqq", 0, 0, 0, 0, 0)
    body += b"\0" + struct.pack(">i", -1) + b"\0"
    body += b"\x02\x01" + write_varint(len(leader)) + leader + b"\x0a\x01y" + b"\0\0"
    found = decode(FetchResponse, 12, body).responses[0].partitions[0].current_leader
    assert found is not None
    assert (found.leader_id, found.leader_epoch) == (1, 2)


def test_a_message_of_minimal_elements_cannot_fill_the_memory() -> None:
    """rule 3.4.2, CVE-2026-111108: elements are bounded over the whole message."""
    count = ELEMENTS_MAX + 1
    data = write_varint(count + 1) + b"\1" * count + b"\0\0"
    refused(DescribeGroupsRequest, 5, data, "the message may have 250000 more")
    element = bytes([2, 1, 1, 0])  # a resource without a name and without settings
    data = write_varint(count + 1) + element * count + b"\0\0"
    refused(IncrementalAlterConfigsRequest, 1, data, "the message may have 250000 more")


def test_elements_of_nested_arrays_are_counted_together() -> None:
    resource = b"\2\1" + write_varint(1001) + b"\1" * 1000 + b"\0"
    data = write_varint(252) + resource * 251 + b"\0\0\0"
    with pytest.raises(WireError, match="the message may have"):
        decode(DescribeConfigsRequest, 4, data)
    assert len(decode(DescribeConfigsRequest, 4, data, elements_max=260_000).resources) == 251


def test_the_budget_admits_what_is_within_it() -> None:
    data = write_varint(ELEMENTS_MAX + 1) + b"\1" * ELEMENTS_MAX + b"\0\0"
    assert len(decode(DescribeGroupsRequest, 5, data).groups) == ELEMENTS_MAX


def test_an_empty_message_and_an_offset_beyond_the_end() -> None:
    for cls, version in EVERY_MESSAGE:
        if encode(cls(), version):
            with pytest.raises(WireError, match="ends too early"):
                decode(cls, version, b"")
    with pytest.raises(WireError):
        decode(MetadataRequest, 12, b"\0\0\0", 99)


def test_a_marker_of_a_struct_and_nothing_behind_it() -> None:
    data = encode(DescribeTopicPartitionsRequest(), 0)[:-2]
    with pytest.raises(WireError):
        decode(DescribeTopicPartitionsRequest, 0, data + b"\x01")


def quick(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def truncate_everywhere(data: st.DataObject) -> None:
    cls, version = data.draw(st.sampled_from(EVERY_MESSAGE))
    whole = encode(data.draw(messages(cls, version)), version)
    for size in range(min(len(whole), 600)):
        with pytest.raises(WireError):
            decode(cls, version, whole[:size])


def mutate(data: st.DataObject) -> None:
    """Change, insert or remove a few bytes: it may still parse, but only WireError escapes."""
    cls, version = data.draw(st.sampled_from(EVERY_MESSAGE))
    damaged = bytearray(encode(data.draw(messages(cls, version)), version))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(0, min(len(damaged), 300) - 1)))
        noise = data.draw(st.binary(max_size=3) | st.sampled_from([b"\xff" * 5, b"\x7f\xff"]))
        damaged[at : at + data.draw(st.integers(0, 3))] = noise
    try:
        decode(cls, version, damaged)
    except WireError:
        pass


def random_bytes(data: st.DataObject) -> None:
    cls, version = data.draw(st.sampled_from(EVERY_MESSAGE))
    noise = data.draw(st.binary(max_size=200))
    for read in (lambda: decode(cls, version, noise), lambda: decode_request_header(noise)):
        try:
            read()
        except WireError:
            pass


@quick(60)
@given(st.data())
def test_truncated_at_every_byte(data: st.DataObject) -> None:
    """rule 3.4.9: no cut makes anything but a WireError."""
    truncate_everywhere(data)


@quick(500)
@given(st.data())
def test_random_mutations(data: st.DataObject) -> None:
    """rule 3.4.9: damage to a valid message of any API and version."""
    mutate(data)


@quick(500)
@given(st.data())
def test_random_bytes(data: st.DataObject) -> None:
    """rule 3.4.9: noise, read as any API and version, and as a header."""
    random_bytes(data)


SOAK_TIMEOUT_S = 900


@pytest.mark.soak
@pytest.mark.timeout(SOAK_TIMEOUT_S)
@quick(3000)
@given(st.data())
def test_truncated_at_every_byte_for_long(data: st.DataObject) -> None:
    truncate_everywhere(data)


@pytest.mark.soak
@pytest.mark.timeout(SOAK_TIMEOUT_S)
@quick(50_000)
@given(st.data())
def test_random_mutations_for_long(data: st.DataObject) -> None:
    mutate(data)


def test_truncation_of_a_typical_request_and_response() -> None:
    topics = [MetadataRequestTopic(name="a topic"), MetadataRequestTopic(name="another")]
    for version in (1, 9, 12):
        whole = encode(MetadataRequest(topics=topics), version)
        for size in range(len(whole)):
            with pytest.raises(WireError):
                decode(MetadataRequest, version, whole[:size])
    whole = encode(ProduceResponse(), 9)
    for size in range(len(whole)):
        with pytest.raises(WireError):
            decode(ProduceResponse, 9, whole[:size])
