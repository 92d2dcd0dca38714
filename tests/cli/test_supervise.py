"""What the supervisor of several brokers does about one that hangs."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from tests.store.stuck import stuck_writer

from tidemill.cli.fleet import Fleet, Member
from tidemill.cli.launch import Launched
from tidemill.cli.supervise import Supervisor
from tidemill.store.sql import StoreFile


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux says who locks what")
def test_the_supervisor_kills_the_stopped_writer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`tidemill up --brokers N` ends the broker that keeps the others from writing, and says so."""
    member = Member(1, 9092, "broker-1")
    fleet = Fleet(tmp_path, (member, Member(2, 9093, "broker-2")))
    path = tmp_path / "store.db"
    StoreFile(str(path)).close()
    with stuck_writer(path) as process:
        supervisor = Supervisor(fleet, 2, "text")
        supervisor._children["broker-1"] = Launched(member, process, tmp_path / "log", 0)
        supervisor._watch()
    assert process.returncode == -signal.SIGKILL
    said = capsys.readouterr().err
    assert f"pid {process.pid} hangs in the middle of a write" in said
    assert "was killed by SIGKILL" in said
