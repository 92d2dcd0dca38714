"""A member of a classic group: JoinGroup, SyncGroup, heartbeats, and leading when it is our turn.

One round is `ClassicMember._round`: get ready, join, share out if we lead, sync, take up, and then
wait for a reason to join again. Heartbeats run beside it from the moment an assignment is known.
With eager assignors everything is given up before a round; with cooperative ones only what moves is
given up, after the round, and another round gives it away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tidemill.client.assignors import Assignor, choose
from tidemill.client.consumer_protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from tidemill.client.errors import ClientError, failure_of, from_code
from tidemill.client.group_coordinator import MOVED
from tidemill.client.group_offsets import Identity
from tidemill.client.member import FATAL, GroupMember
from tidemill.errors import ErrorCode, WireError
from tidemill.types import TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

logger = logging.getLogger(__name__)

PROTOCOL_TYPE = "consumer"
JOIN_CHANNEL = "join"
"""A join waits at the broker for the others; commits must not queue behind it."""

JOIN_GRACE_MS = 5_000
NO_GENERATION = -1
_LEAVE_BATCHED_FROM = 3


class ClassicMember(GroupMember):
    """Membership by the protocol that every broker speaks."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._assignors = choose(self._settings.partition_assignment_strategy.split(","))
        self._cooperative = all(assignor.cooperative for assignor in self._assignors)
        self._member_id = ""
        self._generation = NO_GENERATION
        self._last: tuple[int, frozenset[TopicPartition]] = (NO_GENERATION, frozenset())
        self._beating = False
        self._counts: Mapping[str, int] | None = None
        self._joined_for: frozenset[str] = frozenset()

    def identity(self) -> Identity:
        return Identity(self._member_id, self._generation, self._settings.group_instance_id)

    def _background(self) -> list[Callable[[], Awaitable[None]]]:
        return [self._rounds, self._heartbeats, self._watch_topics]

    # --- rounds ----------------------------------------------------------------------------------

    async def _rounds(self) -> None:
        failures = 0
        while True:
            try:
                await self._round()
                failures = 0
            except ClientError as error:
                if error.code in FATAL:
                    raise
                self._note(error.code)
                failures += 1
                if error.code not in _JOIN_AT_ONCE or failures > 3:
                    await self._back_off(failures)

    def _note(self, code: ErrorCode) -> None:
        """What an error says about our membership."""
        if code in MOVED:
            self.coordinator.forget()
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self._member_id = ""
        if code in _LOST:
            self._generation = NO_GENERATION
            self._lost = True

    async def _round(self) -> None:
        await self._get_ready()
        self._changed.clear()
        names = self._joined_for = await self._names()
        joined = await self._join(names)
        shares = {}
        if joined.leader == joined.member_id and not joined.skip_assignment:
            shares = await self._lead(joined)
        mine = await self._sync(joined, shares)
        self._beating = True
        await self._in_poll(lambda: self._adopt(mine))
        for topic in names:
            self._cluster.track(topic)
        await self._changed.wait()

    async def _get_ready(self) -> None:
        """Before a round: who was thrown out has lost all, who is eager gives all up.

        Until the user polls much may happen, so look again: a round that begins with a loss that
        was not noticed would end with an assignment that is not taken up.
        """
        while self._lost or self._unwanted():
            await self._in_poll(self._let_go)

    async def _let_go(self) -> None:
        if self._lost:
            self._beating = False
            await self._lose_everything()
            self._lost = False
        elif gone := self._unwanted():
            await self._give_up(gone)

    def _unwanted(self) -> set[TopicPartition]:
        """What has to be given up before a round."""
        if not self._cooperative:
            return set(self.assignment)
        if self.pattern is not None:
            return set()
        return {tp for tp in self.assignment if tp.topic not in self.topics}

    async def _adopt(self, mine: frozenset[TopicPartition]) -> None:
        if self._lost:
            return
        revoked = self.assignment - mine
        if revoked:
            await self._give_up(revoked)
            # What was given up is free for others only after one more round.
            self._changed.set()
        self._last = (self._generation, mine)
        await self._take_up(set(mine))

    # --- join and sync ---------------------------------------------------------------------------

    async def _join(self, names: frozenset[str]) -> JoinGroupResponse:
        self._beating = False
        while True:
            answer: JoinGroupResponse = await self.coordinator.ask_once(
                self._join_request(names),
                JOIN_CHANNEL,
                timeout_ms=self._settings.max_poll_interval_ms + JOIN_GRACE_MS,
            )
            if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                self._member_id = answer.member_id
                continue
            if answer.error_code:
                raise failure_of(f"joining group {self._settings.group_id!r}", answer.error_code)
            self._member_id, self._generation = answer.member_id, answer.generation_id
            return answer

    def _join_request(self, names: frozenset[str]) -> JoinGroupRequest:
        settings = self._settings
        return JoinGroupRequest(
            group_id=settings.group_id,
            session_timeout_ms=settings.session_timeout_ms,
            rebalance_timeout_ms=settings.max_poll_interval_ms,
            member_id=self._member_id,
            group_instance_id=settings.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[
                JoinGroupRequestProtocol(name=a.name, metadata=self._metadata(a, names))
                for a in self._assignors
            ],
        )

    def _metadata(self, assignor: Assignor, names: frozenset[str]) -> bytes:
        generation, had = self._last
        return encode_subscription(
            Subscription(
                topics=tuple(names),
                user_data=assignor.user_data(had, generation),
                owned=frozenset(self.assignment) if self._cooperative else frozenset(),
                generation=generation,
                rack=self._settings.client_rack or None,
            )
        )

    async def _lead(self, joined: JoinGroupResponse) -> dict[str, bytes]:
        """Share out what all members want among them."""
        assignor = next(a for a in self._assignors if a.name == joined.protocol_name)
        members = {
            member.member_id: _wishes(member.metadata, member.group_instance_id)
            for member in joined.members
        }
        topics = {topic for member in members.values() for topic in member.topics}
        self._counts = await self._partition_counts(topics)
        shares = assignor.assign(members, self._counts)
        return {member_id: encode_assignment(share) for member_id, share in shares.items()}

    async def _sync(
        self, joined: JoinGroupResponse, shares: Mapping[str, bytes]
    ) -> frozenset[TopicPartition]:
        if joined.leader != joined.member_id:
            self._counts = None
        request = SyncGroupRequest(
            group_id=self._settings.group_id,
            generation_id=self._generation,
            member_id=self._member_id,
            group_instance_id=self._settings.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=joined.protocol_name,
            assignments=[
                SyncGroupRequestAssignment(member_id=member_id, assignment=data)
                for member_id, data in shares.items()
            ],
        )
        timeout_ms = self._settings.max_poll_interval_ms + JOIN_GRACE_MS
        answer: SyncGroupResponse = await self.coordinator.ask_once(
            request, JOIN_CHANNEL, timeout_ms=timeout_ms
        )
        if answer.error_code:
            raise failure_of(f"syncing group {self._settings.group_id!r}", answer.error_code)
        return decode_assignment(answer.assignment)

    # --- topics ----------------------------------------------------------------------------------

    async def _partition_counts(self, topics: set[str]) -> dict[str, int]:
        if not topics:
            return {}
        await self._cluster.fetch_metadata(sorted(topics))
        known = self._cluster.view.topics
        return {name: len(known[name].partitions) for name in topics if name in known}

    async def _watch_topics(self) -> None:
        """Join again when topics that we want, or that we shared out as leader, have changed."""
        while True:
            await asyncio.sleep(self._settings.metadata_max_age_ms / 1000)
            try:
                if self.pattern is not None and await self._names() != self._joined_for:
                    self._changed.set()
                counts = self._counts
                if counts is not None:
                    wanted = set(counts) | set(self._joined_for)
                    if await self._partition_counts(wanted) != counts:
                        self._changed.set()
            except ClientError:
                continue  # Whoever needs the broker more urgently will report it.

    # --- heartbeats ------------------------------------------------------------------------------

    async def _heartbeats(self) -> None:
        while True:
            await asyncio.sleep(self._settings.heartbeat_interval_ms / 1000)
            if not self._beating:
                continue
            if self._polls_too_late:
                await self._leave_for_now()
                continue
            try:
                await self._beat()
            except ClientError as error:
                if error.code in FATAL:
                    raise
                self._note(error.code)
                if error.code in _LOST:
                    self._beating = False
                    self._changed.set()
                elif error.code is ErrorCode.REBALANCE_IN_PROGRESS:
                    self._changed.set()

    async def _beat(self) -> None:
        generation = self._generation
        answer: HeartbeatResponse = await self.coordinator.ask_once(
            HeartbeatRequest(
                group_id=self._settings.group_id,
                generation_id=generation,
                member_id=self._member_id,
                group_instance_id=self._settings.group_instance_id,
            ),
            timeout_ms=self._settings.session_timeout_ms,
        )
        if answer.error_code and generation == self._generation and self._beating:
            raise from_code(answer.error_code)

    async def _leave_for_now(self) -> None:
        """The user does not poll: others shall have the partitions until he does."""
        self._beating = False
        self._lost = True
        self._generation = NO_GENERATION
        self._changed.set()
        try:
            await self._leave()
        except ClientError:
            pass  # The session will run out.

    async def _leave(self) -> None:
        """Leave, unless we are static: then the place is kept for whoever comes back."""
        if not self._member_id or self._settings.group_instance_id is not None:
            return
        group_id, member_id = self._settings.group_id, self._member_id
        self._member_id = ""
        connection = await self.coordinator.connection()
        request = LeaveGroupRequest(group_id=group_id)
        if (connection.version_of(ApiKey.LEAVE_GROUP) or 0) >= _LEAVE_BATCHED_FROM:
            request.members = [MemberIdentity(member_id=member_id)]
        else:
            request.member_id = member_id
        answer: LeaveGroupResponse = await connection.request(request)
        if answer.error_code:
            raise from_code(answer.error_code)


def _wishes(metadata: bytes, instance_id: str | None) -> Subscription:
    """What a member wants; one that cannot be understood gets nothing, and the others go on."""
    try:
        return decode_subscription(metadata, instance_id)
    except WireError as error:
        logger.warning("member with unreadable metadata gets no partitions error=%s", error)
        return Subscription(topics=(), instance_id=instance_id)


_LOST = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})
_JOIN_AT_ONCE = _LOST | {ErrorCode.REBALANCE_IN_PROGRESS}
