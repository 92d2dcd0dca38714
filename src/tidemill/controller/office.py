"""The office of controller, seen from one broker: who holds it, and what its holder may do.

Whoever makes the ephemeral node `/controller` first holds the office until its session ends, and
starts an epoch in the same transaction. Every write of a controller is conditional on that epoch's
node (`commit`), so one that was deposed without noticing fails every write (rule A2). Having won,
it reads the tree again before it decides anything: only from then on nobody else can change it.

`image` is this broker's picture of the cluster. In office it is what was written last; out of
office it comes from whoever holds it (`follow`). Everything that changes it does so under `lock`,
one at a time, so that no decision is made on an image that is about to be replaced.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from random import Random

from tidemill.clock import Clock
from tidemill.controller import tree
from tidemill.controller.deltas import follow_delta
from tidemill.controller.loading import load_image, read_controller_epoch, remnants
from tidemill.errors import ApiError, ErrorCode
from tidemill.image import EMPTY_IMAGE, ClusterImage, with_controller
from tidemill.store.base import (
    BadVersion,
    Check,
    Create,
    CutsCommits,
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
from tidemill.types import NO_BROKER, BrokerId, ControllerEpoch
from tidemill.wire.messages.cluster import ImageDeltaRequest

log = logging.getLogger(__name__)

SECRET_BYTES = 32
ATTEMPTS_MAX = 10
_VERSIONS_PER_EPOCH_BITS = 32
_NEVER = 2**31 - 1
"""A version that the epoch's node does not get to: who has not won yet can write nothing."""

Listener = Callable[[ClusterImage], Awaitable[None] | None]
"""Takes over a new image; an awaitable holds back the answer, and the next change, until done."""


class Office:
    """One broker's part in the election, and its picture of the cluster."""

    def __init__(self, store: Store, clock: Clock, random: Random, cluster_id: str) -> None:
        """`cluster_id` is what a cluster that has no id yet gets; without it a random one."""
        self.store = store
        self.broker_id = NO_BROKER
        self.image = EMPTY_IMAGE
        self.active = False
        self.holder = NO_BROKER
        """Who holds the office, as far as this broker knows: where requests to it go."""
        self.epoch = ControllerEpoch(0)
        """The epoch in which we won the office last."""
        self.secret = b""
        self.lock = asyncio.Lock()
        self.listeners: list[Listener] = []
        self.on_publish: Callable[[ClusterImage], None] = lambda image: None
        """Called with every image of our own making, to tell the other brokers."""
        self.on_doubt: Callable[[], None] = lambda: None
        """Called when a write failed, perhaps half way: what is stored is to be looked at again."""
        self._clock = clock
        self._random = random
        self._cluster_id = cluster_id
        self._epoch_version = _NEVER
        self._stale = False

    # Joining

    async def join(self) -> None:
        """Make what a new cluster needs, and read what there is, without running for anything."""
        for _ in range(ATTEMPTS_MAX):
            try:
                await self._lay_foundations()
                break
            except (NodeExists, NoNode):
                # Another broker starts at the same moment and was first: look again.
                continue
        else:
            raise StoreUnavailable("the store changes too fast to join the cluster; try again")
        self.secret = base64.b64decode((await self.store.get(tree.CLUSTER_SECRET)).value)
        image = load_image(await self.store.tree("/"))
        self.holder = image.controller_id
        if image.controller_epoch >= self.image.controller_epoch:
            # Versions are the controller's to give: whatever it sends next is newer than this.
            await self._show(replace(image, version=self.image.version))

    async def _lay_foundations(self) -> None:
        exists = self.store.exists
        ops: list[Op] = [
            Create(path) for path in tree.PERSISTENT_PATHS if await exists(path) is None
        ]
        if await exists(tree.CLUSTER_ID) is None:
            cluster_id = self._cluster_id or tree.uuid_text(tree.random_uuid(self._random))
            ops.append(Create(tree.CLUSTER_ID, tree.dump({"version": "1", "id": cluster_id})))
        if await exists(tree.CLUSTER_SECRET) is None:
            secret = base64.b64encode(self._random.randbytes(SECRET_BYTES))
            ops.append(Create(tree.CLUSTER_SECRET, secret))
        if ops:
            await self.store.multi(ops)

    # The election

    async def run(self) -> bool:
        """Take the office if it is free; True if it is ours and there is all to put in order.

        The caller holds `lock`, reads the tree, writes what it decides, and calls `begin`.
        """
        for _ in range(ATTEMPTS_MAX):
            epoch_node = await find(self.store, tree.CONTROLLER_EPOCH)
            present = await find(self.store, tree.CONTROLLER)
            if present is not None:
                is_vacant = self._is_ours(present) and not self.active
                if is_vacant and epoch_node is not None:
                    self._take_up(epoch_node)
                return is_vacant
            self.resign()
            try:
                await self._win(epoch_node)
            except (NodeExists, NoNode, BadVersion):
                continue
            return True
        raise StoreUnavailable("the office of controller changes hands too fast; try again")

    def _is_ours(self, node: Node) -> bool:
        self.holder = BrokerId(int(tree.load(node.value).get("brokerid", NO_BROKER)))
        is_ours = node.stat.owner == self.store.session_id
        if not is_ours:
            self.resign()
        return is_ours

    def _take_up(self, epoch_node: Node) -> None:
        """The office is ours, and we do not hold it: perhaps we never heard that we had won.

        Nobody else can have started an epoch since. The node was read before the office was seen to
        be ours, so if it is older than that, every write fails and we look again.
        """
        self.epoch = read_controller_epoch(epoch_node)
        self._epoch_version = epoch_node.stat.version

    async def _win(self, epoch_node: Node | None) -> None:
        """Take the office and start an epoch in one step, or fail if anybody else just did."""
        epoch = ControllerEpoch(read_controller_epoch(epoch_node) + 1)
        office = {
            "version": 1,
            "brokerid": self.broker_id,
            "timestamp": str(self._clock.now_ms()),
        }
        text = str(epoch).encode()
        number: Op = (
            Create(tree.CONTROLLER_EPOCH, text)
            if epoch_node is None
            else Put(tree.CONTROLLER_EPOCH, text, epoch_node.stat.version)
        )
        taken = Create(tree.CONTROLLER, tree.dump(office), ephemeral=True)
        stat = (await self.store.multi([taken, number]))[-1].stat
        assert stat is not None
        self._epoch_version = stat.version
        self.epoch = epoch
        self.holder = self.broker_id

    async def begin(self, image: ClusterImage) -> None:
        """Everything is in order: decide from now on, beginning with this image."""
        self._stale = False
        self.active = True
        log.info("broker %d is the controller, in epoch %d", self.broker_id, self.epoch)
        await self.publish(with_controller(image, self.broker_id, self.epoch))

    async def abdicate(self) -> None:
        """Leave the office to somebody else, as long as we still can."""
        if self.active:
            self.resign()
            with suppress(StoreError):
                await self.store.delete(tree.CONTROLLER)

    def resign(self) -> None:
        """Hold no office any more, whatever the store still says."""
        if self.active:
            log.info("broker %d is no longer the controller", self.broker_id)
        self.active = False

    # The way of every change

    @asynccontextmanager
    async def deciding(self) -> AsyncIterator[None]:
        """In here, decisions are made one at a time, in office, and on the truth."""
        async with self.lock:
            if not self.active:
                raise ApiError(ErrorCode.NOT_CONTROLLER)
            if self._stale:
                await self._refresh()
            yield

    async def _refresh(self) -> None:
        """Read the tree again: what we believe may not be what is stored."""
        nodes = await self.read_tree("/")
        if read_controller_epoch(nodes.get(tree.CONTROLLER_EPOCH)) != self.epoch:
            self.resign()
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        loaded = load_image(nodes)
        left_over = remnants(nodes)
        if left_over:
            await self.commit(left_over)
        # Who is fenced or shuts down is not in the tree, and who registered is looked at apart.
        self._stale = False
        await self.publish(
            replace(loaded, controller_id=self.broker_id, brokers=self.image.brokers)
        )

    async def read_tree(self, path: str) -> dict[str, Node]:
        try:
            return await self.store.tree(path)
        except StoreError as error:
            raise api_error(error) from error

    @property
    def cuts_commits(self) -> bool:
        """Whether a large commit may end half way, so that its order matters."""
        return isinstance(self.store, CutsCommits)

    async def commit(self, ops: Sequence[Op]) -> None:
        """Write, provided that nobody has taken the office since; in one transaction if it fits.

        If it does not, it may end between any two operations, with the controller's life or with
        its connection: what was written then has to make sense, and the rest to follow from it.
        """
        guard = Check(tree.CONTROLLER_EPOCH, self._epoch_version)
        store = self.store
        try:
            if isinstance(store, CutsCommits):
                for portion in store.portions(guard, ops) if ops else [[guard]]:
                    await store.multi(portion)
            else:
                await store.multi([guard, *ops])
        except StoreError as error:
            # Whatever went wrong, what we believe may no longer be what is stored.
            self._stale = True
            fenced = error.index == 0 and isinstance(error, BadVersion | NoNode)
            if fenced or isinstance(error, SessionExpired):
                self.resign()
                raise ApiError(ErrorCode.NOT_CONTROLLER) from error
            self.on_doubt()
            raise api_error(error) from error

    async def publish(self, image: ClusterImage) -> None:
        """Make `image` the latest and tell everybody; its version is above all that were."""
        version = max(image.version, self.image.version + 1)
        if self.active:
            version = max(version, image.controller_epoch << _VERSIONS_PER_EPOCH_BITS)
        await self._show(replace(image, version=version))
        if self.active:
            self.on_publish(self.image)

    async def _show(self, image: ClusterImage) -> None:
        self.image = image
        for listener in list(self.listeners):
            try:
                waiting = listener(image)
                if waiting is not None:
                    await waiting
            except Exception as error:  # noqa: BLE001 - the others must still hear of the image
                context = {"message": "a listener failed on a new image", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)

    async def show_again(self) -> None:
        """Tell the listeners of the image that is: it may mean more to them than it did."""
        async with self.lock:
            await self._show(self.image)

    # Out of office

    async def follow(self, delta: ImageDeltaRequest) -> None:
        """Take over what the controller says; raises if it is deposed, or speaks of another image.

        The same or an older version is no news: a message that was sent again arrives twice.
        """
        async with self.lock:
            self._check(delta)
            known = self.image
            if delta.controller_epoch == known.controller_epoch and delta.version <= known.version:
                return
            if delta.controller_epoch > known.controller_epoch:
                self.resign()
                self.holder = BrokerId(delta.controller_id)
            await self._show(follow_delta(known, delta))

    def _check(self, delta: ImageDeltaRequest) -> None:
        known = self.image
        if delta.cluster_id != known.cluster_id:
            raise ApiError(ErrorCode.INCONSISTENT_CLUSTER_ID)
        if delta.controller_epoch < known.controller_epoch:
            raise ApiError(ErrorCode.STALE_CONTROLLER_EPOCH)
        if delta.controller_epoch == known.controller_epoch and self.active:
            raise ApiError(ErrorCode.INVALID_REQUEST, "this broker is the controller itself")
        is_next = (delta.controller_epoch, delta.from_version) == (
            known.controller_epoch,
            known.version,
        )
        if not delta.is_snapshot and not is_next:
            raise ApiError(ErrorCode.INVALID_UPDATE_VERSION)


async def find(store: Store, path: str) -> Node | None:
    """The node, if there is one."""
    try:
        return await store.get(path)
    except NoNode:
        return None


def api_error(error: StoreError) -> ApiError:
    """What a client is told when the store fails: try again, and why."""
    if isinstance(error, SessionExpired):
        return ApiError(ErrorCode.NOT_CONTROLLER)
    return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"The metadata store failed: {error}")
