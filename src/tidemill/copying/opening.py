"""Beginning a copy, or going on with one exactly where it stopped."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from tidemill.client.admin import Admin
from tidemill.client.admin_types import ConfigResource, NewPartitions, OffsetSpec, TopicDescription
from tidemill.client.cluster import Cluster
from tidemill.client.consumer import Consumer
from tidemill.client.producer import Producer
from tidemill.copying import store
from tidemill.copying.checkpoints import Already, Checkpoint, about, tail_of
from tidemill.copying.copier import POLL_RECORDS, RECORD_BYTES, ROUND_BYTES, TopicCopy
from tidemill.copying.reading import read_range, settled_ends
from tidemill.copying.routes import Route
from tidemill.copying.topics import CopyError, change_for, settings_of
from tidemill.errors import ErrorCode
from tidemill.types import TopicPartition

Starts = Callable[[], Awaitable[Mapping[int, int]]]


async def describe(admin: Admin, topic: str) -> TopicDescription | None:
    """The topic; None if there is none."""
    found = (await admin.describe_topics([topic]))[topic]
    if isinstance(found, TopicDescription):
        return found
    if found.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return None
    raise found


async def make_target(
    source: Admin,
    target: Admin,
    topic: str,
    name: str,
    partitions: int,
    replication_factor: int = -1,
    *,
    may_grow: bool,
) -> None:
    """Create the copy's topic with the original's settings, or let it grow."""
    resource = ConfigResource.topic(topic)
    entries = (await source.describe_configs([resource])).raise_first()[resource]
    existing = await describe(target, name)
    settings = settings_of(entries)
    change = change_for(name, partitions, settings, existing, replication_factor, may_grow=may_grow)
    if change.create is not None:
        (await target.create_topics([change.create])).raise_first()
    if change.grow_to is not None:
        (await target.create_partitions({name: NewPartitions(change.grow_to)})).raise_first()


async def open_copy(
    *,
    topic: str,
    name: str,
    route: Route,
    job: str,
    source: Admin,
    target: Admin,
    target_cluster: Cluster,
    tail_reader: Consumer,
    producer: Producer,
    checkpoints: Sequence[Checkpoint],
    starts: Starts | None = None,
) -> TopicCopy:
    """The copy of one topic at the place where it begins or goes on.

    `starts` is asked where a new copy begins, where that is not the log's own start.
    """
    topics = (await _id_of(source, topic), await _id_of(target, name))
    source_ends = await _offsets(source, topic, OffsetSpec.LATEST)
    settled = await settled_ends(target_cluster, target, await _partitions(target, name))
    target_ends = {partition.partition: end for partition, end in settled.items()}
    standing = about(checkpoints, topic, name, topics)
    if not standing:
        begins = await starts() if starts is not None else {}
        copy = TopicCopy(topic, name, route, {}, dict(target_ends), topics)
        copy.number = checkpoints[-1].number + 1 if checkpoints else 0
        return await _begin(copy, job, source, producer, begins)
    last = standing[-1]
    firsts = await _offsets(source, topic, OffsetSpec.EARLIEST)
    positions = {index: last.source.get(index, first) for index, first in firsts.items()}
    ends = {index: last.target.get(index, 0) for index in target_ends}
    behind = [index for index in ends if target_ends[index] < ends[index]]
    if behind:
        raise CopyError(f"{name} has lost records that were copied to it, in partitions {behind}")
    _check_tail(name, sum(target_ends[index] - ends[index] for index in ends))
    tails = {
        index: tail_of(
            await read_range(
                tail_reader, TopicPartition(name, index), ends[index], target_ends[index]
            ),
            target_ends[index] - ends[index],
        )
        for index in ends
        if target_ends[index] > ends[index]
    }
    already = Already(tails, source_ends)
    copy = TopicCopy(topic, name, route, positions, dict(target_ends), topics, last.number, already)
    copy.history.extend(standing)
    return copy


async def _begin(
    copy: TopicCopy, job: str, source: Admin, producer: Producer, starts: Mapping[int, int]
) -> TopicCopy:
    """The first checkpoint is written before the first record: a crash finds one, always."""
    if any(copy.ends.values()):
        raise CopyError(
            f"{copy.target} holds records already and no copy of {copy.source} is known to have "
            "put them there; delete it, or choose another target"
        )
    for index, first in (await _offsets(source, copy.source, OffsetSpec.EARLIEST)).items():
        copy.positions[index] = max(starts.get(index, 0), first)
    copy.history.append(copy.checkpoint())
    await store.keep(producer, job, copy.source, copy.history[0])
    return copy


def _check_tail(name: str, records: int) -> None:
    """A copier that died left one round at most, and so did one whom its last request surprised."""
    if records > 2 * (ROUND_BYTES // RECORD_BYTES + POLL_RECORDS):
        raise CopyError(
            f"{name} has {records:,} records more than were copied to it: somebody else writes to "
            "it, and a copy cannot be kept exact beside another writer"
        )


async def _existing(admin: Admin, topic: str) -> TopicDescription:
    described = await describe(admin, topic)
    if described is None:
        raise CopyError(f"there is no topic {topic}")
    return described


async def _id_of(admin: Admin, topic: str) -> str:
    return str((await _existing(admin, topic)).topic_id)


async def _partitions(admin: Admin, topic: str) -> list[TopicPartition]:
    found = (await _existing(admin, topic)).partitions
    return [TopicPartition(topic, each.index) for each in found]


async def _offsets(admin: Admin, topic: str, spec: OffsetSpec) -> dict[int, int]:
    specs = dict.fromkeys(await _partitions(admin, topic), spec)
    found = (await admin.list_offsets(specs)).raise_first()
    return {partition.partition: listed.offset for partition, listed in found.items()}
