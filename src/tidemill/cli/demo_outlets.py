"""Where the demo's clicks come out: Spark's tables, or a plain consumer where there is no Spark.

Both are asked the same: start, how many records have come so far, whether that is all, and in the
end for a line per thing that can be counted on both sides.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tidemill.children import stopping_with_parent
from tidemill.cli.demo_clicks import PARTITIONS, TOPIC, Ledger
from tidemill.cli.exits import CommandError
from tidemill.cli.muster import free_port
from tidemill.cli.orphans import descendants, see_ended
from tidemill.spark.sessions import SHORT_LIVED
from tidemill.spark.tables.rows import local_rows
from tidemill.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.spark.pipeline.state import QueryNote

PIPELINE = "site-activity"
DEAD_LETTERS = f"{PIPELINE}.dead-letters"
STOP_LIMIT_S = 10.0
ORPHANS_LIMIT_S = 5.0
LOOK_EVERY_S = 1.0
LAST_WORDS_BYTES = 1_500
SMALL = {"spark.ui.enabled": "true", "spark.sql.shuffle.partitions": "1"}
"""There is a page to look at, and so little data that to divide it is more work than it saves."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was counted where it went in and where it came out."""

    what: str
    went_in: int
    came_out: int
    equal: bool


class Outlet(Protocol):
    """Where records come out."""

    def start(self) -> None: ...

    def seen(self) -> str:
        """How far it is, for the line that is shown every second."""
        ...

    async def caught_up(self, ledger: Ledger, deadline: float) -> None:
        """Wait until all that was sent has been read, or until it is too late."""
        ...

    async def settle(self, ledger: Ledger, deadline: float) -> list[Check]:
        """Wait until everything has come out, or until it is too late; what did."""
        ...

    async def stop(self) -> None: ...


class ConsumerOutlet:
    """Without Spark: every record is read back."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._values: list[bytes] = []
        self._reading: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        from tidemill.client import Consumer

        async with Consumer(self._bootstrap) as consumer:
            consumer.assign([TopicPartition(TOPIC, index) for index in range(PARTITIONS)])
            consumer.seek_to_beginning(*consumer.assignment())
            while True:
                self._values += [each.value for each in await consumer.poll(timeout_ms=100)]

    def seen(self) -> str:
        return f"{len(self._values):,} read back"

    async def caught_up(self, ledger: Ledger, deadline: float) -> None:
        while len(self._values) < ledger.sent and time.monotonic() < deadline:
            if self._reading is not None and self._reading.done():
                await self._reading
            await asyncio.sleep(0.1)

    async def settle(self, ledger: Ledger, deadline: float) -> list[Check]:
        await self.caught_up(ledger, deadline)
        once = len(set(self._values)) == len(self._values)
        found = len(self._values)
        return [Check("records", ledger.sent, found, once and found == ledger.sent)]

    async def stop(self) -> None:
        if self._reading is not None:
            self._reading.cancel()


class SparkOutlet:
    """The site-activity pipeline as a user runs it: `tidemill pipeline run`, in its own process."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self._bootstrap = bootstrap
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._family: frozenset[int] = frozenset()
        self._log = folder / "pipeline.log"
        self._states = folder / "state"
        self.tables = folder / "tables"
        self._port = str(free_port(set()))
        self.page = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        from tidemill.spark.pipeline import templates

        text = templates.text_of(PIPELINE, PIPELINE)
        (self._folder / f"{PIPELINE}.toml").write_text(text, encoding="utf-8")
        words = ["pipeline", "run", f"{PIPELINE}.toml", "--bootstrap", self._bootstrap]
        words += ["--master", "local[2]", "--state-dir", str(self._states)]
        for pair in {**SHORT_LIVED, **SMALL, "spark.ui.port": self._port}.items():
            words += ["--conf", "=".join(pair)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tidemill.cli", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
                start_new_session=True,
                preexec_fn=stopping_with_parent(),
            )

    def seen(self) -> str:
        if self._has_ended:
            return "the pipeline has ended"
        visits = next((each for each in self._queries() if each.name == "visits"), None)
        if visits is None or visits.batch is None:
            return "Spark starts"
        behind = f", {visits.behind:,} behind" if visits.behind else ""
        return f"Spark has {visits.rows:,}{behind}"

    def _queries(self) -> tuple[QueryNote, ...]:
        from tidemill.spark.pipeline.state import PipelineState

        note = PipelineState(self._states, PIPELINE).read()
        return note.queries if note is not None else ()

    async def caught_up(self, ledger: Ledger, deadline: float) -> None:
        """All queries have to: each has a watermark of its own."""

        def have_all() -> bool:
            queries = self._queries()
            return bool(queries) and all(each.rows >= ledger.sent for each in queries)

        while not have_all() and time.monotonic() < deadline:
            await self._pause()

    async def settle(self, ledger: Ledger, deadline: float) -> list[Check]:
        while True:
            found = [*await asyncio.to_thread(self._look, ledger), await self._set_aside(ledger)]
            if all(each.equal for each in found) or time.monotonic() > deadline:
                return found
            await self._pause()

    async def _pause(self) -> None:
        self._remember_family()
        if self._has_ended:
            raise CommandError(f"the pipeline has ended: {self._last_words()}")
        await asyncio.sleep(LOOK_EVERY_S)

    def _look(self, ledger: Ledger) -> list[Check]:
        ids = _column(self.tables / "visits", "id")
        sessions = sum(_column(self.tables / "sessions", "clicks"))
        views = sum(_column(self.tables / "pages", "views"))
        once = len(ids) == len(ledger.ids) and set(ids) == ledger.ids
        return [
            Check("clicks, each once in the table visits", len(ledger.ids), len(ids), once),
            Check(
                "clicks of the finished sessions", ledger.over, sessions, sessions == ledger.over
            ),
            Check("views of the pages", ledger.over, views, views == ledger.over),
        ]

    async def _set_aside(self, ledger: Ledger) -> Check:
        """Records that are no clicks; a letter that was sent twice counts once."""
        letters = await _values_of(self._bootstrap, DEAD_LETTERS)
        equal = letters == ledger.bad
        return Check("bad records, set aside", len(ledger.bad), len(letters), equal)

    def write_report(self, output: Path, day: date) -> str:
        """The report of a day, as the pipeline's users make it; where it is."""
        from tidemill.spark.jobs import site_report

        site_report.write(self.tables, output, day)
        return str(output.absolute())

    @property
    def _has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def _last_words(self) -> str:
        text = self._log.read_text(errors="replace")[-LAST_WORDS_BYTES:]
        return " | ".join(text.strip().splitlines()[-4:])

    async def stop(self) -> None:
        self._remember_family()
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            await asyncio.to_thread(process.wait, STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        await asyncio.to_thread(see_ended, self._family, ORPHANS_LIMIT_S)

    def _remember_family(self) -> None:
        """Spark's processes may outlive the pipeline's by moments, and write into what is to go."""
        if self._process is not None and self._process.poll() is None:
            self._family = descendants(self._process.pid)


def _column(table: Path, name: str) -> list[Any]:
    return [row[name] for row in local_rows(table, [name])]


async def _values_of(bootstrap: str, topic: str) -> set[bytes]:
    """All values that a topic holds now; none if there is no such topic."""
    from tidemill.client import Admin, Consumer
    from tidemill.client.admin_types import OffsetSpec

    async with Admin(bootstrap) as admin:
        if topic not in {each.name for each in await admin.list_topics()}:
            return set()
        [described] = (await admin.describe_topics([topic])).raise_first().values()
        parts = [TopicPartition(topic, each.index) for each in described.partitions]
        listed = await admin.list_offsets(dict.fromkeys(parts, OffsetSpec.LATEST))
        ends = {part: each.offset for part, each in listed.raise_first().items()}
    values: set[bytes] = set()
    async with Consumer(bootstrap) as consumer:
        consumer.assign(parts)
        consumer.seek_to_beginning(*parts)
        while any([await consumer.position(part) < end for part, end in ends.items()]):
            values |= {each.value for each in await consumer.poll(timeout_ms=100)}
    return values
