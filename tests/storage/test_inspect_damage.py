"""Looking into files that are damaged anywhere ends in rows or in an `InspectError`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.storage.dump_samples import write_samples

from tidemill.storage.files import OsFiles
from tidemill.storage.inspect import (
    BatchRow,
    InspectError,
    SegmentReader,
    TailRow,
    base_offset_of,
    dump_segment,
)
from tidemill.storage.inspect_import import import_directory
from tidemill.storage.inspect_text import DumpOptions, kafka_dump
from tidemill.storage.inspect_verify import verify_log
from tidemill.wire.records import Record, build_batch

FILES = OsFiles(open_files_max=16)


def _damage(path: Path, source: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(source.randint(1, 6)):
        place = source.randrange(len(data))
        data[place] = source.choice([0, 1, 0x7F, 0x80, 0xFF, source.randrange(256)])
    if source.random() < 0.3:
        del data[source.randrange(len(data)) :]
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("seed", range(60))
def test_damage_is_reported_not_raised(seed: int, tmp_path: Path) -> None:
    """Rule E10: nothing loops for ever, and nothing but `InspectError` comes out."""
    write_samples(tmp_path)
    source = random.Random(seed)
    for directory in sorted(tmp_path.iterdir()):
        paths = sorted(str(path) for path in directory.iterdir())
        _damage(Path(source.choice(paths)), source)
        assert verify_log(FILES, str(directory), deep=True).segments == 1
        for path in paths:
            try:
                list(kafka_dump(FILES, [path], DumpOptions(print_data=True), cwd="/"))
            except InspectError:
                pass
        try:
            import_directory(FILES, str(directory), f"{directory}-new")
        except InspectError:
            pass


def test_a_length_that_cannot_be_ends_the_segment(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}.log"
    for head in (bytes(8) + b"\x7f\xff\xff\xff" + bytes(60), bytes(100), b"\xff" * 100):
        path.write_bytes(head)
        (row,) = dump_segment(FILES, str(path))
        assert isinstance(row, TailRow)
        assert (row.position, row.size_bytes) == (0, len(head))


def test_batches_larger_than_the_window_are_read_whole(tmp_path: Path) -> None:
    write_samples(tmp_path)
    big = build_batch([Record(0, 0, None, bytes(3 << 20))])
    small = build_batch([Record(1, 0, None, b"v")], base_offset=1)
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(big + small + big)
    reader = SegmentReader(FILES, str(path))
    sizes = [row.size_bytes for row in reader.rows() if isinstance(row, BatchRow)]
    assert sizes == [len(big), len(small), len(big)]
    assert (second := reader.batch_at(len(big))) is not None
    assert second.last_offset == 1
    assert reader.batch_at(7) is None
    assert reader.batch_at(-1) is None


def test_a_file_without_an_offset_for_a_name_is_refused() -> None:
    with pytest.raises(InspectError, match="named after an offset"):
        base_offset_of("/data/t-0/notes.log")
