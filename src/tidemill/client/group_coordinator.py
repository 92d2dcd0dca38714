"""Finding a group's coordinator, and asking it again where it has moved.

`GroupCoordinator.call` is for questions that may be asked twice; who must see each failure for
himself uses `connection` and says `forget` when the coordinator turns out to be another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tidemill.client.cluster import Cluster
from tidemill.client.connection import Connection
from tidemill.client.errors import (
    ClientError,
    RequestTimeoutError,
    UnreachableError,
    from_code,
)
from tidemill.errors import ErrorCode
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

GROUP_KEY_TYPE = 0
CHANNEL = "group"
BATCHED_FROM = 4

MOVED = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
)
"""After these the coordinator has to be looked up again."""

AGAIN = MOVED | {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
}
"""After these the same question may be answered a moment later."""

T = TypeVar("T")


class GroupCoordinator:
    """The broker that coordinates one group, looked up once and kept until it has moved."""

    def __init__(self, cluster: Cluster, group_id: str) -> None:
        self.group_id = group_id
        self.cluster = cluster
        self._node_id: int | None = None

    def forget(self) -> None:
        self._node_id = None

    async def connection(self, channel: str = CHANNEL) -> Connection:
        """A connection to the coordinator; raises if none can be found right now."""
        if self._node_id is None:
            self._node_id = await self._find()
        try:
            return await self.cluster.connection(self._node_id, channel)
        except ClientError:
            self.forget()
            raise

    async def _find(self) -> int:
        cluster = self.cluster
        connection = await cluster.any_connection()
        batched = (connection.version_of(ApiKey.FIND_COORDINATOR) or 0) >= BATCHED_FROM
        request = FindCoordinatorRequest(key_type=GROUP_KEY_TYPE)
        if batched:
            request.coordinator_keys = [self.group_id]
        else:
            request.key = self.group_id
        answer: FindCoordinatorResponse = await connection.request(request)
        found = answer.coordinators[0] if answer.coordinators else answer
        if found.error_code:
            raise from_code(found.error_code, found.error_message)
        if found.node_id not in cluster.view.nodes:
            await cluster.refresh()
        return found.node_id

    async def call(
        self,
        question: Callable[[Connection], Awaitable[T]],
        *,
        timeout_ms: float | None = None,
        again: frozenset[ErrorCode] = AGAIN,
    ) -> T:
        """Ask the coordinator until it answers, or until the time is over.

        `question` raises a `ClientError` for what the answer says as a whole.
        """
        cluster = self.cluster
        limit_ms = cluster.settings.default_api_timeout_ms if timeout_ms is None else timeout_ms
        deadline_ms = cluster.clock.monotonic_ms() + limit_ms
        failures = 0
        while True:
            try:
                return await question(await self.connection())
            except ClientError as error:
                if error.code in MOVED:
                    self.forget()
                failures += 1
                delay_ms = cluster.retry_backoff.delay_ms(failures)
                late = cluster.clock.monotonic_ms() + delay_ms >= deadline_ms
                if error.code not in again or late:
                    raise
                await asyncio.sleep(delay_ms / 1000)

    async def ask_once(self, request: Any, channel: str = CHANNEL, **options: Any) -> Any:
        """One request; a connection that breaks makes us look for the coordinator again."""
        try:
            connection = await self.connection(channel)
            return await connection.request(request, **options)
        except (UnreachableError, RequestTimeoutError):
            self.forget()
            raise
