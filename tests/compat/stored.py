"""What a broker has stored, as its files say and no client."""

from __future__ import annotations

import json
from typing import Any

from tests.cli.helpers import quick

from tidemill.testing.process import BrokerProcess


def stored_batches(broker: BrokerProcess, topic: str, partition: int = 0) -> list[dict[str, Any]]:
    """The batches of a partition's first segment, by `tidemill log dump`."""
    file = broker.data_dir / f"{topic}-{partition}" / "00000000000000000000.log"
    dumped = quick("log", "dump", str(file), "--format", "json")
    assert dumped.status == 0, dumped.err
    return [json.loads(line) for line in dumped.out.splitlines()]
