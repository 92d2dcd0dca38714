"""`tidemill doctor`: the usual suspects, checked one by one: this machine, then the cluster."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from tidemill.cli.command import command, describe
from tidemill.cli.exits import Exit
from tidemill.cli.options import COMMON, Common
from tidemill.cli.render import human_bytes
from tidemill.errors import TidemillError

if TYPE_CHECKING:
    from tidemill.client import Admin

app = App(name="doctor")

Verdict = Literal["ok", "warn", "fail"]
DISK_FREE_WARN_BYTES = 5 * 1024**3
DISK_FREE_FAIL_BYTES = 256 * 1024**2
FSYNC_ROUNDS = 20
FSYNC_WARN_MS = 10.0
FILES_WARN = 10_000
CLOCK_SKEW_WARN_MS = 1_000
CONNECT_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: what was looked at, how it is, and what to do about it."""

    check: str
    verdict: Verdict
    found: str
    advice: str | None = None


class Findings(list[Finding]):
    @property
    def exit_code(self) -> Exit:
        return Exit.FAILED if any(f.verdict == "fail" for f in self) else Exit.OK


@command(
    app, default=True, examples=["tidemill doctor", "tidemill doctor --data-dir . --format json"]
)
async def doctor(
    *,
    data_dir: Annotated[str, Parameter(help="Where a broker's data is or will be.")] = (
        "./tidemill-data"
    ),
    port: Annotated[int, Parameter(help="The port a broker here would use.")] = 9092,
    common: Common = COMMON,
) -> Findings:
    """Check ports, disk, fsync, file limit, clock, and whether each broker's address answers."""
    where = _existing_parent(data_dir)
    findings = Findings([_disk(where), _fsync(where), _file_limit(), _port(port)])
    findings += await _cluster(common)
    return findings


def _existing_parent(path: str) -> str:
    here = os.path.abspath(path)
    while not os.path.isdir(here):
        here = os.path.dirname(here)
    return here


def _disk(where: str) -> Finding:
    usage = shutil.disk_usage(where)
    found = f"{human_bytes(usage.free)} of {human_bytes(usage.total)} free at {where}"
    if usage.free < DISK_FREE_FAIL_BYTES:
        return Finding("disk", "fail", found, "free some space, or use another --data-dir")
    if usage.free < DISK_FREE_WARN_BYTES:
        return Finding("disk", "warn", found, "shorten retention.ms or retention.bytes")
    return Finding("disk", "ok", found)


def _fsync(where: str) -> Finding:
    """How long one record takes to be safe: the floor under acks=all with flush.policy=ack."""
    took_ms = []
    try:
        with tempfile.TemporaryFile(dir=where) as file:
            for _ in range(FSYNC_ROUNDS):
                file.write(b"x" * 4096)
                file.flush()
                started = time.perf_counter()
                os.fdatasync(file.fileno())
                took_ms.append((time.perf_counter() - started) * 1000)
    except OSError as error:
        return Finding("fsync", "fail", f"cannot write at {where}: {error.strerror}", "chmod it")
    took_ms.sort()
    middle, worst = took_ms[len(took_ms) // 2], took_ms[-1]
    found = f"{middle:.2f} ms in the middle, {worst:.2f} ms at worst"
    if middle > FSYNC_WARN_MS:
        return Finding("fsync", "warn", found, "a faster disk, or flush.policy=async")
    return Finding("fsync", "ok", found)


def _file_limit() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{soft} open files, may be raised to {hard}"
    if 0 <= hard < FILES_WARN:
        return Finding("file limit", "warn", found, f"raise it: ulimit -n {FILES_WARN}")
    return Finding("file limit", "ok", found)


def _port(port: int) -> Finding:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            found = f"{port} is taken on 127.0.0.1"
            return Finding("port", "warn", found, "a broker runs already, or use another --port")
    return Finding("port", "ok", f"{port} is free on 127.0.0.1")


async def _cluster(common: Common) -> list[Finding]:
    """What the cluster says about itself, and whether its addresses can be reached from here."""
    target = common.target
    try:
        async with target.admin() as admin:
            found = [await _addressing(admin)]
            for check in (_controller, _partitions, _clock):
                found.append(await _guard(check, admin, common))
            return found
    except (TidemillError, OSError) as error:
        advice = describe(error, common).hint
        # Before the first `up` there is none; one that was named ought to be there.
        verdict: Verdict = "fail" if target.is_explicit else "warn"
        return [Finding("cluster", verdict, f"no broker at {target.bootstrap}", advice)]


async def _guard(
    check: Callable[[Admin], Awaitable[Finding]], admin: Admin, common: Common
) -> Finding:
    name = check.__name__.strip("_")
    try:
        return await check(admin)
    except (TidemillError, OSError) as error:
        return Finding(name, "warn", describe(error, common).error)


async def _addressing(admin: Admin) -> Finding:
    """The classic: the bootstrap answers, but the address it advertises does not."""
    cluster = await admin.describe_cluster()
    dead = []
    for broker in cluster.brokers:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, writer = await asyncio.open_connection(broker.host, broker.port)
            writer.close()
        except (OSError, TimeoutError):
            dead.append(f"{broker.broker_id} at {broker.host}:{broker.port}")
    if dead:
        found = f"cannot reach broker {', '.join(dead)}"
        return Finding("advertised address", "fail", found, "set advertised.listeners")
    found = ", ".join(f"{b.broker_id} at {b.host}:{b.port}" for b in cluster.brokers)
    return Finding("advertised address", "ok", f"broker {found}")


async def _controller(admin: Admin) -> Finding:
    cluster = await admin.describe_cluster()
    if cluster.controller_id is None:
        return Finding("controller", "fail", "the cluster has none", "look into the brokers' logs")
    return Finding("controller", "ok", f"broker {cluster.controller_id}")


async def _partitions(admin: Admin) -> Finding:
    names = [t.name for t in await admin.list_topics(internal=True)]
    topics = (await admin.describe_topics(names)).successes() if names else {}
    everything = [p for t in topics.values() for p in t.partitions]
    offline = sum(1 for p in everything if p.leader is None)
    thin = sum(1 for p in everything if len(p.isr) < len(p.replicas))
    found = f"{len(everything)} in {len(topics)} topics, {offline} offline, {thin} under-replicated"
    if offline:
        return Finding("partitions", "fail", found, "start the missing brokers")
    if thin:
        return Finding("partitions", "warn", found, "start the missing brokers")
    return Finding("partitions", "ok", found)


async def _clock(admin: Admin) -> Finding:
    """The protocol tells no time; a topic's newest record from the future is the hint there is."""
    from tidemill.client.admin_types import OffsetSpec
    from tidemill.types import TopicPartition

    names = [t.name for t in await admin.list_topics()][:50]
    topics = (await admin.describe_topics(names)).successes() if names else {}
    wanted = [TopicPartition(t.name, p.index) for t in topics.values() for p in t.partitions]
    specs = dict.fromkeys(wanted[:500], OffsetSpec.MAX_TIMESTAMP)
    listed = (await admin.list_offsets(specs)).successes() if specs else {}
    newest_ms = max((o.timestamp_ms for o in listed.values()), default=-1)
    ahead_ms = newest_ms - int(time.time() * 1000)
    if ahead_ms > CLOCK_SKEW_WARN_MS:
        found = f"the newest record is {ahead_ms} ms in the future"
        return Finding("clock", "warn", found, "synchronise the clocks (NTP)")
    return Finding("clock", "ok", "no record from the future")
