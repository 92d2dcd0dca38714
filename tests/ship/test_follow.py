"""Following real files through what rotation does to them, one look at a time."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tidemill.ship.disk import OsDisk
from tidemill.ship.follow import Follower, FollowSettings, Round, TooManyFilesError
from tidemill.ship.journal import FILES_MAX, Bookmark
from tidemill.testing.clock import ManualClock

LATER_MS = 120_000
_seeds = itertools.count()  # No two processes draw the same ids.
PLENTY = 1 << 30


class Tail:
    """A follower whose rounds are always delivered, and what it has said."""

    def __init__(
        self, *patterns: Path | str, known: Iterable[Bookmark] = (), line_bytes_max: int = 1_000
    ) -> None:
        self.said: list[str] = []
        self.clock = ManualClock()
        settings = FollowSettings(
            tuple(map(str, patterns)), line_bytes_max=line_bytes_max, rotated_wait_ms=60_000
        )
        self.follower = Follower(
            settings, OsDisk(), self.clock, Random(next(_seeds)), known, self.said.append
        )

    def collect(self, cost_bytes_max: int = PLENTY) -> Round:
        self.clock.advance(1_000)
        return self.follower.collect(cost_bytes_max)

    def lines(self, cost_bytes_max: int = PLENTY) -> list[str]:
        """What one delivered round brings."""
        found = self.collect(cost_bytes_max)
        self.follower.apply(found)
        return [line.value.decode() for piece in found.pieces for line in piece.lines]

    def restarted(self, *patterns: Path | str) -> Tail:
        """Another process, which knows what this one has delivered."""
        known = self.follower.bookmarks
        self.follower.close()
        return Tail(*patterns, known=known)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "app.log"


def append(path: Path, *lines: str, end: str = "\n") -> None:
    with path.open("a") as file:
        file.write("\n".join(lines) + end)


def copy_and_truncate(path: Path, copy: Path) -> None:
    shutil.copy(path, copy)
    os.truncate(path, 0)


def test_what_is_appended_arrives_once(log: Path) -> None:
    append(log, "one", "two")
    tail = Tail(log)
    assert tail.lines() == ["one", "two"]
    append(log, "three")
    assert tail.lines() == ["three"]
    assert tail.lines() == []


def test_an_unfinished_line_arrives_when_it_is_finished(log: Path) -> None:
    append(log, "one", "tw", end="")
    tail = Tail(log)
    assert tail.lines() == ["one"]
    assert tail.lines() == []
    append(log, "o")
    assert tail.lines() == ["two"]


def test_a_round_that_was_not_delivered_comes_again(log: Path) -> None:
    append(log, "one", "two", "unfinished", end="")
    tail = Tail(log)
    first, second = tail.collect(), tail.collect()
    assert [piece.lines for piece in first.pieces] == [piece.lines for piece in second.pieces]
    tail.follower.apply(second)
    assert tail.lines() == []


def test_the_old_file_is_read_to_its_end_after_it_was_renamed(log: Path, tmp_path: Path) -> None:
    append(log, "one")
    tail = Tail(log)
    tail.lines()
    with log.open("a") as writer:
        log.rename(tmp_path / "app.log.1")
        append(log, "new")
        writer.write("late\n")
        writer.flush()
        assert sorted(tail.lines()) == ["late", "new"]
        writer.write("later\n")
        writer.flush()
        assert tail.lines() == ["later"]


def test_a_renamed_file_is_left_when_it_was_quiet_and_its_last_line_is_sent(
    log: Path, tmp_path: Path
) -> None:
    append(log, "one", "no end", end="")
    tail = Tail(log)
    assert tail.lines() == ["one"]
    log.rename(tmp_path / "old")
    assert tail.lines() == []
    assert tail.follower.file_count == 1
    tail.clock.advance(LATER_MS)
    assert tail.lines() == ["no end"]
    tail.lines()
    assert tail.follower.file_count == 0
    assert tail.follower.bookmarks == []


def test_a_deleted_file_is_read_to_its_end(log: Path) -> None:
    append(log, "one")
    tail = Tail(log)
    tail.lines()
    append(log, "two")
    log.unlink()
    assert tail.lines() == ["two"]


def test_a_rotated_name_that_matches_too_is_the_same_file(log: Path, tmp_path: Path) -> None:
    append(log, "one")
    tail = Tail(f"{log}*")
    tail.lines()
    log.rename(tmp_path / "app.log.1")
    append(log, "two")
    assert tail.lines() == ["two"]
    assert tail.restarted(f"{log}*").lines() == []


@pytest.mark.parametrize("pattern", ["app.log", "app.log*"])
def test_what_a_truncation_took_is_read_from_the_copy(
    log: Path, tmp_path: Path, pattern: str
) -> None:
    append(log, "one")
    tail = Tail(tmp_path / pattern)
    tail.lines()
    append(log, "two")  # Nobody looks between this line and the truncation.
    copy_and_truncate(log, tmp_path / "app.log.1")
    append(log, "three")
    assert sorted(tail.lines() + tail.lines()) == ["three", "two"]
    tail.clock.advance(LATER_MS)
    assert tail.lines() == []


def test_a_copy_is_not_taken_for_a_new_file_while_it_is_being_made(
    log: Path, tmp_path: Path
) -> None:
    append(log, "one")
    tail = Tail(f"{log}*")
    tail.lines()
    append(log, "two")
    copy = tmp_path / "app.log.1"
    shutil.copy(log, copy)
    made_ms = tail.clock.now_ms()
    os.utime(copy, ns=(made_ms * 1_000_000, made_ms * 1_000_000))
    assert tail.lines() == ["two"]
    os.truncate(log, 0)
    append(log, "three")
    assert tail.lines() == ["three"]
    tail.clock.advance(LATER_MS)
    assert tail.lines() == []


def test_a_file_that_was_truncated_and_has_grown_past_the_position_starts_over(log: Path) -> None:
    append(log, "one", "two")
    tail = Tail(log)
    tail.lines()
    os.truncate(log, 0)
    append(log, "1234567", "new")
    assert tail.lines() == ["1234567", "new"]


def test_a_file_rewritten_to_the_same_size_starts_over(log: Path) -> None:
    append(log, "one")
    tail = Tail(log)
    tail.lines()
    os.truncate(log, 0)
    append(log, "two")
    os.utime(log, ns=(1, 1))
    assert tail.lines() == ["two"]


def test_ids_tell_the_contents_of_one_file_apart(log: Path) -> None:
    append(log, "one")
    tail = Tail(log)
    first = tail.collect()
    tail.follower.apply(first)
    os.truncate(log, 0)
    append(log, "two")
    second = tail.collect()
    assert first.pieces[0].file.id != second.pieces[0].file.id
    assert first.pieces[0].lines[0].position == second.pieces[0].lines[0].position == 0


def test_a_file_whose_first_round_was_never_delivered_is_recognised_too(
    log: Path, tmp_path: Path
) -> None:
    """Nothing of it is known to have arrived, but some may have, under the id it has."""
    append(log, "one")
    tail = Tail(log)
    first = tail.collect()
    append(tmp_path / "app.log.0", "something else")
    copy_and_truncate(log, tmp_path / "app.log.1")
    append(log, "two")
    found = tail.restarted(log).collect()
    sent = {piece.lines[0].value: piece.file.id for piece in found.pieces}
    assert sent.keys() == {b"one", b"two"}
    assert sent[b"one"] == first.pieces[0].file.id != sent[b"two"]


def test_a_restart_goes_on_where_it_stopped(log: Path) -> None:
    append(log, "one", "half", end="")
    tail = Tail(log)
    assert tail.lines() == ["one"]
    append(log, "", "two")
    assert tail.restarted(log).lines() == ["half", "two"]


def test_a_file_renamed_while_nobody_looked_is_found_again(log: Path, tmp_path: Path) -> None:
    append(log, "one")
    tail = Tail(log)
    tail.lines()
    append(log, "two")
    log.rename(tmp_path / "app.log.1")
    append(log, "three")
    again = tail.restarted(log)
    assert sorted(again.lines()) == ["three", "two"]
    assert again.said == []


def test_a_truncation_while_nobody_looked_is_seen(log: Path, tmp_path: Path) -> None:
    append(log, "one")
    tail = Tail(log)
    tail.lines()
    append(log, "two")
    copy_and_truncate(log, tmp_path / "app.log.1")
    append(log, "three", "four")
    assert sorted(tail.restarted(log).lines()) == ["four", "three", "two"]


def test_an_inode_used_again_is_another_file(log: Path) -> None:
    """Deleted and created while nobody looked: what has the old inode has other content."""
    append(log, "one", "two")
    tail = Tail(log)
    tail.lines()
    (known,) = tail.follower.bookmarks
    tail.follower.close()
    log.unlink()
    append(log, "another", "file")
    taken = OsDisk().identity(str(log))
    assert taken is not None
    reused = replace(known, identity=taken)
    assert Tail(log, known=[reused]).lines() == ["another", "file"]


def test_a_file_is_known_again_when_its_device_has_another_number(log: Path) -> None:
    """As after a restart of the machine: nothing but the number has changed."""
    append(log, "one")
    tail = Tail(log)
    tail.lines()
    (known,) = tail.follower.bookmarks
    tail.follower.close()
    append(log, "two")
    elsewhere = known.identity._replace(device=known.identity.device + 1)
    again = Tail(log, known=[replace(known, identity=elsewhere)])
    assert again.lines() == ["two"]
    assert again.said == []


def test_a_file_that_is_gone_is_told(log: Path) -> None:
    append(log, "one")
    tail = Tail(log)
    tail.lines()
    log.unlink()
    again = tail.restarted(log)
    assert again.lines() == []
    assert any("is gone" in each for each in again.said)
    assert again.follower.bookmarks == []


def test_what_another_invocation_follows_stays_remembered(log: Path, tmp_path: Path) -> None:
    append(log, "one")
    tail = Tail(log)
    tail.lines()
    other = tail.restarted(tmp_path / "other.log")
    assert other.lines() == []
    assert other.restarted(log).lines() == []


def test_new_files_of_a_pattern_are_found(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "**" / "*.log")
    assert tail.lines() == []
    (tmp_path / "deep").mkdir()
    append(tmp_path / "deep" / "a.log", "one")
    append(tmp_path / "b.log", "two")
    assert sorted(tail.lines()) == ["one", "two"]


def test_a_link_and_its_file_are_one(log: Path, tmp_path: Path) -> None:
    append(log, "one")
    (tmp_path / "current.log").symlink_to(log)
    assert Tail(tmp_path / "*.log").lines() == ["one"]


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["directory", "pipe"])
def test_what_is_no_file_is_left_alone(log: Path, make: Callable[[Path], None]) -> None:
    make(log)
    assert Tail(log).lines() == []


def test_compressed_files_are_named_and_left_alone(tmp_path: Path) -> None:
    append(tmp_path / "app.log.2.gz", "not text")
    tail = Tail(tmp_path / "app.log*")
    assert tail.lines() == []
    assert [each for each in tail.said if "compressed" in each]


def test_files_take_turns_in_rounds_of_bounded_size(tmp_path: Path) -> None:
    """A large file does not hold up the others, and one round is never much above its limit."""
    append(tmp_path / "large.log", *["x" * 900] * 4_000)
    append(tmp_path / "small.log", "small")
    tail = Tail(tmp_path / "*.log")
    first = tail.collect(1_000_000)
    assert first.cost_bytes < 1_100_000
    assert {Path(piece.file.path).name for piece in first.pieces} == {"large.log", "small.log"}


def test_a_long_line_goes_on_in_the_same_piece_after_a_restart(log: Path) -> None:
    append(log, "a" * 2_500, end="")
    tail = Tail(log)
    assert [len(each) for each in tail.lines()] == [1_000, 1_000]
    append(log, "b")
    found = tail.restarted(log).collect()
    (line,) = found.pieces[0].lines
    assert (line.value, line.part) == (b"a" * 500 + b"b", 2)


def test_more_files_than_may_be_open_are_refused(tmp_path: Path) -> None:
    for number in range(FILES_MAX + 1):
        (tmp_path / f"{number}.log").touch()
    tail = Tail(tmp_path / "*.log")
    with pytest.raises(TooManyFilesError):
        tail.lines()
    tail.follower.close()
