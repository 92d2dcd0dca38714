"""`tidemill produce`: lines in, records out."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from tidemill.cli import feed
from tidemill.cli.command import command
from tidemill.cli.exits import CommandError, Exit
from tidemill.cli.options import COMMON, Common, DryRun, TopicName
from tidemill.cli.progress import Progress
from tidemill.cli.render import plural, talk

if TYPE_CHECKING:
    from tidemill.client import Producer

app = App(name="produce")

InputFiles = Annotated[
    tuple[str, ...],
    Parameter(
        name=("--file", "-l"),
        negative=(),
        show_default=False,
        help="Read these files instead of stdin.",
    ),
]
KeyDelimiter = Annotated[
    str | None, Parameter(name=("--key-delimiter", "-K"), help="What ends the key of a line.")
]
Key = Annotated[str | None, Parameter(name=("--key", "-k"), help="Key of every record.")]
HeaderWords = Annotated[
    tuple[str, ...],
    Parameter(name=("--header", "-H"), negative=(), show_default=False, help="Header name=value."),
]
Tombstones = Annotated[
    bool,
    Parameter(
        name=("--tombstones", "-Z"),
        negative=(),
        show_default=False,
        help="Send empty values as null.",
    ),
]
JsonInput = Annotated[
    bool,
    Parameter(
        name=("--json",),
        negative=(),
        show_default=False,
        help="Lines are JSON as `consume` prints it.",
    ),
]
Delimiter = Annotated[
    str, Parameter(name=("--delimiter", "-D"), help="What ends a message.", show_default=False)
]
Partition = Annotated[
    int | None, Parameter(name=("--partition", "-p"), help="Send everything there.")
]
Compression = Annotated[
    Literal["none", "gzip", "snappy", "lz4", "zstd"],
    Parameter(name=("--compression", "-z"), help="How batches are compressed."),
]
Acks = Annotated[
    Literal["all", "0", "1"], Parameter(help="Who must have a record before it counts.")
]
PATIENCE_S = 5.0
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\0": "\0", "\\r": "\r"}


@dataclass(frozen=True, slots=True)
class Produced:
    """What `produce` did, for `--format json`."""

    topic: str
    messages: int
    bytes: int
    dry_run: bool = False


@dataclass(slots=True)
class Shape:
    """How a piece of input becomes a record."""

    key_delimiter: bytes | None
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    tombstones: bool
    as_json: bool
    partition: int | None

    def record(self, data: bytes, number: int) -> dict[str, Any]:
        """Keyword arguments of `Producer.send_soon` for one message."""
        if self.as_json:
            return self._from_json(data, number)
        key: bytes | None = self.key
        value: bytes | None = data
        if self.key_delimiter is not None:
            key, found, value = data.partition(self.key_delimiter)
            if not found:
                key, value = None, data
        if self.tombstones and not value:
            value = None
        return {
            "value": value,
            "key": key,
            "headers": self.headers,
            "partition": self.partition,
        }

    def _from_json(self, data: bytes, number: int) -> dict[str, Any]:
        """A line as `consume --format json` prints it; its partition and offset are history."""
        try:
            found = json.loads(data)
        except ValueError as error:
            raise CommandError(f"line {number} is no JSON: {error}", Exit.USAGE) from None
        if not isinstance(found, dict):
            raise CommandError(f"line {number} is no JSON object", Exit.USAGE)
        named = tuple(
            (str(header["name"]), _field(header, "value")) for header in found.get("headers", ())
        )
        return {
            "value": _field(found, "value"),
            "key": _field(found, "key"),
            "headers": named + self.headers,
            "partition": self.partition,
            "timestamp_ms": found.get("timestamp"),
        }


def _field(found: dict[str, Any], name: str) -> bytes | None:
    """Text, base64 (as `consume` writes what is no UTF-8), null, or any JSON as its text."""
    import base64

    if encoded := found.get(f"{name}_base64"):
        return base64.b64decode(encoded)
    value = found.get(name)
    if value is None:
        return None
    return (value if isinstance(value, str) else json.dumps(value)).encode()


@command(
    app,
    default=True,
    mutates=True,
    examples=[
        "echo hello | tidemill produce clicks",
        "echo user-1:login | tidemill produce clicks -K: -H source=web",
        "echo user-1: | tidemill produce clicks -K: -Z",
        "tidemill produce clicks --file events.txt -z zstd",
    ],
)
async def produce(
    topic: TopicName,
    /,
    *,
    file: InputFiles = (),
    key_delimiter: KeyDelimiter = None,
    key: Key = None,
    header: HeaderWords = (),
    tombstones: Tombstones = False,
    json_input: JsonInput = False,
    delimiter: Delimiter = "\n",
    partition: Partition = None,
    compression: Compression = "none",
    acks: Acks = "all",
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> Produced | None:
    """Write one record per line of stdin or of files; Ctrl-D ends, Ctrl-C stops."""
    shape = Shape(
        None if key_delimiter is None else unescape(key_delimiter).encode(),
        None if key is None else key.encode(),
        tuple(parse_headers(header)),
        tombstones,
        json_input,
        partition,
    )
    if not file and sys.stdin.isatty():
        talk("type one record per line; Ctrl-D ends")
    sent = _Counter(topic, dry_run)
    try:
        if dry_run:
            await _count(sent, shape, file, unescape(delimiter))
        else:
            async with common.target.producer(**producer_settings(acks, compression)) as producer:
                await _send(producer, sent, shape, file, unescape(delimiter))
    except asyncio.CancelledError:
        talk(sent.words())
        raise
    if common.fmt == "json":
        return sent.result()
    talk(sent.words())
    return None


def producer_settings(acks: str, compression: str) -> dict[str, object]:
    """What `--acks` and `--compression` mean to a producer."""
    settings: dict[str, object] = {"acks": acks, "compression_type": compression}
    if acks != "all":
        settings["enable_idempotence"] = False  # a producer that does not wait cannot repeat safely
    return settings


class _Counter:
    """Messages and bytes so far."""

    def __init__(self, topic: str, dry_run: bool) -> None:
        self.topic = topic
        self.messages = 0
        self.bytes = 0
        self._dry_run = dry_run

    def add(self, record: dict[str, Any]) -> None:
        self.messages += 1
        self.bytes += len(record["key"] or b"") + len(record["value"] or b"")

    def words(self) -> str:
        counted = f"{plural(self.messages, 'message')}, {plural(self.bytes, 'byte')}"
        return f"dry run: {counted}" if self._dry_run else counted

    def result(self) -> Produced:
        return Produced(self.topic, self.messages, self.bytes, self._dry_run)


async def _count(sent: _Counter, shape: Shape, files: Sequence[str], delimiter: str) -> None:
    """Read and shape everything, send nothing."""
    async for messages in feed.messages(files, delimiter.encode()):
        for message in messages:
            sent.add(shape.record(message, sent.messages + 1))


async def _send(
    producer: Producer, sent: _Counter, shape: Shape, files: Sequence[str], delimiter: str
) -> None:
    from tidemill.client.errors import BufferFullError

    show = Progress(f"producing to {sent.topic}", _total_bytes(files)) if files else None
    try:
        if show is not None:
            show.__enter__()
        await producer.partitions_for(sent.topic)
        async for messages in feed.messages(files, delimiter.encode()):
            for message in messages:
                record = shape.record(message, sent.messages + 1)
                try:
                    producer.send_soon(sent.topic, **record)
                except BufferFullError:
                    await saying_why(producer, producer.wait_for_room())
                    producer.send_soon(sent.topic, **record)
                sent.add(record)
            if show is not None:
                show.advance(sum(map(len, messages)) + len(messages))
        await saying_why(producer, producer.flush())
    finally:
        if show is not None:
            show.__exit__(None, None, None)


async def saying_why(producer: Producer, waited_for: Coroutine[Any, Any, None]) -> None:
    """Wait, and every few seconds say what for: a silent command looks like one that hangs."""
    task = asyncio.ensure_future(waited_for)
    try:
        while not (await asyncio.wait({task}, timeout=PATIENCE_S))[0]:
            trouble = producer.trouble
            reason = f": {trouble.message or trouble.code.name}" if trouble else ""
            talk(f"still waiting for the broker to acknowledge{reason}")
    except asyncio.CancelledError:
        task.cancel()
        raise
    await task


def _total_bytes(files: Sequence[str]) -> int | None:
    return None if "-" in files else sum(os.path.getsize(path) for path in files)


def parse_headers(words: Sequence[str]) -> list[tuple[str, bytes | None]]:
    """`name=value` words; a bare `name` is a header without a value."""
    headers: list[tuple[str, bytes | None]] = []
    for word in words:
        name, equals, value = word.partition("=")
        if not name:
            raise CommandError(f"--header takes name=value, not {word!r}", Exit.USAGE)
        headers.append((name, value.encode() if equals else None))
    return headers


def unescape(text: str) -> str:
    r"""`\n`, `\t`, `\r` and `\0` as the characters they name."""
    for written, meant in _ESCAPES.items():
        text = text.replace(written, meant)
    if not text:
        raise CommandError("a delimiter cannot be empty", Exit.USAGE)
    return text
