"""The records of the offsets topic: every byte, and what Kafka's own decoder reads in them."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.coordinators.shard_world import ShardWorld
from tests.reference.kafka import kafka_jars, run_kafka_tool, unavailable_reason
from tests.wire.message_strategies import messages

from tidemill.coordinators import records as r
from tidemill.coordinators.group_hash import _remembered_hash, java_string_hash, partition_of
from tidemill.coordinators.records import KINDS, decode_record, encode_record
from tidemill.coordinators.result import CoordinatorRecord
from tidemill.errors import WireError
from tidemill.wire.codec import encode
from tidemill.wire.records import BatchBuilder

TOPIC_ID = UUID(int=0x0102030405060708090A0B0C0D0E0F10)


def test_an_offset_byte_for_byte() -> None:
    key = r.OffsetCommitKey(group="g", topic="t", partition=3)
    value = r.OffsetCommitValue(
        offset=5, leader_epoch=2, metadata="m", commit_timestamp=7, topic_id=TOPIC_ID
    )
    assert encode_record(CoordinatorRecord(key, value)) == (
        bytes.fromhex("0001 0001 67 0001 74 00000003"),
        bytes.fromhex(
            "0004 0000000000000005 00000002 02 6d 0000000000000007"
            "01 00 10 0102030405060708090a0b0c0d0e0f10"
        ),
    )


def test_an_offset_with_a_time_of_its_own_is_version_1() -> None:
    key = r.OffsetCommitKey(group="g", topic="t", partition=0)
    value = r.OffsetCommitValue(offset=5, metadata="", commit_timestamp=7, expire_timestamp=9)
    _, data = encode_record(CoordinatorRecord(key, value))
    assert data == bytes.fromhex("0001 0000000000000005 0000 0000000000000007 0000000000000009")


def test_a_classic_group_byte_for_byte() -> None:
    member = r.MemberMetadata(
        member_id="m", group_instance_id="i", client_id="c", client_host="/h",
        rebalance_timeout=1, session_timeout=2, subscription=b"s", assignment=b"a",
    )  # fmt: skip
    value = r.GroupMetadataValue(
        protocol_type="consumer", generation=4, protocol="range", leader="m",
        current_state_timestamp=8, members=[member],
    )  # fmt: skip
    record = CoordinatorRecord(r.GroupMetadataKey(group="g"), value)
    assert encode_record(record) == (
        bytes.fromhex("0002 0001 67"),
        bytes.fromhex(
            "0003 0008 636f6e73756d6572 00000004 0005 72616e6765 0001 6d 0000000000000008"
            "00000001 0001 6d 0001 69 0001 63 0002 2f68 00000001 00000002"
            "00000001 73 00000001 61"
        ),
    )


@pytest.mark.parametrize("number", KINDS)
@given(data=st.data())
def test_what_is_written_is_read(number: int, data: st.DataObject) -> None:
    kind = KINDS[number]
    key = data.draw(messages(kind.key, 0))
    value = data.draw(st.none() | messages(kind.value, kind.written))
    if isinstance(value, r.OffsetCommitValue):
        value.expire_timestamp = -1
    record = CoordinatorRecord(key, value)
    assert decode_record(*encode_record(record)) == record


@pytest.mark.parametrize("version", range(5))
def test_old_versions_of_a_group_are_read(version: int) -> None:
    value = r.GroupMetadataValue(protocol_type="consumer", generation=3)
    key, _ = encode_record(CoordinatorRecord(r.GroupMetadataKey(group="g"), None))
    found = decode_record(key, version.to_bytes(2, "big") + encode(value, version))
    assert found is not None
    assert isinstance(found.value, r.GroupMetadataValue)
    assert found.value.generation == 3


def test_kinds_of_elsewhere_are_passed_over() -> None:
    assert decode_record(b"\0\x0b\0\1g", b"\0\0") is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", None),
        (b"\0", None),
        (b"\0\2\0\5g", None),
        (b"\0\2\0\1g", b"\0\x63"),
        (b"\0\2\0\1g", b""),
    ],
)
def test_broken_records_are_refused(key: bytes, value: bytes | None) -> None:
    with pytest.raises(WireError):
        decode_record(key, value)


def test_java_hashes() -> None:
    assert java_string_hash("") == 0
    assert java_string_hash("hello") == 99162322
    assert java_string_hash("\U0001f30a") == 31 * 0xD83C + 0xDF0A


def test_the_one_hash_without_an_absolute_value() -> None:
    assert java_string_hash("polygenelubricants") == -(2**31)
    assert partition_of("polygenelubricants", 50) == 0


def test_the_partition_of_a_name_is_worked_out_once_unless_the_name_is_long() -> None:
    """What is remembered takes a bounded amount of memory, whatever clients call their groups."""
    for name in ("a-short-name", "n" * 30_000):
        expected = abs(java_string_hash(name)) % 50
        before = _remembered_hash.cache_info().currsize
        assert [partition_of(name, 50), partition_of(name, 50)] == [expected, expected]
        is_remembered = len(name) < 1_000
        assert _remembered_hash.cache_info().currsize == before + is_remembered


@pytest.mark.reference
@pytest.mark.skipif(kafka_jars() is None, reason=unavailable_reason())
def test_kafkas_own_decoder_reads_every_kind(tmp_path: Path) -> None:
    """Keys and values of all kinds, in a segment, through Kafka's dump tool."""
    builder = BatchBuilder()
    member = r.MemberMetadata(member_id="member-1", client_id="c", client_host="/h")
    values = {
        1: r.OffsetCommitValue(offset=42, metadata="note", commit_timestamp=7, topic_id=TOPIC_ID),
        2: r.GroupMetadataValue(protocol_type="consumer", generation=9, members=[member]),
        3: r.ConsumerGroupMetadataValue(epoch=11, metadata_hash=12),
        5: r.ConsumerGroupMemberMetadataValue(
            client_id="c",
            subscribed_topic_names=["t"],
            classic_member_metadata=r.ClassicMemberMetadata(
                session_timeout_ms=17,
                supported_protocols=[r.ClassicProtocol(name="range", metadata=b"meta")],
            ),
        ),
        6: r.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=13),
        7: r.ConsumerGroupTargetAssignmentMemberValue(
            topic_partitions=[r.TargetTopicPartitions(topic_id=TOPIC_ID, partitions=[1, 2])]
        ),
        8: r.ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=14,
            previous_member_epoch=13,
            state=1,
            assigned_partitions=[
                r.CurrentTopicPartitions(
                    topic_id=TOPIC_ID, partitions=[3, 4], assignment_epochs=[18, 19]
                )
            ],
            partitions_pending_revocation=[
                r.CurrentTopicPartitions(topic_id=TOPIC_ID, partitions=[5], assignment_epochs=[20])
            ],
        ),
        16: r.ConsumerGroupRegularExpressionValue(topics=["t"], version=15, timestamp=16),
    }
    for number, value in values.items():
        key, data = encode_record(CoordinatorRecord(KINDS[number].key(), value))
        builder.append(1_000, key, data, ())
    segment = tmp_path / "00000000000000000000.log"
    segment.write_bytes(builder.build())
    done = run_kafka_tool("kafka-dump-log", "--offsets-decoder", "--files", str(segment))
    shown = done.stdout
    assert "could not be decoded" not in shown.lower()
    for number in values:
        assert f'"type":"{number}"' in shown, shown
    for part in ('"offset":42', '"generation":9', '"memberId":"member-1"', '"epoch":11',
                 '"assignmentEpoch":13', '"memberEpoch":14', '"version":15',
                 '"sessionTimeoutMs":17', '"name":"range"', '"metadata":"bWV0YQ=="', '"state":1',
                 '"partitions":[3,4]', '"assignmentEpochs":[18,19]',
                 '"partitions":[5]', '"assignmentEpochs":[20]'):  # fmt: skip
        assert part in shown, (part, shown)


def test_a_record_that_cannot_be_read_stops_the_load() -> None:
    """A corrupt internal log is not guessed at: its groups have no coordinator."""
    world = ShardWorld()
    builder = BatchBuilder()
    builder.append(1_000, b"\0\2\0\5g", None, ())
    world.partition.append(bytearray(builder.build()), required_acks=-1)
    world.restart()
    assert world.state().name == "COORDINATOR_NOT_AVAILABLE"
