"""What the two verifiable tools share: their manners, their JSON lines, and how they are stopped.

System tests start these tools in the background and read what they print: one JSON object per
event, with `timestamp` and `name` first. Names, fields and their order are Kafka's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from tidemill.cli.kafka import common
from tidemill.cli.kafka.common import Options, UsageError, out
from tidemill.errors import ErrorCode, TidemillError

SIGNAL_STATUS = 128
"""A process that a signal ends has this status and the signal's number, as the shell counts."""

_EXCEPTIONS = {
    ErrorCode.MESSAGE_TOO_LARGE: "RecordTooLarge",
    ErrorCode.REQUEST_TIMED_OUT: "Timeout",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "TopicAuthorization",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "ClusterAuthorization",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "InvalidTopic",
}


class VerifiableOptions(Options):
    """Options with the manners of these tools: no arguments at all is a question for help."""

    def required(self, name: str, text: str) -> None:
        self.value(name, text)
        self._wanted = (*getattr(self, "_wanted", ()), name)

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        if not argv or {"-h", "--help"} & set(argv):
            out(self.format_help(), end="")
            raise SystemExit(0)
        options = super().read(argv)
        for name in self._wanted:
            if getattr(options, name.replace("-", "_")) is None:
                self.refuse(f"argument --{name} is required")
        return options

    def refuse(self, complaint: str) -> None:
        raise UsageError(f"{self.prog.removeprefix('kafka-')}: error: {complaint}")


class Stop:
    """Set by SIGTERM and SIGINT; knows what the exit status has to be then."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.status = 0

    def listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked, number)

    def _asked(self, number: signal.Signals) -> None:
        self.status = SIGNAL_STATUS + number
        self._event.set()

    @property
    def is_asked(self) -> bool:
        return self._event.is_set()

    async def within(self, seconds: float | None) -> None:
        """Wait for it, for so long at most."""
        try:
            async with asyncio.timeout(None if seconds is None else max(seconds, 0)):
                await self._event.wait()
        except TimeoutError:
            return


def emit(name: str, **fields: Any) -> None:
    """One event, on a line of its own, at once."""
    event = {"timestamp": int(time.time() * 1000), "name": name, **fields}
    out(json.dumps(event, separators=(",", ":"), ensure_ascii=False))
    sys.stdout.flush()


def deprecated(options: argparse.Namespace, name: str) -> None:
    """A word about `--consumer.config` or `--producer.config`, which still work."""
    given = getattr(options, name.replace(".", "_"))
    if given and options.command_config:
        raise UsageError(f"Options --{name} and --command-config are mutually exclusive.")
    if given:
        out(
            f"Option --{name} has been deprecated and will be removed in a future version. "
            "Use --command-config instead."
        )


def exception_name(error: BaseException) -> str:
    """The class that Kafka's own client would have raised, as Java prints it."""
    code = getattr(error, "code", None)
    if not isinstance(code, ErrorCode):
        return f"class {type(error).__module__}.{type(error).__qualname__}"
    stem = _EXCEPTIONS.get(code) or "".join(word.capitalize() for word in code.name.split("_"))
    return f"class org.apache.kafka.common.errors.{stem.removesuffix('Exception')}Exception"


def run(
    argv: Sequence[str],
    parser: VerifiableOptions,
    work: Callable[[argparse.Namespace], Coroutine[Any, Any, int]],
) -> int:
    return common.run(argv, parser, work)


def text(data: bytes | None) -> str | None:
    """A key or value as the tools print it."""
    return None if data is None else data.decode("utf-8", "replace")


def message_of(error: BaseException) -> str:
    return str(error) if isinstance(error, TidemillError) else repr(error)
