"""`tidemill cluster`: who is there, whether all is well, and who leads."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from tidemill.cli import outcomes
from tidemill.cli.command import command, confirm
from tidemill.cli.exits import CommandError, Exit
from tidemill.cli.options import COMMON, Common, DryRun, TopicNames
from tidemill.cli.outcomes import Outcome, Outcomes
from tidemill.cli.render import FOR_PROGRAMS, QUIET, human_bytes, talk
from tidemill.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.client import Admin
    from tidemill.client.admin_types import (
        ClusterDescription,
        PartitionDescription,
        TopicDescription,
    )

app = App(name="cluster", help="Look at a cluster, elect leaders, move partitions.")
app.command("tidemill.cli.reassign:app", name="reassign")

MIN_ISR = "min.insync.replicas"
LOOK_AGAIN_S = 0.5
PARTITIONS_DEFAULT: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """A cluster in numbers."""

    cluster_id: str | None
    controller: int | None
    brokers: int
    topics: int
    partitions: int
    replicas: int


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """One broker and what it carries."""

    id: int
    host: str
    port: int
    rack: str | None
    controller: bool
    leads: int
    replicas: int
    in_sync: int
    size: str
    size_bytes: int = field(metadata=FOR_PROGRAMS)
    fenced: bool = field(default=False, metadata=QUIET)


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as it should be."""

    what: str
    problem: str
    leader: int | None = None
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Health:
    """Whether all is well; what is not is counted and listed. Moves, leaders elsewhere than
    preferred, and unclean elections of the past are told, but are no illness."""

    healthy: bool
    controller: int | None
    brokers: tuple[int, ...]
    brokers_down: tuple[int, ...]
    without_leader: int
    under_min_isr: int
    under_replicated: int
    offline_directories: int
    moving: int
    leader_not_preferred: int
    unclean_elections: int
    problems: tuple[Problem, ...] = field(default=(), metadata=QUIET)

    @property
    def exit_code(self) -> Exit:
        return Exit.OK if self.healthy else Exit.FAILED


@command(app, examples=["tidemill cluster info", "tidemill cluster info --format json"])
async def info(*, common: Common = COMMON) -> ClusterInfo:
    """Show a cluster's id, its controller, and how much there is of everything."""
    async with common.target.admin() as admin:
        cluster = await admin.describe_cluster()
        topics = (await admin.describe_topics()).successes().values()
    partitions = [partition for topic in topics for partition in topic.partitions]
    return ClusterInfo(
        cluster.cluster_id,
        cluster.controller_id,
        len(cluster.brokers),
        len(topics),
        len(partitions),
        sum(len(partition.replicas) for partition in partitions),
    )


@command(app, examples=["tidemill cluster brokers", "tidemill cluster brokers --format json"])
async def brokers(*, common: Common = COMMON) -> list[BrokerLoad]:
    """List the brokers with what each leads and holds."""
    from tidemill.cli import moves

    async with common.target.admin() as admin:
        cluster = await admin.describe_cluster(include_fenced=True)
        topics = (await admin.describe_topics()).successes().values()
        sizes: Counter[int] = Counter()
        for replica, size in (await moves.sizes(admin)).items():
            sizes[replica.broker_id] += size
    partitions = [partition for topic in topics for partition in topic.partitions]
    leads = Counter(partition.leader for partition in partitions)
    held = Counter(broker for partition in partitions for broker in partition.replicas)
    in_sync = Counter(broker for partition in partitions for broker in partition.isr)
    return [
        BrokerLoad(
            broker.broker_id,
            broker.host,
            broker.port,
            broker.rack,
            broker.broker_id == cluster.controller_id,
            leads[broker.broker_id],
            held[broker.broker_id],
            in_sync[broker.broker_id],
            human_bytes(sizes[broker.broker_id]),
            sizes[broker.broker_id],
            broker.is_fenced,
        )
        for broker in cluster.brokers
    ]


@command(
    app,
    examples=["tidemill cluster health", "tidemill cluster health --wait 30 --format json"],
)
async def health(
    *,
    wait: Annotated[
        float, Parameter(help="Look again for so many seconds until all is well.")
    ] = 0.0,
    common: Common = COMMON,
) -> Health:
    """Say whether all is well: every partition led, every replica in sync, every broker there.

    The exit status is 0 if so, else 1.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait
    async with common.target.admin() as admin:
        while True:
            found = await _examine(admin)
            if found.healthy or loop.time() >= deadline:
                return found
            await asyncio.sleep(LOOK_AGAIN_S)


async def _examine(admin: Admin) -> Health:
    cluster = await admin.describe_cluster(include_fenced=True)
    topics = (await admin.describe_topics()).successes()
    moving = await admin.list_partition_reassignments()
    live = tuple(b.broker_id for b in cluster.brokers if not b.is_fenced)
    problems = list(_partition_problems(topics.values(), await _min_isrs(admin, topics)))
    problems += await _directory_problems(admin, live)
    counts = Counter(problem.problem for problem in problems)
    down = _down(cluster, topics.values())
    return Health(
        healthy=not problems and not down and cluster.controller_id is not None,
        controller=cluster.controller_id,
        brokers=live,
        brokers_down=down,
        without_leader=counts[NO_LEADER],
        under_min_isr=counts[UNDER_MIN_ISR],
        under_replicated=counts[UNDER_REPLICATED],
        offline_directories=counts[OFFLINE_DIRECTORY],
        moving=len(moving),
        leader_not_preferred=sum(1 for _ in _not_preferred(topics.values())),
        unclean_elections=cluster.unclean_elections,
        problems=tuple(problems),
    )


NO_LEADER = "no leader"
UNDER_MIN_ISR = "fewer in sync than min.insync.replicas"
UNDER_REPLICATED = "replicas out of sync"
OFFLINE_DIRECTORY = "log directory offline"


def _partition_problems(
    topics: Iterable[TopicDescription], min_isrs: Mapping[str, int]
) -> Iterator[Problem]:
    """Each partition's worst problem, if it has one."""
    for topic in topics:
        for p in topic.partitions:
            problem = _problem_of(p, min_isrs.get(topic.name, 1))
            if problem is not None:
                name = str(TopicPartition(topic.name, p.index))
                yield Problem(name, problem, p.leader, p.replicas, p.isr)


def _problem_of(partition: PartitionDescription, min_isr: int) -> str | None:
    if partition.leader is None:
        return NO_LEADER
    if len(partition.isr) < min_isr:
        return UNDER_MIN_ISR
    if len(partition.isr) < len(partition.replicas):
        return UNDER_REPLICATED
    return None


async def _min_isrs(admin: Admin, names: Iterable[str]) -> dict[str, int]:
    from tidemill.client.admin_types import ConfigResource

    resources = [ConfigResource.topic(name) for name in names]
    if not resources:
        return {}
    described = (await admin.describe_configs(resources)).successes()
    return {
        resource.name: int(entries[MIN_ISR].value or 1)
        for resource, entries in described.items()
        if MIN_ISR in entries
    }


async def _directory_problems(admin: Admin, live: Sequence[int]) -> list[Problem]:
    found = (await admin.describe_log_dirs(live)).successes()
    return [
        Problem(f"broker {broker}: {directory.path}", OFFLINE_DIRECTORY)
        for broker, directories in found.items()
        for directory in directories.values()
        if directory.error is not None
    ]


def _down(cluster: ClusterDescription, topics: Iterable[TopicDescription]) -> tuple[int, ...]:
    """Brokers that should be there: those that hold replicas, and those that are fenced."""
    live = {broker.broker_id for broker in cluster.brokers if not broker.is_fenced}
    fenced = {broker.broker_id for broker in cluster.brokers if broker.is_fenced}
    holders = {b for topic in topics for p in topic.partitions for b in p.replicas}
    return tuple(sorted((holders | fenced) - live))


def _not_preferred(topics: Iterable[TopicDescription]) -> Iterator[tuple[TopicPartition, int]]:
    """Partitions that another than the first replica leads, though that one could."""
    for topic in topics:
        for p in topic.partitions:
            if p.replicas and p.leader != p.replicas[0] and p.replicas[0] in p.isr:
                yield TopicPartition(topic.name, p.index), p.replicas[0]


@command(
    app,
    mutates=True,
    examples=[
        "tidemill cluster elect",
        "tidemill cluster elect clicks --partition 0 --dry-run",
        "tidemill cluster elect clicks --unclean --yes",
    ],
)
async def elect(
    *names: TopicNames,
    partition: Annotated[
        tuple[int, ...],
        Parameter(name=("--partition", "-p"), negative=(), show_default=False, help="Only these."),
    ] = PARTITIONS_DEFAULT,
    unclean: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Give partitions without a leader any replica that lives; records may be lost.",
        ),
    ] = False,
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> Outcomes:
    """Give partitions back to their preferred leader, the first of their replicas.

    With --unclean, partitions that have no leader at all get one that may lack records.
    """
    from tidemill.client.admin_types import ElectionType

    if partition and len(names) != 1:
        raise CommandError("--partition goes with one topic", Exit.USAGE)
    async with common.target.admin() as admin:
        described = (await admin.describe_topics(list(names) or None)).raise_first()
        wanted = _electable(described.values(), unclean)
        if partition:
            _check_exist(described[names[0]], partition)
            wanted = {tp: leader for tp, leader in wanted.items() if tp.partition in partition}
        if not wanted:
            talk("every partition has a leader" if unclean else "every preferred leader leads")
            return Outcomes()
        if dry_run:
            return outcomes.planned(
                {str(tp): _to(leader) for tp, leader in wanted.items()}, "elected"
            )
        if unclean:
            talk(f"what only other replicas of {len(wanted)} partitions have will be lost")
            confirm("Elect whoever lives?", common)
        election = ElectionType.UNCLEAN if unclean else ElectionType.PREFERRED
        results = await admin.elect_leaders(election, wanted)
    return _elected(results.errors(), wanted)


def _electable(
    topics: Iterable[TopicDescription], unclean: bool
) -> dict[TopicPartition, int | None]:
    if not unclean:
        return dict(_not_preferred(topics))
    return {
        TopicPartition(topic.name, p.index): None
        for topic in topics
        for p in topic.partitions
        if p.leader is None
    }


def _check_exist(topic: TopicDescription, wanted: Iterable[int]) -> None:
    missing = sorted(set(wanted) - {p.index for p in topic.partitions})
    if missing:
        raise CommandError(f"{topic.name} has no partition {missing[0]}", Exit.NOT_FOUND)


def _to(leader: int | None) -> str | None:
    return None if leader is None else f"broker {leader}"


def _elected(
    errors: Mapping[TopicPartition, Exception], wanted: Mapping[TopicPartition, int | None]
) -> Outcomes:
    from tidemill.errors import ApiError, ErrorCode

    found = Outcomes()
    for tp, leader in wanted.items():
        error = errors.get(tp)
        if error is None:
            found.append(Outcome(str(tp), "elected", _to(leader)))
        elif isinstance(error, ApiError) and error.code is ErrorCode.ELECTION_NOT_NEEDED:
            found.append(Outcome(str(tp), "led already"))
        else:
            found.append(Outcome(str(tp), "failed", None, str(error)))
    return found
