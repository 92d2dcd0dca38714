"""One life of a cluster: it comes up, works while everything fails, heals, and is judged."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from tidemill.testing.anomalies import Promise
from tidemill.testing.checker import check
from tidemill.testing.simulation.nemesis import Nemesis
from tidemill.testing.simulation.plan import Plan
from tidemill.testing.simulation.report import Outcome
from tidemill.testing.simulation.watcher import Watcher
from tidemill.testing.simulation.workload import Workload
from tidemill.testing.simulation.world import World

START_S_MAX = 60
HEAL_S_MAX = 90
STEADY_S = 0.5
LIFE_S_MAX = 400
_LOOK_S = 0.1


def run_seed(seed: int) -> Outcome:
    """Run one seed to its end; whatever happens in it is in the outcome."""
    started_s = time.process_time()
    world = World(Plan.of(seed))
    watcher, work = Watcher(world), Workload(world)
    with _heard(world), _undisturbed():
        try:
            life = _live(world, watcher, work)
            world.loop.run_until_complete(world.loop.root.create_task(life))
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - a seed's end, told
            world.fail(f"the simulation ended early: {error!r}")
        finally:
            virtual_s = world.loop.time()
            world.close()
    _judge(world, work)
    cpu_s = time.process_time() - started_s
    digest = _digest(world, work)
    return Outcome(seed, digest, virtual_s, cpu_s, +world.counts, world.failures, world.trace)


async def _live(world: World, watcher: Watcher, work: Workload) -> None:
    try:
        async with asyncio.timeout(LIFE_S_MAX):
            await _come_up(world, work)
            watching = asyncio.get_running_loop().create_task(watcher.run())
            work.start()
            await Nemesis(world, watcher, work).run()
            await _until_whole(world, watcher)
            await work.stop()
            await work.read_all()
            watcher.look()
            watcher.compare()
            watching.cancel()
    except TimeoutError:
        world.fail(f"{LIFE_S_MAX} s were not enough for a cluster's whole life")


async def _come_up(world: World, work: Workload) -> None:
    for machine in world.machines:
        machine.boot()
        await asyncio.sleep(world.plan.random(machine.name).random() * 0.3)
    async with asyncio.timeout(START_S_MAX):
        while not all(machine.is_up for machine in world.machines):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        await work.admin_host.run(work.create_topic())


async def _until_whole(world: World, watcher: Watcher) -> None:
    """With everything put right the cluster gets whole again by itself, in time.

    And stays so: whoever lost its session at the last moment leads on, in its own eyes, until it
    hears of it, and tells readers of an end that was.
    """
    end = world.loop.time() + HEAL_S_MAX
    whole_since = world.loop.time()
    while world.loop.time() < whole_since + STEADY_S:
        if not watcher.is_whole():
            whole_since = world.loop.time()
        if world.loop.time() > end:
            ups = [machine.name for machine in world.machines if machine.is_up]
            world.fail(f"the cluster did not get whole: {ups} are up, {watcher.states}")
            return
        await asyncio.sleep(_LOOK_S)


def _judge(world: World, work: Workload) -> None:
    report = check(work.history, Promise())
    for kind, count in report.failures.items():
        world.fail(f"{kind}: {count}: {'; '.join(report.examples[kind][:3])}")
    for context in world.loop.unhandled:
        world.fail(f"nobody caught: {context['message']}: {context.get('exception')!r}")


def _digest(world: World, work: Workload) -> str:
    """Of the bytes on the network and their times, all disks' work, and what clients saw."""
    seen = hashlib.blake2b(digest_size=8)
    facts = [
        world.network.fingerprint,
        world.network.arrivals,
        world.loop.steps,
        *((machine.disk.steps, machine.disk.syncs) for machine in world.machines),
    ]
    seen.update(repr(facts).encode())
    seen.update(msgspec.json.encode(work.history.operations))
    seen.update("\n".join(world.trace).encode())
    return seen.hexdigest()


class _Ear(logging.Handler):
    """Counts what the product says of itself; an error is one too many."""

    COUNTED = {  # noqa: RUF012 - a constant table
        "%s was cut from offset %d to %d, following broker %d in epoch %d%s": "truncations",
        "broker %d lost its session": "sessions lost",
        "brokers %s are gone": "brokers taken for dead",
        "broker %d is the controller, in epoch %d": "controllers elected",
        "%d ISR changes are sent again: %s": "ISR changes sent again",
        "%s waits for news of its leader": "fenced fetches",
        "%s is cut at offset %d: %d bytes after it were not written whole": "torn tails",
        "taking over %s, which an earlier session on our data directory left": "takeovers",
    }

    def __init__(self, world: World) -> None:
        super().__init__(logging.INFO)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        name = self.COUNTED.get(str(record.msg))
        if name is not None:
            self._world.counts[name] += 1
        if record.levelno >= logging.ERROR:
            problem = record.exc_info[1] if record.exc_info else None
            self._world.fail(f"{record.name} says: {record.getMessage()} {problem or ''!r}")
        elif record.levelno >= logging.WARNING:
            self._world.note(f"{self._world.loop.current_domain().name}: {record.getMessage()}")


@contextmanager
def _heard(world: World) -> Iterator[None]:
    """What the product logs is heard, and goes nowhere else."""
    logger = logging.getLogger("tidemill")
    ear, before = _Ear(world), (logger.level, logger.propagate)
    logger.addHandler(ear)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(ear)
        logger.level, logger.propagate = before


@contextmanager
def _undisturbed() -> Iterator[None]:
    """No garbage is collected meanwhile: when it is would depend on more than the seed."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
