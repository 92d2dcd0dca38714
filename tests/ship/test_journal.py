"""What is remembered survives, is whole or absent, and belongs to one shipper of one topic."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.ship.disk import Identity
from tidemill.ship.journal import Bookmark, Journal, JournalError
from tidemill.storage.files import OsFiles

MARK = Bookmark("a1", "/var/log/\udcff.log", Identity(7, 8), 300, 2, b"\xff" * 256, b"\0")


def journal(path: Path, topic: str = "logs") -> Journal:
    return Journal(OsFiles(), str(path), topic)


def test_bookmarks_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "state.json"
    first = journal(path)
    assert first.open() == []
    first.bind("c1")
    first.save([MARK])
    first.close()
    assert journal(path).open() == [MARK]


def test_two_shippers_do_not_share_a_journal(tmp_path: Path) -> None:
    """In two processes: a lock does not keep a process from itself."""
    import subprocess
    import sys

    path = tmp_path / "state.json"
    holder = journal(path)
    holder.open()
    program = (
        "import sys; from tidemill.ship.journal import Journal; "
        "from tidemill.storage.files import OsFiles; Journal(OsFiles(), sys.argv[1], 'logs').open()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "another `tidemill ship` uses" in done.stderr
    holder.close()


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"version": 1, "topic": "logs"}'])
def test_a_file_that_is_no_journal_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(text)
    with pytest.raises(JournalError, match="no journal"):
        journal(path).open()
    assert path.read_text() == text


def test_another_topic_or_cluster_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    first = journal(path)
    first.open()
    first.bind("c1")
    first.save([MARK])
    first.close()
    with pytest.raises(JournalError, match="belongs to topic 'logs'"):
        journal(path, "others").read()
    again = journal(path)
    again.read()
    with pytest.raises(JournalError, match="delivered to cluster c1"):
        again.bind("c2")
