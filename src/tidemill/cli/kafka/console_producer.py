"""`kafka-console-producer`: lines of stdin as records."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidemill.cli import feed
from tidemill.cli.connect import parse_pairs
from tidemill.cli.kafka import common
from tidemill.cli.kafka.common import Options, ToolError, UsageError, out

if TYPE_CHECKING:
    from tidemill.cli.connect import Target

DEPRECATED = {
    "property": "reader-property",
    "producer-property": "command-property",
    "producer.config": "command-config",
}
_SETTINGS = {
    "batch_size": "batch.size",
    "message_send_max_retries": "retries",
    "retry_backoff_ms": "retry.backoff.ms",
    "timeout": "linger.ms",
    "request_required_acks": "acks",
    "request_timeout_ms": "request.timeout.ms",
    "metadata_expiry_ms": "metadata.max.age.ms",
    "max_block_ms": "max.block.ms",
    "max_memory_bytes": "buffer.memory",
    "max_partition_memory_bytes": "batch.size",
}
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
Header = tuple[str, bytes | None]


@dataclass(slots=True)
class LineReader:
    """A line as headers, key and value, by the reader's properties."""

    parse_key: bool = False
    parse_headers: bool = False
    key_separator: str = "\t"
    headers_delimiter: str = "\t"
    headers_separator: str = ","
    headers_key_separator: str = ":"
    ignore_error: bool = False
    null_marker: str | None = None
    line_number: int = field(default=0)

    @classmethod
    def of(cls, properties: dict[str, str]) -> LineReader:
        def flag(name: str) -> bool:
            return properties.get(name, "").strip().lower() == "true"

        reader = cls(flag("parse.key"), flag("parse.headers"), ignore_error=flag("ignore.error"))
        reader.null_marker = properties.get("null.marker")
        for name in (
            "key_separator",
            "headers_delimiter",
            "headers_separator",
            "headers_key_separator",
        ):
            setattr(reader, name, properties.get(name.replace("_", "."), getattr(reader, name)))
            if getattr(reader, name) == reader.null_marker:
                raise failure(f"null.marker and {name.replace('_', '.')} may not be equal")
        if reader.parse_headers and reader.headers_delimiter == reader.headers_separator:
            raise failure("headers.delimiter and headers.separator may not be equal")
        if reader.parse_headers and reader.headers_separator == reader.headers_key_separator:
            raise failure("headers.separator and headers.key.separator may not be equal")
        return reader

    def read(self, line: str) -> tuple[bytes | None, bytes | None, list[Header]]:
        """(key, value, headers) of the next line."""
        self.line_number += 1
        headers, line_after = self._cut(
            self.parse_headers, line, line, self.headers_delimiter, "headers delimiter"
        )
        key, value = self._cut(
            self.parse_key, line, line_after, self.key_separator, "key separator"
        )
        found = [] if headers in (None, self.null_marker) else self._split_headers(headers or "")
        return self._bytes(key), self._bytes(value), found

    def _cut(
        self, enabled: bool, line: str, rest: str, mark: str, name: str
    ) -> tuple[str | None, str]:
        if not enabled:
            return None, rest
        before, cut, after = rest.partition(mark)
        if cut:
            return before, after
        if self.ignore_error:
            return None, rest
        raise failure(f"No {name} found on line number {self.line_number}: '{line}'")

    def _bytes(self, text: str | None) -> bytes | None:
        return None if text is None or text == self.null_marker else text.encode()

    def _split_headers(self, text: str) -> list[Header]:
        found: list[Header] = []
        for pair in text.split(self.headers_separator):
            name, cut, value = pair.partition(self.headers_key_separator)
            if not cut and not self.ignore_error:
                raise failure(
                    f"No header key separator found in pair '{pair}' "
                    f"on line number {self.line_number}"
                )
            if name == self.null_marker:
                raise failure(
                    "Header keys should not be equal to the null marker "
                    f"'{self.null_marker}' as they can't be null"
                )
            found.append((name, self._bytes(value) if cut else None))
        return found


def failure(text: str) -> ToolError:
    return ToolError(f"org.apache.kafka.common.KafkaException: {text}")


def parser() -> Options:
    p = Options(
        "kafka-console-producer",
        "This tool helps to read data from standard input and publish it to Kafka.",
    )
    common.address_options(p)
    p.value("topic", "The topic to write to.")
    p.flag("sync", "Wait for each record before the next.")
    p.value("compression-codec", "none, gzip, snappy, lz4 or zstd.", nargs="?", const="gzip")
    p.value("line-reader", "Only Kafka's own line reader is supported.")
    for name in _SETTINGS:
        p.value(name.replace("_", "-"), f"Sets {_SETTINGS[name]}.")
    p.value("socket-buffer-size", "Accepted; the system sizes socket buffers.")
    p.many("property", "Old spelling of --reader-property.")
    p.many("reader-property", "key=value for the line reader: parse.key, key.separator, ...")
    p.value("reader-config", "A properties file for the line reader.")
    p.many("producer-property", "Old spelling of --command-property.")
    p.many("command-property", "key=value for the producer.")
    p.value("producer.config", "Old spelling of --command-config.", dest="producer_config")
    return p


def main(argv: Sequence[str]) -> int:
    return common.run(argv, parser(), _work)


async def _work(options: argparse.Namespace) -> int:
    if not options.topic:
        raise UsageError('Missing required argument "[topic]"')
    common.not_together(
        options,
        ("command-property", "producer-property"),
        ("command-config", "producer.config"),
        ("reader-property", "property"),
    )
    target = _target(options)
    for name, instead in DEPRECATED.items():
        if getattr(options, name.replace("-", "_").replace(".", "_")):
            out(
                f"Warning: --{name} is deprecated and will be removed in a future version. "
                f"Use --{instead} instead."
            )
    if options.line_reader and not options.line_reader.endswith("LineMessageReader"):
        raise ToolError(f"java.lang.ClassNotFoundException: {options.line_reader}")
    properties = common.read_properties(options.reader_config) if options.reader_config else {}
    properties |= common.loose_pairs([*options.property, *options.reader_property])
    reader = LineReader.of(properties)
    sys.stdout.flush()
    await _send(target, options.topic, reader, sync=options.sync)
    return 0


def _target(options: argparse.Namespace) -> Target:
    settings = [
        f"{key}={getattr(options, name)}"
        for name, key in _SETTINGS.items()
        if getattr(options, name) is not None
    ]
    if options.compression_codec is not None:
        if options.compression_codec not in _CODECS:
            raise ToolError(
                "org.apache.kafka.common.config.ConfigException: Invalid value "
                f"{options.compression_codec} for configuration compression.type: "
                f"String must be one of: {', '.join(_CODECS)}"
            )
        settings.append(f"compression.type={options.compression_codec}")
    given = parse_pairs([*options.producer_property, *options.command_property], "a property")
    merged = parse_pairs(settings, "an option") | given
    if merged.get("acks", "all") not in ("all", "-1"):
        # Kafka's producer drops idempotence by itself when acks were lowered.
        merged.setdefault("enable.idempotence", "false")
    return common.for_client(
        common.target(
            options,
            "Error while validating the bootstrap address\n",
            properties=[f"{k}={v}" for k, v in merged.items()],
            files=[options.producer_config],
        ),
        "producer",
    )


async def _send(target: Target, topic: str, reader: LineReader, *, sync: bool) -> None:
    from tidemill.client.errors import BufferFullError, ClientError

    prompt = sys.stdin.isatty()
    async with target.producer() as producer:
        if prompt:
            out(">", end="")
            sys.stdout.flush()
        async for lines in feed.messages([], b"\n"):
            for line in lines:
                text = line.decode("utf-8", "replace").removesuffix("\r")
                key, value, headers = reader.read(text)
                if sync:
                    await producer.send(topic, value, key=key, headers=headers)
                    continue
                if not reader.line_number > 1:
                    await producer.partitions_for(topic)
                try:
                    producer.send_soon(topic, value, key=key, headers=headers)
                except BufferFullError:
                    await producer.wait_for_room()
                    producer.send_soon(topic, value, key=key, headers=headers)
            if prompt:
                out(">", end="")
                sys.stdout.flush()
        try:
            await producer.flush()
        except ClientError as error:
            # Kafka's tool logs what failed and ends well: so does this one.
            common.err(f"ERROR Error when sending message to topic {topic}: {error}")
