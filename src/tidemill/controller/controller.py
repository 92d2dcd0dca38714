"""The controller: the one place where topics, settings and registrations change.

Each change goes the same way (`_change`): decide on the current image, write in one transaction
that fails unless our controller epoch still is the latest, make the next image, tell the listeners.
Changes run one at a time, so a decision is never made on an image that is about to be replaced.
Whoever has lost the controller's office fails every write (rule A2) and answers NOT_CONTROLLER.

Start at `Controller.start`, then `create_topics`.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Concatenate, ParamSpec, TypeVar

from tidemill.clock import Clock
from tidemill.config import BrokerConfig, describe_topic
from tidemill.controller import tree
from tidemill.controller.loading import load_image, read_controller_epoch
from tidemill.controller.registration import next_broker_id, register
from tidemill.controller.settings import (
    ConfigChange,
    ResourcePlan,
    check_topic_configs,
    plan_increments,
    plan_replacements,
)
from tidemill.controller.topics import (
    CreatePlan,
    DeletePlan,
    GrowthPlan,
    TopicDefaults,
    plan_creations,
    plan_deletions,
    plan_growth,
)
from tidemill.errors import ApiError, ErrorCode
from tidemill.image import (
    EMPTY_IMAGE,
    ClusterImage,
    Endpoint,
    TopicImage,
    with_broker,
    with_broker_configs,
    with_controller,
    with_group_configs,
    with_topic_configs,
    with_topics,
    without_topics,
)
from tidemill.store.base import (
    BadVersion,
    Check,
    Create,
    Delete,
    Node,
    NodeExists,
    NoNode,
    Op,
    Put,
    SessionExpired,
    Store,
    StoreError,
    StoreUnavailable,
)
from tidemill.types import BrokerEpoch, BrokerId, ControllerEpoch
from tidemill.wire.messages.configs import AlterConfigsResource, IncrementalAlterConfigsResource
from tidemill.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsTopic,
    DeleteTopicState,
)

PRODUCER_IDS_PER_BLOCK = 1_000
PRODUCER_ID_MAX = 2**63 - 1
_ATTEMPTS_MAX = 10
_REJOIN_PAUSE_S = 1.0

Listener = Callable[[ClusterImage], Awaitable[None] | None]
"""Takes over a new image; an awaitable holds back the answer, and the next change, until done."""


P = ParamSpec("P")
T = TypeVar("T")


def _uninterrupted(
    change: Callable[Concatenate[Controller, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Controller, P], Coroutine[Any, Any, T]]:
    """A change runs to its end though its caller is cancelled: a client that hangs up must not
    leave the store ahead of the image."""

    @functools.wraps(change)
    async def run(self: Controller, /, *args: P.args, **kwargs: P.kwargs) -> T:
        task = asyncio.get_running_loop().create_task(change(self, *args, **kwargs))
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        return await asyncio.shield(task)

    return run


class Controller:
    """Decides, writes, publishes. `image` is the latest picture; `subscribe` to be told of more."""

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
        self._random = random
        self._broker_id = BrokerId(broker_id)
        self._directory_id = directory_id
        self._cluster_id = cluster_id
        self._image = EMPTY_IMAGE
        self._epoch_version = -1
        self._active = False
        self._stale = False
        self._lock = asyncio.Lock()
        self._changes: set[asyncio.Task[Any]] = set()
        self._listeners: list[Listener] = []
        self._registration: tuple[tuple[Endpoint, ...], str | None] | None = None
        self._rejoining: asyncio.Task[None] | None = None
        store.on_session_lost(self._session_lost)

    @property
    def image(self) -> ClusterImage:
        return self._image

    @property
    def active(self) -> bool:
        """Whether this broker is the controller, as far as it knows."""
        return self._active

    @property
    def broker_id(self) -> BrokerId:
        return self._broker_id

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every new image, in order; returns how to stop that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    # Life

    async def start(self) -> None:
        """Open the store, make what a new cluster needs, take office if it is free, load.

        A broker that was made with the id -1 has one afterwards (`broker_id`).
        """
        await self._store.open(session_timeout_ms=self._session_timeout_ms)
        if self._broker_id < 0:
            reserved_max = self._config.int("reserved.broker.max.id")
            self._broker_id = await next_broker_id(self._store, reserved_max)
        for _ in range(_ATTEMPTS_MAX):
            nodes = await self._store.tree("/")
            try:
                await self._take_office(nodes)
                return
            except (NodeExists, NoNode, BadVersion):
                # Another broker starts at the same moment and was first: look again.
                continue
        raise StoreUnavailable("the store changes too fast to join the cluster; try again")

    async def stop(self) -> None:
        """Finish the change under way; the office goes with the session when the store closes."""
        if self._rejoining is not None:
            self._rejoining.cancel()
        async with self._lock:
            self._active = False
            self._listeners.clear()

    async def _take_office(self, nodes: dict[str, Node]) -> None:
        ops: list[Op] = [Create(path) for path in tree.PERSISTENT_PATHS if path not in nodes]
        image = load_image(nodes)
        if not image.cluster_id:
            cluster_id = self._cluster_id or tree.uuid_text(tree.random_uuid(self._random))
            ops.append(Create(tree.CLUSTER_ID, tree.dump({"version": "1", "id": cluster_id})))
            image = replace(image, cluster_id=cluster_id)
        free = tree.CONTROLLER not in nodes
        epoch = ControllerEpoch(image.controller_epoch + 1)
        if free:
            ops += self._election(nodes.get(tree.CONTROLLER_EPOCH), epoch)
            image = with_controller(image, self._broker_id, epoch)
        results = await self._store.multi(ops)
        if free:
            stat = results[-1].stat
            assert stat is not None
            self._epoch_version = stat.version
        self._active = free
        self._stale = False
        await self._publish(image)

    def _election(self, epoch_node: Node | None, epoch: ControllerEpoch) -> list[Op]:
        """Take the office and start an epoch in one step, or fail if anybody else just did."""
        office = {
            "version": 1,
            "brokerid": self._broker_id,
            "timestamp": str(self._clock.now_ms()),
        }
        text = str(epoch).encode()
        number: Op = (
            Create(tree.CONTROLLER_EPOCH, text)
            if epoch_node is None
            else Put(tree.CONTROLLER_EPOCH, text, epoch_node.stat.version)
        )
        return [Create(tree.CONTROLLER, tree.dump(office), ephemeral=True), number]

    @property
    def _session_timeout_ms(self) -> int:
        return self._config.int("broker.session.timeout.ms")

    def _session_lost(self) -> None:
        """Our nodes are gone: hold no office until we are registered anew (rule A9)."""
        self._active = False
        if self._rejoining is None or self._rejoining.done():
            self._rejoining = asyncio.get_running_loop().create_task(self._rejoin())

    async def _rejoin(self) -> None:
        while True:
            try:
                async with self._lock:
                    await self.start()
                if self._registration is not None:
                    endpoints, rack = self._registration
                    await self.register_broker(endpoints, rack=rack)
                return
            except (StoreError, ApiError):
                await asyncio.sleep(_REJOIN_PAUSE_S)

    # Brokers

    @_uninterrupted
    async def register_broker(
        self, endpoints: Sequence[Endpoint], *, rack: str | None = None
    ) -> BrokerEpoch:
        """Enter this broker with its addresses; the answer is its epoch."""
        async with self._lock:
            broker = await register(
                self._store,
                self._clock,
                self._broker_id,
                endpoints,
                rack=rack,
                directory_id=self._directory_id,
                wait_ms=self._session_timeout_ms,
            )
            self._registration = (tuple(endpoints), rack)
            await self._publish(with_broker(self._image, broker))
            return broker.epoch

    @_uninterrupted
    async def allocate_producer_ids(self) -> tuple[int, int]:
        """A block of producer ids that nobody else gets: its first, and how many."""
        for _ in range(_ATTEMPTS_MAX):
            try:
                node = await self._store.get(tree.PRODUCER_ID_BLOCK)
            except NoNode:
                start, op = 0, None
            else:
                start, op = int(tree.load(node.value)["block_end"]) + 1, node.stat.version
            end = start + PRODUCER_IDS_PER_BLOCK - 1
            if end > PRODUCER_ID_MAX:
                raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "All producer ids are used up.")
            value = tree.dump(
                {
                    "version": 1,
                    "broker": self._broker_id,
                    "block_start": str(start),
                    "block_end": str(end),
                }
            )
            try:
                if op is None:
                    await self._store.create(tree.PRODUCER_ID_BLOCK, value)
                else:
                    await self._store.put(tree.PRODUCER_ID_BLOCK, value, op)
            except (BadVersion, NodeExists):
                continue
            except StoreError as error:
                raise _api_error(error) from error
            return start, PRODUCER_IDS_PER_BLOCK
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT, "Too many brokers ask for producer ids.")

    # Topics

    @_uninterrupted
    async def create_topics(
        self, requests: Sequence[CreatableTopic], *, validate_only: bool = False
    ) -> list[CreatableTopicResult]:
        """Create what can be created, all in one commit; an answer for every topic."""
        async with self._lock:
            await self._prepare()
            plans = plan_creations(
                self._image, requests, self._topic_defaults(), self._config_check(), self._random
            )
            created = [plan.topic for plan in plans if plan.topic is not None]
            if created and not validate_only:
                await self._commit(op for topic in created for op in _creation(topic))
                await self._publish(with_topics(self._image, created))
            described: dict[tuple[object, int], list[CreatableTopicConfigs]] = {}
            return [self._creation_result(plan, described) for plan in plans]

    def _config_check(self) -> Callable[[Mapping[str, str]], None]:
        """Checks topics' settings; those of a request's many topics are mostly the same."""
        checked: set[object] = set()

        def check(configs: Mapping[str, str]) -> None:
            key = tuple(configs.items())
            if key not in checked:
                check_topic_configs(configs, self._config)
                checked.add(key)

        return check

    def _topic_defaults(self) -> TopicDefaults:
        return TopicDefaults(
            partitions=self._config.int("num.partitions"),
            replication_factor=self._config.default_replication_factor(len(self._image.brokers)),
        )

    def _creation_result(
        self, plan: CreatePlan, described: dict[tuple[object, int], list[CreatableTopicConfigs]]
    ) -> CreatableTopicResult:
        if plan.topic is None:
            assert plan.error is not None
            return CreatableTopicResult(
                name=plan.name, error_code=plan.error.code, error_message=plan.error.message
            )
        topic = plan.topic
        key = (tuple(topic.configs.items()), topic.replication_factor)
        if key not in described:
            described[key] = self._describe(topic)
        return CreatableTopicResult(
            name=plan.name,
            topic_id=topic.topic_id,
            error_message=None,
            num_partitions=len(topic.partitions),
            replication_factor=topic.replication_factor,
            configs=described[key],
        )

    def _describe(self, topic: TopicImage) -> list[CreatableTopicConfigs]:
        factor = topic.replication_factor
        described = describe_topic(topic.configs, self._config, replication_factor=factor)
        return [
            CreatableTopicConfigs(
                name=entry.name,
                value=entry.value,
                read_only=entry.read_only,
                config_source=entry.source,
                is_sensitive=entry.sensitive,
            )
            for entry in sorted(described)
        ]

    @_uninterrupted
    async def create_partitions(
        self, requests: Sequence[CreatePartitionsTopic], *, validate_only: bool = False
    ) -> list[GrowthPlan]:
        """Add partitions to topics, all in one commit; an answer for every topic."""
        async with self._lock:
            await self._prepare()
            plans = plan_growth(self._image, requests, self._random)
            grown = [plan.topic for plan in plans if plan.topic is not None]
            if grown and not validate_only:
                await self._commit(
                    op
                    for topic in grown
                    for op in _growth(topic, len(self._image.topics[topic.name].partitions))
                )
                await self._publish(with_topics(self._image, grown))
            return plans

    @_uninterrupted
    async def delete_topics(
        self, names: Sequence[str] = (), topics: Sequence[DeleteTopicState] = ()
    ) -> list[DeletePlan]:
        """Delete topics named either way, all in one commit; an answer for every topic."""
        async with self._lock:
            await self._prepare()
            plans = plan_deletions(self._image, names, topics)
            gone = [plan.topic.name for plan in plans if plan.topic is not None]
            if gone:
                ops: list[Op] = []
                for name in gone:
                    nodes = await self._read_tree(tree.topic_path(name))
                    ops += [Delete(path) for path in reversed(nodes)]
                    nodes = await self._read_tree(tree.topic_config_path(name))
                    ops += [Delete(path) for path in reversed(nodes)]
                await self._commit(ops)
                await self._publish(without_topics(self._image, gone))
            return plans

    # Settings

    @_uninterrupted
    async def alter_configs(
        self, resources: Sequence[AlterConfigsResource], *, validate_only: bool = False
    ) -> list[ResourcePlan]:
        """Replace all settings of each resource; an answer for every one."""
        async with self._lock:
            await self._prepare()
            plans = plan_replacements(self._image, resources, self._broker_id, self._config)
            return await self._apply_settings(plans, validate_only)

    @_uninterrupted
    async def incremental_alter_configs(
        self, resources: Sequence[IncrementalAlterConfigsResource], *, validate_only: bool = False
    ) -> list[ResourcePlan]:
        """Change single settings of each resource; an answer for every one."""
        async with self._lock:
            await self._prepare()
            plans = plan_increments(self._image, resources, self._broker_id, self._config)
            return await self._apply_settings(plans, validate_only)

    async def _apply_settings(
        self, plans: list[ResourcePlan], validate_only: bool
    ) -> list[ResourcePlan]:
        changes = [plan.change for plan in plans if plan.change is not None]
        if not changes or validate_only:
            return plans
        image = self._image
        ops: list[Op] = []
        for change in changes:
            ops += await self._settings_ops(change)
            if change.topic is not None:
                image = with_topic_configs(image, change.topic, change.configs)
            elif change.group_id is not None:
                image = with_group_configs(image, change.group_id, change.configs)
            else:
                image = with_broker_configs(image, change.broker_id, change.configs)
        await self._commit(ops)
        await self._publish(image)
        return plans

    async def _settings_ops(self, change: ConfigChange) -> list[Op]:
        if change.topic is not None:
            path = tree.topic_config_path(change.topic)
        elif change.group_id is not None:
            path = tree.group_config_path(change.group_id)
        else:
            path = tree.broker_config_path(change.broker_id)
        value = tree.config_value(change.configs)
        known = await self._store.exists(path) is not None
        if change.group_id is not None and not change.configs:
            # Nothing else says that a group is there, so nothing is left of it.
            return [Delete(path)] if known else []
        return [Put(path, value) if known else Create(path, value)]

    # The way of every change

    async def _prepare(self) -> None:
        """Make sure that decisions may be made here, and on the truth."""
        if not self._active:
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        if self._stale:
            nodes = await self._read_tree("/")
            if read_controller_epoch(nodes.get(tree.CONTROLLER_EPOCH)) != (
                self._image.controller_epoch
            ):
                self._active = False
                raise ApiError(ErrorCode.NOT_CONTROLLER)
            self._stale = False
            await self._publish(load_image(nodes))

    async def _read_tree(self, path: str) -> dict[str, Node]:
        try:
            return await self._store.tree(path)
        except StoreError as error:
            raise _api_error(error) from error

    async def _commit(self, ops: Iterable[Op]) -> None:
        """Write in one transaction, provided that nobody has taken the office since."""
        guarded = [Check(tree.CONTROLLER_EPOCH, self._epoch_version), *ops]
        try:
            await self._store.multi(guarded)
        except StoreError as error:
            # Whatever went wrong, what we believe may no longer be what is stored.
            self._stale = True
            fenced = error.index == 0 and isinstance(error, BadVersion | NoNode)
            if fenced or isinstance(error, SessionExpired):
                self._active = False
                raise ApiError(ErrorCode.NOT_CONTROLLER) from error
            raise _api_error(error) from error

    async def _publish(self, image: ClusterImage) -> None:
        self._image = replace(image, version=max(image.version, self._image.version + 1))
        for listener in list(self._listeners):
            try:
                waiting = listener(self._image)
                if waiting is not None:
                    await waiting
            except Exception as error:  # noqa: BLE001 - the others must still hear of the image
                context = {"message": "a listener failed on a new image", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)


def _creation(topic: TopicImage) -> list[Op]:
    ops: list[Op] = [
        Create(tree.topic_config_path(topic.name), tree.config_value(topic.configs)),
        Create(tree.topic_path(topic.name), tree.topic_value(topic)),
        Create(tree.partitions_path(topic.name)),
    ]
    return ops + _new_partitions(topic, 0)


def _growth(topic: TopicImage, present: int) -> list[Op]:
    put: list[Op] = [Put(tree.topic_path(topic.name), tree.topic_value(topic))]
    return put + _new_partitions(topic, present)


def _new_partitions(topic: TopicImage, first: int) -> list[Op]:
    ops: list[Op] = []
    for partition in topic.partitions[first:]:
        ops.append(Create(tree.partition_path(topic.name, partition.index)))
        ops.append(
            Create(tree.state_path(topic.name, partition.index), tree.state_value(partition))
        )
    return ops


def _api_error(error: StoreError) -> ApiError:
    """What a client is told when the store fails: try again, and why."""
    if isinstance(error, SessionExpired):
        return ApiError(ErrorCode.NOT_CONTROLLER)
    return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"The metadata store failed: {error}")
