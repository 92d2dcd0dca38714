"""Mirror and repartition against real brokers: killed in the middle, with producers at work."""

from __future__ import annotations

import asyncio
import random
import shlex
import signal
import subprocess
import sys

import pytest
from tests.cli.helpers import ROOT, environment, quick
from tests.copying.copies import (
    LiveProducer,
    check_keys,
    contents,
    create,
    flat,
    mirror_once,
    produce,
    quiet,
    read_all,
)
from tests.waiting import eventually

from tidemill.client import Admin, Consumer
from tidemill.client.admin_types import ConfigResource
from tidemill.copying import jobs, store
from tidemill.copying.checkpoints import content_of
from tidemill.copying.routes import Route, by_key, same_partition
from tidemill.copying.topics import CopyError
from tidemill.types import TopicPartition


def command(module: str, *words: str) -> subprocess.Popen[bytes]:
    """`tidemill pipeline mirror|repartition` in a process of its own, to be killed."""
    return subprocess.Popen(
        [sys.executable, "-m", "tidemill.cli", "pipeline", module, *words],
        env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


async def test_a_mirror_has_the_same_records_settings_and_positions(
    brokers: tuple[str, str],
) -> None:
    east, west = brokers
    await create(east, "kept", 3, retention_ms="-1")
    await produce(east, "kept", 0, 300)
    first = TopicPartition("kept", 0)
    async with Admin(east) as admin:
        (await admin.delete_records({first: 20})).raise_first()
        (await admin.alter_group_offsets("readers", {first: 50})).raise_first()
    done = await mirror_once(east, west, "kept")
    originals, copies = await read_all(east, "kept"), await read_all(west, "kept")
    assert contents(copies) == contents(originals)
    assert done.records == sum(map(len, originals.values()))
    async with Admin(west) as admin:
        offsets = (await admin.list_group_offsets("readers")).raise_first()
        resource = ConfigResource.topic("kept")
        settings = (await admin.describe_configs([resource])).raise_first()[resource]
    moved = offsets[first]
    assert moved is not None
    assert moved.offset == 30, "the first 20 records were gone before the mirror began"
    assert settings["retention.ms"].value == "-1"


async def held(bootstrap: str, topic: str) -> int:
    """How many records a topic has."""
    return len(flat(contents(await read_all(bootstrap, topic))))


async def test_a_mirror_that_is_killed_goes_on_where_it_stopped(brokers: tuple[str, str]) -> None:
    """Again and again, while a producer writes: in the end nothing is missing and nothing twice."""
    east, west = brokers
    await create(east, "killed", 2)
    await create(west, "killed", 2)
    chance = random.Random(5)
    for start in range(0, 4_000, 1_000):
        process = command("mirror", "killed", "--from", east, "-b", west)
        before = await held(west, "killed")
        await produce(east, "killed", start, 1_000)
        while await held(west, "killed") == before:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.2 * chance.random())  # A crash comes at any time.
        end(process)
    resumed = await mirror_once(east, west, "killed")
    assert resumed.records < 4_000, "the killed ones have done nothing"
    assert contents(await read_all(west, "killed")) == contents(await read_all(east, "killed"))


@pytest.mark.parametrize(("kind", "route"), [("mirror", same_partition), ("spread", by_key(3))])
async def test_a_crash_between_records_and_their_checkpoint_copies_nothing_twice(
    brokers: tuple[str, str], monkeypatch: pytest.MonkeyPatch, kind: str, route: Route
) -> None:
    """The target then holds what no checkpoint speaks of; new records come in meanwhile."""
    east, west = brokers
    name = f"torn-{kind}"
    await create(east, name, 3)
    await create(west, name, 3)
    await produce(east, name, 0, 200)

    def crash(*_: object) -> None:
        raise ConnectionAbortedError

    async with jobs.clients(jobs.Place(east), jobs.Place(west)) as use:
        copier = await jobs._open(use, name, [(name, name, route)])
        with monkeypatch.context() as patch:
            patch.setattr(store, "keep", crash)
            with pytest.raises(ConnectionAbortedError):
                await copier.step(5_000)
        held = sum(map(len, (await read_all(west, name)).values()))
        assert held > 0
        await produce(east, name, 200, 100)
        resumed = await jobs._open(use, name, [(name, name, route)])
        while await resumed.step(1_000):
            pass
        assert sum(copy.copied for copy in resumed.copies) == 300 - held
    originals, copies = await read_all(east, name), await read_all(west, name)
    assert sorted(flat(contents(copies)), key=repr) == sorted(flat(contents(originals)), key=repr)


async def test_a_mirror_grows_with_its_original(brokers: tuple[str, str]) -> None:
    from tidemill.client.admin_types import NewPartitions

    east, west = brokers
    await create(east, "growing", 1)
    await produce(east, "growing", 0, 50)
    await mirror_once(east, west, "growing")
    async with Admin(east) as admin:
        (await admin.create_partitions({"growing": NewPartitions(3)})).raise_first()
    await produce(east, "growing", 50, 200)
    await mirror_once(east, west, "growing")
    assert contents(await read_all(west, "growing")) == contents(await read_all(east, "growing"))


async def test_an_original_that_was_made_anew_is_noticed(brokers: tuple[str, str]) -> None:
    """Its copy would be of two topics at once; without that copy it begins anew."""
    east, west = brokers
    await create(east, "phoenix", 1)
    await produce(east, "phoenix", 0, 20)
    await mirror_once(east, west, "phoenix")
    async with Admin(east) as admin:
        (await admin.delete_topics(["phoenix"])).raise_first()
    await create(east, "phoenix", 1)
    await produce(east, "phoenix", 100, 30)
    with pytest.raises(CopyError, match="deleted and created anew"):
        await mirror_once(east, west, "phoenix")
    async with Admin(west) as admin:
        (await admin.delete_topics(["phoenix"])).raise_first()
    assert (await mirror_once(east, west, "phoenix")).records == 30
    assert contents(await read_all(west, "phoenix")) == contents(await read_all(east, "phoenix"))


async def test_a_second_writer_is_noticed(brokers: tuple[str, str]) -> None:
    east, west = brokers
    await create(east, "alone", 1)
    await produce(east, "alone", 0, 10)
    async with jobs.clients(jobs.Place(east), jobs.Place(west)) as use:
        await create(west, "alone", 1)
        copier = await jobs._open(use, "test", [("alone", "alone", lambda record: 0)])
        assert await copier.step(5_000) == 10
        await produce(west, "alone", 0, 1)
        await produce(east, "alone", 10, 10)
        with pytest.raises(CopyError, match="somebody else writes to it"):
            await copier.step(5_000)


async def test_a_late_request_of_a_dead_copier_is_noticed_and_nothing_is_lost(
    brokers: tuple[str, str],
) -> None:
    """It arrives after the next copier has looked: that one stops, and the one after it goes on."""
    east, west = brokers
    await create(east, "late", 1)
    await create(west, "late", 1)
    await produce(east, "late", 0, 50)
    wanted = [("late", "late", same_partition)]
    async with jobs.clients(jobs.Place(east), jobs.Place(west)) as use:
        copier = await jobs._open(use, "late", wanted)
        await produce(west, "late", 0, 50)  # What the dead one had sent.
        with pytest.raises(CopyError, match="somebody else writes to it"):
            await copier.step(5_000)
    await produce(east, "late", 50, 10)
    async with jobs.clients(jobs.Place(east), jobs.Place(west)) as use:
        copier = await jobs._open(use, "late", wanted)
        while await copier.step(1_000):
            pass
    originals = contents(await read_all(east, "late"))[0]
    assert contents(await read_all(west, "late"))[0] == originals[:50] * 2 + originals[50:]


async def test_a_target_with_records_of_unknown_origin_is_refused(brokers: tuple[str, str]) -> None:
    east, west = brokers
    await create(east, "strange", 1)
    await create(west, "strange", 1)
    await produce(west, "strange", 0, 1)
    with pytest.raises(CopyError, match="holds records already"):
        await mirror_once(east, west, "strange")


async def test_one_cluster_needs_a_prefix(brokers: tuple[str, str]) -> None:
    east, _ = brokers
    await create(east, "self", 1)
    await produce(east, "self", 0, 5)
    with pytest.raises(CopyError, match="one cluster"):
        await mirror_once(east, east, "self")
    assert (await mirror_once(east, east, "self", prefix="copy.")).records == 5


# --- repartition ---------------------------------------------------------------------------------


async def test_a_topic_is_handed_over_under_a_live_producer(brokers: tuple[str, str]) -> None:
    """Killed while copying, resumed, sealed, finished: no loss, no reordering within a key."""
    east, _ = brokers
    await create(east, "old", 2)
    live = LiveProducer(east, "old", "new", keys=40)
    writing = asyncio.ensure_future(live.run())
    for _ in range(2):
        process = command("repartition", "old", "new", "-p", "8", "-b", east)
        await asyncio.sleep(1.5)
        end(process)
    done = jobs.Repartitioned()
    place = jobs.Place(east)
    settings = jobs.RepartitionSettings(place, "old", "new", 8, hand_over=True)
    await jobs.repartition(settings, quiet, done)
    assert done.handed_over
    assert 0 < done.refused_ms < 60_000
    live.hand_over()
    live.end()
    await asyncio.wait_for(writing, 60)
    assert live.refused == 1
    check_keys(await read_all(east, "new"), live.next)


async def test_a_groups_backlog_moves_and_what_it_has_read_does_not(
    brokers: tuple[str, str],
) -> None:
    east, _ = brokers
    await create(east, "backlog", 2)
    await produce(east, "backlog", 0, 400)
    positions = {TopicPartition("backlog", 0): 100, TopicPartition("backlog", 1): 60}
    async with Admin(east) as admin:
        (await admin.alter_group_offsets("slow", positions)).raise_first()
    done = jobs.Repartitioned()
    settings = jobs.RepartitionSettings(
        jobs.Place(east), "backlog", "backlog-6", 6, group="slow", once=True
    )
    await jobs.repartition(settings, quiet, done)
    originals = await read_all(east, "backlog")
    left = [
        content_of(each)
        for index, part in originals.items()
        for each in part
        if each.offset >= positions[TopicPartition("backlog", index)]
    ]
    copies = [
        each for part in contents(await read_all(east, "backlog-6")).values() for each in part
    ]
    assert sorted(copies, key=repr) == sorted(left, key=repr)


async def test_a_group_with_members_is_not_moved(brokers: tuple[str, str]) -> None:
    east, _ = brokers
    await create(east, "busy", 1)
    async with Consumer(east, group_id="busy-readers") as consumer:
        consumer.subscribe(["busy"])
        await consumer.poll(timeout_ms=5_000)
        settings = jobs.RepartitionSettings(
            jobs.Place(east), "busy", "busy-2", 2, group="busy-readers", once=True
        )
        with pytest.raises(CopyError, match="has members"):
            await jobs.repartition(settings, quiet, jobs.Repartitioned())


def test_the_commands_of_the_page_about_copies(brokers: tuple[str, str]) -> None:
    """As a user runs them; a sealed topic refuses records, and the new one has them all."""
    east, west = brokers
    lines = (ROOT / "docs" / "pipelines" / "copies.md").read_text().splitlines()
    shown = [shlex.split(line) for line in lines if line.startswith("    tidemill ")]
    mirror, repartition = [words[2:] for words in shown]
    for topic in ("clicks", "orders"):
        asyncio.run(create(east, topic, 2))
        asyncio.run(produce(east, topic, 0, 30))
    process = command(*[east if word == "east:9092" else word for word in mirror], "-b", west)
    try:
        for topic in ("clicks", "orders"):
            copied = ["consume", topic, "-o", "start", "-e", "-b", west]
            eventually(lambda: len(quick(*copied).out.splitlines()) == 30)  # noqa: B023
    finally:
        process.terminate()
    assert process.wait(60) == 128 + signal.SIGTERM
    process = command(*repartition, "-b", west)
    assert process.wait(60) == 0
    assert quick("produce", "orders", "-b", west, stdin="late\n").status != 0
    there, here = [
        flat(contents(asyncio.run(read_all(*at)))) for at in ((east, "orders"), (west, "orders-12"))
    ]
    assert sorted(here, key=repr) == sorted(there, key=repr)
