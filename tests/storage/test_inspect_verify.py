"""`verify_log` finds each kind of damage, and nothing in a sound directory."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.storage.dump_samples import START, plain_batches, write_samples

from tidemill.storage.files import OsFiles
from tidemill.storage.inspect_verify import PROBLEMS_MAX, LogReport, Severity, verify_log
from tidemill.wire.batch import stamp, write_crc
from tidemill.wire.records import Record, build_batch

FILES = OsFiles(open_files_max=16)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    write_samples(tmp_path)
    return tmp_path / "plain-0"


def _verify(directory: Path, *, deep: bool = True) -> LogReport:
    return verify_log(FILES, str(directory), deep=deep)


def _messages(report: LogReport) -> str:
    return "\n".join(f"{p.file}: {p.message}" for p in report.problems)


def test_a_sound_directory_has_no_problem(plain: Path) -> None:
    report = _verify(plain)
    assert report.problems == []
    assert report.is_sound
    assert (report.segments, report.batches, report.records) == (1, 6, 16)
    assert (report.start_offset, report.end_offset) == (0, 18)
    assert report.size_bytes == (plain / f"{START}.log").stat().st_size


def test_old_message_sets_are_sound_as_well(tmp_path: Path) -> None:
    write_samples(tmp_path)
    report = _verify(tmp_path / "old-0")
    assert report.problems == []
    assert (report.old_messages, report.end_offset) == (7, 12)


def test_the_damaged_sample_has_every_problem(tmp_path: Path) -> None:
    write_samples(tmp_path)
    report = _verify(tmp_path / "damaged-0")
    text = _messages(report)
    for part in ("CRC", "no batch", "indexed at position", "follows", "is the latest"):
        assert part in text
    assert not report.is_sound
    assert all(problem.advice for problem in report.problems)


def test_a_torn_tail_is_a_warning_only_in_the_last_segment(plain: Path) -> None:
    log = plain / f"{START}.log"
    log.write_bytes(log.read_bytes() + b"torn")
    assert [p.severity for p in _verify(plain).problems] == [Severity.WARNING]
    later = build_batch([Record(18, 1_700_000_010_000, b"k", b"v")], base_offset=18)
    (plain / f"{START[:-2]}18.log").write_bytes(later)
    report = _verify(plain)
    assert not report.is_sound
    assert "no batch" in _messages(report)


def _flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 0x40
    path.write_bytes(bytes(data))


def _restamp(directory: Path, change: Callable[[list[bytearray]], None]) -> None:
    batches = [bytearray(batch) for batch in plain_batches()]
    change(batches)
    (directory / f"{START}.log").write_bytes(b"".join(batches))


def test_a_flipped_bit_in_a_record_is_an_error(plain: Path) -> None:
    _flip(plain / f"{START}.log", 80)
    assert "does not match its CRC" in _messages(_verify(plain))


def test_offsets_that_go_back_are_an_error(plain: Path) -> None:
    """Rule E2: no CRC covers the base offset, so only its order shows the damage."""
    _restamp(plain, lambda batches: stamp(batches[3], 0, 9, 1))
    assert "offset 9 comes after 10" in _messages(_verify(plain))


def test_epochs_that_go_back_or_are_unknown_are_errors(plain: Path) -> None:
    _restamp(plain, lambda batches: stamp(batches[5], 0, 14, 0))
    text = _messages(_verify(plain))
    assert "leader epoch 0 comes after 1" in text
    assert "the checkpoint says 2" in text


def test_a_wrong_record_count_is_an_error(plain: Path) -> None:
    def change(batches: list[bytearray]) -> None:
        batches[0][57:61] = struct.pack(">i", 9)
        write_crc(batches[0], 0, len(batches[0]))

    _restamp(plain, change)
    text = _messages(_verify(plain))
    assert "counts 9 records in 3 offsets" in text
    assert "cannot be read" in text


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        (f"{START}.index", struct.pack(">ii", 6, 100), "in the middle of a batch"),
        (f"{START}.index", struct.pack(">ii", 5, 99), "ends with offset 6"),
        (f"{START}.index", struct.pack(">ii", 60, 9999), "after the last batch"),
        (f"{START}.index", b"odd", "multiple of 8"),
        (f"{START}.timeindex", struct.pack(">qi", 5, 6), "is the latest"),
        (f"{START}.timeindex", struct.pack(">qi", 1_800_000_000_000, 60), "after the last"),
        (f"{START}.timeindex", b"odd", "multiple of 12"),
        (f"{START}.txnindex", struct.pack(">hqqqq", 0, 6, 3, 99, 14), "does not fit"),
        (f"{START}.txnindex", struct.pack(">hqqqq", 7, 6, 3, 13, 14), "unknown version"),
        (f"{START[:-2]}11.snapshot", b"\x00\x01broken snapshot", "damaged"),
        ("leader-epoch-checkpoint", b"0\n1\nnonsense\n", "damaged"),
        ("leader-epoch-checkpoint", b"0\n2\n3 0\n1 5\n", "epoch 1 at 5 follows"),
        ("leader-epoch-checkpoint", b"0\n4\n0 0\n1 7\n2 14\n3 99\n", "after the end"),
        (f"{START[:-2]}77.index", b"", "no segment for this index"),
        (f"{START}.log.deleted", b"", "left over"),
    ],
)
def test_files_beside_the_log_are_checked(
    plain: Path, name: str, content: bytes, part: str
) -> None:
    (plain / name).write_bytes(content)
    assert part in _messages(_verify(plain))


def test_indexes_with_preallocated_zeros_are_fine(plain: Path) -> None:
    for name, size in ((f"{START}.index", 8), (f"{START}.timeindex", 12)):
        (plain / name).write_bytes((plain / name).read_bytes() + bytes(size * 100))
    assert _verify(plain).problems == []
    for name, size in ((f"{START}.index", 8), (f"{START}.timeindex", 12)):
        (plain / name).write_bytes(bytes(size * 100))
    assert _verify(plain).problems == []


def test_missing_indexes_are_a_warning(plain: Path) -> None:
    """Of a segment that is finished; the one being written has none yet."""
    (plain / f"{START}.index").unlink()
    assert _verify(plain).problems == []
    batch = build_batch([Record(18, 0, b"k", b"v")], base_offset=18)
    (plain / f"{START[:-2]}18.log").write_bytes(batch)
    report = _verify(plain)
    assert report.is_sound
    assert [problem.file for problem in report.problems] == [str(plain / f"{START}.index")]
    assert "missing" in _messages(report)


def test_segments_that_overlap_are_an_error(plain: Path) -> None:
    batch = build_batch([Record(10, 0, b"k", b"v")], base_offset=10)
    (plain / f"{START[:-2]}10.log").write_bytes(batch)
    assert "the segment before ends at offset 18" in _messages(_verify(plain))


def test_a_directory_without_segments_says_so(tmp_path: Path) -> None:
    assert not _verify(tmp_path).is_sound


def test_the_list_of_problems_has_an_end(tmp_path: Path) -> None:
    batch = build_batch([Record(0, 0, b"k", b"v")])
    (tmp_path / f"{START}.log").write_bytes(batch * (PROBLEMS_MAX + 50))
    report = _verify(tmp_path, deep=False)
    assert len(report.problems) == PROBLEMS_MAX
    assert report.problems_left_out >= 49
