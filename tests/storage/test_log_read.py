"""Reading a log: by offset, by time, cold, and while it changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.storage.helpers import (
    TOPIC_ID,
    TP,
    batch,
    fill,
    manager_on,
    new_log,
)

from tidemill.errors import ApiError, ErrorCode
from tidemill.storage.log_config import LogConfig
from tidemill.storage.segment import RECENT_BATCHES_MAX
from tidemill.testing.clock import START_MS
from tidemill.testing.disk import CrashDisk
from tidemill.wire.batch import iter_headers, read_header

SMALL = LogConfig(segment_bytes=600, index_interval_bytes=100, file_delete_delay_ms=0)


class MeanwhileDisk(CrashDisk):
    """Lets something happen right after the last entry of a time index was read."""

    meanwhile: Callable[[], object] | None = None

    def pread(self, path: str, position: int, length: int) -> bytes:
        data = super().pread(path, position, length)
        if path.endswith(".timeindex") and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        return data


class TestRead:
    def test_outside_of_the_log(self) -> None:
        log = new_log()
        fill(log, 3)
        for offset in (-1, 4):
            with pytest.raises(ApiError) as caught:
                log.read(offset, max_bytes=100, upper_offset=10)
            assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        nothing = log.read(3, max_bytes=100, upper_offset=10)
        assert nothing.is_empty
        assert nothing.read_now() == nothing.read_blocking() == b""

    def test_never_reaches_the_upper_offset(self) -> None:
        """Rule B8: above the bound there is nothing, not data."""
        log = new_log(SMALL)
        fill(log, 30)
        for upper in range(31):
            offset, seen = 0, []
            while offset < upper:
                data = log.read(offset, max_bytes=250, upper_offset=upper).read_blocking()
                seen += [header.base_offset for _, header in iter_headers(data)]
                offset = seen[-1] + 1
            assert seen == list(range(upper))
            assert log.read(upper, max_bytes=250, upper_offset=upper).is_empty

    def test_whole_batches_within_the_limit(self) -> None:
        log = new_log(LogConfig(index_interval_bytes=300))
        fill(log, 50)
        size = len(batch(b"0".ljust(40, b".")))
        for limit in (size, size + 1, 5 * size - 1, 20 * size):
            data = log.read(7, max_bytes=limit, upper_offset=50).read_blocking()
            assert 0 < len(data) <= limit
            assert len(data) % size == 0

    def test_the_first_batch_comes_even_if_too_large(self) -> None:
        log = new_log()
        log.append_as_leader(batch(b"x" * 5000), leader_epoch=0)
        log.append_as_leader(batch(b"y"), leader_epoch=0)
        assert len(log.read(0, max_bytes=10, upper_offset=2).read_blocking()) > 5000
        small = log.read(0, max_bytes=10, upper_offset=2, at_least_one=False)
        assert small.is_empty

    def test_the_middle_of_a_batch_gives_the_batch(self) -> None:
        log = new_log()
        log.append_as_leader(batch(b"a", b"b", b"c"), leader_epoch=0)
        data = log.read(1, max_bytes=1000, upper_offset=3).read_now()
        assert data is not None
        assert read_header(data).base_offset == 0

    def test_every_batch_is_found_when_the_older_ones_are_forgotten(self) -> None:
        """Where the latest batches lie is known without an index; before that, by asking one."""
        log = new_log(LogConfig(index_interval_bytes=1_000_000))
        fill(log, RECENT_BATCHES_MAX + 2, size=1)
        for offset in range(log.log_end_offset):
            found = log.read(offset, max_bytes=1, upper_offset=log.log_end_offset)
            assert read_header(found.read_blocking()).base_offset == offset

    def test_cold_data_waits_for_an_executor(self) -> None:
        disk = CrashDisk()
        log = new_log(SMALL, disk=disk)
        fill(log, 30)
        disk.is_cold = True
        cold = log.read(3, max_bytes=1000, upper_offset=30)
        assert cold.read_now() is None
        assert not cold.is_empty
        assert read_header(cold.read_blocking()).base_offset == 3

    def test_a_cold_read_ends_where_the_log_did_when_it_was_allowed(self) -> None:
        """Rule B8: what is appended before a thread gets to the disk is above the bound."""
        disk, config = CrashDisk(), LogConfig(index_interval_bytes=100)
        manager = manager_on(disk, config=config)
        fill(manager.create(TP, TOPIC_ID, config), 600, size=200)
        manager.shutdown({TP: 600})
        log = manager_on(disk, config=config).logs[TP]
        found = log.read(598, max_bytes=1 << 20, upper_offset=600)
        assert not found.is_resolved, "its index has to be read first"
        log.append_as_leader(batch(b"not replicated"), leader_epoch=0)
        headers = [header for _, header in iter_headers(found.read_blocking())]
        assert [header.base_offset for header in headers] == [598, 599]

    @pytest.mark.parametrize("is_cold", [False, True])
    def test_nothing_is_read_where_others_took_the_place_of_what_was_cut(
        self, is_cold: bool
    ) -> None:
        """Positions of before a cut may lie in the middle of batches that came after it."""
        disk, config = CrashDisk(), LogConfig(index_interval_bytes=100)
        manager = manager_on(disk, config=config)
        fill(manager.create(TP, TOPIC_ID, config), 600, size=200)
        manager.shutdown({TP: 600})
        log = manager_on(disk, config=config).logs[TP]
        if not is_cold:
            assert len(log.segments[-1].offset_index), "which loads it"
        below = log.read(570, max_bytes=1500, upper_offset=580)
        across = log.read(590, max_bytes=1 << 20, upper_offset=600)
        assert across.is_resolved is not is_cold
        log.truncate_to(595)
        fill(log, 20, epoch=1, size=333)
        assert across.read_blocking() == b""
        assert across.read_now() in (b"", None)
        if not is_cold:
            assert read_header(below.read_blocking()).base_offset == 570
            assert below.read_now() == below.read_blocking()

    def test_pieces_are_the_same_bytes_in_order(self) -> None:
        log = new_log()
        fill(log, 30)
        whole = log.read(3, max_bytes=1 << 20, upper_offset=27)
        for max_bytes in (1, 100, whole.size_bytes - 1, whole.size_bytes, 1 << 20):
            pieces = whole.pieces(max_bytes)
            assert [piece.size_bytes for piece in pieces[:-1]] == [max_bytes] * (len(pieces) - 1)
            assert 0 < pieces[-1].size_bytes <= max_bytes
            assert b"".join(piece.read_now() or b"" for piece in pieces) == whole.read_now()
            assert b"".join(piece.read_blocking() for piece in pieces) == whole.read_now()

    @pytest.mark.parametrize("way", ["read_now", "read_blocking"])
    def test_pieces_behind_a_cut_are_nothing_and_those_before_it_stay(self, way: str) -> None:
        log = new_log()
        fill(log, 30)
        size_bytes = len(batch(b"0".ljust(40, b".")))
        pieces = log.read(0, max_bytes=1 << 20, upper_offset=30).pieces(10 * size_bytes)
        log.truncate_to(20)
        fill(log, 20, epoch=1, size=50)
        found = [len(getattr(piece, way)()) for piece in pieces]
        assert found == [10 * size_bytes, 10 * size_bytes, 0]

    def test_what_has_to_be_looked_for_is_limited(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tidemill.storage.slice.SOUGHT_BYTES_MAX", 1_000)
        disk, config = CrashDisk(), LogConfig(index_interval_bytes=100)
        manager = manager_on(disk, config=config)
        fill(manager.create(TP, TOPIC_ID, config), 600, size=200)
        manager.shutdown({TP: 600})
        log = manager_on(disk, config=config).logs[TP]
        sought = log.read(10, max_bytes=10_000, upper_offset=600)
        assert not sought.is_resolved
        assert 0 < len(sought.read_blocking()) <= sought.size_bytes <= 1_000
        assert sought.falls_short_of(10_000)
        known = log.read(10, max_bytes=10_000, upper_offset=600)
        assert known.is_resolved, "the index is there by now"
        assert 9_000 < known.size_bytes <= 10_000
        assert not known.falls_short_of(10_000), "it is the reader's own limit"
        assert known.falls_short_of(10_001)
        assert not log.read(598, max_bytes=10_000, upper_offset=600).falls_short_of(10_001)

    def test_a_segment_deleted_while_reading_is_still_read(self) -> None:
        log = new_log(SMALL)
        fill(log, 30)
        part = log.read(0, max_bytes=300, upper_offset=30)
        log.advance_log_start(20)
        log.delete_old_segments(START_MS, 30)
        assert read_header(part.read_blocking()).base_offset == 0
        for segment in log.take_doomed(START_MS):
            segment.delete_files()
        assert part.read_blocking() == b""
        with pytest.raises(ApiError) as caught:
            log.read(0, max_bytes=300, upper_offset=30)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


class TestTimestamps:
    def test_lookup_by_timestamp(self) -> None:
        log = new_log(LogConfig(segment_bytes=500, index_interval_bytes=100))
        for number in range(40):
            log.append_as_leader(batch(b"a", b"b", timestamp=1000 + number * 10), leader_epoch=2)
        for number in (0, 1, 17, 39):
            found = log.offset_for_timestamp(1000 + number * 10 - 5)
            assert found is not None
            assert found == (number * 2, 1000 + number * 10, 2)
        assert log.offset_for_timestamp(0) == (0, 1000, 2)
        assert log.offset_for_timestamp(1391) is None

    def test_timestamps_may_go_back(self) -> None:
        log = new_log(LogConfig(segment_bytes=500, index_interval_bytes=0))
        times = [500, 100, 900, 300, 900, 200, 50]
        for timestamp in times * 3:
            log.append_as_leader(batch(b"a", timestamp=timestamp), leader_epoch=0)
        for wanted in range(0, 901, 50):
            expected = next(i for i, t in enumerate(times * 3) if t >= wanted)
            found = log.offset_for_timestamp(wanted)
            assert found is not None
            assert found.offset == expected
        latest = log.max_timestamp()
        assert latest is not None
        assert (latest.offset, latest.timestamp) == (2, 900)

    @pytest.mark.parametrize("count", [3, 600])
    def test_an_older_record_after_a_start_does_not_hide_later_ones(self, count: int) -> None:
        """With few batches there is no index file to ask; retention goes by these times, too."""
        disk, config = CrashDisk(), LogConfig(index_interval_bytes=100)
        manager = manager_on(disk, config=config)
        log = manager.create(TP, TOPIC_ID, config)
        for _ in range(count):
            log.append_as_leader(batch(b"v" * 200, timestamp=900), leader_epoch=0)
        manager.shutdown({TP: count})
        log = manager_on(disk, config=config).logs[TP]
        log.append_as_leader(batch(b"old", timestamp=100), leader_epoch=0)
        assert log.offset_for_timestamp(500) == (0, 900, 0)
        assert log.segments[-1].retention_timestamp() == 900

    def test_a_cut_while_a_thread_asks_for_the_largest_timestamp(self) -> None:
        """What the thread finds in the index of before does not replace what the cut has found."""
        disk, config = MeanwhileDisk(), LogConfig(index_interval_bytes=100)
        manager = manager_on(disk, config=config)
        log = manager.create(TP, TOPIC_ID, config)
        for number in range(600):
            log.append_as_leader(batch(b"v" * 200, timestamp=1000 + number), leader_epoch=0)
        manager.shutdown({TP: 600})
        log = manager_on(disk, config=config).logs[TP]
        disk.meanwhile = lambda: log.truncate_to(300)
        assert log.segments[-1].largest_timestamp().timestamp == 1599, "as of when it was asked"
        assert log.segments[-1].largest_timestamp() == (1299, 299)

    def test_deleted_records_are_not_found(self) -> None:
        log = new_log()
        for timestamp in (900, 100, 300):
            log.append_as_leader(batch(b"a", timestamp=timestamp), leader_epoch=0)
        log.advance_log_start(1)
        assert log.offset_for_timestamp(50) == (1, 100, 0)
        assert log.max_timestamp() == (2, 300, 0)
        assert new_log().max_timestamp() is None
