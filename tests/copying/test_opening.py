"""How much a copy may hold beyond its last checkpoint."""

from __future__ import annotations

import pytest

from tidemill.copying.copier import POLL_RECORDS, RECORD_BYTES, ROUND_BYTES
from tidemill.copying.opening import _check_tail
from tidemill.copying.topics import CopyError

ROUND = ROUND_BYTES // RECORD_BYTES + POLL_RECORDS


def test_a_round_and_the_late_one_of_a_dead_copier_are_no_strangers() -> None:
    """So the copier that was surprised by it can be started again."""
    _check_tail("copy", 2 * ROUND)
    with pytest.raises(CopyError, match="somebody else writes"):
        _check_tail("copy", 2 * ROUND + 1)
