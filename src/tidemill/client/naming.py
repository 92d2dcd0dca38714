"""Gets an idempotent producer its id; queues whose batches cannot be numbered yet wait here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from tidemill.client.accumulator import PartitionQueue
from tidemill.client.cluster import Cluster
from tidemill.client.errors import ClientError, failure_of
from tidemill.client.outcomes import Outcomes
from tidemill.client.sequences import Identity
from tidemill.client.settings import INT32_MAX
from tidemill.wire.messages.producers import InitProducerIdRequest, InitProducerIdResponse


class IdentitySource(Protocol):
    """Where a producer's id and epoch come from; raises `ClientError` where they cannot be had."""

    async def __call__(self, cluster: Cluster) -> tuple[int, int]: ...


async def new_identity(cluster: Cluster) -> tuple[int, int]:
    """An id that nobody had before, for a producer without transactions."""
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=INT32_MAX)
    answer: InitProducerIdResponse = await cluster.call_any(request)
    if answer.error_code:
        raise failure_of("the request for a producer id", answer.error_code)
    return answer.producer_id, answer.producer_epoch


class Naming:
    """The producer's `identity`, asked for when the first queue needs it."""

    def __init__(
        self,
        cluster: Cluster,
        outcomes: Outcomes,
        ready: Callable[[PartitionQueue], None],
        source: IdentitySource,
    ) -> None:
        self.identity = Identity()
        self._source = source
        self._cluster = cluster
        self._outcomes = outcomes
        self._ready = ready
        self._waiting: list[PartitionQueue] = []
        self._asking: asyncio.Task[None] | None = None

    def hold(self, queue: PartitionQueue) -> None:
        """Keep this queue until the producer has an id."""
        queue.queued = True
        self._waiting.append(queue)
        if self._asking is None:
            self._asking = asyncio.get_running_loop().create_task(self._ask())

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _ask(self) -> None:
        """Get a producer id, however often that must be asked; a refusal fails what waits."""
        failures = 0
        try:
            while not self.identity.known:
                try:
                    self.identity.assign(*await self._source(self._cluster))
                except ClientError as error:
                    if not error.retriable:
                        self._refuse_all(error)
                        return
                    self._outcomes.trouble = error
                    failures += 1
                    await asyncio.sleep(self._cluster.retry_backoff.delay_ms(failures) / 1000)
        finally:
            self._asking = None
        for queue in self._let_go():
            self._ready(queue)

    def _let_go(self) -> list[PartitionQueue]:
        waiting, self._waiting = self._waiting, []
        for queue in waiting:
            queue.queued = False
        return waiting

    def _refuse_all(self, error: ClientError) -> None:
        for queue in self._let_go():
            while queue.batches:
                self._outcomes.give_up(queue, queue.take(), error)
