"""A broker's standing in the cluster: its session, its registration, and its turn at the office.

It watches the office and runs for it when it is vacant; in office it sees to the brokers that come
and go. Only a broker that is registered runs: one that still reads its logs is in no position to
lead others.

When the session is lost, so are the registration and the office: the broker says so to whoever
must stop leading (rule A9), opens another session, and registers anew, with a new epoch (rule A3).
A store that cannot be reached for a session's time counts as that: others may take us for dead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from tidemill.clock import Clock
from tidemill.config import BrokerConfig
from tidemill.controller import tree
from tidemill.controller.members import Members
from tidemill.controller.office import Office, api_error
from tidemill.controller.registration import Registration, next_broker_id, register
from tidemill.errors import ApiError, ErrorCode
from tidemill.image import ClusterImage
from tidemill.store.base import Event, KnowsContact, StoreError, Watch
from tidemill.types import BrokerEpoch

log = logging.getLogger(__name__)

NO_BROKER_EPOCH = BrokerEpoch(-1)
_RETRY_S = 0.2
_REJOIN_PAUSE_S = 1.0
_LOOKS_PER_SESSION = 6


class Presence:
    """From `start` to `stop`; `broker_epoch` is -1 while this broker is not registered."""

    def __init__(
        self, office: Office, members: Members, config: BrokerConfig, clock: Clock
    ) -> None:
        self.broker_epoch = NO_BROKER_EPOCH
        self.on_lost: list[Callable[[], None]] = []
        self._office = office
        self._members = members
        self._config = config
        self._clock = clock
        self._store = office.store
        self._registration: Registration | None = None
        self._watches: list[Watch] = []
        self._news = asyncio.Event()
        self._attending: asyncio.Task[None] | None = None
        self._rejoining: asyncio.Task[None] | None = None
        self._keeping_contact: asyncio.Task[None] | None = None
        self._process = ""
        """Names this process: the first session that it had, as no other process has it."""
        self._losses = 0
        """How often the session was lost: what was begun before counts for nothing after."""
        self._runs = True
        self._stopped = False
        self._store.on_session_lost(self._session_lost)
        office.on_doubt = self._news.set

    @property
    def _session_timeout_ms(self) -> int:
        return self._config.int("broker.session.timeout.ms")

    async def start(self) -> None:
        """Open a session, and read the cluster; see `Controller.start`."""
        await self._store.open(session_timeout_ms=self._session_timeout_ms)
        self._process = self._process or str(self._store.session_id)
        if self._office.broker_id < 0:
            reserved_max = self._config.int("reserved.broker.max.id")
            self._office.broker_id = await next_broker_id(self._store, reserved_max)
        async with self._office.lock:
            await self._office.join()

    def stop(self) -> None:
        """Watch no more, and run for nothing."""
        self._stopped = True
        for task in (self._rejoining, self._attending, self._keeping_contact):
            if task is not None:
                task.cancel()
        self._forget_watches()

    # Registration

    async def register(self, says: Registration) -> BrokerEpoch:
        """Enter this broker, and take the office if that is vacant."""
        self._registration = says = replace(says, process=self._process)
        losses = self._losses
        wait_ms = self._session_timeout_ms
        try:
            epoch = await register(
                self._store, self._clock, self._office.broker_id, says, wait_ms=wait_ms
            )
        except StoreError as error:
            raise api_error(error) from error
        if self._losses != losses:
            problem = "the session was lost while this broker registered"
            raise ApiError(ErrorCode.NOT_CONTROLLER, problem)
        self.broker_epoch = epoch
        self._watch()
        try:
            await self._look()
            await self._office.show_again()
        except (StoreError, ApiError) as error:
            log.warning("registered, but the office could not be looked at yet: %s", error)
        return epoch

    async def admitted(self, timeout_ms: int) -> None:
        """Wait until an image has this broker in it, free to lead (rule K2)."""
        arrived = asyncio.Event()

        def look(image: ClusterImage) -> None:
            broker = image.broker(self._office.broker_id)
            if broker is not None and broker.epoch == self.broker_epoch and not broker.fenced:
                arrived.set()

        self._office.listeners.append(look)
        try:
            look(self._office.image)
            async with asyncio.timeout(timeout_ms / 1000):
                await arrived.wait()
        except TimeoutError:
            raise ApiError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"the controller, broker {self._office.holder}, did not let this broker in within "
                f"{timeout_ms} ms; can it reach the addresses that this one advertises?",
            ) from None
        finally:
            if look in self._office.listeners:
                self._office.listeners.remove(look)

    async def give_up_office(self) -> None:
        """This broker is about to stop: let another one take the office now."""
        self._runs = False
        async with self._office.lock:
            await self._office.abdicate()

    def _session_lost(self) -> None:
        """Our nodes are gone: hold no office, and lead nothing, until we are registered anew."""
        self._losses += 1
        self._office.resign()
        self.broker_epoch = NO_BROKER_EPOCH
        for callback in self.on_lost:
            callback()
        if not self._stopped and (self._rejoining is None or self._rejoining.done()):
            log.warning("broker %d lost its session", self._office.broker_id)
            self._rejoining = asyncio.get_running_loop().create_task(self._rejoin())

    async def _rejoin(self) -> None:
        while True:
            losses = self._losses
            try:
                self._forget_watches()
                await self.start()
                if self._registration is not None:
                    await self.register(self._registration)
                if self._losses == losses:
                    return
            except (StoreError, ApiError) as error:
                log.warning("a new session cannot be had yet: %s", error)
                await asyncio.sleep(_REJOIN_PAUSE_S)

    async def _keep_contact(self, store: KnowsContact) -> None:
        """Whoever has not reached the store for a session's time may be taken for dead."""
        silent_since_ms: int | None = None
        while True:
            timeout_ms = self._session_timeout_ms
            await asyncio.sleep(timeout_ms / _LOOKS_PER_SESSION / 1000)
            now_ms = self._clock.monotonic_ms()
            if store.connected or self.broker_epoch == NO_BROKER_EPOCH:
                silent_since_ms = None
            elif silent_since_ms is None:
                silent_since_ms = now_ms
            elif now_ms - silent_since_ms >= timeout_ms:
                self._session_lost()

    # The office and the brokers, watched

    def _watch(self) -> None:
        self._forget_watches()
        self._watches = [
            self._store.watch(tree.CONTROLLER, self._something_happened),
            self._store.watch(tree.BROKER_IDS, self._something_happened, recursive=True),
        ]
        loop = asyncio.get_running_loop()
        if self._attending is None or self._attending.done():
            self._attending = loop.create_task(self._attend())
        if self._keeping_contact is None and isinstance(self._store, KnowsContact):
            self._keeping_contact = loop.create_task(self._keep_contact(self._store))
        # Something may have happened before the watches were set (rule K5).
        self._news.set()

    def _forget_watches(self) -> None:
        for watch in self._watches:
            watch.cancel()
        self._watches = []

    def _something_happened(self, event: Event) -> None:
        self._news.set()

    async def _attend(self) -> None:
        """Look again whenever something happened; what cannot be looked at now is, later."""
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await self._look()
                continue
            except (StoreError, ApiError) as error:
                log.info("the cluster is looked at again soon: %s", error)
            except Exception:
                # A defect; but a cluster that nobody looks after any more would be worse.
                log.exception("looking after the cluster failed; it is tried again")
            await asyncio.sleep(_RETRY_S)
            self._news.set()

    async def _look(self) -> None:
        """See who is in office, run for it if nobody is, and see to the brokers if we are."""
        async with self._office.lock:
            if self.broker_epoch == NO_BROKER_EPOCH or self._stopped:
                return
            if self._runs and await self._office.run():
                await self._members.take_over()
                return
        if self._office.active:
            await self._members.review()
