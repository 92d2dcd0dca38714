"""`tidemill pipeline` as a user calls it: init, check, status, stop, and what run refuses."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from tests.cli.helpers import quick
from tests.spark.pipeline.files import RIGHT, changed, line_of

from tidemill.spark import needs

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
