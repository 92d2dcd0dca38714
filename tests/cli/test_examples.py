"""Every example that any help text shows is run, word for word, against a live cluster."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.helpers import environment, install, quick, shell

from tidemill.cli import docs
from tidemill.cli import fleet as fleets
from tidemill.cli.fleet import Fleet, Member
from tidemill.cli.moves import to_document
from tidemill.cli.root import EPILOGUE
from tidemill.spark.pipeline.state import PipelineState, RunNote
from tidemill.testing.process import BrokerProcess
from tidemill.types import TopicPartition

LEAVES = list(docs.leaves())
EXAMPLES = [example for leaf in LEAVES for example in leaf.examples]
ROOT_EXAMPLES = [line.strip() for line in EPILOGUE.splitlines() if line.startswith("  ")]
PIPELINE = """\
name = "clicks"
source.clicks = { topics = ["clicks"], decode = { format = "text" } }
sink.copy = { from = "clicks", topic = "clicks.copy", partitions = 1 }
"""
NEEDS_A_PROCESS = re.compile("broker start|validate|pipeline (check|run)")
RUNS_FOREVER = re.compile(r"^tidemill (pipeline cluster )?up(?!.*--dry-run)")
RUN_ELSEWHERE = re.compile(r"^tidemill demo(?!.*--no-spark)")
"""`test_demo.py` runs it, and looks at what came of it."""

HERE = [e for e in EXAMPLES if not RUNS_FOREVER.match(e) and not RUN_ELSEWHERE.match(e)]


@pytest.fixture(scope="module")
def place(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with what the examples name: commands, files, a profile, a partition's files."""
    here = tmp_path_factory.mktemp("examples")
    install(here / "bin")
    (here / "events.txt").write_text("one\ntwo\n")
    (here / "offsets.csv").write_text("clicks,0,1\n")
    (here / "server.properties").write_text("num.partitions=2\n")
    (here / "producer.properties").write_text("acks=all\nlinger.ms=5\n")
    (here / "consumer.properties").write_text("group.id=billing\nauto.offset.reset=earliest\n")
    (here / "config").mkdir()
    (here / "config" / "profiles.toml").write_text(f'[profiles.local]\nbootstrap = "{bootstrap}"\n')
    make_logs(here)
    make_fleet(here / "three")
    make_plan(bootstrap, here / "plan.json")
    yield here
    quick("broker", "stop", "--data-dir", str(here / "three"), "--port", "9093")
    quick("topic", "delete", "clicks", "orders", "--yes", "-b", bootstrap)


def make_logs(here: Path) -> None:
    """`clicks-0` and `old/clicks-0`: one partition's directory, made by a broker.

    It holds enough for an index: a short log is left without one.
    """
    with BrokerProcess(here / "maker") as broker:
        quick("topic", "create", "clicks", "-p", "1", "-b", broker.bootstrap)
        quick("perf", "produce", "clicks", "-n", "200", "--size", "1000", "-b", broker.bootstrap)
    shutil.copytree(here / "maker" / "clicks-0", here / "clicks-0")
    shutil.copytree(here / "maker" / "clicks-0", here / "old" / "clicks-0")


def make_fleet(home: Path) -> None:
    """`three`: a data directory whose broker is known by the port that the examples name, and
    takes a free one, so that it never meets anybody else's."""
    member = Member(1, 9093, "broker-1", {"listeners": "PLAINTEXT://127.0.0.1:0"})
    fleets.save(Fleet(home, (member,)))


def make_run(root: Path) -> None:
    """A pipeline `clicks` that ran here once."""
    state = PipelineState(root, "clicks")
    note = RunNote(
        name="clicks", file="clicks.toml", pid=1, master="local[2]", bootstrap="127.0.0.1:9092",
        once=True, started_ms=1, updated_ms=1, state="finished",
    )  # fmt: skip
    with state.held(lambda seconds: None):
        state.write(note)


def make_plan(bootstrap: str, path: Path) -> None:
    """`plan.json`: the first partition of `clicks` on the broker where it is."""
    brokers = json.loads(quick("cluster", "brokers", "--format", "json", "-b", bootstrap).out)
    path.write_text(to_document({TopicPartition("clicks", 0): (brokers[0]["id"],)}))


def prepare(bootstrap: str, example: str, here: Path) -> None:
    """Each example finds the topics `clicks` and `orders` unless it creates them, and a group."""
    target = ("-b", bootstrap, "--yes")
    if "topic create" in example:
        quick("topic", "delete", "--regex", "clicks|orders", *target)
    else:
        quick("topic", "create", "clicks", "orders", "-p", "2", "--if-not-exists", *target)
        quick("produce", "clicks", "-p", "0", *target, stdin="a\nb\nc\nd\ne\n")
    if " audit" in example:
        quick("group", "seek", "audit", "--to", "3", "-t", "clicks", "--execute", *target)
    shutil.rmtree(here / "imported", ignore_errors=True)
    (here / "clicks.toml").write_text(PIPELINE)
    if "pipeline init" in example:
        (here / "clicks.toml").unlink()
    if " stop clicks" in example:
        make_run(here / "state")


@pytest.mark.parametrize("example", HERE)
def test_example(example: str, bootstrap: str, place: Path) -> None:
    prepare(bootstrap, example, place)
    variables = {
        "TIDEMILL_BOOTSTRAP": bootstrap,
        "TIDEMILL_CONFIG_DIR": str(place / "config"),
        "TIDEMILL_STATE_DIR": str(place / "state"),
    }
    if example.startswith("tidemill ") and not NEEDS_A_PROCESS.search(example):
        ran = quick(*shlex.split(example)[1:], variables=variables, cwd=place)
    else:
        ran = shell(example, path=place / "bin", variables=variables, cwd=place, timeout_s=100)
    assert ran.status == 0, ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("example", [e for e in EXAMPLES if RUNS_FOREVER.match(e)])
def test_example_that_runs_until_it_is_stopped(example: str, place: Path, tmp_path: Path) -> None:
    """`tidemill ... up ...` word for word; a port of its own comes from the environment where the
    example names none, so that it never meets another broker's 9092."""
    variables = environment({"PATH": f"{place / 'bin'}:/usr/bin:/bin"})
    if "--port" not in example:
        variables["TIDEMILL_LISTENERS"] = "PLAINTEXT://127.0.0.1:0"
    process = subprocess.Popen(
        ["/bin/sh", "-c", f"exec {example}"],
        env=variables, cwd=tmp_path, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    watchdog = threading.Timer(90, process.kill)
    watchdog.start()
    assert process.stdout is not None
    ready = process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    watchdog.cancel()
    assert re.fullmatch(r"ready on (spark://)?127\.0\.0\.1:\d+\n", ready), err
    assert process.returncode == 0, err


def test_the_examples_of_the_root_help_are_examples_of_commands() -> None:
    """The root's epilogue shows only lines that the commands' own help shows, and so are run."""
    assert ROOT_EXAMPLES
    assert set(ROOT_EXAMPLES) <= set(EXAMPLES)
