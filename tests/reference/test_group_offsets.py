"""OffsetCommit, OffsetFetch and OffsetDelete answer as Apache Kafka does, in every version."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from tests.reference.answers import NOBODY, create, known_id
from tests.reference.group_steps import Stage, joining, leaving, play
from tests.reference.pair import Pair
from tests.waiting import eventually

from tidemill.wire.apis import APIS, ApiKey
from tidemill.wire.messages.group_admin import DeleteGroupsRequest, DescribeGroupsRequest
from tidemill.wire.messages.groups import MemberIdentity
from tidemill.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tidemill.wire.messages.topics import DeleteTopicsRequest, DeleteTopicState

NO_ID = UUID(int=0)


def versions(key: ApiKey) -> range:
    return range(APIS[key].min_version, APIS[key].max_version + 1)


class Offsets:
    """Short forms for one scenario: commits and fetches of a group in one version."""

    def __init__(self, stage: Stage, group: str, *, commit: int = 8, fetch: int = 7) -> None:
        self.stage = stage
        self.group = group
        self.commit_version = commit
        self.fetch_version = fetch

    def topic_id(self, topic: str, version: int) -> UUID:
        return known_id(self.stage.peer, topic) if version >= 10 else NO_ID

    def commit(
        self,
        step: str,
        topic: str,
        offsets: dict[int, int],
        *,
        generation: int = -1,
        member: str = "",
        metadata: str | None = "note",
        epoch: int = -1,
        instance: str | None = None,
        group: str | None = None,
        retention_ms: int = -1,
    ) -> Any:
        version = self.commit_version
        partitions = [
            OffsetCommitRequestPartition(
                partition_index=index,
                committed_offset=offset,
                committed_leader_epoch=epoch if version >= 6 else -1,
                committed_metadata=metadata,
            )
            for index, offset in offsets.items()
        ]
        wanted = OffsetCommitRequestTopic(
            name=topic, topic_id=self.topic_id(topic, version), partitions=partitions
        )
        request = OffsetCommitRequest(
            group_id=self.group if group is None else group,
            generation_id_or_member_epoch=generation,
            member_id=member,
            group_instance_id=instance,
            retention_time_ms=retention_ms,
            topics=[wanted],
        )
        return self.stage.ask(step, ApiKey.OFFSET_COMMIT, version, request)

    def fetch(
        self,
        step: str,
        topics: dict[str, list[int]] | None,
        *,
        group: str | None = None,
        stable: bool = False,
        member: str | None = None,
        member_epoch: int = -1,
    ) -> None:
        version = self.fetch_version
        name = self.group if group is None else group
        if version < 8:
            wanted = [
                OffsetFetchRequestTopic(name=each, partition_indexes=indexes)
                for each, indexes in (topics or {}).items()
            ]
            request = OffsetFetchRequest(
                group_id=name, topics=None if topics is None else wanted, require_stable=stable
            )
        else:
            newer = [
                OffsetFetchRequestTopics(
                    name=each, topic_id=self.topic_id(each, version), partition_indexes=indexes
                )
                for each, indexes in (topics or {}).items()
            ]
            asked = OffsetFetchRequestGroup(
                group_id=name,
                topics=None if topics is None else newer,
                member_id=member,
                member_epoch=member_epoch,
            )
            request = OffsetFetchRequest(groups=[asked], require_stable=stable)
        self.stage.ask(step, ApiKey.OFFSET_FETCH, version, request)


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT))
def test_commit_without_membership(pair: Pair, name: str, version: int) -> None:
    pair.create(create(name, 3))

    def scenario(stage: Stage) -> None:
        offsets = Offsets(stage, name, commit=version)
        offsets.commit("first", name, {0: 5})
        offsets.commit("several", name, {0: 6, 1: 7, 2: 0})
        offsets.commit("no such partition", name, {9: 1})
        offsets.commit("one of two", name, {9: 1, 1: 8})
        offsets.commit("no such topic", f"{name}-missing", {0: 1})
        offsets.commit("negative", name, {2: -5})
        offsets.commit("null note", name, {0: 9}, metadata=None)
        offsets.commit("longest note", name, {0: 9}, metadata="x" * 4096)
        offsets.commit("too long a note", name, {0: 10}, metadata="x" * 4097)
        offsets.commit("long in bytes only", name, {0: 11}, metadata="ü" * 4096)
        offsets.commit("outside the plane", name, {0: 12}, metadata="\U0001f30a" * 2049)
        offsets.commit("with a generation", name, {0: 1}, generation=3)
        offsets.commit("with a member", name, {0: 1}, member="x")
        offsets.commit("both", name, {0: 1}, generation=3, member="x")
        offsets.commit("unknown group, generation", name, {0: 1}, generation=1,
                       group=f"{name}-x")  # fmt: skip
        offsets.commit("empty group", name, {0: 1}, group="")
        if version >= 6:
            offsets.commit("with an epoch", name, {0: 13}, epoch=0)
        if version >= 7:
            offsets.commit("with an instance", name, {0: 1}, instance="x")
        empty = OffsetCommitRequest(group_id=name)
        stage.ask("no topics", ApiKey.OFFSET_COMMIT, version, empty)
        offsets.fetch("in the end", {name: [0, 1, 2]})
        stage.ask("the group", ApiKey.DESCRIBE_GROUPS, 6, DescribeGroupsRequest(groups=[name]))

    play(pair, scenario)


def test_commit_for_an_unknown_id(pair: Pair, name: str) -> None:
    def scenario(stage: Stage) -> None:
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
        for step, topic_id in (("unknown", NOBODY), ("none", NO_ID)):
            topic = OffsetCommitRequestTopic(topic_id=topic_id, partitions=[partition])
            request = OffsetCommitRequest(group_id=name, topics=[topic])
            stage.ask(step, ApiKey.OFFSET_COMMIT, 10, request)

    play(pair, scenario)


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT))
def test_commit_of_members(pair: Pair, name: str, version: int) -> None:
    """rules J2: instance, member, generation, in this order; nothing while assignments are made."""
    pair.create(create(name))

    def scenario(stage: Stage) -> None:
        offsets = Offsets(stage, name, commit=version)
        joined = stage.join("join", 5, joining(name))
        member, generation = joined.member_id, joined.generation_id
        offsets.commit("completing", name, {0: 1}, generation=generation, member=member)
        offsets.commit("simple, completing", name, {0: 1})
        stage.stable_member(f"{name}-2")
        offsets = Offsets(stage, f"{name}-3", commit=version)
        member, generation = stage.stable_member(f"{name}-3")
        offsets.commit("right", name, {0: 2}, generation=generation, member=member)
        offsets.commit("unknown member", name, {0: 3}, generation=generation, member="x")
        offsets.commit("wrong generation", name, {0: 3}, generation=7, member=member)
        offsets.commit("no generation", name, {0: 3}, member=member)
        offsets.commit("no member", name, {0: 3}, generation=generation)
        offsets.commit("simple", name, {0: 3})
        if version >= 7:
            offsets.commit("unknown instance", name, {0: 3}, generation=generation, member=member,
                           instance="x")  # fmt: skip
        stage.ask("leave", ApiKey.LEAVE_GROUP, 3, leaving(f"{name}-3", MemberIdentity(
            member_id=member)))  # fmt: skip
        offsets.commit("simple, when empty", name, {0: 4})
        offsets.commit("late", name, {0: 5}, generation=generation, member=member)
        offsets.fetch("in the end", {name: [0]})

    play(pair, scenario)


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH))
def test_offset_fetch(pair: Pair, name: str, version: int) -> None:
    pair.create(create(name, 3))

    def scenario(stage: Stage) -> None:
        offsets = Offsets(stage, name, fetch=version)
        offsets.fetch("unknown group", {name: [0]}, group=f"{name}-x")
        offsets.commit("commit", name, {0: 5, 2: 7}, epoch=0)
        offsets.fetch("some", {name: [0, 1, 2]})
        offsets.fetch("no such partition", {name: [9]})
        offsets.fetch("no such topic", {f"{name}-missing": [0]})
        offsets.fetch("both", {name: [0], f"{name}-missing": [0]})
        offsets.fetch("no partitions", {name: []})
        offsets.fetch("nothing", {})
        offsets.fetch("empty group id", {name: [0]}, group="")
        if version >= 2:
            offsets.fetch("all", None)
            offsets.fetch("all of an unknown group", None, group=f"{name}-x")
        if version >= 7:
            offsets.fetch("stable", {name: [0]}, stable=True)
        if version >= 9:
            offsets.fetch("with a member", {name: [0]}, member="x", member_epoch=3)
        if version >= 8:
            groups = [
                OffsetFetchRequestGroup(group_id=each, topics=None) for each in (name, f"{name}-x")
            ]
            both = OffsetFetchRequest(groups=groups)
            stage.ask("two groups", ApiKey.OFFSET_FETCH, version, both)
            stage.ask("no groups", ApiKey.OFFSET_FETCH, version, OffsetFetchRequest())

    play(pair, scenario)


def test_offset_delete(pair: Pair, name: str) -> None:
    pair.create(create(name, 2))

    def scenario(stage: Stage) -> None:
        def delete(step: str, topic: str, *partitions: int, group: str = name) -> None:
            wanted = OffsetDeleteRequestTopic(
                name=topic,
                partitions=[OffsetDeleteRequestPartition(partition_index=p) for p in partitions],
            )
            request = OffsetDeleteRequest(group_id=group, topics=[wanted])
            stage.ask(step, ApiKey.OFFSET_DELETE, 0, request)

        offsets = Offsets(stage, name)
        delete("unknown group", name, 0)
        delete("empty group id", name, 0, group="")
        offsets.commit("commit", name, {0: 5, 1: 7})
        delete("no such topic", f"{name}-missing", 0)
        delete("no such partition", name, 9)
        delete("one of two", name, 9, 0)
        delete("again", name, 0)
        delete("no partitions", name)
        stage.ask("no topics", ApiKey.OFFSET_DELETE, 0, OffsetDeleteRequest(group_id=name))
        offsets.fetch("what is left", {name: [0, 1]})

    play(pair, scenario)


def test_offset_delete_while_somebody_reads(pair: Pair, name: str) -> None:
    pair.create(create(name))
    topic = name.encode()
    subscribed = b"\0\0\0\0\0\1" + len(topic).to_bytes(2, "big") + topic + b"\xff\xff\xff\xff"

    def scenario(stage: Stage) -> None:
        for step, kind in (("a consumer", "consumer"), ("something else", "connect")):
            group = f"{name}-{kind}"
            member, generation = stage.stable_member(
                group, protocol_type=kind, protocols={"range": subscribed}
            )
            Offsets(stage, group).commit(
                "commit", name, {0: 5}, generation=generation, member=member
            )
            wanted = OffsetDeleteRequestTopic(
                name=name, partitions=[OffsetDeleteRequestPartition(partition_index=0)]
            )
            request = OffsetDeleteRequest(group_id=group, topics=[wanted])
            stage.ask(step, ApiKey.OFFSET_DELETE, 0, request)

    play(pair, scenario)


def test_offsets_go_with_their_topic(pair: Pair, name: str) -> None:
    """A topic that is deleted and made again starts without the offsets of the first one."""
    pair.create(create(name))
    pair.create(create(f"{name}-other"))

    def scenario(stage: Stage) -> None:
        offsets = Offsets(stage, name)
        offsets.commit("commit", name, {0: 5})
        offsets.commit("other", f"{name}-other", {0: 6})
        gone = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=30_000)
        stage.peer.ask(ApiKey.DELETE_TOPICS, 6, gone)
        everything = OffsetFetchRequest(group_id=name, topics=None)

        def is_forgotten() -> bool:
            found = stage.peer.ask(ApiKey.OFFSET_FETCH, 7, everything)
            return [topic.name for topic in found.topics] == [f"{name}-other"]

        eventually(is_forgotten, "the offsets are gone")
        offsets.fetch("gone", None)
        stage.peer.ask(ApiKey.CREATE_TOPICS, 7, create(name))
        stage.peer.wait_for_leaders(name)
        offsets.fetch("made again", {name: [0], f"{name}-other": [0]})

    play(pair, scenario)


def test_deleting_a_group_deletes_its_offsets(pair: Pair, name: str) -> None:
    pair.create(create(name))

    def scenario(stage: Stage) -> None:
        offsets = Offsets(stage, name)
        offsets.commit("commit", name, {0: 5})
        stage.ask("delete", ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest(groups_names=[name]))
        offsets.fetch("gone", {name: [0]})

    play(pair, scenario)
