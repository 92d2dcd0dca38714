"""What a coordinator's request method returns, and what it is given.

State changes only when records are replayed: a method looks at the state, decides, and returns the
answer together with the records that make it true. The runtime appends and replays them before the
answer leaves, so an append that fails changes nothing.

What no record can express (timers, answers that wait for other members, a rebalance under way) is
state that a restart may forget. A `Result` whose records carry such a change says with `then` what
happens once they are committed, or with an error when they could not be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from tidemill.errors import ErrorCode
from tidemill.wire.declare import Message

R = TypeVar("R")
T = TypeVar("T")


class CoordinatorRecord(NamedTuple):
    """A typed key and its value of `records.py`; without a value it is a tombstone."""

    key: Message
    value: Message | None


Encoded = tuple[bytes, bytes | None]
"""A record's key and value as the log has them."""

DecodeRecord = Callable[[bytes, bytes | None], CoordinatorRecord | None]
"""A stored key and value as a typed record; None for kinds that are of no concern."""


class RecordFormat(NamedTuple):
    """How a coordinator's records look in the log: each kind of coordinator has its own."""

    encode: Callable[[CoordinatorRecord], Encoded]
    decode: DecodeRecord


Settled = Callable[[ErrorCode], None]
"""Called once: with NONE when the records are committed, else with why they are not."""


@dataclass(slots=True)
class Result(Generic[R]):
    """An answer and the records that must be in the log before it leaves.

    `response` is None where the answer comes later, through the `reply` that the method was given.
    With `replays` off the records only make durable what the state holds already: the runtime
    appends them and calls `then`, which takes the change back if they could not be written.
    With `is_large` they are so many bytes that they are encoded off the loop. `written` is called
    when they are in the log: whoever loads it finds them, though `then` may still be told that it
    took too long until they were committed.
    """

    response: R | None = None
    records: list[CoordinatorRecord] = field(default_factory=list)
    then: Settled | None = None
    replays: bool = True
    is_large: bool = False
    written: Callable[[], None] | None = None


class RequestInfo(NamedTuple):
    """Who asks, when, and in which version."""

    client_id: str
    client_host: str
    now_ms: int
    api_version: int


TimerKey = tuple[str, ...]
"""What a timer is for, whose, and of which group: no two of them can read alike."""


class Timers(Protocol):
    """One timer per key; the runtime appends and replays what a callback returns."""

    def schedule(self, key: TimerKey, delay_ms: int, callback: Callable[[], Result[None]]) -> None:
        """Run `callback` after `delay_ms`, instead of whatever was scheduled under `key`."""
        ...

    def compute(
        self, key: TimerKey, work: Callable[[], T], then: Callable[[T], Result[None]]
    ) -> None:
        """Have `work` done off the loop and `then` run with what comes of it, as a timer's is.

        It takes the place of whatever was scheduled under `key`, and is forgotten like that.
        """
        ...

    def is_set(self, key: TimerKey) -> bool:
        """Whether there is a timer of this key, or one whose turn has not come yet."""
        ...

    def is_computing(self, key: TimerKey) -> bool:
        """Whether work of this key is under way."""
        ...

    def cancel(self, key: TimerKey) -> None:
        """Forget the timer of this key, if there is one."""
        ...
