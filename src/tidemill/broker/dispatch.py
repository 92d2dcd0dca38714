"""The table of APIs: which handler answers which request, in which versions.

A handler declares its range next to itself with `@handles`; ApiVersions is derived from the table,
so what is advertised is what is there. A handler is an ordinary function. It returns

* a response: the fast path, written at once, without a task;
* a `Deferred` that purgatory or the disk completes later, still without a task;
* an awaitable of a response, such as a coroutine, which becomes a task;
* `None`: no answer at all (Produce with acks=0).

Answers leave a connection in the order in which its requests came, whichever form they take.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from tidemill.wire.apis import APIS, ApiKey

if TYPE_CHECKING:
    from tidemill.broker.connection import Connection
    from tidemill.broker.context import Broker

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

Handler = Callable[["Broker", "RequestContext", Any], Any]
"""`(broker, context, request) -> response | Deferred[response] | Awaitable[response] | None`."""


@dataclass(slots=True)
class RequestContext:
    """Who asks, and how: everything about a request that is not its body."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    connection: Connection

    @property
    def client_address(self) -> str:
        """The peer's IP address, as quotas, ACLs and logs name it."""
        return self.connection.client_address

    @property
    def listener(self) -> str:
        """The name of the listener that the request came through, such as PLAINTEXT."""
        return self.connection.listener_name

    @property
    def is_peer(self) -> bool:
        """Whether a broker of this cluster asks: it has proved the cluster's secret."""
        return self.connection.peer_id is not None

    @property
    def peer_id(self) -> int | None:
        """The id of the broker that asks, None for a client."""
        return self.connection.peer_id


@dataclass(frozen=True, slots=True)
class Registration:
    """One API of the table: its handler and the versions it answers."""

    key: ApiKey
    min_version: int
    max_version: int
    handler: Handler
    advertised_min_version: int
    request_type: type[Any]
    response_type: type[Any]
    peers_only: bool = False
    is_heavy: bool = False


REGISTRY: dict[int, Registration] = {}


def handles(
    key: ApiKey,
    min_version: int,
    max_version: int,
    *,
    advertised_min_version: int | None = None,
    peers_only: bool = False,
    is_heavy: bool = False,
) -> Callable[[FunctionT], FunctionT]:
    """Register the decorated function as the handler of `key` in the given versions.

    `advertised_min_version` is for Produce alone: old clients look for version 0 in the table
    before they trust a broker with compression, although no broker answers it any more. With
    `peers_only` the handler is not advertised, and serves nobody but brokers of this cluster. With
    `is_heavy` small requests may have large answers: a connection gets one at a time.
    """

    def register(handler: FunctionT) -> FunctionT:
        advertised = min_version if advertised_min_version is None else advertised_min_version
        api = APIS[key]
        REGISTRY[int(key)] = Registration(
            key,
            min_version,
            max_version,
            handler,
            advertised,
            api.request,
            api.response,
            peers_only,
            is_heavy,
        )
        return handler

    return register


def find(api_key: int, version: int) -> Registration | None:
    """The registration that answers this key and version, if there is one."""
    entry = REGISTRY.get(api_key)
    if entry is None or not entry.min_version <= version <= entry.max_version:
        return None
    return entry
