"""What a version does to a field: defaults, ignorable or not, null or not, tags known or not."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.wire.kio_bridge import kio_decode
from tests.wire.message_strategies import all_messages, kafkas_messages, messages
from tests.wire.reference_encoder import UNKNOWN_TAG, reference_encode

from tidemill.errors import WireError
from tidemill.wire.apis import APIS, NEVER_FLEXIBLE, ApiKey
from tidemill.wire.codec import decode, decode_from, encode, encode_parts
from tidemill.wire.compile import decoder_text, encoder_text
from tidemill.wire.declare import Message, version_range
from tidemill.wire.frame import encode_response
from tidemill.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidemill.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    PartitionData,
    ReplicaState,
)
from tidemill.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidemill.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from tidemill.wire.messages.sasl import SaslAuthenticateRequest
from tidemill.wire.messages.topic_partitions import Cursor, DescribeTopicPartitionsRequest

FLEXIBLE = [(cls, version) for cls, version in all_messages() if cls.is_flexible(version)]
KAFKAS = set(kafkas_messages())


def test_the_table_of_apis_agrees_with_the_declarations() -> None:
    for api in APIS.values():
        for cls in (api.request, api.response):
            low, high = cls.version_range()
            assert high == api.max_version, cls
            assert low == (3 if api.key is ApiKey.PRODUCE else api.min_version), cls
            flexible = version_range(cls.FLEXIBLE)
            flexible_from = flexible.low if cls.FLEXIBLE else NEVER_FLEXIBLE
            assert flexible_from == api.flexible_from, cls


def test_messages_are_imported_on_demand() -> None:
    """Starting a broker must not wait for messages that nobody sends."""
    code = (
        "import sys, tidemill.wire.frame\n"
        "print([name for name in sys.modules if name.startswith('tidemill.wire.messages.')])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_every_class_can_be_made_without_arguments_and_encoded_in_every_version() -> None:
    for cls, version in all_messages():
        message = cls()
        assert decode_from(cls, version, encode(message, version))[0] is not message


@pytest.mark.parametrize(
    ("cls", "version"),
    [pytest.param(cls, version, id=f"{cls.__name__}-v{version}") for cls, version in FLEXIBLE],
)
def test_unknown_tags_are_tolerated_in_every_struct(cls: type[Message], version: int) -> None:
    """rule 3.4.2: a newer peer may send tags that this version does not know.

    kio cannot skip them: it stops at the first, which says that it is where a tag has to be.
    """

    @settings(
        max_examples=3,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def check(data: st.DataObject) -> None:
        message = data.draw(messages(cls, version))
        future = reference_encode(message, version, unknown_tags=True)
        assert future != reference_encode(message, version)
        assert decode_from(cls, version, future) == (message, len(future))
        if (cls, version) in KAFKAS:
            with pytest.raises(KeyError, match=str(UNKNOWN_TAG)):
                kio_decode(cls, version, future)

    check()


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_the_compiled_encoder_writes_what_the_slow_one_does(data: st.DataObject) -> None:
    cls, version = data.draw(st.sampled_from(list(all_messages())))
    message = data.draw(messages(cls, version))
    assert encode(message, version) == reference_encode(message, version)


def test_a_field_that_a_version_lacks_is_dropped_if_it_is_ignorable() -> None:
    message = FetchRequest(session_id=7, session_epoch=3, rack_id="a", cluster_id="c")
    assert decode(FetchRequest, 4, encode(message, 4)) == FetchRequest()
    assert decode(FetchRequest, 12, encode(message, 12)) == message


@pytest.mark.parametrize(
    ("message", "version", "field"),
    [
        (FetchRequest(replica_id=3), 15, "FetchRequest.replica_id"),
        (FetchRequest(replica_state=ReplicaState(replica_id=3)), 14, "FetchRequest.replica_state"),
        (FetchResponse(session_id=1), 6, "FetchResponse.session_id"),
        (MetadataRequest(allow_auto_topic_creation=False), 3, "allow_auto_topic_creation"),
        (
            FetchResponse(
                responses=[
                    FetchableTopicResponse(
                        partitions=[PartitionData(current_leader=LeaderIdAndEpoch(leader_id=1))]
                    )
                ]
            ),
            11,
            "PartitionData.current_leader",
        ),
    ],
)
def test_a_field_that_a_version_lacks_is_an_error_if_the_receiver_would_misunderstand(
    message: Message, version: int, field: str
) -> None:
    with pytest.raises(WireError, match=rf"{field} .*version {version} cannot carry it"):
        encode(message, version)


def test_the_default_of_a_field_is_accepted_where_the_version_lacks_it() -> None:
    encode(FetchRequest(replica_id=-1), 15)
    encode(FetchRequest(replica_state=None), 14)


def test_null_is_refused_where_the_version_does_not_allow_it() -> None:
    assert encode(MetadataRequest(topics=None), 1)
    with pytest.raises(WireError, match=r"MetadataRequest\.topics must not be null \(version 0\)"):
        encode(MetadataRequest(topics=None), 0)
    with pytest.raises(WireError, match=r"topics\[0\]\.name must not be null"):
        encode(MetadataRequest(topics=[MetadataRequestTopic(name=None)]), 9)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (ProduceRequest(acks=2**15), "ProduceRequest.acks must be a number that fits int16"),
        (ProduceRequest(transactional_id="x" * 32768), "transactional_id has 32768 bytes"),
        (ProduceRequest(transactional_id="\ud800"), "UTF-8"),
        (ProduceRequest(transactional_id=7), "must be a string, not 7"),  # type: ignore[arg-type]
        (ProduceRequest(topic_data=3), "must be a list"),  # type: ignore[arg-type]
        (ProduceRequest(topic_data=[None]), "must be a TopicProduceData"),  # type: ignore[list-item]
        (
            ProduceRequest(topic_data=[TopicProduceData(topic_id=b"x")]),  # type: ignore[arg-type]
            r"topic_data\[0\].topic_id must be a UUID",
        ),
        (
            ProduceRequest(
                topic_data=[
                    TopicProduceData(
                        partition_data=[PartitionProduceData(records="text")]  # type: ignore[arg-type]
                    )
                ]
            ),
            r"partition_data\[0\].records must be bytes",
        ),
    ],
)
def test_a_wrong_value_is_named(message: Message, text: str) -> None:
    for version in (3, 8) if "topic_id" not in text else (13,):
        with pytest.raises(WireError, match=text):
            encode(message, version)


@pytest.mark.parametrize("size", [1, 5000])
def test_text_for_records_is_refused_whatever_its_size(size: int) -> None:
    partition = PartitionData(records="x" * size)  # type: ignore[arg-type]
    response = FetchResponse(responses=[FetchableTopicResponse(partitions=[partition])])
    for version in (11, 12):
        with pytest.raises(WireError, match="records must be bytes"):
            encode_parts(response, version)


def test_a_string_that_is_too_long_is_refused_in_flexible_versions_too() -> None:
    with pytest.raises(WireError, match="at most 32767"):
        encode(ProduceRequest(transactional_id="x" * 32768), 9)


def test_a_version_outside_the_schema_is_refused() -> None:
    with pytest.raises(WireError, match="ProduceRequest has no version 2, only 3-13"):
        encode(ProduceRequest(), 2)
    with pytest.raises(WireError, match="no version 14"):
        decode(ProduceRequest, 14, b"")


def test_bytes_after_a_message_are_ignored() -> None:
    """Apache Kafka 4.3.1 answers a request with bytes after it as if they were not there."""
    data = encode(MetadataRequest(topics=None), 12)
    assert decode_from(MetadataRequest, 12, data + b"more") == (
        decode(MetadataRequest, 12, data),
        len(data),
    )


def test_a_nullable_struct_is_marked_by_one_byte() -> None:
    absent = DescribeTopicPartitionsRequest(cursor=None)
    present = DescribeTopicPartitionsRequest(cursor=Cursor(topic_name="t", partition_index=1))
    assert encode(absent, 0)[-2:] == b"\xff\x00"
    for message in (absent, present):
        assert decode(DescribeTopicPartitionsRequest, 0, encode(message, 0)) == message


def test_golden_bytes_of_a_produce_response() -> None:
    response = ProduceResponse(
        responses=[
            TopicProduceResponse(
                name="t", partition_responses=[PartitionProduceResponse(index=1, base_offset=2)]
            )
        ]
    )
    assert encode(response, 9).hex() == (
        "02"  # one topic
        "0274"  # its name, "t"
        "02"  # one partition
        "00000001"  # index 1
        "0000"  # no error
        "0000000000000002"  # base offset 2
        "ffffffffffffffff"  # append time -1
        "ffffffffffffffff"  # log start -1
        "01"  # no record errors
        "00"  # no message
        "00"  # partition: no tags
        "00"  # topic: no tags
        "00000000"  # not throttled
        "00"  # response: no tags
    )


def test_records_are_slices_of_the_input() -> None:
    request = ProduceRequest(
        topic_data=[
            TopicProduceData(name="t", partition_data=[PartitionProduceData(records=b"abc")])
        ]
    )
    data = bytearray(encode(request, 9))
    decoded = decode(ProduceRequest, 9, data)
    records = decoded.topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    assert records.obj is data
    records[0:1] = b"A"
    assert b"Abc" in data


def test_large_records_are_passed_through_uncopied() -> None:
    large, small = memoryview(bytes(4096)), bytes(4095)

    def response(*records: memoryview | bytes) -> FetchResponse:
        partitions = [PartitionData(partition_index=i, records=r) for i, r in enumerate(records)]
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])

    for version in (11, 12):
        message = response(large, small, large, large)
        parts = encode_parts(message, version)
        assert sum(part is large for part in parts) == 3
        assert len(parts) == 6 + (version >= 12)  # joined ones before, between, and tags after
        assert b"".join(parts) == encode(message, version)


def test_large_records_need_only_have_a_length() -> None:
    """A broker answers a fetch with references to what is stored, and reads them while it sends."""

    class Stored:
        def __len__(self) -> int:
            return 4096

    stored = Stored()
    partition = PartitionData(records=stored)  # type: ignore[arg-type]
    response = FetchResponse(responses=[FetchableTopicResponse(partitions=[partition])])
    pieces: list[object] = [*encode_parts(response, 13)]
    assert pieces[1] is stored
    frame = encode_response(ApiKey.FETCH, 13, 1, response)
    assert int.from_bytes(frame[0][:4], "big") == sum(map(len, frame)) - 4


def test_messages_behave_as_dataclasses() -> None:
    partition = FetchPartition(partition=1)
    assert dataclasses.is_dataclass(partition)
    assert dataclasses.replace(partition, fetch_offset=5) == FetchPartition(
        partition=1, fetch_offset=5
    )
    request = FetchRequest(topics=[FetchTopic(topic="t", partitions=[partition])])
    shown = dataclasses.asdict(request)
    assert shown["topics"][0]["partitions"][0]["partition"] == 1
    assert "FetchPartition(partition=1," in repr(request)
    assert partition != FetchPartition(partition=2)
    assert partition != 1
    assert not hasattr(partition, "__dict__")
    assert copy.deepcopy(request) == request
    assert pickle.loads(pickle.dumps(request)) == request
    with pytest.raises(TypeError):
        FetchPartition(no_such_field=1)  # type: ignore[call-arg]


def test_bytes_are_not_shown_because_they_may_be_a_password() -> None:
    """rule 3.4.6: no secret in logs."""
    shown = repr(SaslAuthenticateRequest(auth_bytes=b"\0user\0secret"))
    assert shown == "SaslAuthenticateRequest(auth_bytes=<12 bytes>)"


def test_defaults_are_not_shared_between_objects() -> None:
    FetchRequest().topics.append(FetchTopic())
    assert FetchRequest().topics == []
    decode(FetchRequest, 4, encode(FetchRequest(), 4)).forgotten_topics_data.append(
        FetchRequest().forgotten_topics_data  # type: ignore[arg-type]
    )
    assert decode(FetchRequest, 4, encode(FetchRequest(), 4)).forgotten_topics_data == []


def test_a_uuid_from_the_wire_is_a_real_one() -> None:
    topic_id = UUID("12345678-1234-5678-1234-567812345678")
    request = MetadataRequest(topics=[MetadataRequestTopic(topic_id=topic_id, name=None)])
    decoded = decode(MetadataRequest, 12, encode(request, 12))
    assert decoded.topics is not None
    found = decoded.topics[0].topic_id
    assert found == topic_id
    assert hash(found) == hash(topic_id)
    assert str(found) == str(topic_id)
    assert found.is_safe is topic_id.is_safe


def test_the_generated_source_can_be_read() -> None:
    assert "def encode(m, parts, large):" in encoder_text(ApiVersionsResponse, 3)
    assert "def decode(buf, view, pos, end, left):" in decoder_text(ApiVersionsRequest, 3)
