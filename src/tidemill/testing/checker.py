"""Judges a history: every anomaly of `anomalies.Anomaly`, in time linear in it but for sorting.

`check` gathers what is known of every key in one pass (`_Log`), then asks one question per
function. Three definitions carry the rest:

* a write is *committed* if its operation ended ok, or if it is part of a transaction of unknown
  outcome of which a consumer in read_committed saw any other part;
* a write *is there* if the final read found it or, in a history without one, if anybody polled it;
* the *order* of a key is the order of the offsets that somebody polled. Offsets have gaps (control
  records, aborted data), so a consumer skips a record only if it passes one that others saw.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

from tidemill.testing.anomalies import Anomaly, Lag, Promise, Report
from tidemill.testing.cycles import circles
from tidemill.testing.history import Assign, Key, Operation, Outcome, Poll, Send, Value


class HistoryError(ValueError):
    """The history itself is wrong, so that nothing can be said about the cluster."""


class _Write:
    """A value, where it came from and where it is."""

    __slots__ = ("number", "offset", "operation")

    def __init__(self, number: int, operation: Operation, offset: int | None) -> None:
        self.number: Final = number
        self.operation: Final = operation
        self.offset: Final = offset


class _Log:
    """What the whole history knows of one key."""

    __slots__ = (
        "final",
        "first_seen",
        "known",
        "max_polled",
        "offset_of",
        "polled_at",
        "rank",
        "value_at",
        "writes",
    )

    def __init__(self) -> None:
        self.writes: dict[Value, _Write] = {}
        self.value_at: dict[int, Value] = {}
        self.offset_of: dict[Value, int] = {}
        self.polled_at: dict[int, Value] = {}
        self.first_seen: dict[Value, Operation] = {}
        self.final: set[Value] | None = None
        """What the final read found, if there was one."""
        self.known: list[int] = []
        """All offsets that an acknowledgement or a poll named, in order."""
        self.rank: dict[int, int] = {}
        """The place of each polled offset among all that were polled."""
        self.max_polled = -1

    def has(self, value: Value) -> bool:
        return value in (self.first_seen if self.final is None else self.final)


def check(operations: Iterable[Operation], promise: Promise | None = None) -> Report:
    """Judge a history by what the settings promise."""
    return _Checker(list(operations), promise or Promise()).run()


class _Checker:
    def __init__(self, operations: list[Operation], promise: Promise) -> None:
        self._operations = operations
        self._promise = promise
        self._report = Report(promise.allowed(), operations=len(operations))
        self._logs: dict[Key, _Log] = defaultdict(_Log)

    def run(self) -> Report:
        for number, operation in enumerate(self._operations):
            self._gather(number, operation)
        for log in self._logs.values():
            self._rank(log)
        self._check_reads()
        self._check_committed()
        self._check_polls()
        self._check_sends()
        self._check_acks()
        self._check_transactions()
        self._measure_acks()
        return self._report

    # Gathering

    def _gather(self, number: int, operation: Operation) -> None:
        for step in operation.steps:
            if isinstance(step, Send):
                self._gather_send(number, operation, step)
            elif isinstance(step, Poll):
                for key, records in step.records.items():
                    self._gather_records(operation, key, records)

    def _gather_send(self, number: int, operation: Operation, send: Send) -> None:
        log = self._logs[send.key]
        if send.value in log.writes:
            raise HistoryError(
                f"the value {send.value!r} was sent to {send.key} twice: values have to be unique"
            )
        log.writes[send.value] = _Write(number, operation, send.offset)
        if send.offset is not None:
            self._place(send.key, log, send.offset, send.value)

    def _gather_records(
        self, operation: Operation, key: Key, records: list[tuple[int, Value]]
    ) -> None:
        log = self._logs[key]
        for offset, value in records:
            self._place(key, log, offset, value)
            log.polled_at[offset] = value
            log.first_seen.setdefault(value, operation)
        if operation.final:
            if log.final is None:
                log.final = set()
            log.final.update(value for _, value in records)
        self._report.polled += len(records)

    def _place(self, key: Key, log: _Log, offset: int, value: Value) -> None:
        """Somebody says that this value is at this offset."""
        other = log.value_at.setdefault(offset, value)
        if other != value:
            text = "{}: offset {} has the values {!r} and {!r}"
            self._report.note(Anomaly.INCONSISTENT_OFFSETS, text, key, offset, other, value)
        elsewhere = log.offset_of.setdefault(value, offset)
        if elsewhere != offset:
            text = "{}: the value {!r} is at the offsets {} and {}"
            self._report.note(Anomaly.DUPLICATE, text, key, value, elsewhere, offset)

    def _rank(self, log: _Log) -> None:
        """Order the polled offsets, without those that a read_committed consumer must not see."""
        log.known = sorted(log.value_at)
        log.max_polled = max(log.polled_at, default=-1)
        polled = sorted(
            offset for offset, value in log.polled_at.items() if not self._is_aborted(log, value)
        )
        log.rank = {offset: place for place, offset in enumerate(polled)}

    def _is_aborted(self, log: _Log, value: Value) -> bool:
        write = log.writes.get(value)
        if write is None or write.operation.outcome is not Outcome.FAIL:
            return False
        return self._promise.read_committed or not write.operation.transactional

    # What was read, and what was not

    def _check_reads(self) -> None:
        """Every value that was seen must have been sent, must not have failed, and must stay."""
        for key, log in self._logs.items():
            for value, reader in log.first_seen.items():
                write = log.writes.get(value)
                if write is None:
                    text = "{}: {} polled {!r}, which nobody sent"
                    self._report.note(Anomaly.PHANTOM_READ, text, key, reader.process, value)
                elif self._is_aborted(log, value):
                    text = "{}: {} polled {!r}, which {} failed to write"
                    writer = write.operation.process
                    self._report.note(
                        Anomaly.ABORTED_READ, text, key, reader.process, value, writer
                    )
                elif not log.has(value) and not self._is_committed(write.operation):
                    self._note_gone(key, value, reader)

    def _check_committed(self) -> None:
        """Every committed value must have been seen, soon."""
        lags: list[tuple[float, Key, Value]] = []
        for operation in self._operations:
            if not self._is_committed(operation):
                if operation.outcome is Outcome.INFO:
                    self._report.unknown += sum(1 for _ in operation.sends())
                continue
            for send in operation.sends():
                self._report.committed += 1
                log = self._logs[send.key]
                reader = log.first_seen.get(send.value)
                if reader is None:
                    self._note_missing(operation, send)
                elif not log.has(send.value):
                    self._note_gone(send.key, send.value, reader)
                elif operation.ended_ms is not None and reader.ended_ms is not None:
                    lag_ms = max(0, reader.ended_ms - operation.ended_ms)
                    lags.append((lag_ms, send.key, send.value))
        self._measure_lags(lags)

    def _is_committed(self, operation: Operation) -> bool:
        if operation.outcome is Outcome.OK:
            return True
        is_whole = operation.transactional and self._promise.read_committed
        if operation.outcome is Outcome.FAIL or not is_whole:
            return False
        logs = self._logs
        return any(send.value in logs[send.key].first_seen for send in operation.sends())

    def _note_missing(self, operation: Operation, send: Send) -> None:
        last = self._logs[send.key].max_polled
        if send.offset is not None and send.offset < last:
            text = "{}: {!r}, written by {} at offset {}, was never polled, but offset {} was"
            self._report.note(
                Anomaly.LOST_WRITE, text, send.key, send.value, operation.process, send.offset, last
            )
        else:
            where = "" if send.offset is None else f" at offset {send.offset}"
            text = "{}: {!r}, written by {}{}, was never polled"
            self._report.note(Anomaly.UNSEEN, text, send.key, send.value, operation.process, where)

    def _note_gone(self, key: Key, value: Value, reader: Operation) -> None:
        text = "{}: {!r} was polled by {}, and the final read did not find it"
        self._report.note(Anomaly.LOST_WRITE, text, key, value, reader.process)

    def _measure_lags(self, lags: list[tuple[float, Key, Value]]) -> None:
        if not lags:
            return
        times = sorted(lag_ms for lag_ms, _, _ in lags)
        worst_ms, key, value = max(lags, key=lambda lag: lag[0])
        self._report.lag = Lag(
            median_ms=times[len(times) // 2],
            p99_ms=times[len(times) * 99 // 100],
            worst_ms=worst_ms,
            worst=f"{value!r} of {key}",
        )

    # The order in which consumers see

    def _check_polls(self) -> None:
        positions: dict[str, dict[Key, int]] = defaultdict(dict)
        for operation in self._operations:
            self._follow_polls(operation, positions[operation.process])

    def _follow_polls(self, operation: Operation, before: dict[Key, int]) -> None:
        """Compare each record with the one before it, in this operation or in an earlier one."""
        inside: dict[Key, int] = {}
        for step in operation.steps:
            if isinstance(step, Assign):
                for positions in (before, inside):
                    _forget(positions, step.keys)
            elif isinstance(step, Poll):
                for key, records in step.records.items():
                    self._follow_records(operation, key, records, before, inside)
        if operation.outcome is Outcome.OK:
            before.update(inside)
        else:
            # Where the consumer stands after a transaction that was given up is its own affair.
            _forget(before, inside)

    def _follow_records(
        self,
        operation: Operation,
        key: Key,
        records: list[tuple[int, Value]],
        before: dict[Key, int],
        inside: dict[Key, int],
    ) -> None:
        rank = self._logs[key].rank
        for offset, _ in records:
            if offset not in rank:
                continue
            last = inside.get(key)
            if last is not None:
                gap = rank[offset] - rank[last]
                if gap != 1:
                    self._note_gap(operation, key, last, offset, gap, inside=True)
            elif (last := before.get(key)) is not None:
                gap = rank[offset] - rank[last]
                if gap != 1:
                    self._note_gap(operation, key, last, offset, gap, inside=False)
            inside[key] = offset

    def _note_gap(
        self, operation: Operation, key: Key, last: int, offset: int, gap: int, *, inside: bool
    ) -> None:
        if gap > 1:
            kind = Anomaly.INT_POLL_SKIP if inside else Anomaly.POLL_SKIP
            text = "{}: {} polled offset {} after {} and passed {} records that others polled"
            self._report.note(kind, text, key, operation.process, offset, last, gap - 1)
        else:
            kind = Anomaly.INT_NONMONOTONIC_POLL if inside else Anomaly.NONMONOTONIC_POLL
            text = "{}: {} polled offset {} after {}"
            self._report.note(kind, text, key, operation.process, offset, last)

    # The order in which producers write

    def _check_sends(self) -> None:
        last_sent: dict[tuple[str, Key], int] = {}
        for operation in self._operations:
            inside: dict[Key, int] = {}
            for send in operation.sends():
                if send.offset is None:
                    continue
                within = inside.get(send.key)
                before = last_sent.get((operation.process, send.key))
                if within is not None and send.offset <= within:
                    self._note_backwards(Anomaly.INT_NONMONOTONIC_SEND, operation, send, within)
                elif within is None and before is not None and send.offset <= before:
                    self._note_backwards(Anomaly.NONMONOTONIC_SEND, operation, send, before)
                inside[send.key] = send.offset
            for key, offset in inside.items():
                last_sent[operation.process, key] = offset

    def _note_backwards(self, kind: Anomaly, operation: Operation, send: Send, before: int) -> None:
        text = "{}: {} wrote {!r} at offset {} after a record at offset {}"
        self._report.note(kind, text, send.key, operation.process, send.value, send.offset, before)

    def _check_acks(self) -> None:
        """A record sent after another one was acked must be behind it."""
        acked: dict[Key, list[tuple[Operation, Send]]] = defaultdict(list)
        for operation in self._operations:
            if operation.outcome is Outcome.OK and operation.ended_ms is not None:
                for send in operation.sends():
                    if send.offset is not None:
                        acked[send.key].append((operation, send))
        for sends in acked.values():
            self._check_acks_of(sends)

    def _check_acks_of(self, sends: list[tuple[Operation, Send]]) -> None:
        by_end = sorted(sends, key=lambda pair: pair[0].ended_ms or 0)
        highest: Send | None = None
        at = 0
        for operation, send in sorted(sends, key=lambda pair: pair[0].started_ms):
            while (by_end[at][0].ended_ms or 0) < operation.started_ms:
                other = by_end[at][1]
                if highest is None or (other.offset or 0) > (highest.offset or 0):
                    highest = other
                at += 1
            if highest is not None and (send.offset or 0) <= (highest.offset or 0):
                text = "{}: {!r} is at offset {}, though {!r} was acked at {} before it was sent"
                self._report.note(
                    Anomaly.NONMONOTONIC_ACK,
                    text,
                    send.key,
                    send.value,
                    send.offset,
                    highest.value,
                    highest.offset,
                )

    def _measure_acks(self) -> None:
        ends = sorted(
            operation.ended_ms
            for operation in self._operations
            if operation.outcome is Outcome.OK
            and operation.ended_ms is not None
            and any(True for _ in operation.sends())
        )
        gaps = (later - earlier for earlier, later in pairwise(ends))
        self._report.longest_ack_gap_ms = max(gaps, default=0)

    # Transactions

    def _check_transactions(self) -> None:
        reads: dict[int, set[int]] = defaultdict(set)
        for number, operation in enumerate(self._operations):
            if operation.transactional:
                self._check_own_reads(number, operation, reads)
                self._check_interleaving(operation)
        self._note_circles(Anomaly.READ_CYCLE, reads, "read from each other")
        self._note_circles(Anomaly.WRITE_CYCLE, self._write_edges(), "wrote around each other")

    def _check_own_reads(
        self, number: int, operation: Operation, reads: dict[int, set[int]]
    ) -> None:
        """Who wrote what this transaction polled: itself, or another transaction?"""
        for key, value in _polled(operation):
            write = self._logs[key].writes.get(value)
            if write is None or not write.operation.transactional:
                continue
            if write.number == number:
                text = "{}: {} polled {!r} before its own transaction had committed it"
                self._report.note(Anomaly.PRECOMMITTED_READ, text, key, operation.process, value)
            else:
                reads[write.number].add(number)

    def _check_interleaving(self, operation: Operation) -> None:
        last: dict[Key, int] = {}
        for send in operation.sends():
            if send.offset is None:
                continue
            before = last.get(send.key)
            if before is not None and self._others_between(send.key, before, send.offset):
                text = "{}: {} wrote at {} and {}, and others in between"
                self._report.note(
                    Anomaly.INT_SEND_SKIP, text, send.key, operation.process, before, send.offset
                )
            last[send.key] = send.offset

    def _others_between(self, key: Key, low: int, high: int) -> bool:
        known = self._logs[key].known
        return bisect_left(known, high) - bisect_left(known, low) > 1

    def _write_edges(self) -> dict[int, set[int]]:
        """From each transaction to those whose writes come next behind its own."""
        edges: dict[int, set[int]] = defaultdict(set)
        for log in self._logs.values():
            previous: int | None = None
            for offset in log.known:
                write = log.writes.get(log.value_at[offset])
                if write is None or not write.operation.transactional:
                    continue
                if previous is not None and previous != write.number:
                    edges[previous].add(write.number)
                previous = write.number
        return edges

    def _note_circles(self, kind: Anomaly, edges: dict[int, set[int]], what: str) -> None:
        for members in circles(edges):
            names = ", ".join(
                f"{self._operations[number].process} (operation {number})" for number in members[:5]
            )
            self._report.note(kind, "{} transactions {}: {}", len(members), what, names)


def _forget(positions: dict[Key, int], keys: Iterable[Key] | None) -> None:
    if keys is None:
        positions.clear()
        return
    for key in keys:
        positions.pop(key, None)


def _polled(operation: Operation) -> Iterator[tuple[Key, Value]]:
    for poll in operation.polls():
        for key, records in poll.records.items():
            for _, value in records:
                yield key, value
