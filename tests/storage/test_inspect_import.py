"""Old directories become record batches with every offset, timestamp and byte kept."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.storage.dump_samples import (
    START,
    TIME,
    message,
    old_messages,
    stored_gzip,
    write_samples,
)

from tidemill.storage.checkpoint import read_partition_metadata
from tidemill.storage.files import OsFiles
from tidemill.storage.inspect import BatchRow, InspectError, dump_segment
from tidemill.storage.inspect_import import ImportReport, import_directory
from tidemill.storage.inspect_verify import verify_log
from tidemill.wire.compression import Codec
from tidemill.wire.records import Record, build_batch

FILES = OsFiles(open_files_max=16)

Row = tuple[int, int, bytes | None, bytes | None]


def _rows(directory: Path) -> list[Row]:
    rows: list[Row] = []
    for path in sorted(directory.glob("*.log")):
        for row in dump_segment(FILES, str(path)):
            assert isinstance(row, BatchRow)
            rows += [(r.offset, r.timestamp, r.key, r.value) for r in row.records()]
    return rows


def _import(source: Path, target: Path, *, dry_run: bool = False) -> ImportReport:
    return import_directory(FILES, str(source), str(target), dry_run=dry_run)


def test_the_old_sample_is_imported_whole(tmp_path: Path) -> None:
    write_samples(tmp_path)
    source, target = tmp_path / "old-0", tmp_path / "new-0"
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    report = _import(source, target)
    assert _rows(target) == _rows(source)
    assert (report.messages, report.segments, report.torn_bytes) == (12, 1, 0)
    assert (report.start_offset, report.end_offset) == (0, 12)
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before
    checked = verify_log(FILES, str(target), deep=True)
    assert checked.problems == []
    assert (checked.old_messages, checked.records) == (0, 12)
    assert (target / "leader-epoch-checkpoint").read_bytes() == b"0\n1\n0 0\n"


def test_codecs_and_time_types_are_kept(tmp_path: Path) -> None:
    write_samples(tmp_path)
    _import(tmp_path / "old-0", tmp_path / "new-0")
    rows = list(dump_segment(FILES, str(tmp_path / "new-0" / f"{START}.log")))
    kinds = [(row.codec, int(row.timestamp_type or 0)) for row in rows if isinstance(row, BatchRow)]
    assert kinds == [
        (Codec.NONE, 0),
        (Codec.GZIP, 0),
        (Codec.NONE, 0),
        (Codec.GZIP, 0),
        (Codec.NONE, 1),
        (Codec.GZIP, 1),
    ]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 5),
            st.integers(TIME, TIME + 1000),
            st.none() | st.binary(max_size=30),
            st.none() | st.binary(max_size=300),
        ),
        min_size=1,
        max_size=60,
    ),
    st.integers(0, 1),
    st.integers(1, 20),
)
def test_any_log_of_messages_survives(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[int, int, bytes | None, bytes | None]],
    magic: int,
    per_segment: int,
) -> None:
    root = tmp_path_factory.mktemp("import")
    source = root / "t-0"
    source.mkdir()
    offset = 1000
    messages: list[tuple[int, bytes]] = []
    for gap, timestamp, key, value in rows:
        offset += gap
        messages.append((offset, message(offset, magic, 0, timestamp, key, value)))
        offset += 1
    for start in range(0, len(messages), per_segment):
        part = messages[start : start + per_segment]
        (source / f"{part[0][0]:020d}.log").write_bytes(b"".join(data for _, data in part))
    report = _import(source, root / "new-0")
    assert _rows(root / "new-0") == _rows(source)
    assert report.messages == len(rows)
    assert verify_log(FILES, str(root / "new-0"), deep=True).problems == []


def test_a_large_log_has_indexes_that_point_right(tmp_path: Path) -> None:
    source = tmp_path / "t-0"
    source.mkdir()
    plain = [message(i, 1, 0, TIME + i, b"k", bytes(500)) for i in range(1000)]
    inner = b"".join(message(i, 1, 0, TIME + 5000, None, bytes(50)) for i in range(10))
    wrapped = [
        message(1009 + 10 * i, 1, 1, TIME + 5000, None, stored_gzip(inner)) for i in range(9)
    ]
    (source / f"{START}.log").write_bytes(b"".join(plain + wrapped))
    _import(source, tmp_path / "new-0")
    assert (tmp_path / "new-0" / f"{START}.index").stat().st_size > 0
    assert verify_log(FILES, str(tmp_path / "new-0"), deep=True).problems == []
    assert _rows(tmp_path / "new-0") == _rows(source)


def test_batches_of_an_upgraded_log_are_copied(tmp_path: Path) -> None:
    source = tmp_path / "t-0"
    source.mkdir()
    new = build_batch(
        [Record(12, TIME, b"k", b"v", (("h", b"x"),))], base_offset=12, leader_epoch=9
    )
    (source / f"{START}.log").write_bytes(b"".join(old_messages()) + new)
    report = _import(source, tmp_path / "new-0")
    assert (report.batches_copied, report.end_offset) == (1, 13)
    assert _rows(tmp_path / "new-0") == _rows(source)


def test_a_torn_tail_is_left_behind_and_counted(tmp_path: Path) -> None:
    source = tmp_path / "t-0"
    source.mkdir()
    (source / f"{START}.log").write_bytes(b"".join(old_messages()) + b"torn tail")
    assert _import(source, tmp_path / "new-0").torn_bytes == 9


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (message(0, 0, 0, 0, b"k", b"v")[:-1] + b"w", "fails its CRC"),
        (message(0, 1, 1, 0, None, b"no gzip"), "cannot be read"),
        (message(5, 0, 0, 0, b"k", b"v") + message(5, 0, 0, 0, b"k", b"v"), "not in order"),
        (message(2**33, 0, 0, 0, b"k", b"v"), "too far"),
    ],
)
def test_damage_stops_an_import(tmp_path: Path, content: bytes, why: str) -> None:
    source = tmp_path / "t-0"
    source.mkdir()
    (source / f"{START}.log").write_bytes(content)
    with pytest.raises(InspectError, match=why):
        _import(source, tmp_path / "new-0")
    assert not (tmp_path / "new-0").exists()


def test_damage_in_the_middle_stops_an_import(tmp_path: Path) -> None:
    source = tmp_path / "t-0"
    source.mkdir()
    (source / f"{START}.log").write_bytes(message(0, 0, 0, 0, b"k", b"v") + b"torn")
    (source / f"{START[:-1]}5.log").write_bytes(message(5, 0, 0, 0, b"k", b"v"))
    with pytest.raises(InspectError, match="not whole"):
        _import(source, tmp_path / "new-0")


def test_a_target_that_exists_is_left_alone(tmp_path: Path) -> None:
    write_samples(tmp_path)
    with pytest.raises(InspectError, match="exists"):
        _import(tmp_path / "old-0", tmp_path / "plain-0")
    with pytest.raises(InspectError, match="no segment"):
        _import(tmp_path, tmp_path / "new-0")


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    write_samples(tmp_path)
    report = _import(tmp_path / "old-0", tmp_path / "new-0", dry_run=True)
    assert report.messages == 12
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged-0", "old-0", "plain-0"]


def test_the_work_of_an_import_that_was_cut_off_is_replaced(tmp_path: Path) -> None:
    write_samples(tmp_path)
    work = tmp_path / "new-0.import"
    work.mkdir()
    (work / f"{START}.log").write_bytes(b"rubbish of an earlier try" * 1000)
    identity = UUID(int=77)
    import_directory(FILES, str(tmp_path / "old-0"), str(tmp_path / "new-0"), topic_id=identity)
    assert _rows(tmp_path / "new-0") == _rows(tmp_path / "old-0")
    assert read_partition_metadata(FILES, str(tmp_path / "new-0")) == identity
    assert not work.exists()
