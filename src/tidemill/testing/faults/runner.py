"""One run: a cluster, clients, faults until the time is over, and the judgement."""

from __future__ import annotations

import asyncio
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tidemill.clock import SystemClock
from tidemill.testing.faults import judge
from tidemill.testing.faults.cluster import BrokenClusterError, FaultCluster
from tidemill.testing.faults.load import KEYS
from tidemill.testing.faults.plan import INTERVAL_S, Kind, Store, Strike, plan
from tidemill.testing.faults.report import RunReport, allowed, anomalies
from tidemill.testing.faults.strikes import Struck, now_ms, strike
from tidemill.testing.history import History

OWN_LOAD = f"{sys.executable} -m tidemill.testing.faults.load"
LOAD_STOP_S_MAX = 180
WARM_UP_S = 3.0


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What to run; `seconds` is how long faults go on."""

    folder: Path
    store: Store
    seed: int
    seconds: float
    rate: float = 100
    flush_policy: str = "ack"
    kinds: Sequence[Kind] = ()
    strikes_max: int = 1_000_000
    interval_s: tuple[float, float] = INTERVAL_S
    hold_share: float = 1.0
    loads: Sequence[str] = ()
    """Commands of further load programs beside our own client's; see `load`."""
    say: Callable[[str], object] = field(default=lambda text: None)


class Run:
    """From an empty folder to a report."""

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings
        self._cluster = FaultCluster(
            settings.folder, settings.store, {"log.flush.policy": settings.flush_policy}
        )
        self._loads: list[tuple[Path, subprocess.Popen[bytes]]] = []
        self._strikes: list[Struck] = []
        self._problems: list[str] = []

    async def run(self) -> RunReport:
        settings, cluster = self._settings, self._cluster
        settings.folder.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        final = History(SystemClock())
        try:
            await cluster.start()
            self._start_loads()
            await asyncio.sleep(WARM_UP_S)
            try:
                await self._trouble()
            except BrokenClusterError as error:
                self._problems.append(str(error))
            await self._stop_loads()
            if not self._problems:
                await judge.read_everything(cluster.bootstrap, final)
            await cluster.stop()
            self._compare_replicas()
        finally:
            self._end_loads()
            await cluster.stop()
            cluster.unmount(keep=bool(self._problems))
        return self._judge(final, time.monotonic() - began)

    # Faults.

    async def _trouble(self) -> None:
        settings = self._settings
        end = time.monotonic() + settings.seconds
        for planned in plan(
            settings.seed,
            settings.store,
            settings.kinds,
            settings.interval_s,
            settings.hold_share,
        ):
            if time.monotonic() >= end or planned.number > settings.strikes_max:
                break
            began = time.monotonic()
            await self._strike(planned)
            rest_s = began + planned.interval_s - time.monotonic()
            await asyncio.sleep(max(0.0, min(rest_s, end - time.monotonic())))
        await self._cluster.whole()

    async def _strike(self, planned: Strike) -> None:
        cluster, say = self._cluster, self._settings.say
        view = await cluster.view()
        struck = await strike(cluster, planned, view)
        self._strikes.append(struck)
        if planned.waits:
            await cluster.whole()
            struck.whole_ms = now_ms()
            took = f", whole after {(struck.whole_ms - struck.ended_ms) / 1000:.1f} s"
        else:
            took = ", not waited for"
        say(f"{planned}: broker {struck.victim} {struck.note}{took}")
        self._see_loads()

    # Clients.

    def _start_loads(self) -> None:
        settings, cluster = self._settings, self._cluster
        for number, command in enumerate((OWN_LOAD, *settings.loads), 1):
            history = settings.folder / f"load-{number}.history"
            words = [*shlex.split(command), "--bootstrap", cluster.bootstrap]
            words += ["--history", str(history), "--rate", str(settings.rate)]
            with history.with_suffix(".stderr").open("ab") as errors:
                self._loads.append((history, subprocess.Popen(words, stderr=errors)))

    def _see_loads(self) -> None:
        for history, process in self._loads:
            if process.poll() is not None:
                raise BrokenClusterError(
                    f"a load ended with {process.returncode}: see {history.with_suffix('.stderr')}"
                )

    async def _stop_loads(self) -> None:
        """Have them wait for what is under way, and write down what they know."""
        for _, process in self._loads:
            process.terminate()
        for history, process in self._loads:
            try:
                status = await asyncio.to_thread(process.wait, LOAD_STOP_S_MAX)
            except subprocess.TimeoutExpired:
                status = None
            if status != 0:
                stderr = history.with_suffix(".stderr")
                self._problems.append(f"a load ended with {status}: see {stderr}")

    def _end_loads(self) -> None:
        for _, process in self._loads:
            if process.poll() is None:
                process.kill()
                process.wait()

    # The end.

    def _compare_replicas(self) -> None:
        directories = [each.data_dir for each in self._cluster.brokers.values()]
        for difference in judge.replicas_differ(directories, KEYS):
            self._problems.append(f"replicas differ: {difference}")

    def _judge(self, final: History, seconds: float) -> RunReport:
        settings, strikes = self._settings, self._strikes
        paths = [path for path, _ in self._loads if path.exists()]
        operations = [*History.load(*paths), *final]
        reports = judge.judge(operations)
        acks = judge.Acks(operations)
        watch = judge.offset_watches(paths)
        for topic, verdict in reports.items():
            if not verdict.is_valid:
                self._problems.append(f"{topic}: {verdict}")
        self._problems += [f"an end offset went back: {each}" for each in watch.backwards]
        longest_ms, longest_in = acks.longest_gap_ms()
        return RunReport(
            store=settings.store,
            seed=settings.seed,
            flush_policy=settings.flush_policy,
            seconds=seconds,
            faults=len(strikes),
            kinds=dict(judge.by_kind(strikes, judge.gaps(strikes, acks))),
            acked=dict(acks.by_process),
            unknown=acks.failed,
            polled=sum(report.polled for report in reports.values()),
            longest_gap_ms=longest_ms,
            longest_gap_in=longest_in,
            longest_gap_of_all_ms=acks.longest_gap_of_all_ms(),
            offsets_answered=watch.answered,
            anomalies=anomalies(reports),
            allowed=allowed(reports),
            problems=self._problems,
            strikes=strikes,
        )
