"""`Broker`: what a handler can reach. It holds the parts together; the logic is in the parts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from random import Random
from typing import TYPE_CHECKING

from tidemill.controller.names import check_topic_name
from tidemill.errors import ApiError, ErrorCode, TidemillError
from tidemill.wire.messages.topics import CreatableTopic

if TYPE_CHECKING:
    from tidemill.broker.fetch_sessions import FetchSessions
    from tidemill.broker.offsets_topic import OffsetsTopic
    from tidemill.broker.producer_ids import ProducerIds
    from tidemill.broker.purgatory import Purgatory
    from tidemill.clock import Clock
    from tidemill.config import BrokerConfig
    from tidemill.controller import Controller
    from tidemill.coordinators.coordinator import GroupCoordinator
    from tidemill.executor import Executor
    from tidemill.image import ClusterImage
    from tidemill.replication.manager import ReplicaManager
    from tidemill.storage.manager import LogManager
    from tidemill.timers import TimingWheel

log = logging.getLogger(__name__)

AUTO_CREATE_IN_FLIGHT_MAX = 1000
"""Topics that may be in the making because somebody asked for their metadata."""


class Broker:
    """One broker's parts, and the picture of the cluster that it answers from.

    `image` is replaced as a whole when the controller publishes a new one; a handler reads it once
    and answers from that one picture.
    """

    def __init__(
        self,
        *,
        broker_id: int,
        config: BrokerConfig,
        clock: Clock,
        random: Random,
        timers: TimingWheel,
        purgatory: Purgatory,
        executor: Executor,
        logs: LogManager,
        controller: Controller,
        replicas: ReplicaManager,
        fetch_sessions: FetchSessions,
        producer_ids: ProducerIds,
        groups: GroupCoordinator,
        offsets_topic: OffsetsTopic,
        image: ClusterImage,
    ) -> None:
        self.broker_id = broker_id
        self.config = config
        self.clock = clock
        self.random = random
        self.timers = timers
        self.purgatory = purgatory
        self.executor = executor
        self.logs = logs
        self.controller = controller
        self.replicas = replicas
        self.fetch_sessions = fetch_sessions
        self.producer_ids = producer_ids
        self.groups = groups
        self.offsets_topic = offsets_topic
        self.image = image
        self.serves_clients = False
        """Whether the cluster has let this broker in; until then only peers are answered (K2)."""
        self._creating: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def cluster_id(self) -> str:
        return self.image.cluster_id

    def apply_image(self, image: ClusterImage) -> None:
        """Take over a new picture of the cluster: partitions first, so that whoever is told of a
        new topic by Metadata can already produce to it."""
        self.replicas.apply(image)
        self.image = image
        self.groups.apply(image)

    def is_topic_name(self, name: str) -> bool:
        """Whether a topic may have this name."""
        try:
            check_topic_name(name)
        except ApiError:
            return False
        return True

    def create_in_background(self, names: Iterable[str]) -> None:
        """Create topics that clients asked about; they find them when they ask again."""
        room = AUTO_CREATE_IN_FLIGHT_MAX - len(self._creating)
        fresh = [name for name in names if name not in self._creating][: max(0, room)]
        if not fresh:
            return
        self._creating.update(fresh)
        task = asyncio.get_running_loop().create_task(self._create(fresh))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _create(self, names: list[str]) -> None:
        topics = [
            CreatableTopic(name=name, num_partitions=-1, replication_factor=-1) for name in names
        ]
        try:
            for result in await self.controller.create_topics(topics):
                if result.error_code not in (0, ErrorCode.TOPIC_ALREADY_EXISTS):
                    log.warning("topic %s was not created: %s", result.name, result.error_message)
        except TidemillError as error:
            log.warning("topics %s were not created: %s", ", ".join(names[:10]), error)
        finally:
            self._creating.difference_update(names)
