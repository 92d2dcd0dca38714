"""A pipeline while it runs: start its queries, watch them, stop them, and write down how they are.

`run` is called with everything it needs from outside: a session, the state's folder, a clock, an
event that ends it, and somebody to show progress to. It returns when the event is set, when with
`once` everything that was there has been read, or when a query fails, which ends the others, too.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from threading import Event
from typing import TYPE_CHECKING, Any, Final

from tidemill.clock import Clock
from tidemill.errors import TidemillError
from tidemill.spark.pipeline import spark_errors
from tidemill.spark.pipeline.durations import interval
from tidemill.spark.pipeline.inputs import FORMAT, TopicInputs
from tidemill.spark.pipeline.keys import InvalidPipelineError
from tidemill.spark.pipeline.load import Problems
from tidemill.spark.pipeline.lookup_table import LookupTable
from tidemill.spark.pipeline.model import Pipeline, Sink
from tidemill.spark.pipeline.outputs import frame_by_frame, make_topics, sink_options
from tidemill.spark.pipeline.plan import (
    Query,
    added_to,
    fed_by,
    fingerprint,
    queries,
    why_not_continued,
)
from tidemill.spark.pipeline.progress import Meter, Progress
from tidemill.spark.pipeline.spark_errors import SparkFailedError
from tidemill.spark.pipeline.state import ALIVE, PipelineState, QueryNote, RunNote, RunState
from tidemill.spark.pipeline.tidying import tidy_beside

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

logger = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 0.25
WRITE_EVERY_MS: Final = 1_000
WARN_EVERY_MS: Final = 60_000
"""How often at most it is told that a query goes on leaving rows out."""

QUERIES_AT_ONCE: Final = 2
"""Queries that run at the same time where each comes to an end."""

RESTARTS_MAX: Final = 5
"""How often in a row a query is started again that has not come to its next batch."""

INITIALIZE_MAX_MS: Final = 60_000
STOP_GRACE_MS: Final = 15_000
"""How long a batch may take to end by itself once the pipeline is told to stop."""

FAIR_SCHEDULING: Final = {"spark.scheduler.mode": "FAIR"}
"""Queries of one session share its cores batch by batch, instead of waiting in a row."""


class CannotContinueError(TidemillError):
    """The pipeline was changed such that its checkpoints do not fit any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where and how a pipeline runs."""

    bootstrap: str
    master: str
    once: bool
    client: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Running:
    """A query that was started."""

    query: Query
    frame: DataFrame
    handle: StreamingQuery
    meter: Meter = field(default_factory=Meter)
    error: str | None = None
    was_stopped: bool = False
    restarts: int = 0
    """How often it was started again since its last batch."""
    late_told: int = 0
    late_told_ms: int = 0

    @property
    def is_active(self) -> bool:
        return bool(self.handle.isActive)

    @property
    def progress(self) -> Progress:
        return self.meter.now

    def look(self) -> None:
        """Take in what Spark has reported since the last look.

        Spark keeps the last hundred reports, and to make Python objects of all of them takes long:
        so from the end backwards, as far as they are new.
        """
        reports = self.handle._jsq.recentProgress()
        new: list[Mapping[str, Any]] = []
        for number in range(len(reports) - 1, -1, -1):
            if not self.meter.is_new(reports[number].timestamp()):
                break
            new.append(json.loads(reports[number].json()))
        if new:
            self.restarts = 0
        self.meter.add(reversed(new))
        if self.error is None and not self.is_active:
            refused = self.handle.exception()
            self.error = None if refused is None else spark_errors.root_cause(str(refused))

    @property
    def state(self) -> str:
        if self.error is not None:
            return "failed"
        if self.is_active:
            return "running"
        return "stopped" if self.was_stopped else "finished"


Show = Callable[[Sequence[tuple[str, str, Progress]]], None]
"""Takes (name, state, progress) of every query, several times a second."""


def check_continues(pipeline: Pipeline, state: PipelineState) -> None:
    """Refuse to go on with checkpoints that are of another pipeline than this has become."""
    before = state.fingerprints()
    for query in queries(pipeline):
        if query.name not in before:
            continue
        why = why_not_continued(before[query.name], fingerprint(pipeline, query))
        if why is not None:
            raise CannotContinueError(
                f"query {query.name} cannot continue from its checkpoint: {why}. "
                "Undo the change, give the sink another name to have a new query beside the old "
                "one's results, or run with --reset to read everything again"
                + read_again_words(pipeline)
            )


def read_again_words(pipeline: Pipeline) -> str:
    """What `--reset` does to what is there already, for the end of a sentence."""
    twice = added_to(pipeline)
    return f", after which there will be rows twice in {', '.join(twice)}" if twice else ""


def run(
    pipeline: Pipeline,
    problems: Problems,
    setting: Setting,
    *,
    session: Callable[[], SparkSession],
    state: PipelineState,
    clock: Clock,
    stop: Event,
    show: Show = lambda rows: None,
) -> RunNote:
    """Run a checked pipeline to its end; the note says how it ended."""
    with state.held(stop.wait):
        check_continues(pipeline, state)
        note = _first_note(pipeline, setting, clock)
        state.write(note)
        life = Life(pipeline, problems, setting, state, clock, stop, show, note)
        try:
            life.start(session())
            life.watch()
        except BaseException as error:
            cause = spark_errors.root_cause(str(error)) or type(error).__name__
            life.abandon(cause)
            if spark_errors.is_sparks(error):
                raise SparkFailedError(f"pipeline {pipeline.name} has failed: {cause}") from error
            raise
        return life.note


def _first_note(pipeline: Pipeline, setting: Setting, clock: Clock) -> RunNote:
    return RunNote(
        name=pipeline.name,
        file=os.path.abspath(pipeline.path),
        pid=os.getpid(),
        master=setting.master,
        bootstrap=setting.bootstrap,
        once=setting.once,
        started_ms=clock.now_ms(),
        updated_ms=clock.now_ms(),
        queries=tuple(QueryNote(name=each.name, group=each.group) for each in queries(pipeline)),
    )


@dataclass(slots=True)
class Life:
    """One run, from the first query to the last word."""

    pipeline: Pipeline
    problems: Problems
    setting: Setting
    state: PipelineState
    clock: Clock
    stop: Event
    show: Show
    note: RunNote
    waiting: list[tuple[Query, DataFrame]] = field(default_factory=list)
    running: list[Running] = field(default_factory=list)
    tables: dict[str, LookupTable] = field(default_factory=dict)
    _written_ms: int = 0

    def start(self, spark: SparkSession) -> None:
        """Compile, make what has to be there, and start one query after the other."""
        from tidemill.spark.pipeline.compile import compile_all

        inputs = TopicInputs(spark, self.setting.bootstrap, self.setting.client)
        frames, tables = compile_all(self.pipeline, inputs, self.problems)
        if self.problems.are_fatal:
            raise InvalidPipelineError(self.problems.found)
        make_topics(self.pipeline, self.setting.bootstrap, self.setting.client)
        sinks = self.pipeline.sink.values()
        tidy_beside(self._sink_options(each) for each in sinks)
        for name, frame in tables.items():
            refresh_ms = self.pipeline.table[name].refresh_ms
            self.tables[name] = LookupTable(name, frame, refresh_ms, self.clock)
        self.waiting.extend(frames)
        self._start_waiting()
        self._write("running")

    def _start_waiting(self) -> None:
        """Start what is to run: all of it, or with `once`, where each ends, a few at a time."""
        while self.waiting and not self.stop.is_set():
            chosen = self._next() if self.setting.once else self.waiting[0]
            if chosen is None:
                return
            self.waiting.remove(chosen)
            query, frame = chosen
            # Remembered first: a checkpoint whose query nobody knows could not be judged later.
            self.state.remember({query.name: fingerprint(self.pipeline, query)})
            self.running.append(Running(query, frame, self._started(query, frame)))
            self._until_initialized(self.running[-1].handle)
            if not self.running[-1].is_active:
                return  # Should it have failed to start, it comes first, before more are started.

    def _next(self) -> tuple[Query, DataFrame] | None:
        """What can be started now, of queries that end: such that whoever reads what another one
        writes comes after it, and finds it all."""
        active = [each for each in self.running if each.is_active]
        if len(active) >= QUERIES_AT_ONCE:
            return None
        unfinished = {each.query.name for each in active} | {
            query.name for query, _ in self.waiting
        }
        for query, frame in self.waiting:
            if not fed_by(self.pipeline, query) & unfinished:
                return query, frame
        # Queries that feed each other through topics: one of them has to be the first.
        return None if active else self.waiting[0]

    def _until_initialized(self, handle: StreamingQuery) -> None:
        """Let a query find its sources before the next one starts: each starts Python processes for
        that, and a machine that starts all of them at once may be too slow for Spark's patience."""
        deadline_ms = self.clock.monotonic_ms() + INITIALIZE_MAX_MS
        while handle.isActive and handle.status["message"].startswith("Initializing"):
            if self.clock.monotonic_ms() > deadline_ms or self.stop.wait(0.05):
                return

    def _started(self, query: Query, frame: DataFrame) -> StreamingQuery:
        sink = query.target if isinstance(query.target, Sink) else None
        frame.sparkSession.sparkContext.setLocalProperty("spark.scheduler.pool", query.name)
        checkpoint = self.state.checkpoint(query.name, self.pipeline.checkpoints)
        writer = (
            frame.writeStream.queryName(f"{self.pipeline.name}.{query.name}")
            .option("checkpointLocation", checkpoint)
            .outputMode(sink.output if sink else "append")
        )
        options = self._sink_options(sink)
        if sink is not None and sink.output == "update":
            writer = writer.foreachBatch(frame_by_frame(options))
        else:
            writer = writer.format(FORMAT).options(**options)
        every_ms = self.pipeline.trigger_ms
        if sink is not None and sink.trigger_ms is not None:
            every_ms = sink.trigger_ms
        if self.setting.once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=interval(every_ms)).start()

    def _sink_options(self, sink: Sink | None) -> dict[str, str]:
        return sink_options(self.pipeline, sink, self.setting.bootstrap, self.setting.client)

    def watch(self) -> None:
        """Until told to stop, until all is done, or until a query fails."""
        while not self.stop.wait(LOOK_EVERY_S):
            for table in self.tables.values():
                table.refresh_if_due()
            # Asked before the queries are looked at, which tells why one has ended.
            is_over = not self.waiting and not any(each.is_active for each in self.running)
            self._look()
            if self._has_restarted():
                continue
            failed = next((each for each in self.running if each.error is not None), None)
            if failed is not None:
                self.end("failed", f"query {failed.query.name}: {failed.error}")
                return
            if is_over:
                self.end("finished")
                return
            self._start_waiting()
        self._write("stopping")
        self.end("stopped")

    def _has_restarted(self) -> bool:
        """Start queries again that failed only because the machine was too busy for Spark's ten
        seconds of patience with a Python process; they continue from their checkpoints. One after
        the other, as at first: together they would only be too slow once more."""
        tired = [
            each
            for each in self.running
            if each.error is not None
            and spark_errors.is_impatience(each.error)
            and each.restarts < RESTARTS_MAX
        ]
        for each in tired:
            each.restarts, each.error = each.restarts + 1, None
            each.handle = self._started(each.query, each.frame)
            self._until_initialized(each.handle)
        return bool(tired)

    def _look(self) -> None:
        for each in self.running:
            each.look()
            self._tell_late(each)
        self.show([(each.query.name, each.state, each.progress) for each in self.running])
        if self.clock.monotonic_ms() - self._written_ms >= WRITE_EVERY_MS:
            self._write(self.note.state)

    def _tell_late(self, running: Running) -> None:
        """Late rows are nobody's dead letters: that there are some must not pass silently."""
        new, now_ms = running.progress.late - running.late_told, self.clock.monotonic_ms()
        is_due = not running.late_told or now_ms - running.late_told_ms >= WARN_EVERY_MS
        if new and (is_due or not running.is_active):
            running.late_told += new
            running.late_told_ms = now_ms
            rows = "row" if new == 1 else "rows"
            logger.warning(
                "query %s left out %d %s that came later than the watermark's delay allows; "
                "the watermark is at %s",
                running.query.name, new, rows, running.progress.watermark,
            )  # fmt: skip

    def end(self, state: RunState, error: str | None = None) -> None:
        """Stop what still runs and leave the last word."""
        deadline_ms = self.clock.monotonic_ms() + STOP_GRACE_MS
        for each in self.running:
            if each.is_active:
                self._stop_between_batches(each, deadline_ms)
        self._look()
        for table in self.tables.values():
            table.forget()
        self._write(state, error)

    def abandon(self, error: str) -> None:
        """End after something went wrong with the run itself, be it that Spark is gone."""
        with suppress(Exception):
            self.end("failed", error)
            return
        self.note = replace(self.note, state="failed", error=error)
        self.state.write(self.note)

    def _stop_between_batches(self, running: Running, deadline_ms: int) -> None:
        """A batch that is cut off is done again after the restart; better let it end."""
        batch = _batch_of(running.handle)
        pause = Event()
        while running.is_active and self.clock.monotonic_ms() < deadline_ms:
            if not running.handle.status["isTriggerActive"] or _batch_of(running.handle) != batch:
                break
            pause.wait(0.02)
        running.handle.stop()
        running.was_stopped = True

    def _write(self, state: RunState, error: str | None = None) -> None:
        self._written_ms = self.clock.monotonic_ms()
        now = {each.query.name: _note_of(each) for each in self.running}
        notes = tuple(now.get(each.name, each) for each in self.note.queries)
        if state not in ALIVE:  # Some may never have had their turn.
            notes = tuple(
                replace(each, state="stopped") if each.state == "starting" else each
                for each in notes
            )
        self.note = replace(
            self.note, state=state, error=error, updated_ms=self.clock.now_ms(), queries=notes
        )
        self.state.write(self.note)


def _batch_of(handle: StreamingQuery) -> int:
    last = handle.lastProgress
    return -1 if last is None else int(last["batchId"])


def _note_of(running: Running) -> QueryNote:
    now = running.progress
    return QueryNote(
        name=running.query.name,
        group=running.query.group,
        state=running.state,
        batch=now.batch,
        rows=now.rows,
        rows_per_s=now.rows_per_s,
        behind=now.behind,
        watermark=now.watermark,
        late=now.late,
        error=running.error,
    )
