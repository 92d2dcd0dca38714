"""`auto.offset.reset`: where a consumer goes without a position, or with one that is not there."""

from __future__ import annotations

import re

from tidemill.client.admin_types import OffsetSpec

BY_DURATION = "by_duration:"
"""Begins with the records of the last while, as in `by_duration:PT1H30M`."""

_NAMED = {"earliest": OffsetSpec.EARLIEST, "latest": OffsetSpec.LATEST}
_DURATION = re.compile(
    r"P(?=.)(?:(\d+)D)?(?:T(?=.)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d{1,9})?)S)?)?", re.IGNORECASE
)
_UNITS_MS = (86_400_000, 3_600_000, 60_000, 1_000)


def duration_ms(text: str) -> int:
    """An ISO 8601 duration of days, hours, minutes and seconds; raises ValueError for others."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a duration such as P1D or PT1H30M")
    parts = zip(found.groups(), _UNITS_MS, strict=True)
    return int(sum(float(part or 0) * unit_ms for part, unit_ms in parts))


def spec_of(policy: str, now_ms: int) -> OffsetSpec | None:
    """What to ask the leader for; None where the user wants to be told instead."""
    if policy.lower().startswith(BY_DURATION):
        return OffsetSpec.at_time(max(now_ms - duration_ms(policy[len(BY_DURATION) :]), 0))
    return _NAMED.get(policy)
