"""From bytes of a file to the values of records: one line each, and long ones in pieces.

Pure: a position is where a line's first byte is in its file, which names the line for good.
"""

from __future__ import annotations

import re
from typing import NamedTuple

LINE_OVERHEAD_BYTES = 128
"""What a record costs besides its line: its headers and its place in a batch."""

_NULS = re.compile(rb"\0+")


class Line(NamedTuple):
    """One record's value; `part` counts the pieces of a line that was too long for one."""

    value: bytes
    position: int
    part: int | None = None


class Cut(NamedTuple):
    """What was found, and where to go on: `part` pieces of the line there are cut already."""

    lines: list[Line]
    position: int
    part: int
    cost_bytes: int


def cut(
    data: bytes,
    *,
    position: int,
    part: int = 0,
    line_bytes_max: int,
    cost_bytes_max: int,
    final: bool = False,
    start: int = 0,
) -> Cut:
    """The lines of `data` from `start` on, whose first byte is at `position` of the file.

    What follows the last line's end stays for later, unless `final` says that nothing will follow.
    Zeros where a line should begin are skipped: they are the hole that a writer leaves when its
    file is truncated and it goes on at its old position.
    """
    lines: list[Line] = []
    at, cost = start, 0
    shift = position - start
    while at < len(data) and cost < cost_bytes_max:
        if not part and data[at] == 0 and (hole := _NULS.match(data, at)):
            at = hole.end()
            continue
        end = data.find(b"\n", at, at + line_bytes_max + 1)
        if end >= 0:
            value, following = data[at:end].removesuffix(b"\r"), end + 1
        elif len(data) - at > line_bytes_max:
            value, following = data[at : at + line_bytes_max], at + line_bytes_max
        elif final:
            value, following = data[at:], len(data)
        else:
            break
        piece = end < 0 and not (final and following == len(data))
        lines.append(Line(value, at + shift, part if piece or part else None))
        part = part + 1 if piece else 0
        cost += len(value) + LINE_OVERHEAD_BYTES
        at = following
    return Cut(lines, at + shift, part, cost)
