"""Standby members: one who has nothing takes over from one who was killed, and nobody else moves.

20 partitions and 22 members leave two idle. When one who works is killed, a standby takes exactly
its partition; with 20 members for 20 partitions exactly one survivor carries two. Both groups live
side by side on one broker. The members that survive share a process, for the sake of the machine;
those that are killed have each their own.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.faults.churn import Kind, Watcher, churn_settings, create_topics, eventually, unrest
from tests.faults.group_member import HEARTBEAT_MS, Place, Plan, crowd, spawn

from tidemill.testing.process import BrokerProcess

TOPIC = "stood-by"
PARTITIONS = 20
PLACES: frozenset[Place] = frozenset((TOPIC, partition) for partition in range(PARTITIONS))
SESSION_MS = 6_000
START_LIMIT_S = 40
STOP_LIMIT_S = 30
HANDOVER_S = 3 * HEARTBEAT_MS / 1000 + 1.0
"""Members hear of the change with their next heartbeat, and say with another that they obeyed."""

ATTEMPTS = 3

Owners = dict[str, frozenset[Place]]


class StarvedError(Exception):
    """Members came too late to keep their sessions: the doing of a machine that runs forty."""


class Group:
    """A group with one member that can be killed."""

    def __init__(self, name: str, bootstrap: str, folder: Path, kind: Kind, size: int) -> None:
        plan = Plan(
            client=kind.client,
            name="victim",
            bootstrap=bootstrap,
            group=name,
            topics=(TOPIC,),
            diary=str(folder / f"{name}-victim"),
            protocol=kind.protocol,
            strategy=kind.strategy,
            session_ms=SESSION_MS,
        )
        diary = str(folder / f"{name}-other")
        rest = replace(plan, name="other", diary=diary, crowd=size - 1)
        # aiokafka's sticky assignor keeps what a member had in its class: one member per process.
        self._rest_plans = crowd(rest) if kind.client == "aiokafka" else [rest]
        self.watcher = Watcher(bootstrap, name)
        self._victim_plan = plan
        self._rest_names = {each.name for each in crowd(rest)}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._ids: dict[str, str] = {}

    def start(self) -> None:
        """The victim is the first, so that it has something to lose when the others have come."""
        self._processes.append(spawn(self._victim_plan))
        eventually(lambda: self._unrest({"victim"}), START_LIMIT_S)
        self._ids = self._member_ids()
        self._processes += map(spawn, self._rest_plans)

    def settle(self) -> Owners:
        eventually(lambda: self._unrest({"victim", *self._rest_names}), START_LIMIT_S)
        self._check_sessions()
        self._ids = self._member_ids()
        return self._owners()

    def kill(self) -> None:
        self._processes[0].kill()
        self._processes[0].wait()

    def settle_without_victim(self, killed_at: float) -> tuple[Owners, float]:
        limit_s = killed_at + SESSION_MS / 1000 + HANDOVER_S - time.monotonic()
        try:
            eventually(lambda: self._unrest(self._rest_names), limit_s)
        finally:
            self._check_sessions()
        return self._owners(), time.monotonic() - killed_at

    def _unrest(self, names: set[str]) -> str:
        try:
            return unrest(self.watcher.describe(), names, PLACES)
        except Exception as error:  # noqa: BLE001 - a group that does not exist yet
            return str(error)

    def _owners(self) -> Owners:
        group = self.watcher.describe()
        return {m.client_id: frozenset(map(_place, m.assignment)) for m in group.members}

    def _member_ids(self) -> dict[str, str]:
        return {m.client_id: m.member_id for m in self.watcher.describe().members}

    def _check_sessions(self) -> None:
        now = self._member_ids()
        if late := {name for name, known in self._ids.items() if now.get(name, known) != known}:
            raise StarvedError(late)

    def end(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.watcher.close()


def _place(partition: tuple[str, int]) -> Place:
    return partition[0], partition[1]


@contextmanager
def groups(folder: Path, kind: Kind, *sizes: int) -> Iterator[list[Group]]:
    with BrokerProcess(folder / "data", churn_settings(SESSION_MS)) as broker:
        create_topics(broker.bootstrap, [TOPIC], PARTITIONS)
        made = [Group(f"of-{size}", broker.bootstrap, folder, kind, size) for size in sizes]
        try:
            for group in made:
                group.start()
            yield made
        finally:
            for group in made:
                group.end()


def hand_over(folder: Path, kind: Kind) -> None:
    """Members that were expelled and joined anew have nothing to keep: then it is tried again."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            hand_over_once(folder / str(attempt), kind)
        except StarvedError:
            if attempt == ATTEMPTS:
                raise
        else:
            return


def hand_over_once(folder: Path, kind: Kind) -> None:
    folder.mkdir()
    with groups(folder, kind, 22, 20) as (with_standby, without):
        before, before_without = with_standby.settle(), without.settle()
        check_shares(before, idle=2)
        check_shares(before_without, idle=0)
        killed_at = time.monotonic()
        with_standby.kill()
        without.kill()
        after, took_s = with_standby.settle_without_victim(killed_at)
        after_without, took_without_s = without.settle_without_victim(killed_at)
    print(f"\n{kind}: {took_s:.2f} s to a standby, {took_without_s:.2f} s to a survivor")
    standbys = {name for name, owned in before.items() if not owned}
    check_move(before, after, standbys)
    check_move(before_without, after_without, set(after_without))


def check_shares(owners: Owners, idle: int) -> None:
    """One each, and so many without."""
    assert sorted(map(len, owners.values())) == [0] * idle + [1] * PARTITIONS
    assert owners["victim"], "the first member has lost what it had"


def check_move(before: Owners, after: Owners, heirs: set[str]) -> None:
    """Exactly the victim's partition moved, to one of the heirs."""
    gained = {name: owned - before[name] for name, owned in after.items() if owned - before[name]}
    assert list(gained.values()) == [before["victim"]], gained
    assert set(gained) <= heirs
    assert all(before[name] <= owned for name, owned in after.items()), "something else moved"


SHORT = {
    "sticky": Kind("kafka-python", strategy="sticky"),
    "cooperative": Kind("confluent", strategy="cooperative-sticky"),
    "uniform": Kind("confluent", "consumer"),
}

LONG = {
    "aiokafka-sticky": Kind("aiokafka", strategy="sticky"),
    "kafka-python-cooperative": Kind("kafka-python", strategy="cooperative-sticky"),
    "tidemill-sticky": Kind("tidemill", strategy="sticky"),
    "tidemill-cooperative": Kind("tidemill", strategy="cooperative-sticky"),
    "tidemill-uniform": Kind("tidemill", "consumer"),
}


@pytest.mark.parametrize("kind", SHORT.values(), ids=SHORT)
def test_a_standby_takes_over(tmp_path: Path, kind: Kind) -> None:
    hand_over(tmp_path, kind)


@pytest.mark.soak
@pytest.mark.parametrize("kind", LONG.values(), ids=LONG)
def test_a_standby_of_another_client_takes_over(tmp_path: Path, kind: Kind) -> None:
    hand_over(tmp_path, kind)
