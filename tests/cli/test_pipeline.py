"""`tidemill pipeline` as a user runs it: its own process, its own Spark, signals and crashes."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli.helpers import environment, quick, tidemill
from tests.spark.pipeline.cases import create, send, until
from tests.spark.pipeline.files import RIGHT, changed, line_of

from tidemill.spark import needs

TEXT = """\
name = "{name}"
trigger = "200 ms"

[source.in]
topics = ["{name}.in"]
decode = {{ format = "text" }}
records_per_trigger = 100

[sink.table]
from = "in"
table = "delta:{folder}/table"
"""


class Runner:
    """`tidemill pipeline run FILE` in a process."""

    def __init__(self, file: Path, bootstrap: str, state: Path, *options: str) -> None:
        self._log = file.with_suffix(".stderr")
        command = [sys.executable, "-m", "tidemill.cli", "pipeline", "run", str(file)]
        command += ["--state-dir", str(state), "-b", bootstrap, *options]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--conf", "spark.ui.enabled=false", "--conf", "spark.driver.memory=1g"],
                env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log,
            )  # fmt: skip

    def has_said(self, pattern: str) -> bool:
        return re.search(pattern, self._log.read_text(), re.MULTILINE) is not None

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(90)


@pytest.fixture
def runner(tmp_path: Path, bootstrap: str) -> Iterator[Callable[..., Runner]]:
    started: list[Runner] = []

    def start(file: Path, *options: str) -> Runner:
        started.append(Runner(file, bootstrap, tmp_path / "state", *options))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.end(signal.SIGKILL)


def table_values(path: Path) -> list[str]:
    from deltalake import DeltaTable

    if not (path / "_delta_log").exists():
        return []
    found: list[str] = DeltaTable(str(path)).to_pyarrow_table()["value"].to_pylist()
    return found


def batches(checkpoint: Path, kind: str) -> set[str]:
    return {path.name for path in (checkpoint / kind).iterdir() if path.name.isdigit()}


@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(900)
def test_killed_and_started_again_nothing_is_lost(
    runner: Callable[..., Runner], bootstrap: str, tmp_path: Path, topic_name: Callable[[str], str]
) -> None:
    """SIGKILL in the middle of the backlog; `status` tells it, the next run continues, `stop` ends
    it between two batches. The table has every record once, and the group has no lag."""
    name = topic_name("killed")
    create(bootstrap, f"{name}.in")
    file = tmp_path / "killed.toml"
    file.write_text(TEXT.format(name=name, folder=tmp_path))
    expected = [f"v{number:04}" for number in range(1_000)]
    send(bootstrap, f"{name}.in", [(None, value.encode()) for value in expected[:900]])
    first = runner(file, "--master", "local[1]")
    until(lambda: 0 < len(table_values(tmp_path / "table")) < 900, "some of it is in the table")
    first.end(signal.SIGKILL)
    found = status(tmp_path, bootstrap, name)
    assert (found["state"], found["master"], found["pid"]) == ("crashed", "local[1]", None)

    send(bootstrap, f"{name}.in", [(None, value.encode()) for value in expected[900:]])
    second = runner(file, "--master", "local[2]")
    until(lambda: len(table_values(tmp_path / "table")) >= 1_000, "all of it is in the table")
    until(lambda: lags(tmp_path, bootstrap, name) == [0], "the group has committed")
    until(lambda: second.has_said(r"^table: running, .* rows/s, 0 behind, batch \d+$"), "a line")
    found = status(tmp_path, bootstrap, name)
    assert (found["state"], found["master"]) == ("running", "local[2]")
    assert found["pid"] == second.process.pid
    options = ["--state-dir", str(tmp_path / "state"), "-b", bootstrap]
    stopped = quick("pipeline", "stop", name, *options)
    assert (stopped.status, stopped.out) == (0, f"stopped {name}\n"), stopped.err
    assert second.process.wait(90) == 0
    assert sorted(table_values(tmp_path / "table")) == expected
    found = status(tmp_path, bootstrap, name)
    assert (found["state"], found["pid"]) == ("stopped", None)
    checkpoint = tmp_path / "state" / name / "checkpoints" / "table"
    assert batches(checkpoint, "offsets") == batches(checkpoint, "commits"), "none was cut off"


def status(folder: Path, bootstrap: str, name: str) -> dict[str, object]:
    options = ["--state-dir", str(folder / "state"), "-b", bootstrap, "--format", "json"]
    ran = quick("pipeline", "status", name, *options)
    assert ran.status == 0, ran.err
    found: dict[str, object] = json.loads(ran.out)[0]
    return found


def lags(folder: Path, bootstrap: str, name: str) -> list[object]:
    queries = status(folder, bootstrap, name)["queries"]
    assert isinstance(queries, list)
    return [query["lag"] for query in queries]


# --- check ----------------------------------------------------------------------------------------


def checked(tmp_path: Path, bootstrap: str, text: str, *options: str) -> tuple[int, list[object]]:
    file = tmp_path / "clicks.toml"
    file.write_text(text)
    options = ("--no-spark", "-b", bootstrap, "--format", "json", *options)
    ran = quick("pipeline", "check", str(file), *options)
    found = json.loads(ran.out)
    return ran.status, found if isinstance(found, list) else []


def test_a_mistake_is_told_with_its_line_and_what_to_do(tmp_path: Path, bootstrap: str) -> None:
    text = changed('delay = "10 minutes"', 'delay = "10 mins"\ndelai = 1')
    code, found = checked(tmp_path, bootstrap, text)
    assert code == 1
    assert found == [
        {
            "line": line_of(text, 'delay = "10 mins"'),
            "key": "stage.clean.watermark.delay",
            "severity": "error",
            "message": 'is `10 mins`, but has to be a duration such as "30 seconds"',
            "suggestion": 'for example delay = "10 minutes"',
        },
        {
            "line": line_of(text, "delai"),
            "key": "stage.clean.watermark.delai",
            "severity": "error",
            "message": "[stage.clean.watermark] has no key `delai`",
            "suggestion": "did you mean `delay`?",
        },
    ]


def test_topics_are_looked_up_where_a_broker_answers(tmp_path: Path, bootstrap: str) -> None:
    text = RIGHT.replace('topics = ["clicks"]', 'topics = ["there-is-no-such-topic"]')
    code, found = checked(tmp_path, bootstrap, text)
    assert code == 1
    assert any("there is no topic `there-is-no-such-topic`" in str(each) for each in found)
    code, found = checked(tmp_path, bootstrap, text, "--no-broker")
    assert (code, found) == (0, [])


def test_a_broker_that_was_named_has_to_answer(tmp_path: Path) -> None:
    """One that listens and says nothing, too."""
    file = tmp_path / "clicks.toml"
    file.write_text(RIGHT)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for address in ("127.0.0.1:9", f"127.0.0.1:{silent.getsockname()[1]}"):
            options = ("--no-spark", "-b", address, "--timeout", "1")
            ran = quick("pipeline", "check", str(file), *options)
            assert ran.status == 5
            assert f"no broker answers at {address} (the command line)" in ran.err
            assert "--no-broker" in ran.err
    ran = quick("pipeline", "check", str(file), "--no-spark", "--timeout", "1")
    assert ran.status != 5, "nobody has named the default: that it is not there is no error"


def test_run_refuses_what_check_refuses(tmp_path: Path, bootstrap: str) -> None:
    file = tmp_path / "clicks.toml"
    text = changed('from = "clicks"', 'from = "clean"')
    file.write_text(text)
    ran = quick("pipeline", "run", str(file), "-b", bootstrap, "--state-dir", str(tmp_path / "s"))
    assert ran.status == 2
    line = text.splitlines().index("[stage.clean]") + 2
    assert f"{file}:{line}: stage.clean.from: the stages feed each other in a circle" in ran.err
    assert not (tmp_path / "s").exists()


def test_run_says_what_spark_lacks_here(
    tmp_path: Path, bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = needs.Missing("Spark needs Java, and there is none here", "install Java 17 or newer")
    monkeypatch.setattr(needs, "missing", lambda: lacking)
    file = tmp_path / "clicks.toml"
    file.write_text(RIGHT)
    ran = quick("pipeline", "run", str(file), "-b", bootstrap, "--state-dir", str(tmp_path / "s"))
    assert ran.status == 1
    assert lacking.what in ran.err
    assert lacking.remedy in ran.err


def test_check_goes_without_spark_where_it_cannot_run(
    tmp_path: Path, bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = needs.Missing("Spark needs Java, and there is none here", "install Java 17 or newer")
    monkeypatch.setattr(needs, "missing", lambda: lacking)
    file = tmp_path / "clicks.toml"
    file.write_text(RIGHT)
    ran = quick("pipeline", "check", str(file), "--no-broker")
    assert ran.status == 0
    assert f"{lacking.what}: expressions are checked only superficially" in ran.err
    assert lacking.remedy in ran.err


@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(300)
def test_a_spark_that_does_not_start_is_one_sentence(tmp_path: Path, bootstrap: str) -> None:
    file = tmp_path / "clicks.toml"
    file.write_text(RIGHT)
    options = ("-b", bootstrap, "--state-dir", str(tmp_path / "s"), "--master", "nonsense")
    ran = tidemill("pipeline", "run", str(file), *options)
    assert ran.status == 1
    assert "error: Spark does not start on nonsense: Master must either be yarn or" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("verb", ["check", "run"])
def test_files_that_are_none(tmp_path: Path, verb: str) -> None:
    ran = quick("pipeline", verb, str(tmp_path / "none.toml"))
    assert ran.status == 3
    assert "tidemill pipeline init" in ran.err
    ran = quick("pipeline", verb, str(tmp_path))
    assert ran.status == 2
    assert f"{tmp_path} is a directory" in ran.err
    (tmp_path / "circle.toml").symlink_to(tmp_path / "around.toml")
    (tmp_path / "around.toml").symlink_to(tmp_path / "circle.toml")
    ran = quick("pipeline", verb, str(tmp_path / "circle.toml"))
    assert ran.status == 3


@pytest.mark.parametrize(
    ("text", "line", "message", "suggestion"),
    [
        ("", 1, "the file has no `name`", 'name = "site-activity"'),
        (changed("[stage.clean]", "[stage.clean"), 16, "a section's name has no end", "write ["),
        (changed('"ms >= 0"', '"ms >= 0'), 18, "a text has no end", "close its quotes"),
        (changed("[stage.views]", "[stage.clean]"), 39, "[stage.clean] is there twice", "rename"),
        (
            changed('where = "ms >= 0"', "where = 1\nwhere = 2"),
            19,
            "the key is there twice",
            "remove",
        ),
        (changed('where = "ms >= 0"', "where = ms"), 18, "no value that can be read", "in quotes"),
        (changed('where = "ms >= 0"', "where"), 18, "is no key", 'key = "value"'),
        (changed('["clicks"]', '["clicks"'), 6, "has no end", "close its brackets"),
    ],
)
def test_texts_that_are_no_pipeline(
    tmp_path: Path, text: str, line: int, message: str, suggestion: str
) -> None:
    code, found = checked(tmp_path, "127.0.0.1:9", text)
    assert code == 1
    first = found[0]
    assert isinstance(first, dict)
    assert (first["line"], first["severity"]) == (line, "error")
    assert message in first["message"]
    assert suggestion in first["suggestion"]


# --- init, status, stop ---------------------------------------------------------------------------


def test_init_writes_a_file_that_is_all_right_and_replaces_none(tmp_path: Path) -> None:
    ran = quick("pipeline", "init", "orders", cwd=tmp_path)
    assert ran.status == 0, ran.err
    assert 'name = "orders"\n' in (tmp_path / "orders.toml").read_text()
    checked = quick("pipeline", "check", "orders.toml", "--no-spark", "--no-broker", cwd=tmp_path)
    assert checked.status == 0, checked.out
    assert "orders.toml is all right: 1 source, 1 table, 2 stages, 3 sinks" in checked.out
    again = quick("pipeline", "init", "orders", cwd=tmp_path)
    assert again.status == 2
    assert "add --yes to replace it" in again.err
    unknown = quick("pipeline", "init", "x", "--from", "nothing", cwd=tmp_path)
    assert unknown.status == 3


def test_pipelines_that_never_ran(tmp_path: Path) -> None:
    options = ["--state-dir", str(tmp_path)]
    assert quick("pipeline", "status", *options).out == ""
    for verb in ("status", "stop"):
        ran = quick("pipeline", verb, "nothing", *options)
        assert ran.status == 3
        assert "no pipeline 'nothing' has run here" in ran.err
