"""Comparing closed segments with their sidecars, for `tidemill log verify`.

This finds what no batch can tell of itself: base offset, length, leader epoch and magic byte are
outside a batch's own checksum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tidemill.storage.checksums import (
    CHECKSUMS,
    READ_BYTES,
    BadChecksumsError,
    Checksums,
    read_sidecar,
)
from tidemill.storage.damage import DamageMap, Range, SegmentFiles
from tidemill.storage.files import Files
from tidemill.storage.segment import INDEX, LOG, offset_name


class Finding(NamedTuple):
    """What is wrong with one file; `is_loss` when it is the data and not what is said of it."""

    file: str
    position: int | None
    message: str
    is_loss: bool


def compare_all(files: Files, directory: str, bases: Sequence[int]) -> Iterator[Finding]:
    """Everything that differs from the sidecars of the segments at these base offsets."""
    for slot, base in enumerate(bases):
        stem = f"{directory}/{offset_name(base)}"
        if not files.exists(stem + CHECKSUMS):
            continue
        if slot + 1 == len(bases):
            message = "the last segment is open and has no checksums yet: these are an older one's"
            yield Finding(stem + CHECKSUMS, None, message, False)
            continue
        yield from _compare(files, stem, base, bases[slot + 1])


def _compare(files: Files, stem: str, base: int, end_offset: int) -> Iterator[Finding]:
    segment = SegmentFiles(
        stem + LOG, stem + INDEX, stem + CHECKSUMS, base, end_offset, files.size(stem + LOG)
    )
    try:
        known = read_sidecar(files, segment.checksums_path)
    except BadChecksumsError as error:
        yield Finding(segment.checksums_path, None, str(error), False)
        return
    assert known is not None  # The caller saw the file.
    bad = _mismatches(files.pread, segment, known)
    for damage in DamageMap(files, segment, bad).damage():
        message = (
            f"bytes {damage.start} to {damage.end - 1} are not what was written; offsets "
            f"{damage.first_offset} to {damage.next_offset - 1} cannot be trusted"
        )
        yield Finding(segment.log_path, damage.start, message, True)


def _mismatches(
    pread: Callable[[str, int, int], bytes], segment: SegmentFiles, known: Checksums
) -> list[Range]:
    bad: list[Range] = []
    position = 0
    while data := pread(segment.log_path, position, READ_BYTES):
        bad += known.mismatches(position, data)
        position += len(data)
    if position != known.size_bytes:
        bad.append((min(position, known.size_bytes), max(position, known.size_bytes)))
    return bad
