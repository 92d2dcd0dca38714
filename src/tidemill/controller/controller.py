"""`Controller`: every broker's way to the cluster's metadata, whoever is in office.

`image` is the latest picture of the cluster, and `subscribe` tells of every new one. Changes go to
the broker in office: here if that is us, else it is asked (`forwarding.py`). Each change goes the
same way (`office.py`): decide on the current image, write in one transaction that fails unless our
controller epoch still is the latest, make the next image, tell the listeners and the other brokers.

In the background a broker watches the office and runs for it when it is vacant (`presence.py`); in
office it sees to the brokers (`members.py`).

Start at `Controller.start`, then `register_broker`.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from random import Random
from typing import Any, Concatenate, ParamSpec, TypeVar

from tidemill.clock import Clock
from tidemill.config import BrokerConfig
from tidemill.controller import remote
from tidemill.controller.forwarding import Forwarder
from tidemill.controller.links import ClusterLink
from tidemill.controller.members import Members
from tidemill.controller.office import Listener, Office
from tidemill.controller.partition_changes import PartitionChanges
from tidemill.controller.policies import Policies
from tidemill.controller.presence import Presence
from tidemill.controller.producer_ids import next_block
from tidemill.controller.propagation import Propagation
from tidemill.controller.reassignment import list_reassignments
from tidemill.controller.registration import Registration
from tidemill.controller.setting_changes import SettingChanges
from tidemill.controller.settings import ResourcePlan
from tidemill.controller.topic_changes import TopicChanges
from tidemill.controller.topics import DeletePlan, GrowthPlan
from tidemill.errors import ApiError
from tidemill.image import ClusterImage, Endpoint, ReplicaTrouble
from tidemill.store.base import Store
from tidemill.types import BrokerEpoch, BrokerId, TopicPartition
from tidemill.wire.messages.cluster import ImageDeltaRequest
from tidemill.wire.messages.configs import AlterConfigsResource, IncrementalAlterConfigsResource
from tidemill.wire.messages.isr import AlterPartitionRequest, AlterPartitionResponse
from tidemill.wire.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from tidemill.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreatePartitionsTopic,
    DeleteTopicState,
)

log = logging.getLogger(__name__)

ADMISSION_RETRY_S = 0.5
FAREWELL_MS_MAX = 1_000
"""How long a controller that stops waits for the others to hear its last word."""

P = ParamSpec("P")
T = TypeVar("T")


def _uninterrupted(
    change: Callable[Concatenate[Controller, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Controller, P], Coroutine[Any, Any, T]]:
    """A change runs to its end though its caller is cancelled: a client that hangs up must not
    leave the store ahead of the image."""

    @functools.wraps(change)
    async def run(self: Controller, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.shield(self._spawn(change(self, *args, **kwargs)))

    return run


class Controller:
    """One broker's part in running the cluster."""

    def __init__(
        self,
        store: Store,
        config: BrokerConfig,
        clock: Clock,
        random: Random,
        *,
        broker_id: int,
        directory_id: str = "",
        cluster_id: str = "",
    ) -> None:
        """`cluster_id` is what a cluster that has no id yet gets; without it a random one."""
        self._store = store
        self._config = config
        self._clock = clock
        self._directory_id = directory_id
        self._office = office = Office(store, clock, random, cluster_id)
        office.broker_id = BrokerId(broker_id)
        self._policies = Policies(config)
        self._members = Members(office, self._policies)
        self._partitions = PartitionChanges(office, self._policies)
        self._topics = TopicChanges(office, config, random)
        self._settings = SettingChanges(office, config, self._policies)
        self._forwarder = Forwarder(office, clock)
        self._propagation = Propagation(
            office, lambda: config.int("controller.socket.timeout.ms"), self._confirmed
        )
        self._presence = Presence(office, self._members, config, clock)
        self._presence.on_lost.append(self._propagation.stop)
        office.on_publish = self._propagation.tell
        office.listeners.append(lambda image: self._policies.forget())
        self._tasks: set[asyncio.Task[Any]] = set()

    # What everybody may look at

    @property
    def image(self) -> ClusterImage:
        return self._office.image

    @property
    def active(self) -> bool:
        """Whether this broker is the controller, as far as it knows."""
        return self._office.active

    @property
    def controller_id(self) -> BrokerId:
        """The broker in office, as far as this one knows; -1 if there is none."""
        return self._office.holder

    @property
    def broker_id(self) -> BrokerId:
        return self._office.broker_id

    @property
    def broker_epoch(self) -> BrokerEpoch:
        """The epoch of our registration, -1 while there is none."""
        return self._presence.broker_epoch

    @property
    def secret(self) -> bytes:
        """What brokers of this cluster prove to each other."""
        return self._office.secret

    @property
    def known_brokers(self) -> int:
        """In office: how many brokers this cluster has ever had."""
        return self._members.known_count

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every new image, in order; returns how to stop that."""
        self._office.listeners.append(listener)
        return lambda: self._office.listeners.remove(listener)

    # Life

    async def start(self) -> None:
        """Open the store, make what a new cluster needs, and read what there is.

        A broker that was made with the id -1 has one afterwards (`broker_id`). Nobody runs for
        the office before `register_broker`.
        """
        await self._presence.start()

    def connect(self, link: ClusterLink) -> None:
        """From now on other brokers can be reached."""
        self._forwarder.link = link
        self._propagation.link = link

    async def stop(self) -> None:
        """Finish the change under way; the office goes with the session when the store closes."""
        self._presence.stop()
        async with self._office.lock:
            if self.active:
                await self._propagation.settle(FAREWELL_MS_MAX)
            self._propagation.stop()
            self._office.resign()
            self._office.listeners.clear()

    def on_session_lost(self, callback: Callable[[], None]) -> None:
        """Call back when this broker must not lead anything any more (rule A9)."""
        self._presence.on_lost.append(callback)

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # Whoever asked may have hung up: an error that nobody hears is no scandal.
            task.exception()

    def _confirmed(self, broker_id: BrokerId, epoch: BrokerEpoch, image: ClusterImage) -> None:
        """A broker has taken over an image: the first one with itself in it lets it in."""
        broker = image.brokers.get(broker_id)
        if broker is not None and broker.fenced and broker.epoch == epoch:
            self._spawn(self._admit(broker_id, epoch))

    async def _admit(self, broker_id: BrokerId, epoch: BrokerEpoch) -> None:
        while self.active:
            try:
                await self._members.admit(broker_id, epoch)
                return
            except ApiError as error:
                log.warning("broker %d is let in later: %s", broker_id, error)
            await asyncio.sleep(ADMISSION_RETRY_S)

    # Brokers

    @_uninterrupted
    async def register_broker(
        self,
        endpoints: Sequence[Endpoint],
        *,
        rack: str | None = None,
        directory_id: str | None = None,
        clean_shutdown_epoch: int = -1,
        flush_policy: str = "",
        machine: str = "",
    ) -> BrokerEpoch:
        """Enter this broker with its addresses, and what it says of its past (`Registration`).

        `machine` names the one that it runs on: whoever shares it may go at the same moment.

        The answer is its epoch. If nobody is in office by then, this broker is when it returns,
        and it is in the image. Otherwise the controller lets it in: see `admitted`.
        """
        directory = self._directory_id if directory_id is None else directory_id
        return await self._presence.register(
            Registration(
                tuple(endpoints),
                rack,
                directory,
                clean_shutdown_epoch,
                flush_policy,
                machine=machine,
            )
        )

    async def admitted(self, timeout_ms: int) -> None:
        """Wait until an image has this broker in it, free to lead (rule K2)."""
        await self._presence.admitted(timeout_ms)

    async def follow(self, delta: ImageDeltaRequest) -> None:
        """Take over what the controller tells us; `ApiError` if it must not, or cannot, tell."""
        await self._office.follow(delta)
        if not self.active:
            self._propagation.stop()

    @_uninterrupted
    async def shut_down(self) -> None:
        """Before this broker stops: others take over what it leads (rule K1)."""
        epoch = self.broker_epoch

        async def here() -> int:
            image = await self._members.shut_down(self.broker_id, epoch)
            await self._propagation.settle(FAREWELL_MS_MAX)
            await self._presence.give_up_office()
            return image.version

        async def there() -> int:
            return await remote.shut_down(self._forwarder, self.broker_id, epoch)

        await self._forwarder.wait_for(await self._forwarder.ask(here, there))

    async def shut_down_broker(self, broker_id: int, broker_epoch: int) -> ClusterImage:
        """In office: another broker is about to stop."""
        return await self._members.shut_down(BrokerId(broker_id), BrokerEpoch(broker_epoch))

    async def replicas_lost(
        self, lost: Iterable[TopicPartition], trouble: ReplicaTrouble = ReplicaTrouble.GONE
    ) -> None:
        """This broker cannot use these replicas: others take over what it has others for."""
        epoch, image = self.broker_epoch, self.image
        shared = [
            TopicPartition(*each)
            for each in lost
            if (found := image.partition(*each)) is not None and len(found.replicas) > 1
        ]
        if shared:
            await self._forwarder.ask(
                lambda: self._members.lose_replicas(self.broker_id, epoch, shared, trouble),
                lambda: remote.lose_replicas(
                    self._forwarder, self.broker_id, epoch, shared, trouble
                ),
            )

    async def replicas_of_broker_lost(
        self,
        broker_id: int,
        broker_epoch: int,
        lost: Iterable[TopicPartition],
        trouble: ReplicaTrouble,
    ) -> None:
        """In office: another broker cannot use these replicas."""
        await self._members.lose_replicas(
            BrokerId(broker_id), BrokerEpoch(broker_epoch), lost, trouble
        )

    @_uninterrupted
    async def allocate_producer_ids(self, broker_id: int | None = None) -> tuple[int, int]:
        """A block of producer ids that nobody else gets: its first, and how many.

        Any broker may take one by itself: the store gives each block to one of those who ask.
        """
        return await next_block(self._store, self.broker_id if broker_id is None else broker_id)

    # Topics

    @_uninterrupted
    async def create_topics(
        self, requests: Sequence[CreatableTopic], *, validate_only: bool = False
    ) -> list[CreatableTopicResult]:
        """Create what can be created, all in one commit; an answer for every topic."""

        async def here() -> list[CreatableTopicResult]:
            await self._members.wait_for(self._config.int("cluster.brokers.min"))
            return await self._topics.create(requests, validate_only)

        return await self._forwarder.ask(
            here,
            lambda: remote.create_topics(self._forwarder, requests, validate_only),
        )

    @_uninterrupted
    async def create_partitions(
        self, requests: Sequence[CreatePartitionsTopic], *, validate_only: bool = False
    ) -> list[GrowthPlan]:
        """Add partitions to topics, all in one commit; an answer for every topic."""
        return await self._forwarder.ask(
            lambda: self._topics.grow(requests, validate_only),
            lambda: remote.create_partitions(self._forwarder, requests, validate_only),
        )

    @_uninterrupted
    async def delete_topics(
        self, names: Sequence[str] = (), topics: Sequence[DeleteTopicState] = ()
    ) -> list[DeletePlan]:
        """Delete topics named either way, all in one commit; an answer for every topic."""
        return await self._forwarder.ask(
            lambda: self._topics.delete(names, topics),
            lambda: remote.delete_topics(self._forwarder, names, topics),
        )

    # Settings

    @_uninterrupted
    async def alter_configs(
        self,
        resources: Sequence[AlterConfigsResource],
        *,
        validate_only: bool = False,
        origin: int | None = None,
    ) -> list[ResourcePlan]:
        """Replace all settings of each resource; an answer for every one.

        `origin` is the broker that a client asked, if that is another one.
        """
        asked = self.broker_id if origin is None else origin
        return await self._forwarder.ask(
            lambda: self._settings.replace(resources, asked, validate_only),
            lambda: remote.alter_configs(self._forwarder, resources, validate_only),
        )

    @_uninterrupted
    async def incremental_alter_configs(
        self,
        resources: Sequence[IncrementalAlterConfigsResource],
        *,
        validate_only: bool = False,
        origin: int | None = None,
    ) -> list[ResourcePlan]:
        """Change single settings of each resource; an answer for every one."""
        asked = self.broker_id if origin is None else origin
        return await self._forwarder.ask(
            lambda: self._settings.increment(resources, asked, validate_only),
            lambda: remote.incremental_alter_configs(self._forwarder, resources, validate_only),
        )

    # Partitions

    @_uninterrupted
    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Bring a leader's proposals to the controller, once: whoever asks tries again itself."""
        if self.active:
            return await self._partitions.alter_partition(request)
        answer: AlterPartitionResponse = await self._forwarder.send(request)
        return answer

    @_uninterrupted
    async def alter_reassignments(
        self, request: AlterPartitionReassignmentsRequest
    ) -> AlterPartitionReassignmentsResponse:
        """Start, replace or cancel moves of replicas."""
        return await self._forwarder.ask(
            lambda: self._partitions.reassign(request),
            lambda: remote.alter_reassignments(self._forwarder, request),
        )

    async def list_reassignments(
        self, request: ListPartitionReassignmentsRequest
    ) -> ListPartitionReassignmentsResponse:
        """The moves under way, as the controller knows them: what it began is among them."""

        async def here() -> ListPartitionReassignmentsResponse:
            return list_reassignments(self.image, request)

        return await self._forwarder.ask(
            here, lambda: remote.list_reassignments(self._forwarder, request)
        )

    @_uninterrupted
    async def elect_leaders(self, request: ElectLeadersRequest) -> ElectLeadersResponse:
        """Elect leaders on command."""
        return await self._forwarder.ask(
            lambda: self._partitions.elect(request),
            lambda: remote.elect_leaders(self._forwarder, request),
        )

    @_uninterrupted
    async def move_leaders_back(self) -> int:
        """In office: give partitions back to their preferred leaders; how many it were."""
        return await self._partitions.move_leaders_back() if self.active else 0
