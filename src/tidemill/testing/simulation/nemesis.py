"""What goes wrong in a simulated cluster: one trouble after the other, several at a time.

Each trouble is a method; some last and are over by themselves, some are over with `heal`. Targets
are leaders and the controller more often than others: there it hurts most.

Where nothing is flushed before it is acknowledged (`async`), the promise is that one broker's fall
costs nothing: another one falls only after all replicas are in sync again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tidemill.client.admin_types import ElectionType
from tidemill.client.errors import ClientError
from tidemill.testing.ensemble import HOST
from tidemill.testing.simulation.plan import REPLICAS
from tidemill.testing.simulation.watcher import Watcher
from tidemill.testing.simulation.workload import Workload
from tidemill.testing.simulation.world import Machine, World
from tidemill.types import NO_BROKER

CLOCK_STEP_MS_MAX = 3_600_000
CUT_STEPS_MAX = 30_000
ADMIN_PATIENCE_S = 5.0


class Nemesis:
    """The troubles of one seed."""

    def __init__(self, world: World, watcher: Watcher, work: Workload) -> None:
        self._world = world
        self._watcher = watcher
        self._work = work
        self._random = world.plan.random("nemesis")
        self._lasting: list[asyncio.Task[None]] = []
        self._restarts: list[asyncio.Task[None]] = []
        self._crashing: set[Machine] = set()

    async def run(self) -> None:
        """Make trouble for as long as the plan says, then put everything right."""
        plan, loop = self._world.plan, self._world.loop
        troubles = [trouble for weight, trouble in self._troubles() for _ in range(weight)]
        end = loop.time() + plan.trouble_s
        while loop.time() < end:
            await asyncio.sleep(self._random.expovariate(1 / plan.pause_s_mean))
            trouble = self._random.choice(troubles)
            trouble()
        await self.heal()

    def _troubles(self) -> list[tuple[int, Callable[[], None]]]:
        return [
            (3, self.kill),
            (4, self.cut_power),
            (2, self.restart),
            (4, self.pause),
            (4, self.isolate),
            (4, self.cut_pair),
            (2, self.cut_off_store),
            (2, self.cut_off_client),
            (2, self.degrade),
            (2, self.reset),
            (2, self.step_clock),
            (3, self.expire_session),
            (1, self.kill_client),
            (2, self.elect_preferred),
            (3, self.reassign),
        ]

    # Processes and machines

    def kill(self) -> None:
        """SIGKILL, and another start soon."""
        machine = self._victim()
        if self._may_fall(machine):
            self._count("kills", machine)
            self._last(self._fall(machine, machine.kill))

    def cut_power(self) -> None:
        """Now, or in the middle of one of the next writes."""
        machine = self._victim()
        if not self._may_fall(machine):
            return
        self._count("power cuts", machine)
        if self._random.random() < 0.5:
            self._last(self._fall(machine, machine.cut_power))
        else:
            machine.disk.cut_after(self._random.randint(1, CUT_STEPS_MAX))
            self._last(self._fall(machine, lambda: None, wait_s=self._random.uniform(0.1, 2.0)))

    async def _fall(self, machine: Machine, fell: Callable[[], None], wait_s: float = 0.0) -> None:
        fell()
        self._crashing.add(machine)
        await asyncio.sleep(wait_s)
        machine.disk.cut_after(None)
        await asyncio.sleep(self._duration_s())
        machine.boot()
        self._crashing.discard(machine)

    def restart(self) -> None:
        """In good order: leadership is handed over first."""
        machine = self._victim()
        if machine.is_up and not machine.host.domain.is_paused:
            self._count("clean restarts", machine)
            # It is seen through, whatever is put right meanwhile.
            self._restarts.append(_spawn(self._stop_and_start(machine)))

    async def _stop_and_start(self, machine: Machine) -> None:
        await machine.stop()
        await asyncio.sleep(self._random.random())
        machine.boot()

    def pause(self) -> None:
        """SIGSTOP for a while."""
        machine = self._victim()
        if machine.is_on and not machine.host.domain.is_paused:
            self._count("pauses", machine)
            machine.host.pause()
            self._last(self._later(machine.host.resume))

    def _may_fall(self, machine: Machine) -> bool:
        if not machine.is_on:
            return False
        if self._world.plan.flush_policy == "ack":
            return True
        is_alone = not self._crashing and all(each.is_up for each in self._world.machines)
        return is_alone and self._watcher.is_whole()

    # The network

    def isolate(self) -> None:
        """One broker, from everybody or from the other brokers, in one direction or both."""
        machine = self._victim()
        others = [each.name for each in self._world.machines if each is not machine]
        if self._random.random() < 0.5:
            others += [HOST, *(client.name for client in self._work.clients)]
        self._count("isolations", machine)
        self._cut([machine.name], others)

    def cut_pair(self) -> None:
        one, other = self._random.sample(self._world.machines, 2)
        self._count("cuts between two brokers", one, other)
        self._cut([one.name], [other.name])

    def cut_off_store(self) -> None:
        machine = self._victim()
        self._count("cuts from the store", machine)
        self._cut([machine.name], [HOST])

    def cut_off_client(self) -> None:
        machine, client = self._victim(), self._random.choice(self._work.clients)
        self._count("cuts from a client", machine, client.name)
        self._cut([machine.name], [client.name])

    def _cut(self, some: list[str], others: list[str]) -> None:
        if self._random.random() < 0.3:
            some, others = others, some
        both_ways = self._random.random() < 0.5
        network = self._world.network
        network.partition(some, others, both_ways=both_ways)

        def heal() -> None:
            for one in some:
                for other in others:
                    network.unblock(one, other)
                    network.unblock(other, one)

        self._last(self._later(heal))

    def degrade(self) -> None:
        """A slow, lossy and breaking way, in one direction."""
        one, other = self._random.sample([each.name for each in self._world.machines], 2)
        self._count("bad ways", one, other)
        random, network = self._random, self._world.network
        network.set_quality(
            one, other, delay_ms_max=random.choice((5.0, 50.0, 400.0)), loss=0.1,
            reset=random.choice((0.0, 0.02)),
        )  # fmt: skip
        self._last(self._later(lambda: self._restore(one, other)))

    def _restore(self, one: str, other: str) -> None:
        self._world.network.path(one, other).quality = self._world.plan.quality

    def reset(self) -> None:
        """Every connection between two hosts breaks."""
        machine = self._victim()
        brokers = [each.name for each in self._world.machines if each is not machine]
        clients = [each.name for each in self._work.clients]
        other = self._random.choice([*brokers, *clients, HOST])
        self._count("resets", machine, other)
        self._world.network.reset_connections(machine.name, other)

    # Time and the store

    def step_clock(self) -> None:
        machine = self._victim()
        change_ms = self._random.randint(-CLOCK_STEP_MS_MAX, CLOCK_STEP_MS_MAX)
        self._count("clock steps", machine, change_ms)
        machine.host.clock.step(change_ms)

    def expire_session(self) -> None:
        """The store takes a live broker for dead."""
        machine = self._victim()
        if machine.session_id:
            self._count("session expiries", machine)
            self._world.ensemble.expire(machine.session_id)

    # Clients and administrators

    def kill_client(self) -> None:
        client = self._random.choice(self._work.clients)
        if client.host.domain.is_alive:
            self._count("client kills", client.name)
            client.kill()
            self._last(self._later(client.start))

    def elect_preferred(self) -> None:
        async def elect() -> None:
            async with self._work.admin() as admin:
                await admin.elect_leaders(ElectionType.PREFERRED)

        self._administer("preferred elections", elect())

    def reassign(self) -> None:
        partition = self._random.choice(self._work.partitions)
        brokers = [each.broker_id for each in self._world.machines]
        targets = self._random.sample(brokers, REPLICAS)

        async def move() -> None:
            async with self._work.admin() as admin:
                await admin.alter_partition_reassignments({partition: targets})

        self._administer("reassignments", move(), partition.partition, targets)

    def _administer(self, what: str, work: Coroutine[Any, Any, None], *about: object) -> None:
        self._count(what, *about)

        async def administer() -> None:
            try:
                async with asyncio.timeout(ADMIN_PATIENCE_S):
                    await work
            except (ClientError, TimeoutError) as error:
                self._world.note(f"not taken: {what}: {error}")

        self._work.admin_host.run(administer())

    # How it is done

    def _victim(self) -> Machine:
        """A leader or the controller, more often than not."""
        machines, chance = self._world.machines, self._random.random()
        if chance < 0.5:
            states = [one for one in self._watcher.states.values() if one.leader != NO_BROKER]
            if states:
                return machines[self._random.choice(states).leader - 1]
        if chance < 0.7:
            for machine in machines:
                if machine.is_controller:
                    return machine
        return self._random.choice(machines)

    def _duration_s(self) -> float:
        low, high = self._random.choice(((0.0, 0.3), (0.3, 1.5), (1.5, 5.0)))
        return self._random.uniform(low, high)

    def _count(self, what: str, *about: object) -> None:
        self._world.counts[what] += 1
        self._world.note(f"TROUBLE {what}: {' '.join(map(str, about))}")

    def _last(self, trouble: Coroutine[Any, Any, None]) -> None:
        self._lasting.append(_spawn(trouble))

    async def _later(self, over: Callable[[], object]) -> None:
        await asyncio.sleep(self._duration_s())
        over()

    async def heal(self) -> None:
        """Everything works again: machines, ways, clients."""
        world = self._world
        for task in self._lasting:
            task.cancel()
        world.note("everything is put right")
        world.network.heal()
        for one in world.network.names:
            for other in world.network.names:
                self._restore(one, other)
        for machine in world.machines:
            machine.disk.cut_after(None)
            machine.host.resume()
        await asyncio.gather(*self._restarts)
        for machine in world.machines:
            machine.boot()
        for client in self._work.clients:
            if not client.host.domain.is_alive:
                client.start()


def _spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(work)
