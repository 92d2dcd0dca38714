"""What `tidemill pipeline status` shows: the last run's note, and the lag of its groups."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.cli import group_moves
from tidemill.cli.exits import CommandError, Exit
from tidemill.cli.render import ALWAYS, FOR_PROGRAMS
from tidemill.errors import TidemillError

if TYPE_CHECKING:
    from tidemill.cli.options import Common
    from tidemill.client import Admin
    from tidemill.spark.pipeline.state import QueryNote, RunNote

BROKER_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class QueryRow:
    """One query: how far it is by its own account, and how far behind by its group's."""

    query: str
    state: str
    batch: int | None = field(metadata=ALWAYS)
    rows: int
    rows_per_s: float
    group: str
    lag: int | None = field(metadata=ALWAYS)
    watermark: str | None = None
    late: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class PipelineRow:
    """One pipeline of this machine."""

    pipeline: str
    state: str
    pid: int | None = field(metadata=ALWAYS)
    master: str
    started: str
    updated: str
    file: str
    started_ms: int = field(metadata=FOR_PROGRAMS)
    updated_ms: int = field(metadata=FOR_PROGRAMS)
    error: str | None = None


@dataclass(frozen=True, slots=True)
class PipelineDetail:
    """One pipeline with its queries."""

    pipeline: str
    state: str
    pid: int | None
    master: str
    bootstrap: str
    started: str
    updated: str
    file: str
    log: str
    error: str | None
    queries: tuple[QueryRow, ...]


def row(root: Path, name: str) -> PipelineRow:
    _, note = _read(root, name)
    return PipelineRow(
        note.name,
        note.state,
        _pid(note),
        note.master,
        _time(note.started_ms),
        _time(note.updated_ms),
        note.file,
        note.started_ms,
        note.updated_ms,
        note.error,
    )


async def detail(root: Path, name: str, common: Common) -> PipelineDetail:
    log, note = _read(root, name)
    lags = await _lags(note, common)
    return PipelineDetail(
        note.name,
        note.state,
        _pid(note),
        note.master,
        note.bootstrap,
        _time(note.started_ms),
        _time(note.updated_ms),
        note.file,
        str(log),
        note.error,
        tuple(_query(each, note, lags.get(each.group)) for each in note.queries),
    )


def _read(root: Path, name: str) -> tuple[Path, RunNote]:
    from tidemill.spark.pipeline.state import PipelineState, known

    state = PipelineState(root, name)
    note = state.read()
    if note is None:
        names = known(root)
        hint = f"there is {', '.join(names)}" if names else "none has"
        raise CommandError(f"no pipeline {name!r} has run here", Exit.NOT_FOUND, hint)
    return state.log, note


def _query(query: QueryNote, note: RunNote, lag: int | None) -> QueryRow:
    # What its process would have written last, had it been given the time.
    state = "crashed" if note.state == "crashed" and query.state == "running" else query.state
    rate = query.rows_per_s if state == "running" else 0.0
    return QueryRow(
        query.name,
        state,
        query.batch,
        query.rows,
        rate,
        query.group,
        lag,
        query.watermark,
        query.late,
        query.error,
    )


async def _lags(note: RunNote, common: Common) -> dict[str, int]:
    """How far behind each group is, as far as the cluster answers."""
    target = common.target
    if target.is_default:
        from dataclasses import replace

        target = replace(target, bootstrap=note.bootstrap, source="the pipeline's last run")
    with suppress(TidemillError, OSError, TimeoutError):
        async with asyncio.timeout(BROKER_WAIT_S), target.admin() as admin:
            return await _ask(admin, [query.group for query in note.queries])
    return {}


async def _ask(admin: Admin, groups: Sequence[str]) -> dict[str, int]:
    lags: dict[str, int] = {}
    for group in groups:
        found = (await admin.list_group_offsets(group)).successes()
        committed = {tp: at.offset for tp, at in found.items() if at is not None}
        if committed:
            ends = await group_moves.ends(admin, sorted(committed))
            lags[group] = sum(max(0, ends.get(tp, at) - at) for tp, at in committed.items())
    return lags


def _pid(note: RunNote) -> int | None:
    from tidemill.spark.pipeline.state import ALIVE

    return note.pid if note.state in ALIVE else None


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
