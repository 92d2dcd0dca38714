"""Kafka's own formatters read our `__consumer_offsets`, and find there what is in Kafka's."""

from __future__ import annotations

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.reference.answers import create
from tests.reference.group_steps import Stage, leaving, wait_for_coordinator
from tests.reference.kafka import SharedKafka, run_kafka_tool
from tests.reference.pair import MOMENT, Pair
from tests.reference.test_consumer_groups import A, B, Members

from tidemill.coordinators.group_hash import partition_of
from tidemill.testing.process import BrokerProcess
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.groups import MemberIdentity
from tidemill.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)

FORMATTERS = ("OffsetsMessageFormatter", "GroupMetadataMessageFormatter")
_INVENTED = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TOPIC_ID = re.compile(r'"topicId":"[A-Za-z0-9_-]{22}"')


def live(stage: Stage, group: str, topic: str) -> None:
    """A group from its first member to its last, with commits and a deleted offset."""
    member, generation = stage.stable_member(group, instance_id="one")
    for number, note in ((5, "a note"), (6, "")):
        partitions = [
            OffsetCommitRequestPartition(
                partition_index=index, committed_offset=number, committed_metadata=note,
                committed_leader_epoch=0,
            )
            for index in range(2)
        ]  # fmt: skip
        request = OffsetCommitRequest(
            group_id=group, member_id=member, generation_id_or_member_epoch=generation,
            topics=[OffsetCommitRequestTopic(name=topic, partitions=partitions)],
        )  # fmt: skip
        stage.ask("commit", ApiKey.OFFSET_COMMIT, 8, request)
    gone = leaving(group, MemberIdentity(group_instance_id="one"))
    stage.ask("leave", ApiKey.LEAVE_GROUP, 4, gone)
    deleted = OffsetDeleteRequestTopic(
        name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=1)]
    )
    forget = OffsetDeleteRequest(group_id=group, topics=[deleted])
    stage.ask("delete", ApiKey.OFFSET_DELETE, 0, forget)


def read(bootstrap: str, formatter: str, group: str) -> list[Any]:
    """What the console consumer prints of one group."""
    done = run_kafka_tool(
        "kafka-console-consumer",
        *("--bootstrap-server", bootstrap, "--topic", "__consumer_offsets", "--from-beginning"),
        *("--formatter", f"org.apache.kafka.tools.consumer.{formatter}", "--timeout-ms", "4000"),
    )
    text = MOMENT.sub("0", _INVENTED.sub("ID", done.stdout))
    records = _documents(_TOPIC_ID.sub('"topicId":"ID"', text))
    found = [record for record in records if record["key"]["data"]["group"] == group]
    assert found, done.stderr
    return found


def _documents(text: str) -> list[Any]:
    """The formatters write one document after another, with nothing in between."""
    decoder = json.JSONDecoder()
    found = []
    position = 0
    while position < len(text.rstrip()):
        document, position = decoder.raw_decode(text, position)
        found.append(document)
    return found


@pytest.fixture
def group(pair: Pair, name: str) -> str:
    pair.create(create(name, 2))
    for peer in (pair.kafka, pair.tidemill):
        wait_for_coordinator(peer)
        live(Stage(peer), f"group-of-{name}", name)
    return f"group-of-{name}"


@pytest.mark.parametrize("formatter", FORMATTERS)
def test_the_same_is_read(
    formatter: str, group: str, apache_kafka: SharedKafka, tidemill_broker: BrokerProcess
) -> None:
    with ThreadPoolExecutor(2) as pool:
        theirs = pool.submit(read, apache_kafka.bootstrap, formatter, group)
        ours = pool.submit(read, tidemill_broker.bootstrap, formatter, group)
    assert ours.result() == theirs.result()


def live_newer(stage: Stage, group: str, topic: str) -> None:
    """A group of the newer protocol: two members, one of which gives back, commits and a leave."""
    members = Members(stage, group, topic)
    one = members.join("first", rack_id="r1", server_assignor="range")
    time.sleep(1.2)
    members.join("second", member_id=B, instance_id="two")
    told = members.beat("is told", member_epoch=one.member_epoch)
    kept = [part for each in told.assignment.topic_partitions for part in each.partitions]
    back = members.owns(*kept)
    last = members.beat("gives back", member_epoch=told.member_epoch, topic_partitions=back)
    partition = OffsetCommitRequestPartition(
        partition_index=kept[0], committed_offset=5, committed_metadata="a note"
    )
    request = OffsetCommitRequest(
        group_id=group, member_id=A, generation_id_or_member_epoch=last.member_epoch,
        topics=[OffsetCommitRequestTopic(name=topic, partitions=[partition])],
    )  # fmt: skip
    stage.ask("commit", ApiKey.OFFSET_COMMIT, 9, request)
    members.beat("second goes for a while", member_id=B, instance_id="two", member_epoch=-2)


def decoded(data_dir: Path, group: str) -> dict[str, str]:
    """What Kafka's decoder reads of a group: the last value of each key."""
    (folder,) = data_dir.glob(f"**/__consumer_offsets-{partition_of(group, 50)}")
    files = ",".join(map(str, sorted(folder.glob("*.log"))))
    done = run_kafka_tool("kafka-dump-log", "--offsets-decoder", "--files", files)
    found = {}
    for line in done.stdout.splitlines():
        key, arrow, value = line.partition(" payload: ")
        if arrow and f'"{group}"' in key:
            words = MOMENT.sub("0", _INVENTED.sub("ID", value))
            found[key.partition(" key: ")[2]] = _TOPIC_ID.sub('"topicId":"ID"', words)
    return found


def test_the_same_is_stored_of_a_group_of_the_newer_protocol(
    pair: Pair, name: str, apache_kafka: SharedKafka, tidemill_broker: BrokerProcess
) -> None:
    pair.create(create(name, 2))
    for peer in (pair.kafka, pair.tidemill):
        wait_for_coordinator(peer)
        live_newer(Stage(peer), f"newer-{name}", name)
    theirs = decoded(apache_kafka.data_dir, f"newer-{name}")
    ours = decoded(tidemill_broker.data_dir, f"newer-{name}")
    assert len(theirs) >= 8
    assert ours == theirs
