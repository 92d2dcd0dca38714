"""Carries leaders' proposals for new ISRs to the controller, and its answers back.

Proposals of one turn of the loop travel in one AlterPartition, and while that is under way the next
ones gather: one request at a time keeps them in order. A proposal whose outcome is unknown is sent
again, exactly as it was, until the controller has answered or the leadership it belongs to is over
(rule C5); each time its owner is told `None`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import islice

from tidemill.errors import ErrorCode, TidemillError
from tidemill.replication.alter_partition import (
    PROPOSALS_PER_REQUEST_MAX,
    alter_partition_answers,
    alter_partition_request,
)
from tidemill.replication.isr import IsrAnswer, IsrProposal
from tidemill.replication.partition import Partition
from tidemill.replication.session import TopicIdPartition
from tidemill.types import BrokerEpoch, BrokerId
from tidemill.wire.messages.isr import AlterPartitionRequest, AlterPartitionResponse

log = logging.getLogger(__name__)

RETRY_MS_MIN = 50
RETRY_MS_MAX = 1_000

Answered = Callable[[IsrAnswer | None], None]

_UNCLEAR = frozenset(
    {
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.STALE_BROKER_EPOCH,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    }
)
"""Answers that say nothing about the proposal: another controller may still have accepted it."""


class _Waiting:
    __slots__ = ("answered", "partition", "proposal")

    def __init__(self, partition: Partition, proposal: IsrProposal, answered: Answered) -> None:
        self.partition = partition
        self.proposal = proposal
        self.answered = answered

    @property
    def is_over(self) -> bool:
        """Whether nobody waits for it any more: the term it belongs to ended, or an image came."""
        return not self.partition.wants(self.proposal)


class IsrUpdates:
    """The `IsrChannel` of a broker's partitions."""

    def __init__(
        self,
        broker_id: BrokerId,
        broker_epoch: Callable[[], BrokerEpoch],
        send: Callable[[AlterPartitionRequest], Awaitable[AlterPartitionResponse]],
    ) -> None:
        """`send` brings a request to the controller, wherever that is."""
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._send = send
        self._waiting: dict[TopicIdPartition, _Waiting] = {}
        self._task: asyncio.Task[None] | None = None

    def propose(self, partition: Partition, proposal: IsrProposal, answered: Answered) -> None:
        """Send a proposal with the others of this turn; it replaces an older one."""
        key = TopicIdPartition(partition.topic_id, partition.topic_partition.partition)
        self._waiting[key] = _Waiting(partition, proposal, answered)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work())

    def close(self) -> None:
        """Send no more; nobody is answered."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()

    async def _work(self) -> None:
        pause_ms = RETRY_MS_MIN
        # The task begins after the turn in which the first proposal came: others join it.
        while self._waiting:
            if await self._send_some():
                pause_ms = RETRY_MS_MIN
            else:
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(2 * pause_ms, RETRY_MS_MAX)

    async def _send_some(self) -> bool:
        """One request with what waits; False if something has to be sent again."""
        self._waiting = {key: each for key, each in self._waiting.items() if not each.is_over}
        sent = dict(islice(self._waiting.items(), PROPOSALS_PER_REQUEST_MAX))
        if not sent:
            return True
        proposals = {key: each.proposal for key, each in sent.items()}
        request = alter_partition_request(self._broker_id, self._broker_epoch(), proposals)
        answers: dict[TopicIdPartition, IsrAnswer] = {}
        try:
            answers = alter_partition_answers(await self._send(request), proposals)
        except TidemillError as error:
            log.info("%d ISR changes are sent again: %s", len(sent), error)
        outcomes = [self._settle(key, each, answers.get(key)) for key, each in sent.items()]
        return all(outcomes)

    def _settle(self, key: TopicIdPartition, sent: _Waiting, answer: IsrAnswer | None) -> bool:
        """Tell the outcome; False if it is unknown and the proposal stays."""
        unclear = answer is None or answer.code in _UNCLEAR
        if not unclear and self._waiting.get(key) is sent:
            del self._waiting[key]
        try:
            sent.answered(None if unclear else answer)
        except Exception:
            log.exception("an ISR change of %s failed", sent.partition.topic_partition)
        return not unclear
