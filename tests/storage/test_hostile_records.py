"""Records that are made to fill the memory of whoever looks into them (rule 3.4.4).

The bytes of a batch are bounded by what it may inflate to. What Python makes of them must be, too:
a header takes two bytes, a record seven, and as objects either takes hundreds.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from tests.storage.cleaning import Cleaning
from tests.storage.helpers import TP, new_log
from tests.wire.bombs import headers_bomb, records_bomb

from tidemill.errors import ErrorCode, WireError
from tidemill.storage.files import OsFiles
from tidemill.storage.inspect import RECORD_HEADERS_MAX, BatchRow, dump_segment
from tidemill.storage.log import Log
from tidemill.storage.log_config import LogConfig
from tidemill.storage.validate import (
    RecordsRefusedError,
    Validated,
    convert,
    validate_for_append,
)
from tidemill.wire.compression import Codec

T = TypeVar("T")

NOW = 1_700_000_000_000
HOUR_MS = 3_600_000
HEADERS = 200_000
RECORDS = 30_000
COMPACTED = LogConfig(cleanup_compact=True)


def peak_of(work: Callable[[], T]) -> tuple[T, int]:
    """What the work gave, and the most memory that it had at a time."""
    tracemalloc.start()
    try:
        result = work()
        return result, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def checked(records: bytes, config: LogConfig) -> Validated:
    validated = validate_for_append(records, config, NOW, topic_partition=TP)
    assert validated.needs_conversion
    return convert(validated, config, NOW, topic_partition=TP)


def appended(records: bytes) -> Log:
    """A log with the records in it as they came: an ordinary topic's are not looked at."""
    log = new_log()
    log.append_as_leader(validate_for_append(records, LogConfig(), NOW), leader_epoch=0)
    return log


def test_headers_are_counted_and_not_made_when_records_are_checked() -> None:
    bomb = headers_bomb(Codec.ZSTD, HEADERS, timestamp=NOW)
    validated, peak_bytes = peak_of(lambda: checked(bomb, COMPACTED))
    assert validated.records is bomb
    assert peak_bytes < 5 * 2 * HEADERS


@pytest.mark.parametrize("keyed", [True, False])
def test_a_refusal_names_some_of_thirty_thousand_records(keyed: bool) -> None:
    """Whether it is their keys or their times that are wrong; how many there were is told."""
    bomb = records_bomb(Codec.ZSTD, RECORDS, keyed=keyed, timestamp=NOW + keyed * 2 * HOUR_MS)

    def refusal() -> RecordsRefusedError:
        with pytest.raises(RecordsRefusedError) as caught:
            checked(bomb, COMPACTED)
        return caught.value

    refused, peak_bytes = peak_of(refusal)
    wanted = ErrorCode.INVALID_TIMESTAMP if keyed else ErrorCode.INVALID_RECORD
    assert refused.code is wanted
    assert keyed or f"due to {RECORDS} record errors in total" in str(refused)
    assert [index for index, _ in refused.record_errors] == list(range(len(refused.record_errors)))
    assert 1000 <= len(refused.record_errors) < RECORDS
    assert peak_bytes < 20 * len(bomb) + 10_000_000


@pytest.mark.parametrize(
    "bomb",
    [
        headers_bomb(Codec.ZSTD, HEADERS, timestamp=NOW),
        records_bomb(Codec.ZSTD, RECORDS, timestamp=NOW),
    ],
    ids=["headers", "records"],
)
def test_a_time_is_looked_up_without_making_records(bomb: bytes) -> None:
    log = appended(bomb)
    found, peak_bytes = peak_of(lambda: log.offset_for_timestamp(NOW - 5))
    assert found == (0, NOW, 0)
    assert peak_bytes < 3_000_000
    found, peak_bytes = peak_of(log.max_timestamp)
    assert found == (0, NOW, 0)
    assert peak_bytes < 3_000_000


def test_the_latest_of_what_is_left_is_found_without_making_records() -> None:
    """The record with the largest time was deleted with those before the log's start."""
    log = appended(records_bomb(Codec.ZSTD, RECORDS, timestamp=NOW))
    log.advance_log_start(10)
    found, peak_bytes = peak_of(log.max_timestamp)
    assert found is not None
    assert found.offset == 10
    assert peak_bytes < 3_000_000


@pytest.mark.parametrize("value_is_null", [False, True], ids=["values", "tombstones"])
def test_a_pass_of_the_cleaner_keeps_no_list_of_records(value_is_null: bool) -> None:
    """The first half of the records is written anew, since later ones have the same keys."""
    config = replace(Cleaning().config, segment_bytes=1 << 20)
    world = Cleaning(config=config)
    world.log.append_as_leader(
        checked(records_bomb(Codec.ZSTD, RECORDS, timestamp=NOW), config), leader_epoch=0
    )
    value = None if value_is_null else b"new"
    world.put(*(((2 * n).to_bytes(4, "big"), value) for n in range(RECORDS // 2)))
    world.put((b"last", b"x"))
    world.settle()
    cleaned, peak_bytes = peak_of(world.clean)
    assert cleaned
    left = world.records()
    assert [offset for offset, _, _ in left[: RECORDS // 2]] == list(range(1, RECORDS, 2))
    assert len(left) == RECORDS + 1
    map_bytes = 120 * RECORDS
    assert peak_bytes < map_bytes + 3_000_000


def test_a_dump_refuses_a_record_with_more_headers_than_anybody_wrote(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020}.log"
    path.write_bytes(headers_bomb(Codec.ZSTD, RECORD_HEADERS_MAX + 1))
    (row,) = dump_segment(OsFiles(), str(path))
    assert isinstance(row, BatchRow)
    with pytest.raises(WireError, match="1000001 headers"):
        next(row.records())
