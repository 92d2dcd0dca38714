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
    """Run a broker in the foreground; it prints `ready on HOST:PORT` and stops on Ctrl-C."""
    raise AssertionError("main goes around this function: see tidemill.cli.serve")
