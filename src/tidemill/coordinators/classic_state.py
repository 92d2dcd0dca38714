"""Who is in a classic group, and what each member brought along: the data, without the protocol.

`ClassicMember` is one member, `Membership` the group that `classic_group.ClassicGroup` drives. What
a restart must not forget goes through `to_value` and `from_value`; all else (answers that wait,
members that have an id and have not joined yet) is made anew by the clients.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from tidemill.coordinators.group_hash import java_string_hash
from tidemill.coordinators.records import GroupMetadataValue, MemberMetadata
from tidemill.errors import ApiError, ErrorCode
from tidemill.wire.messages.groups import (
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    JoinGroupResponseMember,
    SyncGroupResponse,
)

CONSUMER_PROTOCOL_TYPE = "consumer"
_HASH_TABLE_SLOTS_MIN = 16

JoinReply = Callable[[JoinGroupResponse], None]
SyncReply = Callable[[SyncGroupResponse], None]


class ClassicState(StrEnum):
    """Where a group is in its rebalances, in the words in which clients are told."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


Protocols = list[tuple[str, bytes]]
"""What a member can do, best first: names with metadata that only the members understand."""


def protocols_of(requested: Iterable[JoinGroupRequestProtocol]) -> Protocols:
    return [(each.name, bytes(each.metadata)) for each in requested]


@dataclass(slots=True)
class ClassicMember:
    """One member; `join_reply` and `sync_reply` are set while a request of it waits."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    is_new: bool = False
    join_reply: JoinReply | None = field(default=None, repr=False)
    sync_reply: SyncReply | None = field(default=None, repr=False)

    def metadata(self, protocol: str | None) -> bytes:
        return next((data for name, data in self.protocols if name == protocol), b"")

    @property
    def is_excused(self) -> bool:
        """Whether it need not report, because it waits for us; new ones can be lost waiting."""
        return not self.is_new and (self.join_reply is not None or self.sync_reply is not None)

    def vote(self, candidates: set[str]) -> str:
        """The first of its protocols that every member has."""
        return next(name for name, _ in self.protocols if name in candidates)


class Membership:
    """The members of one classic group and the protocol they agree on."""

    def __init__(self, group_id: str, now_ms: int) -> None:
        self.group_id = group_id
        self.state = ClassicState.EMPTY
        self.previous_state = ClassicState.EMPTY
        self.state_since_ms: int | None = now_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, ClassicMember] = {}
        self.static_ids: dict[str, str] = {}
        self.awaiting_join_count = 0
        """Members whose join waits for the others; counted, since every join asks."""
        self.pending_join: set[str] = set()
        self.pending_sync: set[str] = set()
        self.subscribed_topics: frozenset[str] | None = None
        self.was_rebalancing = False
        """Whether it was stored without a leader: its members were to join again."""
        self._support: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.group_id!r}, {self.state}, {self.generation})"

    def move_to(self, state: ClassicState, now_ms: int) -> None:
        self.previous_state, self.state = self.state, state
        self.state_since_ms = now_ms

    # Members.

    def add(self, member: ClassicMember) -> None:
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self.awaiting_join_count += member.join_reply is not None
        self.pending_join.discard(member.member_id)
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member.member_id
        self._support.update({name for name, _ in member.protocols})

    def remove(self, member_id: str) -> ClassicMember | None:
        """Take a member out; the next in line leads if it was the leader."""
        self.pending_join.discard(member_id)
        self.pending_sync.discard(member_id)
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        self._withdraw(member.protocols)
        self.awaiting_join_count -= member.join_reply is not None
        if member.instance_id is not None and self.static_ids.get(member.instance_id) == member_id:
            del self.static_ids[member.instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        return member

    def replace_protocols(self, member: ClassicMember, protocols: Protocols) -> None:
        self._withdraw(member.protocols)
        member.protocols = protocols
        self._support.update({name for name, _ in protocols})

    def _withdraw(self, protocols: Protocols) -> None:
        """Nobody's protocols are forgotten: members may name others with every join."""
        for name in {name for name, _ in protocols}:
            self._support[name] -= 1
            if not self._support[name]:
                del self._support[name]

    def rename(self, member: ClassicMember, member_id: str) -> None:
        """Give a static member the id of its new incarnation, in its old place."""
        old_id = member.member_id
        self.members = {
            (member_id if key == old_id else key): each for key, each in self.members.items()
        }
        member.member_id = member_id
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member_id
        if self.leader_id == old_id:
            self.leader_id = member_id
        if old_id in self.pending_sync:
            self.pending_sync.discard(old_id)
            self.pending_sync.add(member_id)

    def check_member(self, member_id: str, instance_id: str | None) -> ClassicMember:
        """The member, if it is who it says it is: first the instance, then the id (rule J2)."""
        if instance_id is not None:
            known_id = self.static_ids.get(instance_id)
            if known_id is None:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            if known_id != member_id:
                raise ApiError(ErrorCode.FENCED_INSTANCE_ID)
        member = self.members.get(member_id)
        if member is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def keep_join(self, member: ClassicMember, reply: JoinReply) -> None:
        """Have the member's join wait for the others."""
        self.awaiting_join_count += member.join_reply is None
        member.join_reply = reply

    def take_join(self, member: ClassicMember) -> JoinReply | None:
        """The member's join that waits, if one does, to be answered now."""
        reply, member.join_reply = member.join_reply, None
        self.awaiting_join_count -= reply is not None
        return reply

    @property
    def has_all_joined(self) -> bool:
        return not self.pending_join and self.awaiting_join_count == len(self.members)

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long a rebalance waits: as long as the most patient member wants."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader is one who has joined; False if nobody has."""
        if self.leader_id is None:
            return False
        if self.members[self.leader_id].join_reply is None:
            joined = (each for each in self.members.values() if each.join_reply is not None)
            successor = next(joined, None)
            if successor is None:
                return False
            self.leader_id = successor.member_id
        return True

    # The protocol.

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether a member with these protocols can be in the group with all others."""
        if self.state is ClassicState.EMPTY:
            return bool(protocol_type) and any(True for _ in names)
        count = len(self.members)
        return protocol_type == self.protocol_type and any(
            self._support[name] == count for name in names
        )

    def select_protocol(self) -> str:
        """The protocol with most votes among those that every member has.

        Of equals Kafka takes the one that its hash map lists first; so do we, since a client may
        be configured for that order.
        """
        count = len(self.members)
        candidates = {name for name, support in self._support.items() if support == count}
        votes = Counter(member.vote(candidates) for member in self.members.values())
        slots = _HASH_TABLE_SLOTS_MIN
        while len(votes) > slots * 3 // 4:
            slots *= 2
        return max(votes, key=lambda name: (votes[name], -_slot(name, slots)))

    def next_generation(self, now_ms: int) -> None:
        self.generation = (self.generation + 1) & 0x7FFFFFFF
        self.pending_sync.clear()
        if self.members:
            self.protocol = self.select_protocol()
            self.move_to(ClassicState.COMPLETING_REBALANCE, now_ms)
        else:
            self.protocol = None
            self.move_to(ClassicState.EMPTY, now_ms)
        self.subscribed_topics = self._compute_subscribed_topics()

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member reads this topic, as far as we can read its metadata."""
        if self.subscribed_topics is None:
            return self.uses_consumer_protocol
        return topic in self.subscribed_topics

    def _compute_subscribed_topics(self) -> frozenset[str] | None:
        if not self.uses_consumer_protocol:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            try:
                topics.update(_subscription_topics(member.metadata(self.protocol)))
            except (struct.error, UnicodeDecodeError, ValueError):
                return None
        return frozenset(topics)

    # Answers.

    def listed_members(self) -> list[JoinGroupResponseMember]:
        """What the leader is told of everybody."""
        return [
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata(self.protocol),
            )
            for member in self.members.values()
        ]

    # What is kept.

    def to_value(self, assignments: dict[str, bytes] | None = None) -> GroupMetadataValue:
        """The group as it is stored; `assignments` are those about to be handed out."""
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader_id,
            current_state_timestamp=-1 if self.state_since_ms is None else self.state_since_ms,
            members=[
                MemberMetadata(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout=member.rebalance_timeout_ms,
                    session_timeout=member.session_timeout_ms,
                    subscription=member.metadata(self.protocol),
                    assignment=member.assignment
                    if assignments is None
                    else assignments.get(member.member_id, b""),
                )
                for member in self.members.values()
            ],
        )

    def load(self, value: GroupMetadataValue) -> None:
        """Become the group that was stored: stable if it had members."""
        self.protocol_type = value.protocol_type or None
        self.generation = value.generation
        self.protocol = value.protocol
        stamp = value.current_state_timestamp
        self.state_since_ms = None if stamp < 0 else stamp
        for stored in value.members:
            self.add(_member_of(stored, value.protocol or ""))
        self.leader_id = value.leader if value.leader in self.members else self.leader_id
        self.was_rebalancing = bool(self.members) and value.leader is None
        self.state = ClassicState.STABLE if self.members else ClassicState.EMPTY
        self.previous_state = self.state
        self.subscribed_topics = self._compute_subscribed_topics()


def _member_of(stored: MemberMetadata, protocol: str) -> ClassicMember:
    waits_ms = stored.rebalance_timeout
    return ClassicMember(
        member_id=stored.member_id,
        instance_id=stored.group_instance_id,
        client_id=stored.client_id,
        client_host=stored.client_host,
        rebalance_timeout_ms=stored.session_timeout if waits_ms < 0 else waits_ms,
        session_timeout_ms=stored.session_timeout,
        protocols=[(protocol, bytes(stored.subscription))],
        assignment=bytes(stored.assignment),
    )


def _slot(name: str, slots: int) -> int:
    value = java_string_hash(name) & 0xFFFFFFFF
    return (value ^ (value >> 16)) & (slots - 1)


def _subscription_topics(metadata: bytes) -> list[str]:
    """The topics at the front of a consumer's metadata; all versions of it begin alike."""
    _version, count = struct.unpack_from(">hi", metadata)
    position = 6
    topics = []
    if count < 0 or count * 2 > len(metadata):
        raise ValueError("an array that cannot be that long")
    for _ in range(count):
        (size,) = struct.unpack_from(">h", metadata, position)
        position += 2
        if size < 0 or position + size > len(metadata):
            raise ValueError("a string that cannot be that long")
        topics.append(metadata[position : position + size].decode())
        position += size
    return topics
