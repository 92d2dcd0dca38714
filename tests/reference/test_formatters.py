"""Kafka's own formatters read our `__consumer_offsets`, and find there what is in Kafka's."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.reference.answers import create
from tests.reference.group_steps import Stage, leaving, wait_for_coordinator
from tests.reference.kafka import SharedKafka, run_kafka_tool
from tests.reference.pair import MOMENT, Pair

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
