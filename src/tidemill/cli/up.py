"""`tidemill up` as the help and the completion see it; `serve` is what runs.

The options are declared twice, here for people and there for speed; a test holds them together.
"""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from tidemill.cli.command import command
from tidemill.cli.options import COMMON, Common, DryRun

app = App(name="up")


@command(
    app,
    default=True,
    mutates=True,
    streams=True,
    examples=[
        "tidemill up",
        "tidemill up --port 0 --data-dir ./more-data",
        "tidemill up --brokers 3 --port 0 --data-dir ./three",
        "tidemill up --store zk://h1:2181,h2:2181/tidemill --dry-run",
        "tidemill up --set log.retention.hours=24 --set num.partitions=3",
        "tidemill up --config server.properties --dry-run",
    ],
)
def up(
    *,
    port: Annotated[int | None, Parameter(help="Port on 127.0.0.1; 0 takes a free one.")] = None,
    data_dir: Annotated[
        str | None, Parameter(help="Where the data is kept (default: ./tidemill-data).")
    ] = None,
    brokers: Annotated[
        int | None,
        Parameter(
            help="How many, each a process, on ports one after the other (default: as many as "
            "there were in the data directory, else 1)."
        ),
    ] = None,
    store: Annotated[
        str | None,
        Parameter(
            help="Where brokers meet: sqlite://PATH, or zk://HOST:2181,HOST:2181/PATH "
            "(default: a file in the data directory)."
        ),
    ] = None,
    set_: Annotated[
        tuple[str, ...],
        Parameter(
            name=("--set", "-s"), negative=(), show_default=False, help="Broker setting key=value."
        ),
    ] = (),
    config: Annotated[
        str | None, Parameter(help="A server.properties or a .toml file with settings.")
    ] = None,
    log_level: Annotated[
        tuple[str, ...],
        Parameter(
            name=("--log-level",),
            negative=(),
            show_default=False,
            help="debug, info, warning, error; or for one part: storage=debug.",
        ),
    ] = (),
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> None:
    """Run a broker, or several, in the foreground.

    It prints `ready on HOST:PORT` for each, once all serve, and stops them on Ctrl-C. With several,
    one that dies is reported and not restarted: `tidemill broker start` brings it back.
    """
    raise AssertionError("main goes around this function: see tidemill.cli.serve")
