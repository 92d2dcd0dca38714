"""What coordinators need of the broker around them, and how it has them write and read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidemill.clock import Clock
from tidemill.executor import Executor
from tidemill.timers import TimingWheel
from tidemill.wire.compression import Codec

LINGER_ONE_TURN = -1


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """How the internal topic is written and read."""

    load_buffer_bytes: int = 5 << 20
    commit_timeout_ms: int = 5_000
    codec: Codec = Codec.NONE
    append_linger_ms: int = LINGER_ONE_TURN


@dataclass(frozen=True, slots=True)
class Machinery:
    """What the runtime needs of the broker."""

    clock: Clock
    timers: TimingWheel
    executor: Executor
    call_soon: Callable[[Callable[[], object]], object]
    settings: RuntimeSettings
