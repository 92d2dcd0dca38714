"""Where a source begins to read: the words of a pipeline file as the data source's options."""

from __future__ import annotations

import json
from datetime import UTC, datetime


def parse_start(text: str) -> dict[str, str] | None:
    """The options for `earliest`, `latest`, a time or offsets as JSON; None if it is none."""
    word = text.strip()
    if word in ("earliest", "latest"):
        return {"startingOffsets": word}
    if word.startswith("{"):
        return {"startingOffsets": word} if _is_offsets(word) else None
    at_ms = _time_ms(word)
    if at_ms is None:
        return None
    # Nothing after that time yet means: begin with what comes next.
    return {"startingTimestamp": str(at_ms), "startingOffsetsByTimestampStrategy": "latest"}


def _time_ms(text: str) -> int | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    aware = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return int(aware.timestamp() * 1000)


def _is_offsets(text: str) -> bool:
    """`{"clicks": {"0": 23, "1": -2}}`."""
    try:
        topics = json.loads(text)
    except ValueError:
        return False
    return bool(topics) and all(
        isinstance(partitions, dict)
        and all(number.isdigit() and isinstance(at, int) for number, at in partitions.items())
        for partitions in topics.values()
    )
