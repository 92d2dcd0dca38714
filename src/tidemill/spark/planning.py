"""The driver's side of a query: where it begins and ends, what a batch reads, what was lost.

A batch query asks `Planner.batch_ranges` once. A stream has a `StreamPlanner`: Spark asks it where
to begin, then over and over how far it may go, and for the ranges between two positions.

What Spark was to read and the brokers do not have any more is a loss, and never passes silently:
`failOnDataLoss` decides between an error and a warning. A loss is: a partition that is gone, a
topic that was deleted and made anew, an end that went back, a beginning that went past what was
read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from uuid import UUID

from tidemill.client.errors import ClientError
from tidemill.client.group_offsets import OffsetAndMetadata
from tidemill.clock import Clock, SystemClock
from tidemill.config.suggest import nearest
from tidemill.spark.data_loss import report_loss
from tidemill.spark.lookup import Lookup
from tidemill.spark.offsets import (
    EARLIEST,
    LATEST,
    OPEN_END,
    SPLIT_BYTES,
    Limits,
    OffsetRange,
    Offsets,
    Position,
    plan_batch,
    split_ranges,
)
from tidemill.spark.options import (
    Assign,
    AtOffsets,
    AtTime,
    AtTimes,
    Edge,
    OptionError,
    SourceOptions,
    Subscribe,
    Where,
)
from tidemill.types import ZERO_TOPIC_ID, TopicPartition

logger = logging.getLogger(__name__)

RECORD_BYTES_LARGE = 1024 * 1024
"""Ranges that stay below a piece even if each record were so large are not measured."""
SHOWN_MAX = 10
FIRST_COMMITS_MAX = 5
"""How often the first commit is tried: a new cluster may have to make its topic of groups first."""
COMMIT_PAUSE_MS = 15_000
"""How long nothing is committed after a commit has failed: trying takes time from the batches."""


class Planner:
    """What every query needs: partitions, where offsets and times are, ranges in pieces."""

    def __init__(
        self,
        options: SourceOptions,
        lookup: Lookup,
        *,
        split_bytes: int = SPLIT_BYTES,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._lookup = lookup
        self._split_bytes = split_bytes
        self._pause = pause

    def batch_ranges(self) -> list[OffsetRange]:
        """Everything that a query reads which ends, in pieces."""
        partitions = self._all_partitions()
        starts = self._starts(partitions)
        if self._options.ending is Edge.WHEN_READ:
            return [OffsetRange(*tp, starts[tp], OPEN_END) for tp in partitions]
        ends = self._resolve(self._options.ending, partitions, "ending")
        ranges = [OffsetRange(*tp, starts[tp], ends[tp]) for tp in partitions]
        known = {} if isinstance(self._options.ending, AtOffsets) else ends
        return self._pieces(self._readable(self._within_logs(ranges, known)))

    # --- partitions ------------------------------------------------------------------------------

    def _all_partitions(self) -> list[TopicPartition]:
        """What the query names; something that is not there is a mistake in the query."""
        found = self._partitions(afresh=True)
        subscription = self._options.subscription
        if isinstance(subscription, Subscribe):
            self._require(subscription.topics)
        elif isinstance(subscription, Assign):
            self._require(subscription.partitions)
            for name, wanted in subscription.partitions.items():
                for index in wanted:
                    if TopicPartition(name, index) not in found:
                        advice = f"topic {name!r} has no partition {index}"
                        raise OptionError("assign", f"{name}-{index}", advice)
        return found

    def _partitions(self, *, afresh: bool = False) -> list[TopicPartition]:
        topics = self._lookup.topics(afresh=afresh)
        return [
            TopicPartition(topic.name, index)
            for topic in topics.values()
            for index in topic.partitions
        ]

    def _require(self, names: Iterable[str]) -> None:
        there = self._lookup.topics()
        for name in names:
            if name not in there:
                meant = nearest(name, self._lookup.names())
                advice = f"; did you mean {meant!r}?" if meant else ""
                raise OptionError("subscribe", name, f"there is no such topic{advice}")

    # --- where things are ------------------------------------------------------------------------

    def _starts(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Where the query is told to begin; an offset outside the log is a loss."""
        found = self._resolve(self._options.starting, partitions, "starting")
        if not isinstance(self._options.starting, AtOffsets):
            return found
        first, last = self._lookup.earliest(partitions), self._lookup.latest(partitions)
        for tp, offset in found.items():
            inside = min(max(offset, first[tp]), last[tp])
            if inside != offset:
                self._lose(
                    f"{tp} begins at offset {first[tp]} and ends at {last[tp]}: "
                    f"`startingOffsets` asks for {offset}"
                )
                found[tp] = inside
        return found

    def _resolve(
        self, where: Where, partitions: list[TopicPartition], side: str
    ) -> dict[TopicPartition, int]:
        if where is Edge.EARLIEST:
            return self._lookup.earliest(partitions)
        if where is Edge.LATEST:
            return self._lookup.latest(partitions)
        if isinstance(where, AtTime):
            return self._at_times(dict.fromkeys(partitions, where.time_ms), side)
        if isinstance(where, AtTimes):
            named = _exactly(where.times_ms, partitions, f"{side}OffsetsByTimestamp")
            return self._at_times(named, side)
        assert isinstance(where, AtOffsets)
        named = _exactly(where.offsets, partitions, f"{side}Offsets")
        at_ends = {
            **self._lookup.earliest([tp for tp, at in named.items() if at == EARLIEST]),
            **self._lookup.latest([tp for tp, at in named.items() if at == LATEST]),
        }
        return {tp: at_ends.get(tp, at) for tp, at in named.items()}

    def _at_times(
        self, times: Mapping[TopicPartition, int], side: str
    ) -> dict[TopicPartition, int]:
        found = self._lookup.at_times(times)
        none = [tp for tp in times if found.get(tp) is None]
        if none and side == "starting" and self._options.starting_without_match == "error":
            raise OptionError(
                "startingTimestamp",
                str(times[none[0]]),
                f"{_shown(none)} has no record at or after this time; with "
                "`startingOffsetsByTimestampStrategy` = latest it begins with the next one",
            )
        latest = self._lookup.latest(none)
        return {tp: latest[tp] if at is None else at for tp, at in found.items()}

    # --- ranges ----------------------------------------------------------------------------------

    def _within_logs(
        self, ranges: Iterable[OffsetRange], known: Mapping[TopicPartition, int]
    ) -> list[OffsetRange]:
        """The ranges without what is behind their logs' ends; that is a loss: such as after a
        leader that had not all of it. Nobody is asked where an end is `known` to be as far."""
        wanted = [each for each in ranges if each.size > 0]
        planned = {TopicPartition(each.topic, each.partition): each.end for each in wanted}
        unsure = {tp: end for tp, end in planned.items() if known.get(tp, -1) < end}
        ends = {**known, **self._ends_beyond(unsure)}
        kept = []
        for each in wanted:
            tp = TopicPartition(each.topic, each.partition)
            last = ends.get(tp, each.end)  # Of what is gone altogether others tell.
            if last < each.end:
                self._lose(f"{tp} ends at offset {last}: it was to be read up to {each.end}")
                each = each._replace(end=max(last, each.start))
            kept.append(each)
        return kept

    def _ends_beyond(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The present ends. One too small may be of a broker that is just starting: look again."""
        found = self._lookup.latest(wanted) if wanted else {}
        for _ in range(self._options.fetch_retries):
            if all(end >= wanted[tp] for tp, end in found.items()):
                break
            self._pause(self._options.fetch_retry_interval_ms / 1000)
            found = self._lookup.latest(wanted)
        return found

    def _readable(
        self, ranges: Iterable[OffsetRange], begins_anew: frozenset[TopicPartition] = frozenset()
    ) -> list[OffsetRange]:
        """The ranges without what is not there any more; that is a loss.

        What `begins_anew` begins where its log does.
        """
        wanted = [each for each in ranges if each.size > 0]
        earliest = self._lookup.earliest(TopicPartition(r.topic, r.partition) for r in wanted)
        kept = []
        for each in wanted:
            tp = TopicPartition(each.topic, each.partition)
            first = earliest.get(tp)
            if first is None:
                self._lose(f"{tp} was deleted before offsets {each.start} to {each.end} were read")
                continue
            if first > each.start:
                if tp not in begins_anew:
                    self._lose(f"{tp} begins at offset {first}: {each.start} and on are gone")
                each = each._replace(start=min(first, each.end))
            kept.append(each)
        return kept

    def _pieces(self, ranges: list[OffsetRange]) -> list[OffsetRange]:
        return split_ranges(
            ranges,
            record_bytes=self._record_bytes(ranges),
            min_partitions=self._options.min_partitions,
            max_records=self._options.max_records_per_partition,
            split_bytes=self._split_bytes,
        )

    def _record_bytes(self, ranges: list[OffsetRange]) -> dict[tuple[str, int], float]:
        """Bytes on disk per offset, where a range might be too large for one piece."""
        large = [
            TopicPartition(each.topic, each.partition)
            for each in ranges
            if each.size * RECORD_BYTES_LARGE > self._split_bytes
        ]
        if not large:
            return {}
        sizes = self._lookup.log_bytes(large)
        first, last = self._lookup.earliest(sizes), self._lookup.latest(sizes)
        return {
            (tp.topic, tp.partition): size / max(last[tp] - first[tp], 1)
            for tp, size in sizes.items()
            if tp in first and tp in last
        }

    def _lose(self, what: str) -> None:
        report_loss(what, fail=self._options.fail_on_data_loss)


class StreamPlanner(Planner):
    """What a stream asks; lives as long as the query, in a process of its own."""

    def __init__(
        self,
        options: SourceOptions,
        lookup: Lookup,
        *,
        clock: Clock | None = None,
        split_bytes: int = SPLIT_BYTES,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(options, lookup, split_bytes=split_bytes, pause=pause)
        self._clock = clock or SystemClock()
        self._initial: Position | None = None
        self._target: Position | None = None
        self._available: Position | None = None
        self._last_batch_ms: int | None = None
        self._committed: Offsets | None = None
        self._commit_after_ms = 0

    @property
    def available(self) -> Position | None:
        """The ends of all partitions when they were last looked at."""
        return self._available

    def initial(self) -> Position:
        """Where the query begins. Spark asks twice and wants the same answer."""
        if self._initial is None:
            starts = self._starts(self._all_partitions())
            self._initial = Position(_nested(starts), self._topic_ids())
            if self._target is not None:
                # What came since the target was set is before the beginning: no loss.
                self._target = _furthest(self._target, self._initial)
        return self._initial

    def stop_at_what_is_there(self) -> None:
        """From now on nothing beyond the present ends is there (the trigger availableNow)."""
        self._target = self._look()

    def next_end(self, start: Position, *, limited: bool = True) -> Position:
        """Where the next batch ends; `start` itself when there is nothing to do yet."""
        available = self._available = self._look_beyond(start)
        self._report_losses(start, available)
        starts = self._starts_within(start, available)
        ends = plan_batch(
            starts, available.offsets, self._limits(limited), waited_ms=self._waited_ms()
        )
        if ends == starts and not self._must_move(start, available):
            return start
        self._last_batch_ms = self._clock.monotonic_ms()
        began = start.offsets if start == self._initial else None
        return Position(ends, available.topic_ids, began)

    def ranges(self, start: Position, end: Position) -> list[OffsetRange]:
        """What the batch between two positions reads, in pieces."""
        if start == end:
            return []
        begun = end.began_at if end.began_at is not None else start.offsets
        there = self._lookup.topics()
        now = Position({}, self._topic_ids())
        ranges: list[OffsetRange] = []
        begins_anew: set[TopicPartition] = set()
        for topic, partitions in end.offsets.items():
            if topic not in there or end.is_recreated(topic, now):
                self._lose(f"topic {topic!r} was deleted, or made anew, before it was read")
                continue
            known = {} if start.is_recreated(topic, end) else begun.get(topic, {})
            if topic not in begun:
                begins_anew |= {TopicPartition(topic, index) for index in partitions}
            for index, offset in partitions.items():
                ranges.append(OffsetRange(topic, index, known.get(index, 0), offset))
        there_is = self._within_logs(ranges, self._known_ends(now))
        return self._pieces(self._readable(there_is, frozenset(begins_anew)))

    def _known_ends(self, now: Position) -> dict[TopicPartition, int]:
        """The ends as they were when the batch was planned; not known of one from a checkpoint."""
        seen = self._available
        if seen is None:
            return {}
        return {
            TopicPartition(topic, index): end
            for topic, ends in seen.offsets.items()
            if not seen.is_recreated(topic, now)
            for index, end in ends.items()
        }

    def commit(self, position: Position) -> None:
        """Show how far the query is to whoever looks at the group that it commits to.

        A group that cannot be committed to is a mistake in the query, which the first commit finds.
        Later the query is more important than its display.
        """
        group = self._options.commit_group
        if group is None or position.offsets == self._committed or self._must_pause(position):
            return
        offsets = {
            TopicPartition(topic, index): OffsetAndMetadata(
                offset, topic_id=UUID(position.topic_ids.get(topic) or ZERO_TOPIC_ID.hex)
            )
            for topic, partitions in position.offsets.items()
            for index, offset in partitions.items()
        }
        for _ in range(FIRST_COMMITS_MAX if self._committed is None else 1):
            try:
                self._lookup.commit(group, offsets)
            except ClientError as error:
                if self._committed is None and not error.retriable:
                    raise OptionError("commitOffsets", group, str(error)) from error
                logger.warning("offsets are not committed group=%s: %s", group, error)
            else:
                self._committed = position.offsets
                return
        self._committed = self._committed or {}
        self._commit_after_ms = self._clock.monotonic_ms() + COMMIT_PAUSE_MS

    def _must_pause(self, position: Position) -> bool:
        """After a commit that failed, unless there will be no other."""
        is_last = self._target is not None and self._target.offsets == position.offsets
        return not is_last and self._clock.monotonic_ms() < self._commit_after_ms

    # --- looking ---------------------------------------------------------------------------------

    def _look(self, *, afresh: bool = True) -> Position:
        latest = self._lookup.latest(self._partitions(afresh=afresh))
        return Position(_nested(latest), self._topic_ids())

    def _look_beyond(self, start: Position) -> Position:
        """The present ends. What looks lost may be a broker that is just starting: look again."""
        found = self._target or self._look(afresh=False)
        for _ in range(self._options.fetch_retries):
            if not _gone(start, found) and not _went_back(start, found):
                break
            self._pause(self._options.fetch_retry_interval_ms / 1000)
            found = self._look()
            if self._target is not None:
                self._target = found
        return found

    def _topic_ids(self) -> dict[str, str]:
        topics = self._lookup.topics().items()
        return {name: topic.topic_id for name, topic in topics if topic.topic_id}

    def _starts_within(self, start: Position, available: Position) -> Offsets:
        """Where each partition that is there continues; a new one begins at its beginning."""
        new = [
            TopicPartition(topic, index)
            for topic, partitions in available.offsets.items()
            for index in partitions
            if index not in start.offsets.get(topic, {}) or start.is_recreated(topic, available)
        ]
        starts = {
            topic: {
                index: start.offsets.get(topic, {}).get(index, end) for index, end in ends.items()
            }
            for topic, ends in available.offsets.items()
        }
        for tp, offset in self._lookup.earliest(new).items():
            starts[tp.topic][tp.partition] = offset
        return starts

    # --- judging ---------------------------------------------------------------------------------

    def _report_losses(self, start: Position, available: Position) -> None:
        gone = _gone(start, available)
        if gone:
            self._lose(f"{_shown(gone)} was deleted")
        for topic in available.offsets:
            if start.is_recreated(topic, available):
                self._lose(f"topic {topic!r} was deleted and made anew")
        for tp, before, after in _went_back(start, available):
            self._lose(f"{tp} ends at offset {after}, but had been read up to {before}")

    def _must_move(self, start: Position, available: Position) -> bool:
        """Whether the position has to change though there is nothing to read."""
        recreated = any(start.is_recreated(topic, available) for topic in available.offsets)
        return recreated or bool(_gone(start, available)) or bool(_went_back(start, available))

    def _limits(self, limited: bool) -> Limits:
        options = self._options
        if not limited:
            return Limits()
        # Whoever reads what is there and ends must not wait for more.
        least = options.min_offsets_per_trigger if self._target is None else None
        return Limits(options.max_offsets_per_trigger, least, options.max_trigger_delay_ms)

    def _waited_ms(self) -> float:
        if self._last_batch_ms is None:
            return float("inf")
        return self._clock.monotonic_ms() - self._last_batch_ms


# --- small things -----------------------------------------------------------------------------


def _nested(offsets: Mapping[TopicPartition, int]) -> Offsets:
    found: Offsets = {}
    for tp, offset in sorted(offsets.items()):
        found.setdefault(tp.topic, {})[tp.partition] = offset
    return found


def _furthest(one: Position, other: Position) -> Position:
    """Each partition of either where it is further."""
    offsets = {topic: dict(partitions) for topic, partitions in one.offsets.items()}
    for topic, partitions in other.offsets.items():
        known = offsets.setdefault(topic, {})
        for index, offset in partitions.items():
            known[index] = max(known.get(index, offset), offset)
    return Position(offsets, {**other.topic_ids, **one.topic_ids})


def _exactly(
    given: Offsets, partitions: Iterable[TopicPartition], option: str
) -> dict[TopicPartition, int]:
    """One number for each partition, no more and no fewer, as Spark's own source insists."""
    found = {
        TopicPartition(topic, index): at
        for topic, by_index in given.items()
        for index, at in by_index.items()
    }
    wanted = set(partitions)
    missing, extra = sorted(wanted - set(found)), sorted(set(found) - wanted)
    if missing:
        raise OptionError(option, None, f"has no entry for {_shown(missing)}")
    if extra:
        raise OptionError(option, None, f"names {_shown(extra)}, which the query does not read")
    return found


def _gone(start: Position, available: Position) -> list[TopicPartition]:
    return [
        TopicPartition(topic, index)
        for topic, partitions in start.offsets.items()
        for index in partitions
        if index not in available.offsets.get(topic, {})
    ]


def _went_back(start: Position, available: Position) -> list[tuple[TopicPartition, int, int]]:
    return [
        (TopicPartition(topic, index), start.offsets[topic][index], end)
        for topic, partitions in available.offsets.items()
        for index, end in partitions.items()
        if not start.is_recreated(topic, available)
        and end < start.offsets.get(topic, {}).get(index, 0)
    ]


def _shown(partitions: Iterable[TopicPartition]) -> str:
    names = [str(each) for each in partitions]
    more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
    return ", ".join(names[:SHOWN_MAX]) + more
