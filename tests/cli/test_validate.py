"""`tidemill validate` as a user runs it: real brokers, real deaths, a verdict and a status.

That settings keep their promise, with a load of ours and with a verifiable producer as the
program, is shown by the examples of the command's help, which `test_examples.py` runs.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.cli.helpers import environment, quick, run

TIMEOUT_S = 110

CONFLUENT_PROGRAM = """
import json, os, signal, time
from confluent_kafka import Consumer, Producer

stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))


def properties(name):
    with open(os.environ[name]) as file:
        return dict(line.strip().split("=", 1) for line in file if "=" in line)


def tell(name, message, **more):
    value = message.value().decode()
    event = {"name": name, "topic": message.topic(), "partition": message.partition()}
    print(json.dumps({**event, "offset": message.offset(), "value": value}), flush=True)


def delivered(error, message):
    tell("producer_send_error" if error else "producer_send_success", message)


topic = os.environ["TIDEMILL_TOPIC"]
producer = Producer(properties("TIDEMILL_PRODUCER_CONFIG"))
consumer = Consumer(properties("TIDEMILL_CONSUMER_CONFIG"))
consumer.subscribe([topic])
number, ended = 0, None
while ended is None or time.monotonic() < ended:
    if not stopped:
        producer.produce(topic, str(number).encode(), on_delivery=delivered)
        number += 1
    elif ended is None:
        producer.flush(30)
        ended = time.monotonic() + 3
    producer.poll(0)
    message = consumer.poll(0.005)
    if message is not None and message.error() is None:
        tell("record_data", message)
consumer.close()
"""


def validated(*arguments: str, cwd: Path) -> tuple[int, Any, str]:
    """The exit status, the report, and what was said on the way."""
    command = [sys.executable, "-m", "tidemill.cli", "validate", "--format", "json", *arguments]
    ran = run(command, cwd=cwd, timeout_s=TIMEOUT_S)
    assert ran.out, ran.err
    return ran.status, json.loads(ran.out), ran.err


@pytest.mark.timeout(TIMEOUT_S + 10)
def test_an_unclean_election_loses_what_was_acked_and_the_report_says_why(tmp_path: Path) -> None:
    """Rule A10: only who asks for it gets it; acks=all does not help then."""
    words = "--scenario unclean-election --unclean-leader-election --seconds 6 --seed 1"
    status, report, err = validated(*words.split(), cwd=tmp_path)
    [row] = report["scenarios"]
    assert row["lost"] > 0, err
    assert row["verdict"] == "allowed"
    assert f"{row['lost']:,} lost because unclean.leader.election.enable=true" in row["why"]
    assert row["duplicated"] == row["reordered"] == 0
    assert row["longest_pause_s"] > 0
    assert status == 0
    assert "the settings allow" in report["result"]
    assert "an unclean election" in err


@pytest.mark.timeout(TIMEOUT_S + 10)
def test_what_acks_1_may_lose_is_no_broken_promise(tmp_path: Path) -> None:
    (tmp_path / "p.properties").write_text("acks=1\nlinger.ms=0\n")
    words = "--config p.properties --scenario leader-kill --seconds 4 --rate 2000"
    status, report, err = validated(*words.split(), cwd=tmp_path)
    [row] = report["scenarios"]
    assert row["verdict"] in ("KEPT", "allowed"), err
    assert row["acked"] > 1_000
    if row["lost"]:
        assert f"{row['lost']:,} lost because acks=1" in row["why"]
    [lost] = [each for each in report["promises"] if each["mishap"] == "lost"]
    assert (lost["promise"], lost["scenarios"]) == ("may happen", "every scenario")
    assert status == 0


@pytest.mark.timeout(TIMEOUT_S + 10)
def test_a_program_of_another_client_is_judged_by_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(CONFLUENT_PROGRAM)
    (tmp_path / "producer.properties").write_text("acks=all\nenable.idempotence=true\n")
    (tmp_path / "consumer.properties").write_text("group.id=g\nauto.offset.reset=earliest\n")
    files = ["--config", "producer.properties", "--config", "consumer.properties"]
    command = ["--app", f"exec {shlex.quote(sys.executable)} program.py"]
    words = ["--scenario", "leader-kill", "--seconds", "6"]
    status, report, err = validated(*files, *command, *words, cwd=tmp_path)
    [row] = report["scenarios"]
    assert (row["verdict"], status) == ("KEPT", 0), (row, err)
    assert row["acked"] > 100
    assert row["lost"] == row["duplicated"] == row["reordered"] == row["undelivered"] == 0
    assert row["restarts"] == 0


@pytest.mark.timeout(TIMEOUT_S + 10)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_it_is_stopped_half_way(
    number: signal.Signals, tmp_path: Path
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tidemill.cli", "validate", "--seconds", "60"],
        env=environment({"TMPDIR": str(tmp_path)}),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        assert "3 brokers ready" in process.stderr.readline()
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) == 3
        [home] = tmp_path.iterdir()
        assert (home / "broker-1").is_dir()
        os.kill(process.pid, number)
        process.wait(timeout=TIMEOUT_S)
    finally:
        process.kill()
        process.communicate()
    _, alive = psutil.wait_procs(children, timeout=TIMEOUT_S)
    assert not alive
    if number is signal.SIGKILL:
        return  # It had no chance to remove its directory.
    assert process.returncode == 128 + number
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--config", "missing.properties"], "missing.properties: no such file"),
        (["--replicas", "4"], "--replicas is 1 to 3"),
        (["--min-insync-replicas", "3", "--replicas", "2"], "--min-insync-replicas is 1 to 2"),
        (["--partitions", "0"], "--partitions is 1 to"),
        (["--seconds", "0"], "--seconds is 1 to"),
        (["--rate", "0"], "--rate is 1 to"),
        (["--records", "0"], "--records is 1 to"),
        (["--feed"], "--app"),
        (["-X", "acks=1", "-X", "enable.idempotence=true"], "`enable.idempotence` needs acks=all"),
        (["-X", "linger=5"], "did you mean `linger.ms`?"),
        (["--scenario", "earthquake"], "earthquake"),
    ],
)
def test_what_is_asked_for_is_checked_before_anything_runs(
    arguments: list[str], complaint: str, tmp_path: Path
) -> None:
    ran = quick("validate", *arguments, cwd=tmp_path)
    assert ran.status in (2, 3)
    assert complaint in ran.err
    assert ran.out == ""


def test_what_settings_promise_can_be_asked_alone(tmp_path: Path) -> None:
    (tmp_path / "p.properties").write_text(
        "acks=1\nkey.serializer=x.Y\nbootstrap.servers=prod:9092\n"
    )
    ran = quick(
        "validate", "--config", "p.properties", "--explain", "--format", "json", cwd=tmp_path
    )
    assert ran.status == 0, ran.err
    found = json.loads(ran.out)
    assert {each["mishap"] for each in found["promises"]} == {
        "lost",
        "duplicated",
        "reordered",
        "undelivered",
        "redelivered",
    }
    assert "acks=1" in found["producer"]
    assert found["remarks"][-1]["remark"] == "without a bearing here, not used: key.serializer"
