"""Distinct types for integers that look alike, so that a checker can tell them apart."""

from __future__ import annotations

from typing import NamedTuple, NewType
from uuid import UUID

Offset = NewType("Offset", int)
"""A record's position in its partition; `log_end` and `high_watermark` are offsets, too."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""Grows by one with every election of a partition's leader."""

PartitionEpoch = NewType("PartitionEpoch", int)
"""Grows with every change of a partition's metadata: leader, ISR, replicas."""

BrokerId = NewType("BrokerId", int)

BrokerEpoch = NewType("BrokerEpoch", int)
"""Names one incarnation of a broker: it grows with every registration."""

ControllerEpoch = NewType("ControllerEpoch", int)
ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)
Sequence = NewType("Sequence", int)
PartitionIndex = NewType("PartitionIndex", int)

TimestampMs = NewType("TimestampMs", int)
"""Wall-clock milliseconds since the Unix epoch; never use it to measure a duration."""

TopicId = UUID

NO_OFFSET = Offset(-1)
NO_EPOCH = LeaderEpoch(-1)
NO_PRODUCER_ID = ProducerId(-1)
NO_PRODUCER_EPOCH = ProducerEpoch(-1)
NO_SEQUENCE = Sequence(-1)
NO_TIMESTAMP = TimestampMs(-1)
NO_BROKER = BrokerId(-1)
ZERO_TOPIC_ID: TopicId = UUID(int=0)


class TopicPartition(NamedTuple):
    """A partition by its topic's name, as people and old protocol versions spell it."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
