"""What a query reads, and what it calls a loss, on a cluster that is a table in memory."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

import pytest

from tidemill.client.errors import ClientError, RequestTimeoutError
from tidemill.client.group_offsets import OffsetAndMetadata
from tidemill.errors import ErrorCode
from tidemill.spark.data_loss import DataLossError
from tidemill.spark.lookup import BrokerLookup, Topic
from tidemill.spark.offsets import OPEN_END, OffsetRange, Position
from tidemill.spark.options import OptionError, SourceOptions
from tidemill.spark.planning import (
    COMMIT_PAUSE_MS,
    FIRST_COMMITS_MAX,
    Planner,
    StreamPlanner,
)
from tidemill.testing.clock import ManualClock
from tidemill.types import TopicPartition

BROKERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
FIRST, OTHER, ANEW = (str(UUID(int=number)) for number in (1, 2, 9))


@dataclass
class Table:
    """A cluster: per topic an id, and per partition where it begins and ends."""

    ids: dict[str, str] = field(default_factory=lambda: {"t": FIRST})
    logs: dict[str, dict[int, tuple[int, int]]] = field(
        default_factory=lambda: {"t": {0: (0, 100), 1: (0, 50)}}
    )
    times: dict[TopicPartition, int | None] = field(default_factory=dict)
    bytes_each: int = 100
    commits: list[tuple[str, dict[TopicPartition, int]]] = field(default_factory=list)
    refusal: ClientError | None = None
    looks: int = 0
    tries: int = 0

    def names(self) -> list[str]:
        return [*self.logs, "clicks"]

    def topics(self, *, afresh: bool = False) -> Mapping[str, Topic]:
        self.looks += 1
        return {t: Topic(t, self.ids[t], tuple(sorted(self.logs[t]))) for t in sorted(self.logs)}

    def _log(self, tp: TopicPartition) -> tuple[int, int] | None:
        return self.logs.get(tp.topic, {}).get(tp.partition)

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: log[0] for tp in partitions if (log := self._log(tp)) is not None}

    def latest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: log[1] for tp in partitions if (log := self._log(tp)) is not None}

    def at_times(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        return {tp: self.times.get(tp) for tp in times_ms}

    def log_bytes(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        found = {tp: self._log(tp) for tp in partitions}
        return {tp: (log[1] - log[0]) * self.bytes_each for tp, log in found.items() if log}

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self.tries += 1
        if self.refusal is not None:
            raise self.refusal
        self.commits.append((group, {tp: at.offset for tp, at in offsets.items()}))

    def close(self) -> None:
        pass


def stream(table: Table, clock: ManualClock | None = None, **options: str) -> StreamPlanner:
    given = {**BROKERS, "subscribe": "t", "startingOffsets": "earliest", **options}
    given = {name: value for name, value in given.items() if value}
    return StreamPlanner(
        SourceOptions.parse(given, streaming=True), table, clock=clock, pause=lambda _: None
    )


def batch(table: Table, **options: str) -> list[OffsetRange]:
    given = {**BROKERS, "subscribe": "t", **options}
    given = {name: value for name, value in given.items() if value}
    parsed = SourceOptions.parse(given, streaming=False)
    return Planner(parsed, table, pause=lambda _: None).batch_ranges()


def at(**offsets: int) -> Position:
    """`at(p0=5)`: topic `t`, partition 0, offset 5."""
    return Position(
        {"t": {int(name[1:]): offset for name, offset in offsets.items()}}, {"t": FIRST}
    )


# --- a query that ends ----------------------------------------------------------------------------


def test_a_batch_that_ends_when_it_is_read_has_no_ends_yet() -> None:
    """One range a partition, an empty one too: it may have records by then."""
    table = Table(logs={"t": {0: (3, 100), 1: (0, 0)}})
    found = batch(table, endingOffsets="whenRead")
    assert found == [OffsetRange("t", 0, 3, OPEN_END), OffsetRange("t", 1, 0, OPEN_END)]


def test_a_batch_reads_everything() -> None:
    assert batch(Table()) == [OffsetRange("t", 0, 0, 100), OffsetRange("t", 1, 0, 50)]


def test_a_batch_between_offsets() -> None:
    ranges = batch(
        Table(),
        startingOffsets='{"t": {"0": 7, "1": -2}}',
        endingOffsets='{"t": {"0": 90, "1": -1}}',
    )
    assert ranges == [OffsetRange("t", 0, 7, 90), OffsetRange("t", 1, 0, 50)]


def test_a_batch_between_times() -> None:
    table = Table(times={TopicPartition("t", 0): 30, TopicPartition("t", 1): None})
    with pytest.raises(OptionError, match="t-1 has no record at or after this time"):
        batch(table, startingTimestamp="1000")
    ranges = batch(table, startingTimestamp="1000", startingOffsetsByTimestampStrategy="latest")
    assert ranges == [OffsetRange("t", 0, 30, 100)]
    ranges = batch(table, endingTimestamp="1000")
    assert ranges == [OffsetRange("t", 0, 0, 30), OffsetRange("t", 1, 0, 50)]


def test_offsets_must_name_exactly_the_partitions() -> None:
    with pytest.raises(OptionError, match="has no entry for t-1"):
        batch(Table(), startingOffsets='{"t": {"0": 7}}')
    with pytest.raises(OptionError, match="names t-2, which the query does not read"):
        batch(Table(), startingOffsets='{"t": {"0": 7, "1": 1, "2": 1}}')


def test_topics_and_partitions_that_are_not_there() -> None:
    with pytest.raises(OptionError, match="no such topic; did you mean 'clicks'"):
        batch(Table(), subscribe="click")
    with pytest.raises(OptionError, match="has no partition 7"):
        batch(Table(), subscribe="", assign='{"t": [0, 7]}')


def test_offsets_outside_the_log_are_a_loss() -> None:
    table = Table(logs={"t": {0: (10, 100)}})
    with pytest.raises(DataLossError, match="begins at offset 10"):
        batch(table, startingOffsets='{"t": {"0": 7}}')
    ranges = batch(table, startingOffsets='{"t": {"0": 7}}', failOnDataLoss="false")
    assert ranges == [OffsetRange("t", 0, 10, 100)]


def test_an_ending_offset_behind_the_log_is_a_loss() -> None:
    """A task that waits for it would wait in vain, and fail, whenever it is run."""
    table = Table(logs={"t": {0: (0, 100)}})
    asked = {"endingOffsets": '{"t": {"0": 150}}'}
    with pytest.raises(DataLossError, match=r"t-0 ends at offset 100: .* up to 150"):
        batch(table, **asked)
    assert batch(table, **asked, failOnDataLoss="false") == [OffsetRange("t", 0, 0, 100)]


def test_large_ranges_are_split_by_their_bytes() -> None:
    table = Table(logs={"t": {0: (0, 3_000_000)}}, bytes_each=50)
    assert [piece.size for piece in batch(table)] == [750_000] * 4
    assert len(batch(table, minPartitions="10")) == 10
    assert len(batch(table, maxRecordsPerPartition="500000")) == 6


# --- a stream -------------------------------------------------------------------------------------


def test_a_stream_reads_batch_after_batch() -> None:
    table = Table()
    planner = stream(table, maxOffsetsPerTrigger="60")
    start = planner.initial()
    assert start == planner.initial() == at(p0=0, p1=0)
    seen = 0
    while (end := planner.next_end(start)) is not start:
        pieces = planner.ranges(start, end)
        assert sum(piece.size for piece in pieces) <= 60
        seen += sum(piece.size for piece in pieces)
        start = Position.from_json(end.to_json())
    assert seen == 150
    table.logs["t"][1] = (0, 53)
    assert planner.ranges(start, planner.next_end(start)) == [OffsetRange("t", 1, 50, 53)]


def test_latest_is_where_the_stream_began_however_often_one_asks() -> None:
    table = Table()
    planner = stream(table, startingOffsets="latest")
    start = planner.initial()
    table.logs["t"][0] = (0, 170)
    assert planner.initial() == start == at(p0=100, p1=50)
    assert planner.ranges(start, planner.next_end(start)) == [OffsetRange("t", 0, 100, 170)]


def test_the_first_batch_is_the_same_after_a_crash() -> None:
    """Spark does not write down where a query began: the end of its first batch says it."""
    table = Table()
    planner = stream(table, startingOffsets="latest")
    start = planner.initial()
    table.logs["t"][0] = (0, 170)
    end = Position.from_json(planner.next_end(start).to_json())
    again = stream(table, startingOffsets="latest")
    assert again.initial() == at(p0=170, p1=50)
    assert again.ranges(again.initial(), end) == [OffsetRange("t", 0, 100, 170)]
    table.logs["t"][0] = (0, 180)
    second = again.next_end(end)
    assert second.began_at is None
    assert again.ranges(end, second) == [OffsetRange("t", 0, 170, 180)]
    assert again.ranges(end, end) == []


def test_everything_when_spark_asks_for_everything() -> None:
    planner = stream(Table(), maxOffsetsPerTrigger="10")
    assert planner.next_end(planner.initial(), limited=False).offsets == at(p0=100, p1=50).offsets


def test_few_records_wait() -> None:
    table, clock = Table(), ManualClock()
    planner = stream(table, clock, minOffsetsPerTrigger="20", maxTriggerDelay="10s")
    end = planner.next_end(planner.initial())
    table.logs["t"][0] = (0, 110)
    assert planner.next_end(end) is end
    clock.advance(10_000)
    assert planner.next_end(end).offsets == at(p0=110, p1=50).offsets


def test_available_now_ends_at_what_was_there() -> None:
    table = Table()
    planner = stream(table, maxOffsetsPerTrigger="100", minOffsetsPerTrigger="99")
    planner.stop_at_what_is_there()
    start = planner.initial()
    table.logs["t"] = {0: (0, 500), 1: (0, 500), 2: (0, 500)}
    total = 0
    while (end := planner.next_end(start)) is not start:
        total += sum(piece.size for piece in planner.ranges(start, end))
        start = end
    assert total == 150


def test_available_now_from_latest_is_no_loss_when_records_come_meanwhile() -> None:
    table = Table()
    planner = stream(table, startingOffsets="latest")
    planner.stop_at_what_is_there()
    table.logs["t"] = {0: (0, 500), 1: (0, 50), 2: (0, 5)}
    start = planner.initial()
    assert planner.next_end(start) is start


def test_a_new_partition_is_read_from_its_beginning() -> None:
    table = Table()
    planner = stream(table)
    end = planner.next_end(planner.initial())
    table.logs["t"][2] = (0, 0)
    assert planner.next_end(end) is end, "an empty partition is no reason for a batch"
    table.logs["t"][2] = (0, 9)
    assert planner.ranges(end, planner.next_end(end)) == [OffsetRange("t", 2, 0, 9)]
    table.logs["t"][2] = (4, 9)
    with pytest.raises(DataLossError, match="t-2 begins at offset 4"):
        planner.ranges(end, planner.next_end(end))


def test_a_new_topic_of_a_pattern_begins_where_it_begins() -> None:
    table = Table()
    planner = stream(table, subscribe="", subscribePattern=".*")
    end = planner.next_end(planner.initial())
    table.ids["u"], table.logs["u"] = OTHER, {0: (40, 90)}
    assert planner.ranges(end, planner.next_end(end)) == [OffsetRange("u", 0, 40, 90)]


# --- losses ---------------------------------------------------------------------------------------


def test_an_end_that_went_back_is_a_loss() -> None:
    table = Table()
    start = at(p0=120, p1=50)
    with pytest.raises(DataLossError, match="t-0 ends at offset 100, but had been read up to 120"):
        stream(table).next_end(start)
    going_on = stream(table, failOnDataLoss="false")
    end = going_on.next_end(start)
    assert end.offsets == at(p0=100, p1=50).offsets
    assert going_on.ranges(start, end) == []
    assert going_on.next_end(end) is end


def test_a_broker_that_is_just_starting_is_no_loss() -> None:
    """An end that is too small is looked at again before it is believed."""

    class Starting(Table):
        def latest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
            found = super().latest(partitions)
            return found if self.looks > 3 else dict.fromkeys(found, 0)

    end = stream(Starting()).next_end(at(p0=90, p1=50))
    assert end.offsets == at(p0=100, p1=50).offsets


def test_records_deleted_before_they_were_read_are_a_loss() -> None:
    table = Table(logs={"t": {0: (30, 100), 1: (0, 50)}})
    start, end = at(p0=10, p1=50), at(p0=100, p1=50)
    with pytest.raises(DataLossError, match="t-0 begins at offset 30: 10 and on are gone"):
        stream(table).ranges(start, end)
    assert stream(table, failOnDataLoss="false").ranges(start, end) == [
        OffsetRange("t", 0, 30, 100)
    ]


def test_a_batch_of_a_checkpoint_that_the_log_does_not_reach_is_a_loss() -> None:
    """It was planned before the log's end went back, and is to be read again."""
    table = Table(logs={"t": {0: (0, 100), 1: (0, 50)}})
    start, end = at(p0=10, p1=60), at(p0=110, p1=70)
    with pytest.raises(DataLossError, match=r"t-0 ends at offset 100: .* up to 110"):
        stream(table).ranges(start, end)
    assert stream(table, failOnDataLoss="false").ranges(start, end) == [
        OffsetRange("t", 0, 10, 100)
    ]


def test_an_end_that_a_starting_broker_does_not_know_yet_is_looked_at_again() -> None:
    class Starting(Table):
        asked = 0

        def latest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
            self.asked += 1
            found = super().latest(partitions)
            return found if self.asked > 1 else dict.fromkeys(found, 0)

    ranges = stream(Starting()).ranges(at(p0=10, p1=50), at(p0=100, p1=50))
    assert ranges == [OffsetRange("t", 0, 10, 100)]


def test_ends_are_not_asked_for_again_right_after_the_plan() -> None:
    table = Table()
    planner = stream(table)
    start = planner.initial()
    end = planner.next_end(start)
    table.logs["t"][0] = (0, 20)
    assert planner.ranges(start, end)[0] == OffsetRange("t", 0, 0, 100)


def test_a_deleted_partition_is_a_loss_once() -> None:
    table = Table(logs={"t": {0: (0, 100)}})
    start = at(p0=100, p1=50)
    with pytest.raises(DataLossError, match="t-1 was deleted"):
        stream(table).next_end(start)
    planner = stream(table, failOnDataLoss="false")
    end = planner.next_end(start)
    assert end.offsets == {"t": {0: 100}}
    assert planner.next_end(end) is end


def test_a_topic_made_anew_is_a_loss_and_read_from_its_beginning() -> None:
    """Even if the new one has more records than had been read of the old one."""
    table = Table(ids={"t": ANEW}, logs={"t": {0: (0, 400), 1: (0, 7)}})
    start = at(p0=100, p1=50)
    with pytest.raises(DataLossError, match="deleted and made anew"):
        stream(table).next_end(start)
    planner = stream(table, failOnDataLoss="false")
    end = planner.next_end(start)
    assert planner.ranges(start, end) == [OffsetRange("t", 0, 0, 400), OffsetRange("t", 1, 0, 7)]
    assert planner.next_end(end) is end


def test_a_topic_made_anew_between_plan_and_read() -> None:
    table = Table()
    planner = stream(table)
    start = planner.initial()
    end = planner.next_end(start)
    table.ids["t"] = ANEW
    with pytest.raises(DataLossError, match="before it was read"):
        planner.ranges(start, end)


# --- what others see ------------------------------------------------------------------------------


def test_progress_is_committed_when_it_changes() -> None:
    table = Table()
    planner = stream(table, commitOffsets="g")
    planner.commit(at(p0=5, p1=0))
    planner.commit(at(p0=5, p1=0))
    planner.commit(at(p0=9, p1=0))
    assert [offsets[TopicPartition("t", 0)] for _, offsets in table.commits] == [5, 9]
    assert {group for group, _ in table.commits} == {"g"}


def test_a_group_that_cannot_be_committed_to_is_found_at_once() -> None:
    table = Table(refusal=ClientError(ErrorCode.UNKNOWN_MEMBER_ID, "the group has members"))
    planner = stream(table, commitOffsets="g")
    with pytest.raises(OptionError, match="the group has members"):
        planner.commit(at(p0=5, p1=0))


def test_a_commit_that_fails_later_stops_no_query() -> None:
    """Nor does it hold up each of its batches: for a while it is not tried again."""
    table, clock = Table(), ManualClock()
    planner = stream(table, clock, commitOffsets="g")
    planner.commit(at(p0=5, p1=0))
    table.refusal = RequestTimeoutError("too slow")
    planner.commit(at(p0=6, p1=0))
    table.refusal = None
    planner.commit(at(p0=7, p1=0))
    assert [offsets[TopicPartition("t", 0)] for _, offsets in table.commits] == [5]
    clock.advance(COMMIT_PAUSE_MS)
    planner.commit(at(p0=8, p1=0))
    assert [offsets[TopicPartition("t", 0)] for _, offsets in table.commits] == [5, 8]


def test_the_last_commit_of_a_query_that_ends_is_tried_in_any_case() -> None:
    table = Table()
    planner = stream(table, ManualClock(), commitOffsets="g")
    planner.stop_at_what_is_there()
    table.refusal = RequestTimeoutError("too slow")
    planner.commit(at(p0=6, p1=0))
    assert table.tries == FIRST_COMMITS_MAX, "the first one is given its time"
    table.refusal = None
    planner.commit(at(p0=7, p1=0))
    planner.commit(at(p0=100, p1=50))
    assert [offsets[TopicPartition("t", 0)] for _, offsets in table.commits] == [100]


def test_a_coordinator_that_hangs_holds_a_batch_up_for_seconds_only() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        given = {"kafka.bootstrap.servers": address, "subscribe": "t", "commitOffsets": "g"}
        lookup = BrokerLookup(SourceOptions.parse(given, streaming=True))
        begin_s = time.monotonic()
        with pytest.raises(ClientError):
            lookup.commit("g", {TopicPartition("t", 0): OffsetAndMetadata(5)})
        assert time.monotonic() - begin_s < 15, "by default a question may take a minute"
        lookup.close()
