"""Whole clusters from seeds: nothing is lost, doubled or reordered, whatever fails.

Real brokers, clients and logs; simulated machines, network, disks and time. The seeds of the short
form are bounded by time; `make simulate` runs as many as one likes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from tidemill.errors import ApiError, ErrorCode
from tidemill.replication.alignment import TruncateTo
from tidemill.replication.driver import LeaderDriver, key_of
from tidemill.replication.isr import IsrMember, IsrProposal, IsrState
from tidemill.replication.partition import Partition
from tidemill.testing.disk import CrashDisk
from tidemill.testing.simulation.run import run_seed

SECONDS = 85
SEEDS_LEAST = 20
MISTAKE_SEEDS_MAX = 150
SOAK_SEEDS = 1_000


def simulate(*options: str, hash_seed: str = "random") -> str:
    """Run the command; what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "tidemill.testing.simulate", *options],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(600)
def test_clusters_survive_everything() -> None:
    """Rules A1, A4, B1, B2, B5, B9, C4, D3, F3 and G2, together, in as many seeds as fit."""
    said = simulate("--seeds", "100000", "--seconds", str(SECONDS), "--least", str(SEEDS_LEAST))
    assert " 0 failed" in said
    for what in ("elections", "truncations", "ISR shrinks", "ISR expands", "resends", "power cuts"):
        assert re.search(rf"^  {what} +[1-9]", said, re.MULTILINE), f"the seeds had no {what}"


@pytest.mark.soak
@pytest.mark.timeout(7_200)
def test_clusters_survive_everything_for_long() -> None:
    assert " 0 failed" in simulate("--seeds", str(SOAK_SEEDS), "--first", "1000000", "--jobs", "2")


@pytest.mark.timeout(300)
def test_a_seed_replays_exactly() -> None:
    """Wherever it runs and whatever ran before it: the same digest, so the same everything."""
    alone = simulate("--first", "5", "--seeds", "1", "--verbose", hash_seed="1")
    again = simulate("--first", "4", "--seeds", "2", "--verbose", hash_seed="2")
    (digest,) = re.findall(r"^seed 5 .*digest (\w+)$", alone, re.MULTILINE)
    assert re.findall(r"^seed 5 .*digest (\w+)$", again, re.MULTILINE) == [digest]


@pytest.mark.timeout(300)
def test_a_seed_that_failed_once_passes() -> None:
    """Rule G2: requests of a broken connection came behind one that had been given up."""
    assert " 0 failed" in simulate("--first", "108751", "--seeds", "1", hash_seed="0")


def truncate_to_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """A follower cuts its log to what it knows to be committed, as Kafka once did (rule D3)."""
    follow = LeaderDriver.follow

    def cut_and_follow(driver: LeaderDriver, partition: Partition) -> None:
        known = driver.fetcher.get(key_of(partition))
        if known is None or known.leader_epoch < partition.leader_epoch:
            partition.cut(TruncateTo(partition.high_watermark))
        follow(driver, partition)

    patch.setattr(LeaderDriver, "follow", cut_and_follow)


def count_fetches_of_any_epoch(patch: pytest.MonkeyPatch) -> None:
    """Nobody's leader epoch is looked at, so a fetch from another term counts (rule A4)."""
    check = Partition.check_replica
    patch.setattr(
        Partition, "check_replica", lambda partition, current_leader_epoch=-1: check(partition)
    )


def no_divergence_check(patch: pytest.MonkeyPatch) -> None:
    """A leader does not look whether a follower's log is its own (rule D5)."""
    patch.setattr("tidemill.broker.handlers.fetch.diverging", lambda *about: None)


def shrink_without_confirmation(patch: pytest.MonkeyPatch) -> None:
    """A leader counts on a smaller ISR before the controller has agreed (rule C4)."""
    propose = IsrState.propose

    def propose_and_believe(isr: IsrState, members: tuple[IsrMember, ...]) -> IsrProposal:
        proposal = propose(isr, members)
        if not proposal.added:
            isr.committed = frozenset(proposal.isr)
        return proposal

    patch.setattr(IsrState, "propose", propose_and_believe)


def ack_before_flush(patch: pytest.MonkeyPatch) -> None:
    """Records count as flushed while they are not (rule E6)."""

    def lie(disk: CrashDisk, path: str) -> None:
        if not disk.exists(path):
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, path)

    patch.setattr(CrashDisk, "fdatasync", lie)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("mistake", "first"),
    [
        (truncate_to_high_watermark, 130),
        (count_fetches_of_any_epoch, 38),
        (no_divergence_check, 10),
        (shrink_without_confirmation, 26),
        (ack_before_flush, 11),
    ],
)
def test_a_mistake_is_found(
    mistake: Callable[[pytest.MonkeyPatch], None], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulation can fail: a rule broken on purpose shows in some seed, soon.

    `first` is where it showed when this was written; any other does as well.
    """
    mistake(monkeypatch)
    seeds = range(first, first + MISTAKE_SEEDS_MAX)
    assert any(run_seed(seed).failures for seed in seeds)
