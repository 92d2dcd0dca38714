"""Plays a transcript: commands behind `$`, and below each the answers that it brought.

    $ join g a
    a join: MEMBER_ID_REQUIRED a#1
    $ join g a
    $ wait 3000
    a join: generation 1, range, leader a#1, members a#1

A client's name stands for its latest member id; `a#1` is the first id that client `a` was given.
Answers of other clients appear below the command that set them free. The commands are the methods
`do_...` below; `option=value` pairs change what they send.

Members of the newer protocol name themselves, and `beat`:

    $ beat g n
    n beat: epoch 2, has t:0,1,2

They tell what they own if that is given (`owns=0,1`), and everything when they join. A classic
client with `topics=t` is a consumer, as it must be to share a group with them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any

from tests.coordinators.shard_world import ShardWorld

from tidemill.client.consumer_protocol import (
    Subscription,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from tidemill.coordinators.classic_group import ClassicSettings, join_error, sync_error
from tidemill.coordinators.consumer_steps import ConsumerGroupConfig
from tidemill.coordinators.result import Result
from tidemill.coordinators.shard import GroupShard, ShardSettings
from tidemill.errors import ErrorCode
from tidemill.types import TopicPartition
from tidemill.wire.messages.consumer_groups import ConsumerGroupHeartbeatRequest, TopicPartitions
from tidemill.wire.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from tidemill.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)

_ID = re.compile(r"([a-z]+)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
NO_GENERATION = -1
JOINS = 0
TOPIC = "t"


class Player:
    """One coordinator and its clients."""

    def __init__(self) -> None:
        self.world = ShardWorld()
        self.lines: list[str] = []
        self._labels: dict[str, str] = {}
        self._ids: dict[str, str] = {}
        self._generations: dict[str, int] = {}
        self._epochs: dict[tuple[str, str], int] = {}
        self._consumers: set[str] = set()
        self._topic_id = self.world.topic(TOPIC, 1).topic_id

    def play(self, command: str) -> list[str]:
        """Do what a line says; what was answered until now."""
        verb, *words = command.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        names = [word for word in words if "=" not in word]
        getattr(self, f"do_{verb}")(*names, **options)
        self.world.pump()
        lines, self.lines = self.lines, []
        return lines

    # Clients.

    def do_join(
        self,
        group: str,
        client: str,
        *,
        id: str | None = None,  # noqa: A002 - the word of the transcripts
        instance: str | None = None,
        protocols: str = "range",
        session: str = "10000",
        rebalance: str = "20000",
        version: str = "5",
        type: str = "consumer",  # noqa: A002
        topics: str = "",
        owns: str = "",
    ) -> None:
        said = client.encode()
        if topics:
            self._consumers.add(client)
            owned = frozenset(TopicPartition(TOPIC, part) for part in _numbers(owns))
            said = encode_subscription(Subscription(tuple(topics.split(",")), owned=owned))
        offered = [part.partition(":") for part in protocols.split(",") if part]
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=int(session),
            rebalance_timeout_ms=int(rebalance),
            member_id=self._member(client, id),
            group_instance_id=instance,
            protocol_type=type,
            protocols=[
                JoinGroupRequestProtocol(name=name, metadata=data.encode() or said)
                for name, _, data in offered
            ],
        )
        info = self.world.info(client, int(version))

        def joined(answer: Any) -> None:
            if answer.error_code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
                self._ids[client] = answer.member_id
                if not _ID.fullmatch(answer.member_id):
                    self._christen(client, answer.member_id)
            if answer.error_code == 0:
                self._generations[self._label(answer.member_id)] = answer.generation_id
            self._say(f"{client} join", answer.error_code, self._joined(answer))

        self._run(
            joined,
            lambda code: join_error(code, ""),
            lambda shard, reply: shard.join(request, info, reply),
        )

    def _joined(self, answer: Any) -> str:
        if answer.error_code:
            return str(self._label(answer.member_id))
        parts = [
            f"generation {answer.generation_id}",
            str(answer.protocol_name),
            *([f"leader {self._label(answer.leader)}"] if answer.leader else []),
        ]
        if answer.members:
            listed = " ".join(self._label(each.member_id) for each in answer.members)
            parts.append(f"members {listed}")
        if answer.skip_assignment:
            parts.append("skip the assignment")
        return ", ".join([f"{self._label(answer.member_id)}", *parts])

    def do_sync(
        self,
        group: str,
        client: str,
        *,
        id: str | None = None,  # noqa: A002
        generation: str | None = None,
        instance: str | None = None,
        plan: str = "",
    ) -> None:
        member_id = self._member(client, id)
        request = SyncGroupRequest(
            group_id=group,
            generation_id=self._generation(member_id, generation),
            member_id=member_id,
            group_instance_id=instance,
            assignments=[
                SyncGroupRequestAssignment(
                    member_id=self._member(name), assignment=self._planned(name, data)
                )
                for name, _, data in (part.partition(":") for part in plan.split(",") if part)
            ],
        )

        def synced(answer: Any) -> None:
            told = self._read(client, answer.assignment) or "nothing"
            self._say(f"{client} sync", answer.error_code, told)

        info = self.world.info(client)
        self._run(synced, sync_error, lambda shard, reply: shard.sync(request, info, reply))

    def _planned(self, name: str, data: str) -> bytes:
        """What a leader assigns: to consumers the partitions, like 0+2, of the topic."""
        if name not in self._consumers:
            return data.encode()
        return encode_assignment(TopicPartition(TOPIC, int(part)) for part in data.split("+"))

    def _read(self, client: str, assignment: bytes) -> str:
        if client not in self._consumers or not assignment:
            return assignment.decode()
        parts = [part for _, part in decode_assignment(assignment)]
        return _listed(parts) if parts else ""

    def do_heartbeat(
        self,
        group: str,
        client: str,
        *,
        id: str | None = None,  # noqa: A002
        generation: str | None = None,
        instance: str | None = None,
    ) -> None:
        member_id = self._member(client, id)
        request = HeartbeatRequest(
            group_id=group,
            generation_id=self._generation(member_id, generation),
            member_id=member_id,
            group_instance_id=instance,
        )
        for answer in self.world.run(lambda shard: shard.heartbeat(request)):
            code = answer if isinstance(answer, ErrorCode) else answer.error_code
            self._say(f"{client} heartbeat", code, "well")

    def do_beat(
        self,
        group: str,
        member: str,
        *,
        epoch: str | None = None,
        owns: str | None = None,
        instance: str | None = None,
        topics: str | None = None,
        rebalance: str = "20000",
        lost: str = "",
    ) -> None:
        """A heartbeat of the newer protocol; with `lost=yes` the member does not get the answer."""
        known = self._epochs.get((group, member), JOINS)
        sent = known if epoch is None else int(epoch)
        joins = sent == JOINS
        request = ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=member,
            member_epoch=sent,
            instance_id=instance,
            rebalance_timeout_ms=int(rebalance) if joins else -1,
            subscribed_topic_names=(topics or TOPIC).split(",") if topics or joins else None,
            topic_partitions=self._owned(owns, joins),
        )
        info = self.world.info(member, 1)
        for answer in self.world.run(lambda shard: shard.consumer_heartbeat(request, info)):
            code = answer if isinstance(answer, ErrorCode) else answer.error_code
            if code or lost:
                self._say(f"{member} beat", code, "the answer is lost")
            else:
                self._epochs[group, member] = max(answer.member_epoch, JOINS)
                self._say(f"{member} beat", code, _told(answer))

    def _owned(self, owns: str | None, joins: bool) -> list[TopicPartitions] | None:
        if owns is None:
            return [] if joins else None
        parts = _numbers(owns)
        return [TopicPartitions(topic_id=self._topic_id, partitions=parts)] if parts else []

    def do_leave(self, group: str, *clients: str, instance: str | None = None) -> None:
        leaving = [MemberIdentity(member_id=self._member(client)) for client in clients]
        if instance is not None:
            leaving.append(MemberIdentity(group_instance_id=instance))
        for answer in self.world.run(lambda shard: shard.leave(group, leaving)):
            for member in answer.members:
                who = self._label(member.member_id) or member.group_instance_id
                self._say(f"{who} leave", member.error_code, "gone")

    def do_commit(
        self,
        group: str,
        *,
        t: str,
        member: str = "",
        generation: str | None = None,
        instance: str | None = None,
        version: str = "8",
    ) -> None:
        member_id = self._member(member) if member else ""
        known = self.world.around.image.topic("t")
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=int(t))
        topic = OffsetCommitRequestTopic(name="t", partitions=[partition])
        if known is not None:
            topic.topic_id = known.topic_id
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=self._generation(member_id, generation),
            member_id=member_id,
            group_instance_id=instance,
            topics=[topic],
        )
        info = self.world.info("client", int(version))
        for answer in self.world.run(lambda shard: shard.commit(request, info), gather=True):
            code = answer
            if not isinstance(answer, ErrorCode):
                code = answer.topics[0].partitions[0].error_code
            self._say("commit", code, "kept")

    def do_fetch(self, group: str) -> None:
        topic = OffsetFetchRequestTopics(name="t", partition_indexes=[0])
        request = OffsetFetchRequestGroup(group_id=group, topics=[topic])
        for answer in self.world.run(lambda shard: shard.fetch(request)):
            if isinstance(answer, ErrorCode):
                self._say("fetch", answer, "")
            else:
                offset = answer.topics[0].partitions[0].committed_offset
                self._say("fetch", 0, "none" if offset < 0 else str(offset))

    def do_delete(self, group: str) -> None:
        for answer in self.world.run(lambda shard: shard.delete(group)):
            self._say("delete", answer or 0, "gone")

    def do_describe(self, group: str) -> None:
        found = self.world.run(lambda shard: Result(shard.classic_group(group)))[0]
        if isinstance(found, ErrorCode):
            self._say("describe", found, "")
            return
        members = " ".join(
            f"{self._label(each.member_id)}={self._read(each.client_id, each.assignment) or '-'}"
            for each in found.members.values()
        )
        pending = f", {len(found.pending_join)} pending" if found.pending_join else ""
        self.lines.append(
            f"{group}: {found.state.value}, generation {found.generation}, "
            f"members {members or 'none'}{pending}"
        )

    def do_members(self, group: str) -> None:
        """A group that has members of the newer protocol, with what each has and gives back."""
        found = self.world.run(lambda shard: Result(shard.consumer_group(group)))[0]
        if isinstance(found, ErrorCode):
            self._say("members", found, "")
            return
        members = []
        for each in found.members.values():
            words = [f"{self._label(each.member_id)}@{each.member_epoch}"]
            for verb, held in (("has", each.assigned), ("gives", each.revoking)):
                if held:
                    words += [verb, _listed(part for parts in held.values() for part in parts)]
            members.append(" ".join(words))
        listed = "; ".join(members) or "no members"
        self.lines.append(f"{group}: {found.state.value}, epoch {found.group_epoch}: {listed}")

    # The world.

    def do_wait(self, duration_ms: str) -> None:
        self.world.wait(int(duration_ms))

    def do_restart(self) -> None:
        self.world.restart()

    def do_fail(self) -> None:
        self.world.refuse_appends()

    def do_recover(self) -> None:
        self.world.refuse_appends(refuse=False)

    def do_expire(self) -> None:
        self.world.runtime.steps(0, lambda shard: shard.expire())

    def do_drop(self, topic: str) -> None:
        self.world.drop_topic(topic)

    def do_create(self, topic: str, number: str) -> None:
        self.world.topic(topic, int(number))

    def do_resign(self) -> None:
        self.world.lose_leadership()

    def do_lead(self) -> None:
        self.world.regain_leadership()

    def do_setting(self, **settings: str) -> None:
        numbers = {name: int(value) for name, value in settings.items()}
        newer = {each.name for each in fields(ConsumerGroupConfig)} - {"max_size"}
        self.world.around.settings = ShardSettings(
            classic=ClassicSettings(**{n: v for n, v in numbers.items() if n not in newer}),
            consumer=ConsumerGroupConfig(**{n: v for n, v in numbers.items() if n in newer}),  # type: ignore[arg-type]
        )

    # Words.

    def _run(
        self,
        hear: Callable[[Any], None],
        error: Callable[[ErrorCode], Any],
        operation: Callable[[GroupShard, Callable[[Any], None]], Result[None]],
    ) -> None:
        """A request is answered once: what comes later finds nobody who listens."""
        answers: list[Any] = []

        def reply(answer: Any) -> None:
            if not answers:
                answers.append(answer)
                hear(answer)

        self.world.runtime.run(
            0,
            lambda shard: operation(shard, reply),
            lambda _: None,
            lambda code, _: reply(error(code)),
        )

    def _say(self, who: str, code: int, well: str) -> None:
        if code == 0:
            self.lines.append(f"{who}: {well}")
        else:
            name = ErrorCode(code).name
            detail = f" {well}" if code == ErrorCode.MEMBER_ID_REQUIRED else ""
            self.lines.append(f"{who}: {name}{detail}")

    def _label(self, member_id: str) -> str:
        found = _ID.fullmatch(member_id)
        if found is not None:
            self._christen(found.group(1), member_id)
        return self._labels.get(member_id, member_id)

    def _christen(self, client: str, member_id: str) -> None:
        """The first time an id is seen it gets a label, after its client."""
        if member_id not in self._labels:
            number = 1 + sum(1 for each in self._labels.values() if each.startswith(f"{client}#"))
            self._labels[member_id] = f"{client}#{number}"
            self._ids[f"{client}#{number}"] = member_id

    def _member(self, name: str, given: str | None = None) -> str:
        if given is not None:
            return "" if given == "none" else self._ids.get(given, given)
        return self._ids.get(name, "")

    def _generation(self, member_id: str, given: str | None) -> int:
        if given is not None:
            return int(given)
        return self._generations.get(self._label(member_id), NO_GENERATION)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def _listed(partitions: Iterable[int]) -> str:
    return f"{TOPIC}:{','.join(map(str, sorted(partitions)))}"


def _told(answer: Any) -> str:
    """The epoch, and the assignment if the answer has one."""
    if answer.member_epoch < 0:
        return "gone" if answer.member_epoch == -1 else "away"
    if answer.assignment is None:
        return f"epoch {answer.member_epoch}"
    given = [part for topic in answer.assignment.topic_partitions for part in topic.partitions]
    return f"epoch {answer.member_epoch}, has {_listed(given) if given else 'nothing'}"
