"""`tidemill ship`: log files into a topic, through rotation and restarts."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from tidemill.cli.command import command
from tidemill.cli.exits import CommandError, Exit
from tidemill.cli.loops import cleaned_up_on_sigterm
from tidemill.cli.options import COMMON, Common, DryRun
from tidemill.cli.produce import Compression, producer_settings, saying_why
from tidemill.cli.render import human_bytes, plural, talk

if TYPE_CHECKING:
    from tidemill.client import Producer
    from tidemill.client.errors import ClientError
    from tidemill.ship.follow import Follower
    from tidemill.ship.journal import Journal
    from tidemill.ship.shipper import Shipper

app = App(name="ship")

STATE_DIR_VARIABLE = "TIDEMILL_STATE_DIR"
LINE_BYTES_MIN = 16
LINE_BYTES_MAX = 8 * 1024 * 1024
ROTATED_WAIT_S_MAX = 86_400.0
REPORT_EVERY_S = 10.0
PATIENT_MS = 2**31 - 1
"""A record that was read from a file waits for its broker for weeks rather than fail."""

Patterns = Annotated[
    tuple[str, ...],
    Parameter(help="Files, or quoted patterns like 'logs/*.log'; ** matches directories, too."),
]
Topic = Annotated[str, Parameter(name=("--topic", "-t"), help="The topic to write to.")]
Once = Annotated[
    bool,
    Parameter(negative=(), show_default=False, help="Ship what is there and end."),
]
State = Annotated[
    str | None,
    Parameter(help="Where to remember how far each file is (default: one file per topic)."),
]
Host = Annotated[
    str | None, Parameter(help="What the header `host` says (default: this machine's name).")
]
Spread = Annotated[
    bool,
    Parameter(
        negative=(), show_default=False, help="No keys: spread a file's lines over partitions."
    ),
]
LineBytes = Annotated[int, Parameter(help="Longer lines become several records.")]
RotatedWait = Annotated[
    float, Parameter(help="Leave a renamed or deleted file when it was quiet for so many s.")
]


@dataclass(frozen=True, slots=True)
class ShippedFile:
    """How far one file is."""

    file: str
    shipped_bytes: int
    left_bytes: int


@dataclass(frozen=True, slots=True)
class ShipReport:
    """What `ship` did, or would do."""

    topic: str
    lines: int
    bytes: int
    state: str
    files: list[ShippedFile] = field(default_factory=list)
    dry_run: bool = False


@command(
    app,
    default=True,
    mutates=True,
    examples=[
        "tidemill ship events.txt --topic clicks --once --state ship.json",
        "tidemill ship 'logs/*.log' events.txt --topic clicks --dry-run --state ship.json",
    ],
)
async def ship(
    files: Patterns,
    /,
    *,
    topic: Topic,
    once: Once = False,
    state: State = None,
    host: Host = None,
    spread: Spread = False,
    line_bytes: LineBytes = 256 * 1024,
    rotated_wait: RotatedWait = 60.0,
    compression: Compression = "lz4",
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> ShipReport:
    """Follow files and write each line to a topic, until Ctrl-C or SIGTERM, or once.

    Rotation by renaming, by copying and truncating, and inodes used again are recognised. What was
    acknowledged is remembered, and the next run goes on there: nothing is lost by a crash, and at
    most the last 4 MiB arrive twice, with the same `position` header. A last line without its end
    waits for it. While brokers are away nothing is read. Records have the headers `host`, `file`
    and `position`, and `part` where a line was too long for one record; their key is host and file,
    so that the lines of a file stay in order.
    """
    from tidemill.ship.journal import Journal
    from tidemill.ship.shipper import Shipper
    from tidemill.storage.files import OsFiles

    if not files:
        raise CommandError("name the files to ship", Exit.USAGE)
    journal = Journal(OsFiles(), state or default_state(topic), topic)
    follower = _follower(files, journal, line_bytes, rotated_wait, once=once, dry_run=dry_run)
    if dry_run:
        follower.collect(1)
        return _report(topic, journal, follower, None)
    name = host or socket.gethostname()
    shipper = Shipper(
        follower, journal, topic=topic, host=name, keyed=not spread, patiently=saying_why
    )
    try:
        with cleaned_up_on_sigterm():
            await _run(shipper, follower, journal, common, topic, compression, once=once)
    finally:
        report = _report(topic, journal, follower, shipper)
        follower.close()
        journal.close()
        talk(f"shipped {plural(report.lines, 'line')}, {human_bytes(report.bytes)}")
    return report


def default_state(topic: str) -> str:
    """Where a topic's journal is kept unless told."""
    if given := os.environ.get(STATE_DIR_VARIABLE):
        return os.path.join(given, "ship", f"{topic}.json")
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(home, "tidemill", "ship", f"{topic}.json")


def _follower(
    patterns: tuple[str, ...],
    journal: Journal,
    line_bytes: int,
    rotated_wait_s: float,
    *,
    once: bool,
    dry_run: bool,
) -> Follower:
    from tidemill.clock import SystemClock
    from tidemill.ship.disk import OsDisk
    from tidemill.ship.follow import COPY_RESTS_MS, Follower, FollowSettings

    if not LINE_BYTES_MIN <= line_bytes <= LINE_BYTES_MAX:
        raise CommandError(
            f"--line-bytes must be from {LINE_BYTES_MIN} to {LINE_BYTES_MAX}, not {line_bytes}",
            Exit.USAGE,
        )
    if not 0 <= rotated_wait_s <= ROTATED_WAIT_S_MAX:
        raise CommandError(
            f"--rotated-wait must be from 0 to {ROTATED_WAIT_S_MAX:.0f}, not {rotated_wait_s}",
            Exit.USAGE,
        )
    settings = FollowSettings(
        patterns=tuple(os.path.abspath(pattern) for pattern in patterns),
        line_bytes_max=line_bytes,
        rotated_wait_ms=int(rotated_wait_s * 1000),
        copy_rests_ms=0 if once else COPY_RESTS_MS,
        ignored=frozenset({journal.path, f"{journal.path}.lock", f"{journal.path}.tmp"}),
    )
    known = journal.read() if dry_run else journal.open()
    return Follower(settings, OsDisk(), SystemClock(), random.SystemRandom(), known, talk)


async def _run(
    shipper: Shipper,
    follower: Follower,
    journal: Journal,
    common: Common,
    topic: str,
    compression: str,
    *,
    once: bool,
) -> None:
    settings = producer_settings("all", compression)
    if common.timeout is None and not once:
        settings["delivery_timeout_ms"] = PATIENT_MS

    async def connect() -> Producer:
        async with common.target.admin() as admin:
            journal.bind((await admin.describe_cluster()).cluster_id or "")
        producer = common.target.producer(**settings)
        await producer.start()
        try:
            await producer.partitions_for(topic)
        except BaseException:
            await producer.close(0)
            raise
        return producer

    def on_trouble(error: ClientError) -> None:
        talk(f"trying again: {error.message or error.code.name}")

    telling = asyncio.ensure_future(_tell(shipper, follower))
    try:
        await shipper.run(connect, once=once, on_trouble=on_trouble)
    finally:
        telling.cancel()


async def _tell(shipper: Shipper, follower: Follower) -> None:
    """A line now and then for whoever watches, while there is something new."""
    told = 0
    while True:
        await asyncio.sleep(REPORT_EVERY_S)
        shipped = shipper.shipped
        if shipped.lines == told:
            continue
        rate = (shipped.lines - told) / REPORT_EVERY_S
        told = shipped.lines
        behind = human_bytes(follower.behind_bytes())
        files = plural(follower.file_count, "file")
        talk(f"{shipped.lines:,} lines, {rate:,.0f}/s from {files}, {behind} behind")


def _report(
    topic: str, journal: Journal, follower: Follower, shipper: Shipper | None
) -> ShipReport:
    shipped = shipper.shipped if shipper is not None else None
    return ShipReport(
        topic,
        shipped.lines if shipped else 0,
        shipped.bytes if shipped else 0,
        journal.path,
        [ShippedFile(*row) for row in follower.progress()],
        dry_run=shipper is None,
    )
