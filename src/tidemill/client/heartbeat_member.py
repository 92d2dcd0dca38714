"""A member of a group of the newer protocol (KIP-848): the coordinator assigns, heartbeats say so.

Two loops share the state. `_heartbeats` tells the coordinator what we want and own and learns what
we shall have; `_reconciles` brings what we own in line with that, inside `poll`: first it gives up
what is not ours any more, then, when the coordinator knows, it takes up what is new. Only what
changed since the last heartbeat is told; after a lost answer, everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from tidemill.client.errors import ClientError, UnsupportedError, from_code
from tidemill.client.group_coordinator import MOVED
from tidemill.client.group_offsets import Identity
from tidemill.client.member import FATAL, GroupMember
from tidemill.errors import ErrorCode
from tidemill.types import TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from tidemill.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2
FIRST_INTERVAL_MS = 1_000
_REGEX_FROM = 1
_LOST = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})

_Owned = dict[UUID, frozenset[int]]


class HeartbeatMember(GroupMember):
    """Membership by heartbeats alone."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._member_id = str(UUID(int=self._cluster.random.getrandbits(128), version=4))
        self._epoch = JOIN_EPOCH
        self._may_be_known = False
        """Whether the coordinator may have heard of us, even if we have not heard of it."""
        self._interval_ms = FIRST_INTERVAL_MS
        self._target: set[TopicPartition] | None = None
        self._names_by_id: dict[UUID, str] = {}
        self._told: tuple[frozenset[str], str | None] | None = None
        self._told_owned: set[TopicPartition] | None = None
        self._aimed = asyncio.Event()

    def identity(self) -> Identity:
        return Identity(self._member_id, self._epoch, self._settings.group_instance_id)

    def _background(self) -> list[Callable[[], Awaitable[None]]]:
        return [self._heartbeats, self._reconciles]

    # --- heartbeats ------------------------------------------------------------------------------

    async def _heartbeats(self) -> None:
        failures = 0
        while True:
            if self._lost:
                await self._start_over()
            if self._polls_too_late and self._epoch > JOIN_EPOCH:
                await self._leave_for_now()
                continue
            try:
                await self._beat()
                failures = 0
            except ClientError as error:
                failures += 1
                await self._cope(error, failures)
                continue
            await self._pause()

    async def _pause(self) -> None:
        """Until the next heartbeat is due, or there is something to tell."""
        try:
            async with asyncio.timeout(self._interval_ms / 1000):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _cope(self, error: ClientError, failures: int) -> None:
        if error.code in _LOST:
            self._lost = True
            return
        if error.code in FATAL:
            raise error
        if error.code in MOVED:
            self.coordinator.forget()
        self._told = self._told_owned = None
        await self._back_off(failures)

    async def _beat(self) -> None:
        self._changed.clear()
        wants, owned = (self.topics, self.pattern), set(self.assignment)
        request = self._request(wants, owned)
        self._told = self._told_owned = None  # Until the answer says that it was heard.
        self._may_be_known = True
        answer = await self._ask(request)
        if answer.error_code:
            raise from_code(answer.error_code, answer.error_message)
        self._told, self._told_owned = wants, owned
        self._member_id = answer.member_id or self._member_id
        self._epoch = answer.member_epoch
        self._interval_ms = max(answer.heartbeat_interval_ms, 1)
        if answer.assignment is not None:
            self._target = await self._read(answer.assignment.topic_partitions)
            self._aimed.set()

    async def _ask(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        connection = await self.coordinator.connection()
        version = connection.version_of(ApiKey.CONSUMER_GROUP_HEARTBEAT)
        if version is None:
            raise UnsupportedError(
                "the broker does not offer the consumer group protocol; use group.protocol=classic"
            )
        if request.subscribed_topic_regex is not None and version < _REGEX_FROM:
            raise UnsupportedError("the broker does not take patterns; name the topics")
        answer: ConsumerGroupHeartbeatResponse = await self.coordinator.ask_once(request)
        return answer

    def _request(
        self, wants: tuple[frozenset[str], str | None], owned: set[TopicPartition]
    ) -> ConsumerGroupHeartbeatRequest:
        settings = self._settings
        request = ConsumerGroupHeartbeatRequest(
            group_id=settings.group_id,
            member_id=self._member_id,
            member_epoch=self._epoch,
            instance_id=settings.group_instance_id,
        )
        if self._epoch == JOIN_EPOCH or self._told is None:
            request.rack_id = settings.client_rack or None
            request.rebalance_timeout_ms = settings.max_poll_interval_ms
            request.server_assignor = settings.group_remote_assignor
        if wants != self._told:
            topics, pattern = wants
            request.subscribed_topic_names = sorted(topics)
            before = self._told[1] if self._told is not None else None
            if pattern is not None or before is not None:
                request.subscribed_topic_regex = pattern or ""
        if owned != self._told_owned or self._epoch == JOIN_EPOCH:
            request.topic_partitions = self._by_id(owned)
        return request

    def _by_id(self, owned: set[TopicPartition]) -> list[TopicPartitions]:
        ids = {name: topic_id for topic_id, name in self._names_by_id.items()}
        topics: dict[UUID, list[int]] = {}
        for name, index in sorted(owned):
            if name in ids:
                topics.setdefault(ids[name], []).append(index)
        return [TopicPartitions(topic_id=key, partitions=found) for key, found in topics.items()]

    # --- names -----------------------------------------------------------------------------------

    async def _read(self, topics: list[TopicPartitions]) -> set[TopicPartition]:
        """The assignment with names instead of ids; what has no name any more is left out."""
        unknown = [t.topic_id for t in topics if t.topic_id not in self._names_by_id]
        if unknown:
            await self._learn(unknown)
        named = ((self._names_by_id.get(t.topic_id), t.partitions) for t in topics)
        return {TopicPartition(name, p) for name, parts in named if name for p in parts}

    async def _learn(self, topic_ids: list[UUID]) -> None:
        asked = [MetadataRequestTopic(topic_id=topic_id, name=None) for topic_id in topic_ids]
        request = MetadataRequest(topics=asked, allow_auto_topic_creation=False)
        answer: MetadataResponse = await self._cluster.call_any(request)
        missing = False
        for topic in answer.topics:
            if topic.name and not topic.error_code:
                # A topic that was created anew has its old name and another id.
                stale = [key for key, name in self._names_by_id.items() if name == topic.name]
                for key in stale:
                    del self._names_by_id[key]
                self._names_by_id[topic.topic_id] = topic.name
            else:
                missing = True
        if missing:
            # News of a topic takes a moment to reach every broker: be told everything again.
            self._told = self._told_owned = None

    # --- bringing what we own in line ------------------------------------------------------------

    async def _reconciles(self) -> None:
        while True:
            await self._aimed.wait()
            self._aimed.clear()
            try:
                await self._reconcile()
            except ClientError:
                # The user has heard of it; the next heartbeat's answer will make us try again.
                self._told = self._told_owned = None
                await self._back_off(1)
                self._aimed.set()

    async def _reconcile(self) -> None:
        target = self._target
        if target is None or self._lost or target == self.assignment:
            return
        if self.assignment - target:
            await self._in_poll(self._revoke)
            self._changed.set()
        if self._target is not None and self._target - self.assignment and not self._lost:
            await self._in_poll(self._assign)
            self._changed.set()

    async def _revoke(self) -> None:
        if self._target is not None and (gone := self.assignment - self._target):
            await self._give_up(gone)

    async def _assign(self) -> None:
        if self._target is not None and not self._lost and self._target - self.assignment:
            await self._take_up(self.assignment | self._target)

    # --- leaving ---------------------------------------------------------------------------------

    async def _start_over(self) -> None:
        """We were thrown out: nothing of what we had is ours; join anew."""
        self._target = None
        await self._in_poll(self._lose_everything)
        self._lost = False
        self._epoch = JOIN_EPOCH
        self._told = self._told_owned = None

    async def _leave_for_now(self) -> None:
        """The user does not poll: others shall have the partitions until he does."""
        try:
            await self._leave()
        except ClientError:
            pass  # The session will run out.
        self._lost = True

    async def _leave(self) -> None:
        if not self._may_be_known:
            return
        static = self._settings.group_instance_id is not None
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._settings.group_id,
            member_id=self._member_id,
            member_epoch=LEAVE_STATIC_EPOCH if static else LEAVE_EPOCH,
            instance_id=self._settings.group_instance_id,
        )
        self._epoch = JOIN_EPOCH
        self._may_be_known = False
        await self.coordinator.ask_once(request)
