"""Makes `__consumer_offsets` when the first group asks for its coordinator.

The topic has the partitions, the segment size and the replicas that the broker's settings say.
`offsets.topic.replication.factor` is 3 by default; a cluster with fewer brokers gets as many
replicas as it has brokers, unless somebody set the number and so meant it. How many those are only
the controller knows, so it decides. On an ensemble, where brokers of several machines join one by
one, the topic waits for as many brokers as it has replicas: made too early it would have too few of
them for good.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from tidemill.coordinators.coordinator import OFFSETS_TOPIC
from tidemill.errors import ErrorCode, TidemillError
from tidemill.wire.messages.topics import CreatableTopic, CreatableTopicConfig

if TYPE_CHECKING:
    from tidemill.config import BrokerConfig
    from tidemill.controller import Controller
    from tidemill.image import ClusterImage

log = logging.getLogger(__name__)


class OffsetsTopic:
    """One creation at a time, however many clients wait for it."""

    def __init__(
        self, controller: Controller, config: BrokerConfig, *, is_patient: bool = False
    ) -> None:
        """`is_patient`: wait for all brokers that the replicas need."""
        self._is_patient = is_patient
        self._controller = controller
        self._config = config
        self._creation: asyncio.Task[None] | None = None

    async def ensure(self, image: ClusterImage) -> None:
        """Return when the topic is there, or when it could not be made."""
        if image.topic(OFFSETS_TOPIC) is not None:
            return
        if self._creation is None or self._creation.done():
            self._creation = asyncio.get_running_loop().create_task(self._create())
        # A client that gives up must not take the creation with it.
        await asyncio.shield(self._creation)

    async def _create(self) -> None:
        try:
            (result,) = await self._controller.create_topics([self._wanted()])
        except TidemillError as error:
            log.warning("%s was not created: %s", OFFSETS_TOPIC, error)
            return
        if result.error_code not in (0, ErrorCode.TOPIC_ALREADY_EXISTS):
            log.warning("%s was not created: %s", OFFSETS_TOPIC, result.error_message)

    def _wanted(self) -> CreatableTopic:
        config = self._config
        factor = config.int("offsets.topic.replication.factor") if self._is_patient else -1
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.int("offsets.topic.segment.bytes")),
        }
        return CreatableTopic(
            name=OFFSETS_TOPIC,
            num_partitions=config.int("offsets.topic.num.partitions"),
            replication_factor=factor,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
        )
