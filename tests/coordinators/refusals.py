"""Requests to groups that are refused, each with the code that Apache Kafka 4.3.1 refuses it with.

`test_error_codes.py` plays them on a live broker; `tests/reference/test_group_error_codes.py` does
so beside Apache Kafka and compares every answer on the way. Importing this module gathers them.
"""

from __future__ import annotations

from tests.coordinators import (
    refusals_classic,
    refusals_early,
    refusals_groups,
    refusals_offsets,
)
from tests.coordinators.scene import (
    BEFORE_THE_TOPIC,
    NOT_IN_KAFKA,
    REFUSALS,
    WHEN_FULL,
    Refusal,
    Scene,
)

__all__ = [
    "BEFORE_THE_TOPIC",
    "NOT_IN_KAFKA",
    "REFUSALS",
    "WHEN_FULL",
    "Refusal",
    "Scene",
    "refusals_classic",
    "refusals_early",
    "refusals_groups",
    "refusals_offsets",
]
