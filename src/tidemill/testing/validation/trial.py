"""One trial: a topic, a load on it, one scenario, and the judgement of what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol

from tidemill.client import Admin
from tidemill.client.admin_types import NewTopic
from tidemill.clock import SystemClock
from tidemill.testing.cluster import ProcessCluster
from tidemill.testing.validation.evidence import Evidence, FinalLog, key_of, read_log
from tidemill.testing.validation.judge import Judgement, judge
from tidemill.testing.validation.promises import Scenario, Setup, TopicSettings, expect
from tidemill.testing.validation.scenarios import Blow, Say, strike

CALM_SHARE = 0.25
"""This part of the time passes before the cluster is hurt."""
HOLD_SHARE = 0.15
HOLD_S = (1.0, 10.0)
AFTERMATH_S = 2.0
"""The load goes on for so long at least when the cluster is healed."""
API_TIMEOUT_MS = 60_000


class Workload(Protocol):
    """What clients do in a trial, and what they know in the end."""

    evidence: Evidence
    numbers: bool
    """Whether the records' values are numbers."""

    async def start(self) -> None: ...
    def struck(self) -> None: ...
    async def stop_sending(self) -> None: ...
    async def drain(self, log: FinalLog) -> None: ...
    async def close(self) -> None: ...
    @property
    def is_running(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Trial:
    """What to do; `workload` makes the load for a topic."""

    cluster: ProcessCluster
    scenario: Scenario
    setup: Setup
    workload: Callable[[str], Workload]
    seconds: float
    seed: int
    say: Say

    @property
    def topic(self) -> str:
        return f"validate-{self.scenario}"

    async def run(self) -> Judgement:
        """Hurt the cluster under load, heal it, and judge."""
        await make_topic(self.cluster, self.topic, self.setup.topic)
        workload = self.workload(self.topic)
        try:
            await workload.start()
            self.say("the load runs")
            was_running, acked_after = await self._go_through_it(workload)
            await workload.stop_sending()
            self.say("reading everything back")
            log = await self._read_back(workload)
            await workload.drain(log)
        finally:
            await workload.close()
        return judge(
            workload.evidence,
            log,
            expect(self.setup, self.scenario),
            self.setup,
            was_running=was_running,
            acked_after=acked_after,
        )

    async def _go_through_it(self, workload: Workload) -> tuple[bool, int | None]:
        """The load runs for so many seconds, and through the scenario. Whether there was a load
        when it began; how much was acknowledged when it was over, if that can be said."""
        clock = SystemClock()
        began_ms = clock.monotonic_ms()
        await asyncio.sleep(self.seconds * CALM_SHARE)
        was_running = workload.is_running
        workload.struck()
        await strike(self.scenario, self._blow())
        healed_ms = clock.monotonic_ms()
        spent_s = (healed_ms - began_ms) / 1000
        await asyncio.sleep(max(AFTERMATH_S, self.seconds - spent_s))
        if not workload.evidence.knows_acks or not workload.is_running:
            return was_running, None
        after = sum(1 for at_ms in workload.evidence.ack_times_ms if at_ms > healed_ms)
        return was_running, after

    def _blow(self) -> Blow:
        low, high = HOLD_S
        return Blow(
            self.cluster,
            self.topic,
            self.setup.topic,
            min(high, max(low, self.seconds * HOLD_SHARE)),
            Random(f"{self.seed} {self.scenario}"),
            self.say,
        )

    async def _read_back(self, workload: Workload) -> FinalLog:
        await self.cluster.in_sync(self.topic)
        log = await read_log(
            self.cluster.bootstrap,
            self.topic,
            self.setup.topic.partitions,
            numbers=workload.numbers,
        )
        found = {key_of(self.topic, index): part for index, part in log.items()}
        workload.evidence.history.polled("final", found, final=True)
        return log


async def make_topic(cluster: ProcessCluster, name: str, settings: TopicSettings) -> None:
    """Make a topic and wait until all its replicas are there."""
    new = NewTopic(
        name,
        settings.partitions,
        settings.replication_factor,
        configs={
            "min.insync.replicas": str(settings.min_insync_replicas),
            "unclean.leader.election.enable": str(settings.unclean_leader_election_enable).lower(),
        },
    )
    async with Admin(cluster.bootstrap, default_api_timeout_ms=API_TIMEOUT_MS) as admin:
        (await admin.create_topics([new])).raise_first()
    await cluster.in_sync(name)
