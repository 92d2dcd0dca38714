"""`python -m tidemill.testing.faults`: a long run on the command line, and its report."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from itertools import islice
from pathlib import Path
from random import SystemRandom

from tidemill.testing.faults.plan import Kind, Store, plan
from tidemill.testing.faults.runner import Run, RunSettings
from tidemill.testing.running import end_in_order
from tidemill.testing.zookeeper import unavailable_reason


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tidemill.testing.faults",
        description="Three brokers under load and under faults; nothing acked may be lost.",
    )
    stores, kinds = [each.value for each in Store], [each.value for each in Kind]
    parser.add_argument("--minutes", type=float, default=30, help="how long faults go on")
    parser.add_argument("--store", choices=stores, default=Store.SQLITE.value)
    parser.add_argument("--seed", type=int, help="decides the faults; random unless given")
    parser.add_argument("--rate", type=float, default=100, help="records per second and producer")
    parser.add_argument("--flush-policy", choices=["ack", "async"], default="ack")
    parser.add_argument("--only", choices=kinds, action="append", default=[], help="faults to have")
    parser.add_argument("--load", action="append", default=[], help="a further load program")
    parser.add_argument(
        "--folder", type=Path, help="where data and logs go; a new one if not given"
    )
    parser.add_argument("--report", type=Path, help="where the report goes, as JSON")
    parser.add_argument("--plan", type=int, metavar="N", help="print N faults and do nothing")
    return parser.parse_args()


def main() -> int:
    """The exit status: 0 if nothing went wrong that must not."""
    end_in_order()
    given = _parse()
    store = Store(given.store)
    seed = SystemRandom().randrange(1_000_000) if given.seed is None else given.seed
    kinds = [Kind(each) for each in given.only]
    _say(f"seed {seed}, store {store}")
    if given.plan is not None:
        for strike in islice(plan(seed, store, kinds), given.plan):
            _say(str(strike))
        return 0
    if store is Store.ZOOKEEPER and (reason := unavailable_reason()):
        _say(f"ZooKeeper cannot run here: {reason}")
        return 2
    folder = given.folder or Path(tempfile.mkdtemp(prefix="tidemill-faults-"))
    _say(f"data and logs are in {folder}")
    settings = RunSettings(
        folder,
        store,
        seed,
        seconds=given.minutes * 60,
        rate=given.rate,
        flush_policy=given.flush_policy,
        kinds=kinds,
        loads=given.load,
        say=_say,
    )
    report = asyncio.run(Run(settings).run())
    _say("")
    _say(str(report))
    target = given.report or folder / "report.json"
    target.write_bytes(report.to_json())
    _say(f"the report is in {target}")
    return 0 if report.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
