"""Finishing, at start, a replacement of segments that a crash cut short (rules E4 and I5).

`log_replace.py` says in which order compaction puts a new segment in place. What had been decided
is done here; what had not is dropped, and the old segments are still there. Doing it twice does no
harm: a crash may come again.
"""

from __future__ import annotations

from contextlib import suppress

from tidemill.errors import WireError
from tidemill.storage.checksums import CHECKSUMS
from tidemill.storage.files import Files
from tidemill.storage.scan import walk_headers
from tidemill.storage.segment import CLEANED, INDEX_SUFFIXES, LOG, SWAP, offset_name


def finish_swaps(files: Files, directory: str, names: list[str]) -> bool:
    """Complete a replacement of segments whose new files were all written (rules E4 and I5).

    A swap is valid only below the first `.cleaned` file: that one was still being written. The
    originals that a swapped segment replaces go before it takes its own name, the log file last.
    """
    swaps = [name for name in names if name.endswith(SWAP)]
    if not swaps:
        return False
    unfinished = [offset_of(name) for name in names if name.endswith(CLEANED)]
    limit = min(unfinished, default=None)
    valid = [name for name in swaps if limit is None or offset_of(name) < limit]
    for name in set(swaps) - set(valid):
        files.unlink(f"{directory}/{name}")
    logs = [name for name in valid if name.endswith(LOG + SWAP)]
    decided = {offset_of(name) for name in logs}
    for name in logs:
        _drop_replaced(files, directory, name, names)
    for name in valid:
        if name not in logs:
            _place_index(files, directory, name, is_decided=offset_of(name) in decided)
    for name in logs:
        files.replace(f"{directory}/{name}", f"{directory}/{name.removesuffix(SWAP)}")
    files.fsync_dir(directory)
    return True


def _place_index(files: Files, directory: str, swap: str, *, is_decided: bool) -> None:
    """Give an index its name. One whose log file is not to be swapped is a leftover, unless the
    log file was renamed before it and waits for it, as Kafka does that."""
    path = f"{directory}/{swap}"
    target = path.removesuffix(SWAP)
    if is_decided or not files.exists(target):
        files.replace(path, target)
    else:
        files.unlink(path)


def _drop_replaced(files: Files, directory: str, swap: str, names: list[str]) -> None:
    path = f"{directory}/{swap}"
    base, last = offset_of(swap), -1
    with suppress(WireError):  # Damage that came later is for whoever reads the segment.
        for _, header in walk_headers(files.pread, path, 0, files.size(path)):
            last = header.last_offset
    # Its bytes are others from now on, so what was said about them is void.
    files.unlink(f"{directory}/{offset_name(base)}{CHECKSUMS}")
    for name in names:
        if is_numbered(name, LOG) and base < offset_of(name) <= last:
            for suffix in (LOG, *INDEX_SUFFIXES, CHECKSUMS):
                files.unlink(f"{directory}/{name.removesuffix(LOG)}{suffix}")


def is_numbered(name: str, *suffixes: str) -> bool:
    """Whether the file belongs to a segment and is of one of these kinds."""
    if not name.endswith(suffixes):
        return False  # The quick way: a start asks this of every file there is.
    stem, dot, suffix = name.partition(".")
    return len(stem) == 20 and stem.isdigit() and dot + suffix in suffixes


def offset_of(name: str) -> int:
    """The offset in a file's name; -1 when it has none."""
    return int(name[:20]) if name[:20].isdigit() else -1
