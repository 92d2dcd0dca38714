"""A correct log never shows an anomaly, and every kind of damage to one does.

The model is a log of a few partitions: producers append (with unknown outcomes and aborted
transactions), consumers read it in any portions, and at the end one reads all of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.testing.anomalies import Promise
from tidemill.testing.checker import check
from tidemill.testing.history import Key, Operation, Outcome, Poll, Send, Value

KEYS = ("a", "b", "c")
Record = tuple[int, Value]
seeds = st.integers(0, 2**32)


@dataclass
class Model:
    """A log that is right, and the clients that use it."""

    random: Random
    read_committed: bool = True
    logs: dict[Key, list[Record]] = field(default_factory=lambda: {key: [] for key in KEYS})
    """What a consumer may see, in order."""
    ends: dict[Key, int] = field(default_factory=lambda: dict.fromkeys(KEYS, 0))
    acked: dict[Key, list[Record]] = field(default_factory=lambda: {key: [] for key in KEYS})
    operations: list[Operation] = field(default_factory=list)
    positions: dict[tuple[str, Key], int] = field(default_factory=dict)
    now_ms: float = 0
    _values: int = 0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.random.choice((self.produce, self.transact, self.consume, self.consume))()

    def produce(self) -> None:
        key = self.random.choice(KEYS)
        outcome = self.random.choice((Outcome.OK, Outcome.OK, Outcome.FAIL, Outcome.INFO))
        send = Send(key, self._next_value())
        is_written = outcome is Outcome.OK or (
            outcome is Outcome.INFO and self.random.random() < 0.5
        )
        if is_written:
            offset = self._append([send], visible=True)[0]
            if outcome is Outcome.OK:
                send.offset = offset
            else:
                self.acked[send.key].pop()
        self._record(Operation(self._client("p"), [send], outcome))

    def transact(self) -> None:
        """Sends to several keys, and a control record behind them in each."""
        sends = [
            Send(self.random.choice(KEYS), self._next_value())
            for _ in range(self.random.randint(1, 4))
        ]
        outcome = self.random.choice(tuple(Outcome))
        is_committed = outcome is Outcome.OK or (
            outcome is Outcome.INFO and self.random.random() < 0.5
        )
        visible = is_committed or not self.read_committed
        for send, offset in zip(sends, self._append(sends, visible=visible), strict=True):
            send.offset = offset
            if outcome is not Outcome.OK:
                self.acked[send.key].pop()
        for key in sorted({send.key for send in sends}):
            self.ends[key] += 1
        self._record(Operation(self._client("t"), [*sends], outcome, transactional=True))

    def _append(self, sends: list[Send], *, visible: bool) -> list[int]:
        offsets = []
        for send in sends:
            offset = self.ends[send.key]
            self.ends[send.key] += 1
            offsets.append(offset)
            if visible:
                self.logs[send.key].append((offset, send.value))
            self.acked[send.key].append((offset, send.value))
        return offsets

    def consume(self, client: str | None = None, portion_max: int = 5) -> None:
        client = client or self._client("c")
        records: dict[Key, list[Record]] = {}
        for key in self.random.sample(KEYS, self.random.randint(1, len(KEYS))):
            start = self.positions.get((client, key), 0)
            count = self.random.randint(0, portion_max)
            found = self.logs[key][start : start + count]
            self.positions[client, key] = start + len(found)
            if found:
                records[key] = found
        self._record(Operation(client, [Poll(records)], Outcome.OK))

    def read_all(self) -> None:
        records = {key: list(log) for key, log in self.logs.items()}
        self._record(Operation("final", [Poll(records)], Outcome.OK, final=True))

    def _record(self, operation: Operation) -> None:
        self.now_ms += 1
        operation.started_ms = self.now_ms
        self.now_ms += 1
        operation.ended_ms = self.now_ms
        self.operations.append(operation)

    def _client(self, kind: str) -> str:
        return f"{kind}{self.random.randint(1, 3)}"

    def _next_value(self) -> int:
        self._values += 1
        return self._values


def _run(seed: int, *, read_committed: bool = True, steps: int = 40) -> Model:
    model = Model(Random(seed), read_committed)
    model.run(steps)
    return model


@given(seeds, st.booleans())
def test_a_correct_log_shows_no_anomaly(seed: int, read_committed: bool) -> None:
    model = _run(seed, read_committed=read_committed)
    model.read_all()
    report = check(model.operations, Promise(read_committed=read_committed))
    assert report.is_valid, str(report)


# Damage to the log itself: every consumer reads what is left.


def _pick(model: Model) -> tuple[Key, int] | None:
    """A committed record whose offset its producer knows, by its place in the log."""
    found = [
        (key, place)
        for key in KEYS
        for place, record in enumerate(model.logs[key])
        if record in model.acked[key]
    ]
    return model.random.choice(found) if found else None


def _drop(log: list[Record], place: int, _: Random) -> bool:
    del log[place]
    return True


def _duplicate(log: list[Record], place: int, _: Random) -> bool:
    log.append((log[-1][0] + 1, log[place][1]))
    return True


def _swap(log: list[Record], place: int, random: Random) -> bool:
    """Two values change places; the offsets stay."""
    other = random.randrange(len(log))
    if other == place:
        return False
    (first, one), (second, two) = log[place], log[other]
    log[place], log[other] = (first, two), (second, one)
    return True


def _move(log: list[Record], place: int, _: Random) -> bool:
    """One record goes to the end, to an offset of its own."""
    value = log.pop(place)[1]
    log.append((max((offset for offset, _ in log), default=0) + 100, value))
    return True


def _garble(log: list[Record], place: int, _: Random) -> bool:
    log[place] = (log[place][0], "garbage")
    return True


@pytest.mark.parametrize("damage", [_drop, _duplicate, _swap, _move, _garble])
@given(seed=seeds)
def test_a_damaged_log_always_shows_one(damage: object, seed: int) -> None:
    model = _run(seed)
    picked = _pick(model)
    assert callable(damage)
    if picked is None or not damage(model.logs[picked[0]], picked[1], model.random):
        return
    model.read_all()
    report = check(model.operations)
    assert not report.is_valid, f"{damage} of {picked} went unnoticed\n{report}"


# Damage on the way to one consumer: the log is right, and others saw it.


@pytest.mark.parametrize("damage", ["drop", "repeat", "swap", "move"])
@given(seed=seeds, portion=st.integers(1, 4))
def test_a_delivery_that_goes_wrong_always_shows(damage: str, seed: int, portion: int) -> None:
    model = _run(seed)
    key = max(model.logs, key=lambda one: len(model.logs[one]))
    records = list(model.logs[key])
    if len(records) < 3:
        return
    place = model.random.randrange(1, len(records) - 1)
    if damage == "drop":
        del records[place]
    elif damage == "repeat":
        records.insert(place, records[place])
    elif damage == "swap":
        records[place], records[place - 1] = records[place - 1], records[place]
    else:
        records.append(records.pop(place))
    for start in range(0, len(records), portion):
        operation = Operation("victim", [Poll({key: records[start : start + portion]})], Outcome.OK)
        model._record(operation)
    model.read_all()
    report = check(model.operations)
    assert not report.is_valid, f"{damage} at {place} went unnoticed\n{report}"
