"""Which queries are started when, with Spark out of the way."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.spark.pipeline.files import right

from tidemill.clock import SystemClock
from tidemill.spark.pipeline import run
from tidemill.spark.pipeline.load import Problems
from tidemill.spark.pipeline.plan import queries
from tidemill.spark.pipeline.state import PipelineState


def a_life(folder: Path) -> run.Life:
    """A run of the right pipeline, none of whose queries has been started."""
    pipeline, clock = right(), SystemClock()
    setting = run.Setting(bootstrap="127.0.0.1:9", master="local[2]", once=True)
    state = PipelineState(folder, pipeline.name)
    state.folder.mkdir()
    frame: Any = None
    life = run.Life(
        pipeline, Problems("x.toml", {}), setting, state, clock, threading.Event(),
        lambda rows: None, run._first_note(pipeline, setting, clock),
    )  # fmt: skip
    life.waiting.extend((query, frame) for query in queries(pipeline))
    return life


@pytest.mark.parametrize(("starts", "begun"), [(True, run.QUERIES_AT_ONCE), (False, 1)])
def test_a_query_that_failed_to_start_comes_before_the_next(
    starts: bool, begun: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = SimpleNamespace(isActive=starts, status={"message": "Waiting for data to arrive"})
    monkeypatch.setattr(run.Life, "_started", lambda *_: handle)
    life = a_life(tmp_path)
    life._start_waiting()
    assert len(life.running) == begun
