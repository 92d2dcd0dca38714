"""A client's cluster: which brokers there are, who leads what, and open connections to them.

`Cluster.start` asks the bootstrap brokers; from then on `view` is the current picture. Whoever is
told that it is out of date calls `refresh_soon` (or awaits `refresh`): however many ask, one
request is under way at a time, and rounds that follow each other are spaced by the retry backoff.

Connections are kept per broker and channel: a fetch may wait at the broker for half a second, and
nothing else should queue behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Any, TypeVar

from tidemill.client.connection import STUCK_MS, Address, Connection, Connector, connect_tcp
from tidemill.client.errors import (
    ClientError,
    ClosedError,
    RequestTimeoutError,
    SettingsError,
    UnknownBrokerError,
    UnreachableError,
    from_code,
)
from tidemill.client.metadata import ClusterView, Node, TopicInfo, merge
from tidemill.client.pool import Pool, retrieve
from tidemill.client.retry import Backoff
from tidemill.client.settings import CommonSettings, split_address
from tidemill.client.staggered import first_of
from tidemill.clock import Clock, SystemClock
from tidemill.errors import ErrorCode
from tidemill.wire.declare import Message
from tidemill.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)

MAIN = "main"
"""The channel for everything that a broker answers at once."""

T = TypeVar("T")


class Cluster:
    """Shared by the parts of one client; use `start` and `close`, or `async with`."""

    def __init__(
        self,
        settings: CommonSettings,
        *,
        clock: Clock | None = None,
        random: Random | None = None,
        connector: Connector = connect_tcp,
        auto_create_topics: bool = False,
    ) -> None:
        if not settings.bootstrap_servers:
            raise SettingsError("no broker address given; write for example '127.0.0.1:9092'")
        self.settings = settings
        self.clock = clock or SystemClock()
        self.random = random or Random()
        self.view = ClusterView()
        self.retry_backoff = Backoff(
            settings.retry_backoff_ms, settings.retry_backoff_max_ms, self.random
        )
        self._bootstrap = [Address(*split_address(text)) for text in settings.bootstrap_servers]
        self._auto_create_topics = auto_create_topics
        self._pool = Pool(settings, self.clock, self.random, connector)
        self._tracked: dict[str, None] = {}
        self._listeners: list[Callable[[], None]] = []
        self._round: asyncio.Future[None] | None = None
        self._refresher: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._last_error: ClientError | None = None
        self._pace = _Pace(self.retry_backoff, self.clock)
        self._closed = False

    # --- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Make the first contact; fails at once if no bootstrap broker can be reached."""
        try:
            await self._ask()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close every connection and end the background work."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._refresher is not None:
            self._refresher.cancel()
            await asyncio.gather(self._refresher, return_exceptions=True)
        self._pool.close()

    async def __aenter__(self) -> Cluster:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- connections -----------------------------------------------------------------------------

    async def connection(self, node_id: int, channel: str = MAIN) -> Connection:
        """An open connection to a broker; a failed attempt is followed by a growing pause."""
        self._check_open()
        node = self.view.nodes.get(node_id)
        if node is None:
            raise UnknownBrokerError(node_id)
        return await self._pool.get(node.address, channel)

    def open_connection(self, node_id: int, channel: str = MAIN) -> Connection | None:
        """The connection to a broker if there is one already; does not wait."""
        node = self.view.nodes.get(node_id)
        return self._pool.peek(node.address, channel) if node is not None else None

    async def any_connection(self) -> Connection:
        """Some broker: the one that answered us last, else any that can be reached.

        One that owes us an answer for long may be stuck, and is asked only if nobody else is left.
        """
        self._check_open()
        for address in self._by_worth():
            connection = self._pool.peek(address, MAIN)
            if connection is not None and not connection.is_stuck:
                return connection
        return await self._of_anybody(lambda address: self._pool.get(address, MAIN))

    async def controller(self) -> Connection:
        """The broker that changes topics; any broker passes such requests on."""
        if self.view.controller_id in self.view.nodes:
            try:
                return await self.connection(self.view.controller_id)
            except UnreachableError:
                self.refresh_soon()
        return await self.any_connection()

    async def _of_anybody(self, ask: Callable[[Address], Awaitable[T]]) -> T:
        """Try the brokers one after the other; one that hangs does not hold up the others."""
        addresses = self._by_worth()
        attempts = [partial(ask, address) for address in addresses]
        try:
            return await first_of(attempts, (UnreachableError, RequestTimeoutError), STUCK_MS)
        except ExceptionGroup as group:
            failures = [error for error in group.exceptions if isinstance(error, ClientError)]
        if len(failures) == 1:
            raise failures[0]
        reasons = "; ".join(failure.message or "" for failure in failures)
        raise UnreachableError(f"no broker can be reached: {reasons}")

    def _by_worth(self) -> list[Address]:
        """Whom to ask first; the addresses that we began with come last.

        They are not asked at all where only the brokers that we know may be.
        """
        known = [node.address for node in self.view.nodes.values()]
        self.random.shuffle(known)
        known.sort(key=lambda address: self._pool.worth(address, MAIN))
        if known and self.settings.metadata_recovery_strategy == "none":
            return known
        others = [address for address in self._bootstrap if address not in known]
        self.random.shuffle(others)
        return known + others

    # --- metadata --------------------------------------------------------------------------------

    def on_update(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each new view."""
        self._listeners.append(listener)

    def track(self, topic: str) -> None:
        """Keep this topic in the view from the next refresh on."""
        if topic not in self._tracked:
            self._tracked[topic] = None
            if topic not in self.view.topics:
                self._pace.hurry()
                self.refresh_soon()

    def untrack(self, topic: str) -> None:
        self._tracked.pop(topic, None)

    def refresh_soon(self) -> None:
        """Ask for a new view in the background."""
        self._next_round()

    async def refresh(self) -> None:
        """Wait for a view that was asked for after this call; raises if none could be had."""
        self._check_open()
        await asyncio.shield(self._next_round())

    async def topic(self, name: str, timeout_ms: float) -> TopicInfo:
        """The topic, waiting for it to appear for at most so long."""
        deadline_ms = self.clock.monotonic_ms() + timeout_ms
        self.track(name)
        while (info := self.view.topics.get(name)) is None:
            error = self.view.errors.get(name) or self._last_error
            if error is not None and not error.retriable:
                raise error
            left_ms = deadline_ms - self.clock.monotonic_ms()
            try:
                async with asyncio.timeout(max(left_ms, 0) / 1000):
                    await self.refresh()
            except TimeoutError:
                raise error or RequestTimeoutError(
                    f"topic {name!r} did not appear in {timeout_ms:.0f} ms"
                ) from None
            except ClientError as failure:
                if not failure.retriable:
                    raise
        return info

    async def fetch_metadata(self, names: list[str] | None) -> MetadataResponse:
        """Ask once, outside the view's rounds: about some topics, or with None about all."""
        topics = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        answer: MetadataResponse = await self.call_any(request)
        self._accept(answer, all_topics=False)
        return answer

    async def call_any(self, request: Message, *, timeout_ms: float | None = None) -> Any:
        """Ask any broker something that may be asked twice; tries again when one goes away."""
        deadline_ms = self.clock.monotonic_ms() + (
            self.settings.default_api_timeout_ms if timeout_ms is None else timeout_ms
        )
        failures = 0
        while True:
            try:
                return await self._ask_anybody(request)
            except (UnreachableError, RequestTimeoutError):
                failures += 1
                delay_ms = self.retry_backoff.delay_ms(failures)
                if self.clock.monotonic_ms() + delay_ms >= deadline_ms:
                    raise
                await asyncio.sleep(delay_ms / 1000)

    # --- the background rounds -------------------------------------------------------------------

    def _next_round(self) -> asyncio.Future[None]:
        """The future of the next round to begin; starts the worker if there is none."""
        if self._round is None:
            self._round = asyncio.get_running_loop().create_future()
            self._round.add_done_callback(retrieve)
            if self._refresher is None or self._refresher.done():
                self._refresher = asyncio.get_running_loop().create_task(self._run_rounds())
        return self._round

    async def _run_rounds(self) -> None:
        while self._round is not None and not self._closed:
            await self._pace.wait()
            done, self._round = self._round, None
            try:
                await self._ask()
            except ClientError as error:
                self._last_error = error
                done.set_exception(error)
                if self._tracked:
                    self._next_round()
            except asyncio.CancelledError:
                done.cancel()
                raise
            else:
                self._last_error = None
                done.set_result(None)

    async def _ask_anybody(self, request: Message) -> Any:
        self._check_open()

        async def ask(address: Address) -> Any:
            connection = await self._pool.get(address, MAIN)
            return await connection.request(request)

        return await self._of_anybody(ask)

    async def _ask(self) -> None:
        asked = [MetadataRequestTopic(name=name) for name in self._tracked]
        request = MetadataRequest(topics=asked, allow_auto_topic_creation=self._auto_create_topics)
        answer: MetadataResponse = await self._ask_anybody(request)
        if answer.error_code:
            if answer.error_code == ErrorCode.REBOOTSTRAP_REQUIRED:
                self.view = ClusterView(topics=self.view.topics)
            raise from_code(answer.error_code)
        self._accept(answer, all_topics=False)
        self._restart_timer()

    def _accept(self, answer: MetadataResponse, *, all_topics: bool) -> None:
        self.view = merge(self.view, answer, all_topics=all_topics)
        self._pool.keep_only([*self._bootstrap, *(n.address for n in self.view.nodes.values())])
        for listener in self._listeners:
            listener()

    def _restart_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self.settings.metadata_max_age_ms / 1000, self._grow_old)

    def _grow_old(self) -> None:
        self._pool.close_idle()
        if not self._closed:
            self.refresh_soon()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this client is closed")


class _Pace:
    """Spaces rounds that follow each other closely; a question about a new topic may go at once."""

    def __init__(self, backoff: Backoff, clock: Clock) -> None:
        self._backoff = backoff
        self._clock = clock
        self._hurry = asyncio.Event()
        self._not_before_ms = 0.0
        self._in_a_row = 0

    def hurry(self) -> None:
        self._hurry.set()

    async def wait(self) -> None:
        now_ms = self._clock.monotonic_ms()
        left_ms = self._not_before_ms - now_ms
        if left_ms > 0:
            try:
                async with asyncio.timeout(left_ms / 1000):
                    await self._hurry.wait()
            except TimeoutError:
                pass
        self._hurry.clear()
        # A round that came long after the last one is the first of a new row.
        self._in_a_row = self._in_a_row + 1 if left_ms > 0 else 1
        self._not_before_ms = self._clock.monotonic_ms() + self._backoff.delay_ms(self._in_a_row)


__all__ = ["MAIN", "Cluster", "Node"]
