"""Plays a transcript: commands behind `$`, and below each the answers that it brought.

    $ join g a
    a join: MEMBER_ID_REQUIRED a#1
    $ join g a
    $ wait 3000
    a join: generation 1, range, leader a#1, members a#1

A client's name stands for its latest member id; `a#1` is the first id that client `a` was given.
Answers of other clients appear below the command that set them free. The commands are the methods
`do_...` below; `option=value` pairs change what they send.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tests.coordinators.shard_world import ShardWorld

from tidemill.coordinators.classic_group import ClassicSettings, join_error, sync_error
from tidemill.coordinators.result import Result
from tidemill.coordinators.shard import GroupShard, ShardSettings
from tidemill.errors import ErrorCode
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


class Player:
    """One coordinator and its clients."""

    def __init__(self) -> None:
        self.world = ShardWorld()
        self.lines: list[str] = []
        self._labels: dict[str, str] = {}
        self._ids: dict[str, str] = {}
        self._generations: dict[str, int] = {}
        self.world.topic("t", 1)

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
    ) -> None:
        offered = [part.partition(":") for part in protocols.split(",") if part]
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=int(session),
            rebalance_timeout_ms=int(rebalance),
            member_id=self._member(client, id),
            group_instance_id=instance,
            protocol_type=type,
            protocols=[
                JoinGroupRequestProtocol(name=name, metadata=(data or client).encode())
                for name, _, data in offered
            ],
        )
        info = self.world.info(client, int(version))

        def joined(answer: Any) -> None:
            if answer.error_code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
                self._ids[client] = answer.member_id
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
            f"leader {self._label(answer.leader)}",
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
                SyncGroupRequestAssignment(member_id=self._member(name), assignment=data.encode())
                for name, _, data in (part.partition(":") for part in plan.split(",") if part)
            ],
        )

        def synced(answer: Any) -> None:
            self._say(f"{client} sync", answer.error_code, answer.assignment.decode() or "nothing")

        info = self.world.info(client)
        self._run(synced, sync_error, lambda shard, reply: shard.sync(request, info, reply))

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
            f"{self._label(each.member_id)}={each.assignment.decode() or '-'}"
            for each in found.members.values()
        )
        pending = f", {len(found.pending_join)} pending" if found.pending_join else ""
        self.lines.append(
            f"{group}: {found.state.value}, generation {found.generation}, "
            f"members {members or 'none'}{pending}"
        )

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
        classic = ClassicSettings(**{name: int(value) for name, value in settings.items()})
        self.world.around.settings = ShardSettings(classic=classic)

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
        if found is None:
            return member_id
        if member_id not in self._labels:
            client = found.group(1)
            number = 1 + sum(1 for each in self._labels.values() if each.startswith(f"{client}#"))
            label = f"{client}#{number}"
            self._labels[member_id] = label
            self._ids[label] = member_id
        return self._labels[member_id]

    def _member(self, name: str, given: str | None = None) -> str:
        if given is not None:
            return "" if given == "none" else self._ids.get(given, given)
        return self._ids.get(name, "")

    def _generation(self, member_id: str, given: str | None) -> int:
        if given is not None:
            return int(given)
        return self._generations.get(self._label(member_id), NO_GENERATION)
