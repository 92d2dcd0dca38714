"""What clients did and saw: the history of a test, to be judged by `checker.check`.

A history is a list of operations, in the order in which they began. Each belongs to a process (one
producer or consumer, which does one thing after the other) and has steps: `Send` a value to a key,
`Poll` records, or `Assign`, which says that the consumer's positions changed on purpose. A key is a
partition, and a value is sent to it once: so every record that is seen anywhere has one origin. An
operation ends `ok`, `fail` (it certainly had no effect) or `info` (nobody knows: a time-out, a
crash). A transactional one has an effect as a whole or not at all.

    history = History(clock)
    sending = history.send("producer-1", "orders-0", 17)
    ...
    history.ok(sending, offset=4711)        # or history.fail(sending); info if neither is called
    history.polled("consumer-1", {"orders-0": [(4711, 17)]})
    print(check(history, Promise()))
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import msgspec

Value = int | str
Key = str


class Outcome(StrEnum):
    """How an operation ended, as far as its client can know."""

    OK = "ok"
    FAIL = "fail"
    INFO = "info"


class Send(msgspec.Struct, tag="send"):
    """A value sent to a key, at the offset that the acknowledgement named."""

    key: Key
    value: Value
    offset: int | None = None


class Poll(msgspec.Struct, tag="poll", frozen=True):
    """Records that came back, per key in the order of their arrival."""

    records: dict[Key, list[tuple[int, Value]]]


class Assign(msgspec.Struct, tag="assign", frozen=True):
    """The consumer's positions of these keys changed by a seek, an assignment or a rebalance."""

    keys: list[Key] | None = None
    """None means all."""


Step = Send | Poll | Assign


class Operation(msgspec.Struct):
    """One thing that a process did; `ended_ms` is None while nobody knows of an end."""

    process: str
    steps: list[Step]
    outcome: Outcome = Outcome.INFO
    transactional: bool = False
    started_ms: float = 0
    ended_ms: float | None = None
    final: bool = False
    """Part of a last read of whole keys from their beginning: what it lacks is gone."""

    def sends(self) -> Iterator[Send]:
        return (step for step in self.steps if isinstance(step, Send))

    def polls(self) -> Iterator[Poll]:
        return (step for step in self.steps if isinstance(step, Poll))


class HasNow(Protocol):
    """The part of a clock that a history needs."""

    def monotonic_ms(self) -> int: ...


class History:
    """Operations in the order in which they began. Several threads may add to it."""

    def __init__(self, clock: HasNow | None = None, operations: Iterable[Operation] = ()) -> None:
        self.operations: list[Operation] = list(operations)
        self._clock = clock

    def __len__(self) -> int:
        return len(self.operations)

    def __iter__(self) -> Iterator[Operation]:
        return iter(self.operations)

    # Recording

    def begin(self, process: str, *steps: Step, transactional: bool = False) -> Operation:
        """An operation starts; more steps may be added to it until it ends."""
        operation = Operation(
            process, list(steps), transactional=transactional, started_ms=self._now_ms()
        )
        self.operations.append(operation)
        return operation

    def send(self, process: str, key: Key, value: Value) -> Operation:
        """A single record is on its way."""
        return self.begin(process, Send(key, value))

    def ok(self, operation: Operation, *, offset: int | None = None) -> None:
        """The operation succeeded; `offset` is that of its only send."""
        if offset is not None:
            (only,) = operation.sends()
            only.offset = offset
        self._end(operation, Outcome.OK)

    def fail(self, operation: Operation) -> None:
        """The operation certainly had no effect: a refused record, an aborted transaction."""
        self._end(operation, Outcome.FAIL)

    def info(self, operation: Operation) -> None:
        """Nobody knows: a time-out, or an error after which the record may be there."""
        self._end(operation, Outcome.INFO)

    def polled(
        self,
        process: str,
        records: Mapping[Key, Sequence[tuple[int, Value]]],
        *,
        final: bool = False,
    ) -> Operation:
        """A poll came back; an empty one says nothing, unless it is a whole final read."""
        found = {key: list(pairs) for key, pairs in records.items() if pairs or final}
        operation = self.begin(process, Poll(found))
        operation.final = final
        self._end(operation, Outcome.OK)
        return operation

    def assigned(self, process: str, keys: Iterable[Key] | None = None) -> Operation:
        """The consumer's positions changed on purpose."""
        operation = self.begin(process, Assign(None if keys is None else list(keys)))
        self._end(operation, Outcome.OK)
        return operation

    def _end(self, operation: Operation, outcome: Outcome) -> None:
        operation.outcome = outcome
        operation.ended_ms = self._now_ms()

    def _now_ms(self) -> float:
        return 0 if self._clock is None else self._clock.monotonic_ms()

    # Files

    def save(self, path: Path) -> None:
        """Write one line of JSON per operation."""
        encoder = msgspec.json.Encoder()
        with path.open("wb") as file:
            file.writelines(encoder.encode(operation) + b"\n" for operation in self.operations)

    @classmethod
    def load(cls, *paths: Path) -> History:
        """Read the histories of several clients of one machine, and put them in order of time."""
        decoder = msgspec.json.Decoder(Operation)
        operations = []
        for path in paths:
            with path.open("rb") as file:
                operations += [decoder.decode(line) for line in file]
        operations.sort(key=lambda operation: operation.started_ms)
        return cls(operations=operations)
