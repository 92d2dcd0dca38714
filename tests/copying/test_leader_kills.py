"""Mirror and repartition in clusters of three brokers, whose leaders are killed meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest
from tests.copying.copies import (
    LiveProducer,
    check_keys,
    contents,
    create,
    mirror_once,
    produce,
    quiet,
    read_all,
)

from tidemill.copying import jobs
from tidemill.testing.cluster import ProcessCluster

REPLICATED = {
    "default.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
    "min.insync.replicas": "2",
}
WAIT_S = 120
"""A generous limit; a test that passes never waits so long."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ProcessCluster]:
    async with ProcessCluster(tmp_path, 3, REPLICATED) as started:
        yield started


async def kill_leader(cluster: ProcessCluster, topic: str) -> None:
    """SIGKILL to the leader of the first partition; it comes back when another one leads."""
    leader = await cluster.leader_of(topic, 0)
    await cluster.kill(leader)
    await cluster.leader_of(topic, 0)
    await cluster.start(leader)
    await cluster.in_sync(topic)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def mirrored_through_kills(
    source: ProcessCluster, target: ProcessCluster, prefix: str, *, rounds: int, records: int
) -> None:
    """The mirror itself is never stopped: it outlives leaders of originals and of copies."""
    await create(source.bootstrap, "kept", 3)
    done = jobs.Mirrored()
    settings = jobs.MirrorSettings(
        jobs.Place(source.bootstrap), jobs.Place(target.bootstrap), ("kept",), prefix
    )
    mirroring = asyncio.ensure_future(jobs.mirror(settings, quiet, done))
    try:
        for number in range(rounds):
            begun = done.records
            writing = asyncio.ensure_future(
                produce(source.bootstrap, "kept", number * records, records)
            )
            await until(lambda: done.records > begun or mirroring.done())  # noqa: B023
            hit, topic = (source, "kept") if number % 2 == 0 else (target, prefix + "kept")
            await kill_leader(hit, topic)
            await writing
        await until(lambda: done.records == rounds * records or mirroring.done())
        assert not mirroring.done(), mirroring.exception()
    finally:
        mirroring.cancel()
        with suppress(asyncio.CancelledError):
            await mirroring
    assert (
        await mirror_once(source.bootstrap, target.bootstrap, "kept", prefix=prefix)
    ).records == 0
    copies = contents(await read_all(target.bootstrap, prefix + "kept"))
    assert copies == contents(await read_all(source.bootstrap, "kept"))
    assert sum(map(len, copies.values())) == rounds * records


async def test_a_mirror_outlives_leaders_of_both_sides(cluster: ProcessCluster) -> None:
    """Source and target are one cluster here: two of three brokers each time serve both."""
    await mirrored_through_kills(cluster, cluster, "copy.", rounds=2, records=2_000)


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_a_mirror_outlives_leaders_of_two_clusters(tmp_path: Path) -> None:
    for name in ("east", "west"):
        (tmp_path / name).mkdir()
    async with (
        ProcessCluster(tmp_path / "east", 3, REPLICATED) as east,
        ProcessCluster(tmp_path / "west", 3, REPLICATED) as west,
    ):
        await mirrored_through_kills(east, west, "", rounds=8, records=20_000)


async def handed_over_through_kills(cluster: ProcessCluster, *, kills: int, keys: int) -> None:
    """Leaders of the old topic and of the new die while it is copied, and while it is sealed."""
    await create(cluster.bootstrap, "old", 2)
    live = LiveProducer(cluster.bootstrap, "old", "new", keys=keys)
    writing = asyncio.ensure_future(live.run())
    done = jobs.Repartitioned()
    place = jobs.Place(cluster.bootstrap)
    settings = jobs.RepartitionSettings(place, "old", "new", 6)
    copying = asyncio.ensure_future(jobs.repartition(settings, quiet, done))
    try:
        for number in range(kills):
            begun = done.records
            await until(lambda: done.records > begun or copying.done())  # noqa: B023
            await kill_leader(cluster, "new" if number % 2 else "old")
        assert not copying.done(), copying.exception()
    finally:
        copying.cancel()
        with suppress(asyncio.CancelledError):
            await copying
    last = jobs.Repartitioned()
    settings = jobs.RepartitionSettings(place, "old", "new", 6, hand_over=True)
    sealing = asyncio.ensure_future(jobs.repartition(settings, quiet, last))
    await kill_leader(cluster, "old")
    await asyncio.wait_for(sealing, WAIT_S)
    assert last.handed_over
    live.hand_over()
    live.end()
    await asyncio.wait_for(writing, WAIT_S)
    check_keys(await read_all(cluster.bootstrap, "new"), live.next)


async def test_a_topic_is_handed_over_while_leaders_die(cluster: ProcessCluster) -> None:
    """No loss, no reordering within a key, each record once."""
    await handed_over_through_kills(cluster, kills=1, keys=20)


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_a_topic_is_handed_over_while_many_leaders_die(cluster: ProcessCluster) -> None:
    await handed_over_through_kills(cluster, kills=8, keys=100)
