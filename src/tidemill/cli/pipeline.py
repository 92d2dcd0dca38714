"""`tidemill pipeline`: init, check, run, status and stop of pipelines declared in a file."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from tidemill.cli import pipeline_status
from tidemill.cli.command import command, confirm
from tidemill.cli.connect import Target, parse_pairs
from tidemill.cli.exits import CommandError, Exit
from tidemill.cli.options import COMMON, Common, DryRun
from tidemill.cli.pipeline_checks import check_topics, check_with_spark, summary
from tidemill.cli.pipeline_live import Live
from tidemill.cli.pipeline_status import PipelineDetail, PipelineRow
from tidemill.cli.render import Note, talk
from tidemill.cli.signals import stop_signals
from tidemill.spark import needs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemill.spark.pipeline.load import Problems
    from tidemill.spark.pipeline.model import Pipeline
    from tidemill.spark.pipeline.state import PipelineState, RunNote

app = App(name="pipeline")
app.command("tidemill.cli.spark_cluster:app", name="cluster")
app.command("tidemill.cli.mirror:app", name="mirror")
app.command("tidemill.cli.repartition:app", name="repartition")

STOP_WAIT_S = 60.0
DEFAULT_MASTER = "local[*]"

File = Annotated[str, Parameter(help="The pipeline's TOML file.")]
StateDir = Annotated[
    Path | None,
    Parameter(
        name=("--state-dir",),
        help="Where pipelines keep their state (default: TIDEMILL_STATE_DIR, or the user's).",
    ),
]


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing that is wrong with a pipeline file."""

    line: int | None
    key: str
    severity: str
    message: str
    suggestion: str = ""


class Mistakes(list[Mistake]):
    """Everything that is wrong with it; the status says whether it can be run."""

    @property
    def exit_code(self) -> Exit:
        return Exit.FAILED if any(each.severity == "error" for each in self) else Exit.OK


@dataclass(frozen=True, slots=True)
class QueryEnd:
    """What one query did in a run."""

    query: str
    state: str
    batch: int | None
    rows: int
    late: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended."""

    pipeline: str
    state: str
    queries: tuple[QueryEnd, ...]
    error: str | None = None

    @property
    def exit_code(self) -> Exit:
        return Exit.FAILED if self.state == "failed" else Exit.OK


@command(
    app,
    mutates=True,
    examples=[
        "tidemill pipeline init clicks",
        "tidemill pipeline init clicks --output ./clicks-pipeline.toml --dry-run",
    ],
)
def init(
    name: Annotated[str, Parameter(help="The new pipeline's name.")],
    /,
    *,
    from_: Annotated[
        str,
        Parameter(name=("--from",), help="Begin with a shipped pipeline instead of the example."),
    ] = "example",
    output: Annotated[
        Path | None,
        Parameter(name=("--output", "-o"), help="The file to write, NAME.toml if none."),
    ] = None,
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> Note:
    """Write a pipeline file to begin with."""
    from tidemill.spark.pipeline import templates

    known = templates.names()
    if from_ not in known:
        raise CommandError(
            f"there is no pipeline {from_!r} to begin with", Exit.NOT_FOUND, f"one of {known}"
        )
    path = output or Path(f"{name}.toml")
    if path.exists() and not common.yes:
        raise CommandError(f"{path} is there already", Exit.USAGE, "add --yes to replace it")
    text = templates.text_of(from_, name)
    if not dry_run:
        path.write_text(text, encoding="utf-8")
    return Note(f"{path}: edit it, then `tidemill pipeline check {path}`", dry_run=dry_run)


@command(
    app,
    examples=[
        "tidemill pipeline check clicks.toml",
        "tidemill pipeline check clicks.toml --no-spark --format json",
    ],
)
async def check(
    file: File,
    /,
    *,
    spark: Annotated[
        bool, Parameter(help="Have Spark judge the expressions, which takes some seconds.")
    ] = True,
    broker: Annotated[bool, Parameter(help="Look up the topics at a broker.")] = True,
    common: Common = COMMON,
) -> Mistakes | Note:
    """Say what is wrong with a pipeline file: every mistake with its line and what to do.

    Topics are looked up if a broker answers, as one must that was named, and expressions are judged
    by Spark if it is installed; without them the file is checked by itself.
    """
    pipeline, problems, target = _checked(file, common)
    if pipeline is not None:
        if broker:
            await check_topics(pipeline, target, problems)
        if spark and not problems.are_fatal:
            check_with_spark(pipeline, target, problems)
    if problems.found:
        return _mistakes(problems)
    assert pipeline is not None
    return Note(summary(pipeline))


@command(
    app,
    streams=True,
    examples=[
        "tidemill pipeline run clicks.toml --once",
    ],
)
def run(
    file: File,
    /,
    *,
    once: Annotated[
        bool,
        Parameter(
            negative=(), show_default=False, help="End when all that is there now has been read."
        ),
    ] = False,
    master: Annotated[
        str | None, Parameter(help="Where Spark runs: local[*], spark://HOST:7077, yarn, k8s://...")
    ] = None,
    conf: Annotated[
        tuple[str, ...],
        Parameter(negative=(), show_default=False, help="A setting of Spark, k=v; repeatable."),
    ] = (),
    reset: Annotated[
        bool,
        Parameter(
            negative=(), show_default=False, help="Forget the checkpoints; read from the start."
        ),
    ] = False,
    state_dir: StateDir = None,
    common: Common = COMMON,
) -> RunEnd:
    """Run a pipeline until Ctrl-C or `tidemill pipeline stop`; it continues where it stopped.

    Every query commits its offsets to a group of its own, so that `tidemill group describe` and any
    other tool shows how far behind it is.
    """
    from tidemill.clock import SystemClock
    from tidemill.spark.pipeline import run as runs
    from tidemill.spark.pipeline import state as states
    from tidemill.spark.pipeline.model import InvalidPipelineError

    pipeline, problems, target = _checked(file, common)
    if pipeline is None:
        raise _refusal(file, problems)
    state = states.PipelineState(state_dir or states.default_root(), pipeline.name)
    if reset:
        _reset(pipeline, state, common)
    chosen = master or pipeline.spark.get("spark.master") or DEFAULT_MASTER
    setting = runs.Setting(
        bootstrap=target.bootstrap,
        master=chosen,
        once=once,
        client={**pipeline.client, **target.settings},
    )
    settings = {**runs.FAIR_SCHEDULING, **pipeline.spark, **parse_pairs(conf, "--conf")}
    told = Event()

    open_things = ExitStack()

    def session() -> SparkSession:
        from tidemill.spark.pipeline.jvm import own_session

        if (lacking := needs.missing()) is not None:
            raise CommandError(lacking.what, hint=lacking.remedy)
        talk(f"starting Spark on {chosen}; its log is {state.log}")
        made = own_session(f"tidemill {pipeline.name}", master=chosen, conf=settings, log=state.log)
        open_things.enter_context(stop_signals(told.set))  # Spark has put its own handler there.
        open_things.callback(made.stop)
        return made

    with open_things, stop_signals(told.set), Live(no_color=common.no_color) as live:
        try:
            note = runs.run(
                pipeline, problems, setting,
                session=session, state=state, clock=SystemClock(), stop=told, show=live.show,
            )  # fmt: skip
        except InvalidPipelineError:
            raise _refusal(file, problems) from None
    return _ended(note)


@command(
    app,
    examples=["tidemill pipeline status", "tidemill pipeline status --format json"],
)
async def status(
    *names: Annotated[str, Parameter(help="Only these pipelines, with their queries.")],
    state_dir: StateDir = None,
    common: Common = COMMON,
) -> list[PipelineRow] | list[PipelineDetail]:
    """Show the pipelines that ran here, and how far behind their queries are."""
    from tidemill.spark.pipeline.state import default_root, known

    root = state_dir or default_root()
    if names:
        return [await pipeline_status.detail(root, name, common) for name in names]
    return [pipeline_status.row(root, name) for name in known(root)]


@command(app, mutates=True, examples=["tidemill pipeline stop clicks --dry-run"])
def stop(
    name: Annotated[str, Parameter(help="The pipeline's name.")],
    /,
    *,
    state_dir: StateDir = None,
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> Note:
    """Stop a pipeline that runs on this machine, and wait until it has."""
    from tidemill.spark.pipeline.state import PipelineState, default_root

    root = state_dir or default_root()
    state = PipelineState(root, name)
    note = state.read()
    if note is None:
        raise CommandError(f"no pipeline {name!r} has run here", Exit.NOT_FOUND, _known_hint(root))
    if not state.is_held():
        return Note(f"{name} does not run", dry_run=dry_run)
    pid = state.holder()
    if pid is None:
        raise CommandError(f"{name} runs, and its process cannot be told", Exit.FAILED)
    if dry_run:
        return Note(f"would stop {name}, process {pid}", dry_run=True)
    os.kill(pid, signal.SIGTERM)
    pause = Event()
    waited_s = 0.0
    while state.is_held():
        if waited_s >= (common.timeout or STOP_WAIT_S):
            raise CommandError(f"{name}, process {pid}, has not ended yet", Exit.UNREACHABLE)
        pause.wait(0.1)
        waited_s += 0.1
    return Note(f"stopped {name}")


def _checked(file: str, common: Common) -> tuple[Pipeline | None, Problems, Target]:
    """The pipeline if the file itself is right, what is wrong with it, and its cluster."""
    from tidemill.spark.pipeline.check import check

    if not os.path.exists(file):
        raise CommandError(
            f"{file}: no such file", Exit.NOT_FOUND, "`tidemill pipeline init NAME` writes one"
        )
    if os.path.isdir(file):
        raise CommandError(
            f"{file} is a directory", Exit.USAGE, "name the pipeline's file, such as clicks.toml"
        )
    try:
        pipeline, problems = check(file)
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}", Exit.FAILED) from None
    target = common.target
    if pipeline is not None and pipeline.bootstrap and target.is_default:
        target = replace(target, bootstrap=pipeline.bootstrap, source=file)
    return pipeline, problems, target


def _mistakes(problems: Problems) -> Mistakes:
    return Mistakes(
        Mistake(
            each.line or None,
            each.key,
            "warning" if each.is_warning else "error",
            each.message,
            each.suggestion,
        )
        for each in sorted(problems.found, key=lambda each: each.line)
    )


def _refusal(file: str, problems: Problems) -> CommandError:
    """Why a pipeline is not even started: every mistake on a line of its own."""
    errors = [each for each in problems.found if not each.is_warning]
    return CommandError(
        "\n".join(str(each) for each in errors),
        Exit.USAGE,
        f"`tidemill pipeline check {file}` lists what is wrong with it",
    )


def _reset(pipeline: Pipeline, state: PipelineState, common: Common) -> None:
    from tidemill.spark.pipeline.run import read_again_words

    if pipeline.checkpoints:
        raise CommandError(
            f"the checkpoints are in {pipeline.checkpoints}, which --reset does not touch",
            Exit.USAGE,
            "delete them there, or give the pipeline another name",
        )
    if not state.fingerprints():
        return
    consequence = read_again_words(pipeline)
    confirm(f"Forget how far {pipeline.name} is, and read everything again{consequence}?", common)
    if state.is_held():
        raise CommandError(
            f"{pipeline.name} runs", hint=f"`tidemill pipeline stop {pipeline.name}`"
        )
    state.forget()


def _ended(note: RunNote) -> RunEnd:
    queries = tuple(
        QueryEnd(each.name, each.state, each.batch, each.rows, each.late, each.error)
        for each in note.queries
    )
    return RunEnd(note.name, note.state, queries, note.error)


def _known_hint(root: Path) -> str:
    from tidemill.spark.pipeline.state import known

    names = known(root)
    return f"there is {', '.join(names)}" if names else "none has"
