"""Restarts that a group does not notice: of its broker, and of members that have a name."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.faults.churn import Kind, churn_settings
from tests.faults.living_groups import (
    KINDS,
    PARTITIONS,
    SESSION_MS,
    Group,
    finish,
    living_groups,
    produce,
    read_to,
)

from tidemill.testing.process import BrokerProcess


@contextmanager
def broker_with_groups(
    folder: Path, kinds: Mapping[str, Kind], *, static: bool
) -> Iterator[tuple[BrokerProcess, list[Group]]]:
    with (
        BrokerProcess(folder / "data", churn_settings(SESSION_MS)) as broker,
        living_groups(broker.bootstrap, folder, kinds, static=static) as groups,
    ):
        yield broker, groups


@pytest.mark.timeout(180)
def test_a_broker_restart_is_no_rebalance(tmp_path: Path) -> None:
    """rule J7: stopped or killed, the broker comes back to the same groups and the same commits."""
    with broker_with_groups(tmp_path, KINDS, static=False) as (broker, groups):
        produce(broker.bootstrap, 60)
        read_to(groups, 60)
        epochs = {group.name: group.epoch() for group in groups}
        assert min(epochs.values()) > 0
        changes = {group.name: group.assignment_changes() for group in groups}
        for round_, restart in enumerate((broker.stop, broker.kill), 2):
            restart_s = restarted(broker, restart)
            tens = dict.fromkeys(range(PARTITIONS), 10 * (round_ - 1))
            assert {g.name: g.committed() for g in groups} == {g.name: tens for g in groups}
            produce(broker.bootstrap, 60)
            read_to(groups, 60 * round_)
            assert {group.name: group.epoch() for group in groups} == epochs
            assert {group.name: group.assignment_changes() for group in groups} == changes
            repeated = {group.name: len(group.seen()) - 60 * round_ for group in groups}
            assert repeated == dict.fromkeys(epochs, 0), "nothing is read twice"
            print(f"\n{restart.__name__}: back in {restart_s:.2f} s; {len(groups)} groups at rest")


def restarted(broker: BrokerProcess, end: Callable[[], int]) -> float:
    begin = time.monotonic()
    end()
    broker.start()
    return time.monotonic() - begin


STATIC = {name: kind for name, kind in KINDS.items() if name != "confluent-cooperative"}


@pytest.mark.timeout(180)
def test_a_static_member_restarts_without_a_rebalance(tmp_path: Path) -> None:
    """rule J3: the same instance comes back to the same partitions, and nobody else notices."""
    with broker_with_groups(tmp_path, STATIC, static=True) as (broker, groups):
        produce(broker.bootstrap, 60)
        read_to(groups, 60)
        epochs = {group.name: group.epoch() for group in groups}
        had = {group.name: group.members["two"].owned() for group in groups}
        others = {group.name: group.members["one"].changes() for group in groups}
        for group in groups:
            group.members["two"].process.terminate()
        for group in groups:
            finish(group.members["two"].process)
            group.start("two")
        for group in groups:
            group.settle()
        assert {group.name: group.members["two"].owned() for group in groups} == had
        assert {group.name: group.epoch() for group in groups} == epochs
        assert {group.name: group.members["one"].changes() for group in groups} == others


def test_a_static_member_that_was_killed_comes_back_without_a_rebalance(tmp_path: Path) -> None:
    """rule J3, for classic members: within its session a new process is the same member."""
    kinds = {name: kind for name, kind in STATIC.items() if kind.protocol == "classic"}
    with broker_with_groups(tmp_path, kinds, static=True) as (_, groups):
        epochs = {group.name: group.epoch() for group in groups}
        had = {group.name: group.members["two"].owned() for group in groups}
        for group in groups:
            group.members["two"].process.kill()
            finish(group.members["two"].process)
            group.start("two")
        for group in groups:
            group.settle()
        assert {group.name: group.members["two"].owned() for group in groups} == had
        assert {group.name: group.epoch() for group in groups} == epochs
