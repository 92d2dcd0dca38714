"""The two jobs, from their settings to their end: `mirror` and `repartition`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from tidemill.client.admin import Admin
from tidemill.client.cluster import Cluster
from tidemill.client.consumer import Consumer
from tidemill.client.producer import Producer
from tidemill.client.settings import AdminSettings, parse
from tidemill.clock import Clock, SystemClock
from tidemill.copying import groups, store
from tidemill.copying.copier import Copier
from tidemill.copying.opening import Starts, describe, make_target, open_copy
from tidemill.copying.reading import latest
from tidemill.copying.routes import by_key, same_partition
from tidemill.copying.sealing import seal
from tidemill.copying.topics import CopyError
from tidemill.types import TopicPartition

WAIT_MS = 200
GROUPS_EVERY_MS = 10_000
TOPICS_EVERY_MS = 30_000
NEARLY_RECORDS = 1_000
"""A copy that is so close behind is sealed and finished: producers wait for the rest only."""

PATIENT_MS = 2**31 - 1
TOPICS_MAX = 1_000

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Place:
    """A cluster, and the client settings to use with it."""

    bootstrap: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Clients:
    """Everything a job talks through."""

    source: Admin
    target: Admin
    target_cluster: Cluster
    reader: Consumer
    tail_reader: Consumer
    producer: Producer


@asynccontextmanager
async def clients(source: Place, target: Place) -> AsyncIterator[Clients]:
    """Connected, and closed afterwards. Readers see only what was committed, and skip nothing."""
    reading = {
        "enable_auto_commit": False,
        "isolation_level": "read_committed",
        "auto_offset_reset": "error",
    }
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        yield Clients(
            await enter(Admin(source.bootstrap, **source.settings)),
            await enter(Admin(target.bootstrap, **target.settings)),
            await enter(Cluster(parse(AdminSettings, dict(target.settings), target.bootstrap))),
            await enter(Consumer(source.bootstrap, **{**source.settings, **reading})),
            await enter(Consumer(target.bootstrap, **{**target.settings, **reading})),
            await enter(
                Producer(
                    target.bootstrap,
                    **{
                        "compression_type": "lz4",
                        "delivery_timeout_ms": PATIENT_MS,
                        **target.settings,
                    },
                )
            ),
        )


async def _open(
    use: Clients,
    job: str,
    wanted: Sequence[tuple[str, str, Any]],
    starts: Starts | None = None,
) -> Copier:
    """A copier for (topic, name of the copy, route) each, where each of them stands."""
    await store.create(use.target)
    known = await store.load(use.target, use.tail_reader, job)
    copies = [
        await open_copy(
            topic=topic,
            name=name,
            route=route,
            job=job,
            source=use.source,
            target=use.target,
            target_cluster=use.target_cluster,
            tail_reader=use.tail_reader,
            producer=use.producer,
            checkpoints=known.get(topic, ()),
            starts=starts,
        )
        for topic, name, route in wanted
    ]
    return Copier(use.reader, use.producer, job, copies)


# --- mirror --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MirrorSettings:
    """Topics by their names at the source, with a prefix at the target."""

    source: Place
    target: Place
    topics: tuple[str, ...]
    prefix: str = ""
    with_groups: bool = True
    once: bool = False


@dataclass(slots=True)
class Mirrored:
    """What a mirror has done so far."""

    records: int = 0
    groups: dict[str, int] = field(default_factory=dict)
    behind: int = 0


async def mirror(
    settings: MirrorSettings, tell: Tell, done: Mirrored, clock: Clock | None = None
) -> None:
    """Copy until cancelled, or with `once` until nothing is left."""
    if not 0 < len(settings.topics) <= TOPICS_MAX:
        raise CopyError(f"a mirror takes 1 to {TOPICS_MAX:,} topics")
    clock = clock or SystemClock()
    async with clients(settings.source, settings.target) as use:
        origin = (await use.source.describe_cluster()).cluster_id
        if not settings.prefix and origin == (await use.target.describe_cluster()).cluster_id:
            raise CopyError("source and target are one cluster: give the copies a --prefix")
        job = f"mirror {origin} {settings.prefix}"
        while not await _mirror_until_topics_change(settings, use, job, tell, done, clock):
            tell("a topic has more partitions, or is another one: looking at all of them again")


async def _mirror_until_topics_change(
    settings: MirrorSettings, use: Clients, job: str, tell: Tell, done: Mirrored, clock: Clock
) -> bool:
    """Whether there is nothing more to do; False when the topics have changed."""
    names = {topic: settings.prefix + topic for topic in settings.topics}
    shapes = await _shapes(use.source, names)
    for topic, name in names.items():
        partitions = shapes[topic].partitions
        await make_target(use.source, use.target, topic, name, partitions, may_grow=True)
    copier = await _open(use, job, [(topic, names[topic], same_partition) for topic in names])
    before = done.records
    groups_ms = topics_ms = clock.monotonic_ms()
    while True:
        read = await copier.step(WAIT_MS)
        done.records = before + sum(copy.copied for copy in copier.copies)
        now_ms = clock.monotonic_ms()
        finished = settings.once and not read and not await _behind(use, copier)
        if settings.with_groups and (finished or now_ms - groups_ms >= GROUPS_EVERY_MS):
            groups_ms = now_ms
            history = {copy.source: tuple(copy.history) for copy in copier.copies}
            done.groups |= await groups.carry_over(use.source, use.target, names, history)
        if finished:
            return True
        if now_ms - topics_ms >= TOPICS_EVERY_MS:
            topics_ms = now_ms
            done.behind = await _behind(use, copier)
            tell(f"{done.records:,} records mirrored, {done.behind:,} behind")
            if await _shapes(use.source, names) != shapes:
                return False


class Shape(NamedTuple):
    """What must not change under a copier; a topic that is made anew has another id."""

    topic_id: UUID
    partitions: int


async def _shapes(admin: Admin, topics: Mapping[str, str]) -> dict[str, Shape]:
    found = (await admin.describe_topics(topics)).raise_first()
    return {topic: Shape(each.topic_id, len(each.partitions)) for topic, each in found.items()}


async def _behind(use: Clients, copier: Copier) -> int:
    partitions = [
        TopicPartition(copy.source, index) for copy in copier.copies for index in copy.positions
    ]
    return await copier.lag(await latest(use.source, partitions))


# --- repartition ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RepartitionSettings:
    """From one topic of a cluster to another with other partitions.

    With a `group` the copy begins where that group has committed: its backlog is what moves.
    """

    place: Place
    topic: str
    target: str
    partitions: int
    group: str | None = None
    hand_over: bool = False
    once: bool = False


@dataclass(slots=True)
class Repartitioned:
    """What has been done so far; `refused_ms` is how long nobody could write to either topic."""

    records: int = 0
    handed_over: bool = False
    refused_ms: int = 0


async def repartition(
    settings: RepartitionSettings, tell: Tell, done: Repartitioned, clock: Clock | None = None
) -> None:
    """Copy; then, if asked to, seal the old topic, copy the rest, and be done with it."""
    if settings.topic == settings.target:
        raise CopyError("the new topic needs a name of its own")
    clock = clock or SystemClock()
    async with clients(settings.place, settings.place) as use:
        while not await _repartition_until_topic_changes(settings, use, tell, done, clock):
            tell(f"{settings.topic} has more partitions, or is another one: looking again")


async def _repartition_until_topic_changes(
    settings: RepartitionSettings, use: Clients, tell: Tell, done: Repartitioned, clock: Clock
) -> bool:
    """Whether there is nothing more to do; False when the topic has been given more partitions."""
    topics = {settings.topic: settings.target}
    shapes = await _shapes(use.source, topics)
    copier = await _open_repartition(settings, use)
    (copy,) = copier.copies
    before = done.records
    told_ms = clock.monotonic_ms()
    while True:
        read = await copier.step(WAIT_MS)
        done.records = before + copy.copied
        behind = await _behind(use, copier)
        is_near = settings.hand_over and behind <= NEARLY_RECORDS
        finished = settings.once and not read and not behind
        due = clock.monotonic_ms() - told_ms >= TOPICS_EVERY_MS
        if (is_near or finished or due) and await _shapes(use.source, topics) != shapes:
            return False
        if is_near:
            tell(f"sealing {settings.topic}: from now on it refuses every record")
            await _hand_over(settings, use, copier, done, clock)
            return True
        if finished:
            return True
        if due:
            told_ms = clock.monotonic_ms()
            tell(f"{done.records:,} records copied, {behind:,} behind")


async def _hand_over(
    settings: RepartitionSettings,
    use: Clients,
    copier: Copier,
    done: Repartitioned,
    clock: Clock,
) -> None:
    """No more writes to the old topic; then everything it has taken, up to its very end."""
    begun_ms = clock.monotonic_ms()
    ends = await seal(use.source, use.target_cluster, settings.topic)
    (copy,) = copier.copies
    before = done.records - copy.copied
    if len(ends) != len(copy.positions):  # It was given more partitions just before that.
        before = done.records
        copier = await _open_repartition(settings, use)
        (copy,) = copier.copies
    while await copier.lag(ends):
        await copier.step(WAIT_MS)
    done.records = before + copy.copied
    done.handed_over = True
    done.refused_ms = clock.monotonic_ms() - begun_ms


async def _open_repartition(settings: RepartitionSettings, use: Clients) -> Copier:
    old = await describe(use.source, settings.topic)
    if old is None:
        raise CopyError(f"there is no topic {settings.topic}")
    await make_target(
        use.source,
        use.target,
        settings.topic,
        settings.target,
        settings.partitions,
        old.replication_factor,
        may_grow=False,
    )
    job = f"repartition {settings.topic} {settings.target}"
    wanted = [(settings.topic, settings.target, by_key(settings.partitions))]
    group = settings.group
    if group is None:
        return await _open(use, job, wanted)
    return await _open(use, job, wanted, lambda: _starts(settings, use.source, group))


async def _starts(settings: RepartitionSettings, admin: Admin, group: str) -> dict[int, int]:
    """Where the group goes on; it must not read on meanwhile, or it would read that part twice."""
    described = (await admin.describe_groups([group])).raise_first()
    if described[group].members:
        raise CopyError(
            f"group {group} has members: stop them first, so that its position stands; "
            f"they may read {settings.target} as soon as the copy has begun"
        )
    committed = (await admin.list_group_offsets(group)).successes()
    return {
        partition.partition: found.offset
        for partition, found in committed.items()
        if found is not None and partition.topic == settings.topic
    }
