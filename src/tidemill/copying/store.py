"""Where checkpoints are: one compacted topic of the target cluster, beside what they speak of.

Each copy of a topic has a ring of slots, so that the topic stays small however long a copy runs.
"""

from __future__ import annotations

import json
import logging

from tidemill.client.admin import Admin
from tidemill.client.admin_types import NewTopic
from tidemill.client.batches import Delivery
from tidemill.client.consumer import Consumer
from tidemill.client.producer import Producer
from tidemill.copying.checkpoints import Checkpoint
from tidemill.copying.reading import latest, read_range
from tidemill.errors import ErrorCode
from tidemill.types import TopicPartition

logger = logging.getLogger(__name__)

TOPIC = "tidemill-copies"
SLOTS = 512
_PLACE = TopicPartition(TOPIC, 0)


async def create(admin: Admin, replication_factor: int = -1) -> None:
    """Make the topic if there is none."""
    topic = NewTopic(TOPIC, 1, replication_factor, configs={"cleanup.policy": "compact"})
    error = (await admin.create_topics([topic])).errors().get(TOPIC)
    if error is not None and error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
        raise error


async def load(admin: Admin, consumer: Consumer, job: str) -> dict[str, list[Checkpoint]]:
    """The checkpoints of a job by the source's topic, in order."""
    end = (await latest(admin, [_PLACE]))[_PLACE]
    found: dict[str, dict[int, Checkpoint]] = {}
    for record in await read_range(consumer, _PLACE, 0, end):
        try:
            owner, topic, slot = json.loads(record.key)
            checkpoint = Checkpoint.decode(record.value)
        except (ValueError, TypeError):
            logger.warning("skipping what is no checkpoint offset=%s", record.offset)
            continue
        if owner == job:
            found.setdefault(topic, {})[slot] = checkpoint
    return {
        topic: sorted(slots.values(), key=lambda checkpoint: checkpoint.number)
        for topic, slots in found.items()
    }


def keep(producer: Producer, job: str, topic: str, checkpoint: Checkpoint) -> Delivery:
    """Write a checkpoint; it counts when it is delivered."""
    key = json.dumps([job, topic, checkpoint.number % SLOTS]).encode()
    return producer.send_soon(TOPIC, checkpoint.encode(), key=key, partition=0)
