"""Spark's reports added up."""

from __future__ import annotations

import json
from typing import Any

from tidemill.spark.pipeline.progress import Meter, positions


def report(second: int, batch: int, rows: int, start: Any, end: Any, latest: Any) -> dict[str, Any]:
    return {
        "timestamp": f"2026-11-15T00:00:{second:02}.000Z",
        "batchId": batch,
        "numInputRows": rows,
        "processedRowsPerSecond": rows * 2.0,
        "eventTime": {"watermark": f"2026-11-15T00:00:{second:02}.000Z"},
        "sources": [
            {
                "startOffset": None if start is None else {"clicks": {"0": start}},
                "endOffset": {"clicks": {"0": end}},
                "latestOffset": {"clicks": {"0": latest}},
            }
        ],
    }


def test_nothing_is_known_before_the_first_batch() -> None:
    now = Meter().now
    assert (now.batch, now.rows, now.behind, now.fraction) == (None, 0, None, None)


def test_batches_add_up_and_a_report_counts_once() -> None:
    meter = Meter()
    first, second = report(1, 0, 10, None, 10, 40), report(2, 1, 20, 10, 30, 40)
    meter.add([first])
    assert meter.now.fraction == 0.25
    meter.add([first, second])
    meter.add([first, second])
    now = meter.now
    assert (now.batch, now.rows, now.rows_per_s) == (1, 30, 40.0)
    assert (now.done, now.behind, now.fraction) == (30, 10, 0.75)
    assert now.watermark == "2026-11-15T00:00:02.000Z"


def test_waiting_is_no_batch_and_has_no_rate() -> None:
    """Spark reports an idle query under the number of the batch that comes next."""
    meter = Meter()
    meter.add([report(1, 0, 10, None, 10, 10), report(11, 1, 0, 10, 10, 10)])
    assert (meter.now.batch, meter.now.rows_per_s, meter.now.fraction) == (0, 0.0, 1.0)
    meter.add([report(12, 1, 5, 10, 15, 15)])
    assert (meter.now.batch, meter.now.rows) == (1, 15)


def test_a_run_that_continues_counts_from_where_it_began() -> None:
    meter = Meter()
    meter.add([report(1, 7, 10, 1_000, 1_010, 1_030)])
    assert (meter.now.done, meter.now.behind) == (10, 20)


def test_rows_that_were_too_late_are_counted() -> None:
    """Spark leaves them out silently, in whichever operator keeps state."""
    meter = Meter()
    assert meter.now.late == 0
    operators = [{"numRowsDroppedByWatermark": 2}, {"numRowsDroppedByWatermark": 1}, {}]
    meter.add([report(1, 0, 10, None, 10, 10) | {"stateOperators": operators}])
    meter.add([report(2, 1, 5, 10, 15, 15) | {"stateOperators": operators[1:]}])
    assert meter.now.late == 4


def test_offsets_in_text_and_of_other_sources() -> None:
    assert positions(json.dumps({"t": {"0": 5, "1": 6}})) == {("t", "0"): 5, ("t", "1"): 6}
    for other in (None, "none", 7, "7", {"logOffset": 3}, ["x"]):
        assert positions(other) == {}
