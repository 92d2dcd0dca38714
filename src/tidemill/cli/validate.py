"""`tidemill validate`: do your settings keep what they promise when brokers die?

A cluster of three brokers is started in a temporary directory, loaded with your settings, hurt in
one way after the other, and thrown away. `tidemill.testing.validation` does the work.
"""

from __future__ import annotations

import shlex
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from tidemill.cli.client_files import BOOTSTRAP, ClientFile, Kind, overridden, read_all
from tidemill.cli.command import command
from tidemill.cli.connect import parse_pairs
from tidemill.cli.exits import CommandError, Exit
from tidemill.cli.loops import cleaned_up_on_sigterm
from tidemill.cli.options import COMMON, Common
from tidemill.cli.render import talk
from tidemill.cli.validate_report import Promises, Remark, Report, promises_only, report
from tidemill.client.errors import SettingsError
from tidemill.testing.validation.promises import (
    MEANINGS,
    Commits,
    Scenario,
    Setup,
    TopicSettings,
    commits_of,
)

if TYPE_CHECKING:
    from tidemill.testing.cluster import ProcessCluster
    from tidemill.testing.validation.judge import Judgement
    from tidemill.testing.validation.load import Load
    from tidemill.testing.validation.scenarios import Say
    from tidemill.testing.validation.trial import Workload

app = App(name="validate")

BROKERS = 3
SECONDS_MAX = 3600
RATE_MAX = 100_000
RECORDS_MAX = 1_000_000
PARTITIONS_MAX = 1_000
SEED_MAX = 2**31


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that was asked for, checked."""

    setup: Setup
    files: Mapping[Kind, ClientFile]
    scenarios: tuple[Scenario, ...]
    command: str | None
    feed: bool
    seconds: float
    rate: int
    records: int
    seed: int
    remarks: list[Remark] = field(default_factory=list)


@command(
    app,
    default=True,
    streams=True,
    examples=[
        "tidemill validate --config producer.properties --config consumer.properties --explain",
        "tidemill validate --config producer.properties --scenario leader-kill --seconds 4",
        "tidemill validate -X acks=1 --unclean-leader-election --explain --format json",
        "tidemill validate --scenario controller-kill --seconds 4 --app "
        "'kafka-verifiable-producer.sh --bootstrap-server {bootstrap} --topic {topic} "
        "--throughput 200'",
    ],
)
async def validate(
    *,
    config: Annotated[
        tuple[str, ...],
        Parameter(
            name=("--config",),
            negative=(),
            show_default=False,
            help="A producer's or a consumer's properties file; one of each at most. What they do "
            "not say has Kafka's defaults.",
        ),
    ] = (),
    app_: Annotated[
        str | None,
        Parameter(
            name=("--app",),
            help="Run this program instead of a load of our own; see below.",
        ),
    ] = None,
    feed: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="The program only reads: a load of our own writes to its topic.",
        ),
    ] = False,
    scenario: Annotated[
        tuple[Scenario, ...],
        Parameter(
            name=("--scenario",),
            negative=(),
            show_default=False,
            help="Hurt the cluster in this way only; repeatable (default: in all four).",
        ),
    ] = (),
    partitions: Annotated[
        int, Parameter(name=("--partitions", "-p"), help="Of the topic that is written to.")
    ] = 3,
    replicas: Annotated[
        int, Parameter(name=("--replicas", "-r"), help="Copies of each partition, 1 to 3.")
    ] = 3,
    min_insync_replicas: Annotated[
        int, Parameter(help="How many of them have to have a record before acks=all is answered.")
    ] = 2,
    unclean_leader_election: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Let a replica lead that lacks records, rather than wait for the others.",
        ),
    ] = False,
    commit: Annotated[
        Literal["after", "before"],
        Parameter(
            help="With enable.auto.commit=false: whether offsets are committed before or after "
            "the records are worked on."
        ),
    ] = "after",
    seconds: Annotated[float, Parameter(help="How long each scenario runs, at least.")] = 15.0,
    rate: Annotated[int, Parameter(help="Records per second of our own load.")] = 500,
    records: Annotated[
        int | None, Parameter(help="Send no more than so many in each scenario.")
    ] = None,
    seed: Annotated[int | None, Parameter(help="Repeat the choices of an earlier run.")] = None,
    explain: Annotated[
        bool,
        Parameter(
            negative=(), show_default=False, help="Only say what the settings promise; run nothing."
        ),
    ] = False,
    common: Common = COMMON,
) -> Report | Promises:
    """Hurt a throw-away cluster under your settings, and compare with what they promise.

    Three brokers are started in a temporary directory, and gone afterwards. A verifiable load runs
    with your settings while the leader is killed, then the controller, while all brokers restart in
    turn, and while only a replica that lacks records is left. Reported are the records that were
    lost (acknowledged and gone), duplicated, reordered, undelivered and redelivered, the longest
    pause, and whether your settings allow that. The exit status is 0 if they were kept, 1 if not.

    With `--app` your program is the load. It is started by the shell, once per scenario, with
    `{bootstrap}`, `{topic}`, `{group}`, `{producer_config}` and `{consumer_config}` (your files
    with the address filled in) replaced in its words, and the same in the variables
    `TIDEMILL_BOOTSTRAP`, `BOOTSTRAP_SERVERS`, `TIDEMILL_TOPIC`, `TIDEMILL_GROUP`,
    `TIDEMILL_PRODUCER_CONFIG` and `TIDEMILL_CONSUMER_CONFIG`. It runs until SIGTERM. What was
    acknowledged and read it says in the JSON lines of Kafka's verifiable tools
    (`producer_send_success`, `record_data`); what it does not say, the report cannot judge.
    """
    topic = TopicSettings(partitions, replicas, min_insync_replicas, unclean_leader_election)
    _check_topic(topic)
    files = overridden(read_all(config, strict=app_ is None), parse_pairs(common.x, "-X"))
    plan = Plan(
        setup=_setup(files, topic, Commits(commit)),
        files=files,
        scenarios=tuple(dict.fromkeys(scenario)) or tuple(Scenario),
        command=app_,
        feed=feed,
        seconds=seconds,
        rate=rate,
        records=min(RECORDS_MAX, int(4 * seconds * rate) + 1) if records is None else records,
        seed=SystemRandom().randrange(SEED_MAX) if seed is None else seed,
        remarks=_remarks(files, with_program=app_ is not None),
    )
    _check_bounds(plan)
    if explain:
        return promises_only(plan.setup, plan.scenarios, plan.remarks)
    with cleaned_up_on_sigterm(), tempfile.TemporaryDirectory(prefix="tidemill-validate-") as home:
        return report(plan.setup, await _run(plan, Path(home)), plan.seed, plan.remarks)


def _check_topic(topic: TopicSettings) -> None:
    if not 1 <= topic.partitions <= PARTITIONS_MAX:
        raise CommandError(f"--partitions is 1 to {PARTITIONS_MAX}", Exit.USAGE)
    if not 1 <= topic.replication_factor <= BROKERS:
        raise CommandError(f"--replicas is 1 to {BROKERS}: so many brokers there are", Exit.USAGE)
    if not 1 <= topic.min_insync_replicas <= topic.replication_factor:
        raise CommandError(
            f"--min-insync-replicas is 1 to {topic.replication_factor}, the number of replicas",
            Exit.USAGE,
        )


def _check_bounds(plan: Plan) -> None:
    if not 1 <= plan.seconds <= SECONDS_MAX:
        raise CommandError(f"--seconds is 1 to {SECONDS_MAX}", Exit.USAGE)
    if not 1 <= plan.rate <= RATE_MAX:
        raise CommandError(f"--rate is 1 to {RATE_MAX}", Exit.USAGE)
    if not 1 <= plan.records <= RECORDS_MAX:
        raise CommandError(f"--records is 1 to {RECORDS_MAX}", Exit.USAGE)
    if plan.feed and plan.command is None:
        raise CommandError("--feed is for a program that reads: name it with --app", Exit.USAGE)


def _setup(files: Mapping[Kind, ClientFile], topic: TopicSettings, by_hand: Commits) -> Setup:
    """The settings as the clients themselves understand them."""
    from tidemill.client import Consumer, Producer

    nowhere = "127.0.0.1:1"
    try:
        producer = Producer(nowhere, **files[Kind.PRODUCER].arguments()).settings
        consumer = Consumer(nowhere, **files[Kind.CONSUMER].arguments()).settings
    except SettingsError as error:
        raise CommandError(str(error), Exit.USAGE) from None
    return Setup(producer, consumer, topic, commits_of(consumer, by_hand))


def _remarks(files: Mapping[Kind, ClientFile], *, with_program: bool) -> list[Remark]:
    found = []
    for file in files.values():
        if keys := ", ".join(key for key in file.put_aside if key != BOOTSTRAP):
            what = "left to the program" if with_program else "without a bearing here, not used"
            found.append(Remark(str(file.path), f"{what}: {keys}"))
    if with_program:
        found.append(
            Remark(
                "promises",
                "what the files do not say is taken to have the defaults of Kafka's own client; "
                "those of librdkafka differ (enable.idempotence=false)",
            )
        )
    return found


# Running


async def _run(plan: Plan, home: Path) -> dict[Scenario, Judgement]:
    from tidemill.testing.cluster import ProcessCluster

    began = time.monotonic()
    found: dict[Scenario, Judgement] = {}
    async with ProcessCluster(home, BROKERS) as cluster:
        talk(f"{BROKERS} brokers ready after {time.monotonic() - began:.1f} s, in {home}")
        for scenario in plan.scenarios:
            found[scenario] = await _try(plan, scenario, cluster, home)
    return found


async def _try(plan: Plan, scenario: Scenario, cluster: ProcessCluster, home: Path) -> Judgement:
    from tidemill.testing.validation.trial import Trial

    began = time.monotonic()
    talk(f"{scenario}: {MEANINGS[scenario]}")

    def say(text: str) -> None:
        talk(f"{scenario}: {time.monotonic() - began:5.1f} s  {text}")

    def workload(topic: str) -> Workload:
        if plan.command is None:
            return _load(plan, cluster.bootstrap, topic)
        return _program(plan, scenario, cluster.bootstrap, topic, home, say)

    trial = Trial(cluster, scenario, plan.setup, workload, plan.seconds, plan.seed, say)
    judgement = await trial.run()
    say(f"{judgement.verdict}{': ' if judgement.why else ''}{judgement.why}")
    return judgement


def _load(plan: Plan, bootstrap: str, topic: str, *, only_writes: bool = False) -> Load:
    from tidemill.testing.validation.load import Load, Pace

    return Load(
        bootstrap,
        topic,
        plan.setup,
        Pace(plan.rate, plan.records),
        plan.files[Kind.PRODUCER].arguments(),
        plan.files[Kind.CONSUMER].arguments(),
        only_writes=only_writes,
    )


def _program(
    plan: Plan, scenario: Scenario, bootstrap: str, topic: str, home: Path, say: Say
) -> Workload:
    from tidemill.testing.validation.program import Program

    assert plan.command is not None
    words = {
        "bootstrap": bootstrap,
        "topic": topic,
        "group": plan.setup.consumer.group_id,
        "scenario": str(scenario),
    }
    for kind, file in plan.files.items():
        path = home / f"{kind}.properties"
        path.write_text(file.filled_in(bootstrap))
        words[f"{kind}_config"] = str(path)
    variables = {f"TIDEMILL_{name.upper()}": text for name, text in words.items()}
    return Program(
        filled_in(plan.command, words),
        bootstrap,
        topic,
        plan.setup.topic.partitions,
        variables | {"BOOTSTRAP_SERVERS": bootstrap},
        home / f"{scenario}.program.log",
        say,
        feed=_load(plan, bootstrap, topic, only_writes=True) if plan.feed else None,
    )


def filled_in(command: str, words: Mapping[str, str]) -> str:
    """The command line with its `{names}` replaced; other braces are the shell's."""
    for name, text in words.items():
        command = command.replace(f"{{{name}}}", shlex.quote(text))
    return command
