"""Connections to the other brokers of the cluster.

`Peers.request` sends a message to a broker by its id. The address comes from the image; the
connection is opened when it is first needed, proves the cluster's secret (`hello.py`), and is kept.
Requests to one broker share a connection per channel, since answers come in order: a fetch that
waits for records must not hold up an ISR change behind it.

A request that fails ends its connection; the next one opens another. Nothing is sent twice here:
whoever asks knows whether that does harm.

A broker that stands still answers nothing and closes nothing. When the image says that it is gone,
or that another one has its office, nobody waits for it any longer (`Peers.follow`): what it was
asked counts as lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from tidemill.broker.hello import NONCE_BYTES, Greeting, same
from tidemill.client.connection import (
    Address,
    Connection,
    Connector,
    connect_tcp,
    open_connection,
)
from tidemill.client.errors import ClientError, UnreachableError
from tidemill.client.settings import CommonSettings
from tidemill.clock import Clock
from tidemill.errors import ErrorCode
from tidemill.image import BrokerImage, ClusterImage
from tidemill.types import NO_BROKER, BrokerEpoch
from tidemill.wire.apis import APIS, ApiKey
from tidemill.wire.declare import Message
from tidemill.wire.messages.cluster import ClusterHelloRequest, ClusterHelloResponse
from tidemill.wire.messages.fetch import FetchRequest, FetchResponse
from tidemill.wire.messages.leader_epochs import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from tidemill.wire.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse

CONTROL = "control"
FETCH = "fetch"
IMAGES = "images"

FAREWELL_S = 1.0
"""How long a controller whose office is another's may take to answer what it was asked before."""

_UNADVERTISED = (ApiKey.ALTER_PARTITION, ApiKey.ALLOCATE_PRODUCER_IDS)
"""Kafka's own messages between brokers, which no client is told of either."""

_PEER_VERSIONS = {
    api.key: (api.min_version, api.max_version)
    for api in APIS.values()
    if api.is_private or api.key in _UNADVERTISED
}


class UnknownPeerError(ClientError):
    """Nothing was sent: the broker is not registered, or nobody answers at its address."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.BROKER_NOT_AVAILABLE, message, hint="")


@dataclass(frozen=True, slots=True)
class Identity:
    """Who we are to our peers, as it is when somebody asks."""

    broker_id: int
    broker_epoch: Callable[[], BrokerEpoch]
    secret: Callable[[], bytes]


class Peers:
    """The other brokers, by id."""

    def __init__(
        self,
        identity: Identity,
        image: Callable[[], ClusterImage],
        clock: Clock,
        random: Random,
        *,
        listener: str | None = None,
        connector: Connector = connect_tcp,
    ) -> None:
        """`listener` is where brokers talk to each other; None means each one's first."""
        self._identity = identity
        self._image = image
        self._clock = clock
        self._random = random
        self._listener = listener
        self._connector = connector
        self._settings = CommonSettings(client_id=f"tidemill-broker-{identity.broker_id}")
        self._links: dict[tuple[int, str], _Link] = {}
        self._leaving: dict[_Link, asyncio.TimerHandle] = {}
        """Links to controllers that were replaced, while they may still answer."""
        self._controller_id = NO_BROKER
        self._closed = False

    async def request(
        self,
        broker_id: int,
        message: Message,
        version: int | None = None,
        *,
        channel: str = CONTROL,
        timeout_ms: int,
    ) -> Any:
        """Send a message and wait for the answer; `ClientError` if there is none in time."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                connection = await self._connection(broker_id, channel)
                return await connection.request(message, timeout_ms=timeout_ms, max_version=version)
        except TimeoutError:
            raise ClientError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"broker {broker_id} did not answer {type(message).__name__} in {timeout_ms} ms",
            ) from None

    def follow(self, image: ClusterImage) -> None:
        """Close the links to brokers that are gone or came back, and to a controller of before."""
        for (broker_id, _), link in list(self._links.items()):
            broker = image.broker(broker_id)
            if broker is None or broker.epoch != link.broker_epoch:
                self._forget(broker_id)
        before, self._controller_id = self._controller_id, image.controller_id
        if before not in (NO_BROKER, image.controller_id):
            self._take_leave(before)

    def _take_leave(self, broker_id: int) -> None:
        """It may have given up its office in good order, and be about to answer: not at once."""
        link = self._links.pop((broker_id, CONTROL), None)
        if link is None or self._closed:
            return

        def close() -> None:
            del self._leaving[link]
            link.close()

        self._leaving[link] = asyncio.get_running_loop().call_later(FAREWELL_S, close)

    def close(self) -> None:
        """Close every connection; requests under way fail."""
        self._closed = True
        for timer in self._leaving.values():
            timer.cancel()
        for link in [*self._links.values(), *self._leaving]:
            link.close()
        self._links.clear()
        self._leaving.clear()

    async def _connection(self, broker_id: int, channel: str) -> Connection:
        if self._closed:
            raise UnknownPeerError("this broker is stopping")
        broker = self._image().broker(broker_id)
        if broker is None:
            self._forget(broker_id)
            raise UnknownPeerError(f"broker {broker_id} is not registered")
        key = (broker_id, channel)
        link = self._links.get(key)
        if link is None or link.broker_epoch != broker.epoch:
            if link is not None:
                link.close()
            address = self._address(broker)
            link = self._links[key] = _Link(broker.epoch, lambda: self._open(address, broker_id))
        return await link.connection()

    def _forget(self, broker_id: int) -> None:
        for key in [key for key in self._links if key[0] == broker_id]:
            self._links.pop(key).close()

    def _address(self, broker: BrokerImage) -> Address:
        endpoint = broker.endpoint(self._listener) if self._listener else None
        if endpoint is None:
            endpoint = broker.endpoints[0]
        return Address(endpoint.host, endpoint.port)

    async def _open(self, address: Address, broker_id: int) -> Connection:
        try:
            connection = await open_connection(
                address, self._settings, self._clock, self._connector
            )
        except UnreachableError as error:
            raise UnknownPeerError(error.message or str(error)) from error
        try:
            await self._greet(connection, broker_id)
        except BaseException:
            connection.close()
            raise
        return connection

    async def _greet(self, connection: Connection, broker_id: int) -> None:
        """Prove the secret, and see it proved."""
        connection.versions = {**connection.versions, **_PEER_VERSIONS}
        nonce = self._random.randbytes(NONCE_BYTES)
        who, epoch = self._identity.broker_id, self._identity.broker_epoch()
        hello = ClusterHelloRequest(broker_id=who, broker_epoch=epoch, nonce=nonce)
        answer: ClusterHelloResponse = await connection.request(hello)
        _check(answer, connection.address)
        greeting = Greeting(who, epoch, nonce, answer.nonce)
        secret = self._identity.secret()
        if answer.broker_id != broker_id or not same(
            answer.proof, greeting.proof_of_asked(secret, broker_id)
        ):
            raise ClientError(
                ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
                f"{connection.address} is not broker {broker_id} of this cluster",
                hint="",
            )
        hello.proof = greeting.proof_of_asking(secret)
        _check(await connection.request(hello), connection.address)


def _check(answer: ClusterHelloResponse, address: Address) -> None:
    if answer.error_code:
        problem = f"{address} refused our hello: {answer.error_message}"
        raise ClientError(ErrorCode(answer.error_code), problem, hint="")


class _Link:
    """One connection to one incarnation of a broker; opened once however many wait for it."""

    def __init__(self, broker_epoch: BrokerEpoch, opener: Callable[[], Any]) -> None:
        self.broker_epoch = broker_epoch
        self._opener = opener
        self._opening: asyncio.Task[Connection] | None = None

    async def connection(self) -> Connection:
        opening = self._opening
        if opening is None or _is_over(opening):
            opening = asyncio.get_running_loop().create_task(self._opener())
            opening.add_done_callback(_hear_error)
            self._opening = opening
        # Whoever gives up must not take the connection from those who still wait.
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            asked = asyncio.current_task()
            if opening.cancelled() and not (asked is not None and asked.cancelling()):
                # The link was closed; those who waited for it go on.
                raise UnknownPeerError("the broker came back, or went, in the meantime") from None
            raise

    def close(self) -> None:
        opening, self._opening = self._opening, None
        if opening is None:
            return
        if not opening.done():
            opening.cancel()
        elif not opening.cancelled() and opening.exception() is None:
            opening.result().close()


def _is_over(opening: asyncio.Task[Connection]) -> bool:
    if not opening.done():
        return False
    return opening.cancelled() or opening.exception() is not None or not opening.result().is_open


def _hear_error(opening: asyncio.Task[Connection]) -> None:
    """Everybody who waited may have given up: an error that nobody hears is no scandal."""
    if not opening.cancelled():
        opening.exception()


class LeaderLinks:
    """How followers reach the leaders of their partitions (`replication`'s `LeaderLink`)."""

    def __init__(self, peers: Peers, timeout_ms: Callable[[], int]) -> None:
        """`timeout_ms` says how long a leader may take beyond the wait that a fetch asks for."""
        self._peers = peers
        self._timeout_ms = timeout_ms

    async def fetch(self, leader_id: int, request: FetchRequest) -> FetchResponse:
        timeout_ms = self._timeout_ms() + request.max_wait_ms
        answer: FetchResponse = await self._peers.request(
            leader_id, request, channel=FETCH, timeout_ms=timeout_ms
        )
        return answer

    async def list_offsets(
        self, leader_id: int, request: ListOffsetsRequest
    ) -> ListOffsetsResponse:
        answer: ListOffsetsResponse = await self._peers.request(
            leader_id, request, channel=FETCH, timeout_ms=self._timeout_ms()
        )
        return answer

    async def offset_for_leader_epoch(
        self, leader_id: int, request: OffsetForLeaderEpochRequest
    ) -> OffsetForLeaderEpochResponse:
        answer: OffsetForLeaderEpochResponse = await self._peers.request(
            leader_id, request, channel=FETCH, timeout_ms=self._timeout_ms()
        )
        return answer
