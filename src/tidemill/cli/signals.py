"""Signals, for commands that run until somebody stops them and that watch other processes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_signals(on_stop: Callable[[], None]) -> Iterator[None]:
    """Call `on_stop` on SIGTERM, on Ctrl-C and when the terminal goes, for the block's length."""

    def stop(number: int, frame: FrameType | None) -> None:
        on_stop()

    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # `nohup` says: stay
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def how_it_ended(status: int) -> str:
    """An exit status in words."""
    if status == 0:
        return "stopped"
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"
