"""Durations as people write them in a pipeline file, and as Spark wants them."""

from __future__ import annotations

import re
from typing import Final

_UNITS_MS: Final = {
    "ms": 1,
    "millisecond": 1,
    "s": 1_000,
    "second": 1_000,
    "m": 60_000,
    "minute": 60_000,
    "h": 3_600_000,
    "hour": 3_600_000,
    "d": 86_400_000,
    "day": 86_400_000,
    "week": 7 * 86_400_000,
}
_DURATION: Final = re.compile(r"(\d{1,9})\s*([a-z]+)")


def parse_ms(text: str) -> int | None:
    """`30 seconds`, `5m` or `1 hour` in milliseconds; None if it is no duration."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        return None
    unit = found[2]
    if unit not in _UNITS_MS and len(unit) > len("ms"):
        unit = unit.removesuffix("s")  # the plural; `ms` is none
    return int(found[1]) * _UNITS_MS[unit] if unit in _UNITS_MS else None


def interval(duration_ms: int) -> str:
    """The same for Spark."""
    return f"{duration_ms} milliseconds"


def shown(duration_ms: int) -> str:
    """The same for people, in the largest unit that it is a whole number of."""
    for unit in ("week", "day", "hour", "minute", "second", "millisecond"):
        count, rest = divmod(duration_ms, _UNITS_MS[unit])
        if count and not rest:
            return f"{count} {unit}" if count == 1 else f"{count} {unit}s"
    return "0 seconds"
