"""Simulate whole clusters, seed by seed: `python -m tidemill.testing.simulate --seeds 1000`.

Each seed is one life of a cluster of real brokers and clients, in one process and in virtual time,
with everything that can fail failing (`simulation/`). A seed that fails prints its story; with
`--first` and its number it happens again, event by event. The same seed has the same digest in
every process: string hashes are pinned by starting the interpreter anew.

    --seeds N     how many; --first S: the first of them
    --seconds T   begin no more after so long (but at least --least of them)
    --jobs J      processes
    --verbose     show a seed's story though it did not fail
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice

from tidemill.testing.running import end_in_order
from tidemill.testing.simulation.report import Outcome, Tally
from tidemill.testing.simulation.run import run_seed

HASH_SEED = "0"
SHOWN_FAILURES_MAX = 5
PROGRESS_EVERY_S = 30.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the seeds, tell what came of them; 1 if any failed."""
    options = _options(arguments)
    deadline_s = None if options.seconds is None else time.monotonic() + options.seconds
    seeds = iter(range(options.first, options.first + options.seeds))
    tally = Tally()
    for outcome in _outcomes(seeds, options.jobs, options.least, deadline_s):
        tally.add(outcome)
        if options.verbose or (outcome.failures and len(tally.failed) <= SHOWN_FAILURES_MAX):
            _say(str(outcome))
    _say(str(tally))
    return 1 if tally.failed else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tidemill.testing.simulate")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--least", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--verbose", action="store_true")
    return parser.parse_args(arguments)


def _outcomes(
    seeds: Iterator[int], jobs: int, least: int, deadline_s: float | None
) -> Iterator[Outcome]:
    """What came of each seed, in the order in which they end."""
    wanted = _until(seeds, least, deadline_s)
    if jobs == 1:
        yield from map(_run, wanted)
        return
    last_said_s = time.monotonic()
    done_count = 0
    with ProcessPoolExecutor(jobs, initializer=_end_at_once) as pool:
        running: set[Future[Outcome]] = {pool.submit(_run, seed) for seed in islice(wanted, jobs)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            running |= {pool.submit(_run, seed) for seed in islice(wanted, len(done))}
            yield from (each.result() for each in done)
            done_count += len(done)
            if time.monotonic() - last_said_s > PROGRESS_EVERY_S:
                last_said_s = time.monotonic()
                _say(f"{done_count} seeds")


def _until(seeds: Iterator[int], least: int, deadline_s: float | None) -> Iterator[int]:
    for count, seed in enumerate(seeds):
        if count >= least and deadline_s is not None and time.monotonic() > deadline_s:
            return
        yield seed


def _end_at_once() -> None:
    """SIGTERM is no outcome of a seed."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _run(seed: int) -> Outcome:
    outcome = run_seed(seed)
    gc.collect()
    return outcome


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _pin_hashes() -> None:
    """Start anew with a fixed hash seed: the order of sets of strings depends on it."""
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        environment = {**os.environ, "PYTHONHASHSEED": HASH_SEED}
        command = [sys.executable, "-m", "tidemill.testing.simulate", *sys.argv[1:]]
        os.execve(sys.executable, command, environment)


if __name__ == "__main__":
    _pin_hashes()
    end_in_order()
    sys.exit(main())
