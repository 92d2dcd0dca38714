"""What is remembered of a pipeline: notes, the lock, fingerprints."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tidemill.spark.pipeline.state import (
    AlreadyRunningError,
    PipelineState,
    QueryNote,
    RunNote,
    known,
)

NOTE = RunNote(
    name="clicks",
    file="/x/clicks.toml",
    pid=1,
    master="local[2]",
    bootstrap="127.0.0.1:9092",
    once=False,
    started_ms=1,
    updated_ms=2,
    state="running",
    queries=(QueryNote(name="clean", group="clicks.clean", rows=7),),
)


def no_wait(seconds: float) -> None:
    """Tries come one after the other."""


def test_a_note_is_read_as_it_was_written(tmp_path: Path) -> None:
    state = PipelineState(tmp_path, "clicks")
    assert state.read() is None
    assert known(tmp_path / "none") == []
    with state.held(no_wait):
        state.write(NOTE)
        assert state.read() == NOTE
    state.write(replace(NOTE, state="stopped"))
    assert state.read() == replace(NOTE, state="stopped")
    assert known(tmp_path) == ["clicks"]


def test_a_run_that_nobody_holds_has_crashed(tmp_path: Path) -> None:
    state = PipelineState(tmp_path, "clicks")
    with state.held(no_wait):
        state.write(NOTE)
    note = state.read()
    assert note is not None
    assert note.state == "crashed"
    assert note.queries[0].rows == 7


def test_only_one_runs_and_the_other_hears_who(tmp_path: Path) -> None:
    first, second = PipelineState(tmp_path, "clicks"), PipelineState(tmp_path, "clicks")
    assert not first.is_held()
    with first.held(no_wait):
        first.write(NOTE)
        assert second.is_held()
        with (
            pytest.raises(AlreadyRunningError, match=f"already run by process {os.getpid()}$"),
            second.held(no_wait),
        ):
            pass
    with second.held(no_wait):
        assert first.is_held()


def test_who_runs_it_is_known_before_it_has_said_anything(tmp_path: Path) -> None:
    """The note may still be the last run's, whose process number is somebody else's by now."""
    state = PipelineState(tmp_path, "clicks")
    assert state.holder() is None
    state.folder.mkdir()
    state.write(NOTE)
    with state.held(no_wait):
        assert state.holder() == os.getpid()
        (state.folder / "run.lock").write_text("1")
        assert state.holder() is None, "process 1 does not have the lock"
    assert state.holder() is None


def test_an_older_version_does_not_say_in_the_lock_who_runs_it(tmp_path: Path) -> None:
    """Its note does, and is believed of a process that has the lock open."""
    state = PipelineState(tmp_path, "clicks")
    with state.held(no_wait):
        (state.folder / "run.lock").write_text("")
        assert state.holder() is None, "nobody has noted anything"
        state.write(NOTE)
        assert state.holder() is None, "process 1 does not have the lock"
        state.write(replace(NOTE, pid=os.getpid()))
        assert state.holder() == os.getpid()
    assert state.holder() is None


def test_a_killed_process_lets_go(tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from tidemill.spark.pipeline.state import PipelineState\n"
        "with PipelineState(Path(sys.argv[1]), 'clicks').held(time.sleep):\n"
        "    sys.stdout.write('held\\n'); sys.stdout.flush(); time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "held\n"
        state = PipelineState(tmp_path, "clicks")
        assert state.is_held()
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    assert not state.is_held()


def test_notes_that_are_no_notes_are_none(tmp_path: Path) -> None:
    state = PipelineState(tmp_path, "clicks")
    state.folder.mkdir()
    for text in ("", "{", "[]", '{"name": "x"}', '{"queries": 1}'):
        (state.folder / "run.json").write_text(text)
        assert state.read() is None


def test_fingerprints_and_forgetting(tmp_path: Path) -> None:
    state = PipelineState(tmp_path, "clicks")
    assert state.fingerprints() == {}
    with state.held(no_wait):
        state.remember({"a": {"sources": {}}})
        state.remember({"b": {"sources": {}}})
    assert sorted(state.fingerprints()) == ["a", "b"]
    checkpoint = Path(state.checkpoint("a", ""))
    checkpoint.mkdir(parents=True)
    state.forget()
    assert not checkpoint.exists()
    assert state.fingerprints() == {}


def test_forgetting_leaves_no_half_of_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever happens to whoever deletes it."""
    state = PipelineState(tmp_path, "clicks")
    with state.held(no_wait):
        state.remember({"a": {"sources": {}}})
    checkpoint = Path(state.checkpoint("a", ""))
    (checkpoint / "offsets").mkdir(parents=True)
    seen: list[bool] = []
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: seen.append(checkpoint.exists()))
    state.forget()
    assert seen[-1] is False
    assert (state.folder / "checkpoints.forgotten" / "a" / "offsets").exists()
    monkeypatch.undo()
    checkpoint.mkdir(parents=True)
    state.forget()
    assert not list(state.folder.glob("checkpoints*"))


def test_checkpoints_may_be_elsewhere(tmp_path: Path) -> None:
    state = PipelineState(tmp_path, "clicks")
    assert state.checkpoint("a", "s3://bucket/x/") == "s3://bucket/x/clicks/a"
    assert state.checkpoint("a", "") == str(tmp_path / "clicks" / "checkpoints" / "a")
