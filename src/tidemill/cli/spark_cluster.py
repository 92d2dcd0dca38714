"""`tidemill pipeline cluster up`: a Spark cluster on this machine, to see what `--master` does."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from tidemill.cli.command import command
from tidemill.cli.exits import CommandError, Exit
from tidemill.cli.options import COMMON, Common, DryRun
from tidemill.cli.render import Format, plural, talk
from tidemill.cli.signals import how_it_ended, stop_signals
from tidemill.spark.cluster import WORKERS_MAX, ClusterError, StandaloneCluster

app = App(name="cluster", help="A Spark cluster on this machine, to try pipelines on.")

WATCH_S = 0.2


@command(
    app,
    mutates=True,
    streams=True,
    examples=[
        "tidemill pipeline cluster up --workers 2",
        "tidemill pipeline cluster up --workers 4 --cores 2 --memory-mb 2048 --dry-run",
    ],
)
def up(
    *,
    workers: Annotated[int, Parameter(help="How many workers, each a process.")] = 2,
    cores: Annotated[int, Parameter(help="Tasks that a worker runs at a time.")] = 1,
    memory_mb: Annotated[int, Parameter(help="What a worker gives to its executors.")] = 1024,
    port: Annotated[int, Parameter(help="Port of the master; 0 takes a free one.")] = 0,
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> None:
    """Run a Spark master and workers in the foreground, from the Spark that is installed here.

    It prints `ready on spark://HOST:PORT`, which `--master` of `tidemill pipeline run` takes, once
    all workers have registered, and stops them on Ctrl-C. A worker that dies is reported and not
    replaced. One query or pipeline takes all cores; a second one waits for it.
    """
    if not 1 <= workers <= WORKERS_MAX or cores < 1 or memory_mb < 1 or not 0 <= port < 65_536:
        raise CommandError(
            f"--workers is 1 to {WORKERS_MAX}, --cores and --memory-mb at least 1, --port a port",
            Exit.USAGE,
        )
    if dry_run:
        talk(f"dry run: would run a Spark master and {plural(workers, 'worker')} on 127.0.0.1")
        return
    run(
        partial(StandaloneCluster, workers=workers, cores=cores, memory_mb=memory_mb, port=port),
        common.fmt,
    )


def run(make: Callable[..., StandaloneCluster], fmt: Format) -> None:
    """Until it is told to stop, or until there is nothing left to watch."""
    signals: list[bool] = []  # No lock is taken in a signal's handler.

    def is_told() -> bool:
        return bool(signals)

    with (
        stop_signals(lambda: signals.append(True)),
        tempfile.TemporaryDirectory(prefix="tidemill-spark-", ignore_cleanup_errors=True) as folder,
    ):
        try:
            with make(Path(folder), told_to_stop=is_told) as cluster:
                _announce(cluster, fmt)
                _watch(cluster, is_told)
        except ClusterError:
            if not is_told():
                raise


def _announce(cluster: StandaloneCluster, fmt: Format) -> None:
    """Tell whoever waits, person or script, that jobs are taken from now on."""
    line = f"ready on {cluster.url}"
    if fmt == "json":
        line = json.dumps({"ready": cluster.url, "page": cluster.page, "pid": os.getpid()})
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
    talk(f"who works there: {cluster.page}; what they say: {cluster.folder / 'logs'}")


def _watch(cluster: StandaloneCluster, is_told: Callable[[], bool]) -> None:
    """Until it is told to stop; without the master, or without any worker, there is no cluster."""
    while not is_told():
        time.sleep(WATCH_S)
        for daemon in cluster.daemons:
            if (status := daemon.status) is None:
                continue
            talk(f"{daemon.name} (pid {daemon.pid}) {how_it_ended(status)}")
            if daemon is cluster.master:
                raise CommandError("the master is gone, and the cluster with it")
            cluster.workers.remove(daemon)
            if not cluster.workers:
                raise CommandError("no worker is left")
