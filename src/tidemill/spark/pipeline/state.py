"""What a machine remembers of a pipeline: who runs it, how far it is, what its checkpoints are of.

A pipeline has a folder of its own, by its name. `run.json` is what `tidemill pipeline status`
shows; it stays after the run, and a crash leaves it saying that the pipeline runs. So only the lock
decides whether it does: its holder's death lets go of it. Its file says who that is. `queries.json`
has the fingerprint of every query that has a checkpoint.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from tidemill.errors import TidemillError

STATE_DIR_VARIABLE: Final = "TIDEMILL_STATE_DIR"
LOCK_TRIES: Final = 20
LOCK_TRY_S: Final = 0.05

RunState = Literal["starting", "running", "stopping", "stopped", "finished", "failed", "crashed"]
ALIVE: Final = ("starting", "running", "stopping")


class AlreadyRunningError(TidemillError):
    """Another process runs this pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryNote:
    """How far one query is."""

    name: str
    group: str
    state: str = "starting"
    batch: int | None = None
    rows: int = 0
    rows_per_s: float = 0.0
    behind: int | None = None
    """Records that were in the topics and not yet read when the last batch began."""
    watermark: str | None = None
    late: int = 0
    """Rows that were left out for coming later than the watermark allows."""
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNote:
    """The last run of a pipeline."""

    name: str
    file: str
    pid: int
    master: str
    bootstrap: str
    once: bool
    started_ms: int
    updated_ms: int
    state: RunState = "starting"
    error: str | None = None
    queries: tuple[QueryNote, ...] = ()


def default_root() -> Path:
    """Where pipelines keep their state unless told otherwise."""
    if given := os.environ.get(STATE_DIR_VARIABLE):
        return Path(given)
    from platformdirs import user_state_path

    return user_state_path("tidemill") / "pipelines"


class PipelineState:
    """The folder of one pipeline."""

    def __init__(self, root: Path, name: str) -> None:
        self.folder = root / name
        self.log = self.folder / "spark.log"
        self._note = self.folder / "run.json"
        self._queries = self.folder / "queries.json"
        self._lock = self.folder / "run.lock"

    @contextlib.contextmanager
    def held(self, wait: Any) -> Iterator[None]:
        """In here this process runs the pipeline, and nobody else can.

        Whoever asks whether it runs holds the lock for a moment, so one refusal is none: `wait` is
        called with seconds between tries.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._lock.open("a+b") as file:
            for _ in range(LOCK_TRIES):
                if _taken(file.fileno(), fcntl.LOCK_EX):
                    break
                wait(LOCK_TRY_S)
            else:
                holder = self.holder()
                by = f" by process {holder}" if holder else ""
                raise AlreadyRunningError(f"pipeline {self.folder.name} is already run{by}")
            file.truncate(0)
            file.write(b"%d" % os.getpid())
            file.flush()
            yield

    def is_held(self) -> bool:
        """Whether a process runs this pipeline now."""
        try:
            with self._lock.open("rb") as file:
                return not _taken(file.fileno(), fcntl.LOCK_SH)
        except OSError:
            return False

    def holder(self) -> int | None:
        """The process that runs this pipeline now, if there is one and it can be told.

        What the last one has left in the file counts for nothing, nor does a number that belongs to
        somebody else by now: whoever is to be stopped has the lock's file open. Earlier versions
        leave it empty; the note has their number, which is the last run's while one begins, and so
        is believed only where the system says who has the file open.
        """
        try:
            said = self._lock.read_bytes()
            pid = int(said) if said else self._noted()
        except (OSError, ValueError):
            return None
        if pid is None or not self.is_held():
            return None
        return pid if _has_open(pid, self._lock, if_unknown=bool(said)) else None

    def _noted(self) -> int | None:
        note = self.read()
        return note.pid if note is not None else None

    def write(self, note: RunNote) -> None:
        _replace(self._note, asdict(note))

    def read(self) -> RunNote | None:
        """The last run as it is now: one that its note calls running may have crashed."""
        try:
            fields = json.loads(self._note.read_text())
            queries = tuple(QueryNote(**each) for each in fields.pop("queries"))
            note = RunNote(**fields, queries=queries)
        except (OSError, ValueError, TypeError, KeyError):
            return None
        if note.state in ALIVE and not self.is_held():
            return replace(note, state="crashed")
        return note

    # --- checkpoints ------------------------------------------------------------------------------

    def checkpoint(self, query: str, base: str) -> str:
        """Where a query keeps its checkpoint: under `base` if that is given, else here."""
        if base:
            return f"{base.rstrip('/')}/{self.folder.name}/{query}"
        return str(self.folder / "checkpoints" / query)

    def fingerprints(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(self._queries.read_text())
        except (OSError, ValueError):
            return {}
        return found

    def remember(self, fingerprints: Mapping[str, Any]) -> None:
        """From now on these queries have checkpoints; those of others stay known."""
        _replace(self._queries, self.fingerprints() | dict(fingerprints))

    def forget(self) -> None:
        """Let the pipeline begin anew: without checkpoints, at the sources' start.

        They go in one step, as half of a checkpoint is one that nobody can continue from. What is
        deleted after it, and by the next time at the latest, is of no use to anybody.
        """
        there, gone = self.folder / "checkpoints", self.folder / "checkpoints.forgotten"
        shutil.rmtree(gone, ignore_errors=True)
        if there.exists():
            there.rename(gone)
        self._queries.unlink(missing_ok=True)
        shutil.rmtree(gone, ignore_errors=True)


def known(root: Path) -> list[str]:
    """The pipelines that have ever run here."""
    if not root.is_dir():
        return []
    return sorted(path.parent.name for path in root.glob("*/run.json"))


def _has_open(pid: int, path: Path, *, if_unknown: bool) -> bool:
    """Whether a process has a file open; `if_unknown` where a system does not say."""
    opened = Path(f"/proc/{pid}/fd")
    if not Path("/proc/self/fd").is_dir():
        return if_unknown
    with contextlib.suppress(OSError):
        for each in opened.iterdir():
            with contextlib.suppress(OSError):
                if each.samefile(path):
                    return True
    return False


def _taken(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _replace(path: Path, content: Mapping[str, Any]) -> None:
    """Write the file, whole or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content) + "\n")
    temporary.replace(path)
