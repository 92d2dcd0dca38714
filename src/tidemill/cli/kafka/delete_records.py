"""`kafka-delete-records`: cut the oldest records off, by a JSON file of offsets."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from tidemill.cli.kafka import common
from tidemill.cli.kafka.common import Options, ToolError, UsageError, out
from tidemill.types import TopicPartition


def parser() -> Options:
    p = Options("kafka-delete-records", "Delete records of partitions down to given offsets.")
    common.address_options(p)
    p.value(
        "offset-json-file",
        'A file such as {"partitions":[{"topic":"foo","partition":1,"offset":1}],"version":1}',
    )
    return p


def main(argv: Sequence[str]) -> int:
    return common.run(argv, parser(), _work)


async def _work(options: argparse.Namespace) -> int:
    target = common.target(options, 'Missing required argument "[bootstrap-server]"')
    if not options.offset_json_file:
        raise UsageError('Missing required argument "[offset-json-file]"')
    offsets = parse_offsets(_read(options.offset_json_file))
    async with common.for_client(target, "admin").admin() as admin:
        out("Executing records delete operation")
        results = await admin.delete_records(offsets)
    out("Records delete operation completed:")
    done, failed = results.successes(), results.errors()
    for tp in offsets:
        if tp in done:
            out(f"partition: {tp}\tlow_watermark: {done[tp]}")
        else:
            out(f"partition: {tp}\terror: {common.java_error(failed[tp])}")
    return 0


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        raise ToolError(f"Unable to read file {path}") from None


def parse_offsets(text: str) -> dict[TopicPartition, int]:
    """The file's partitions and offsets, checked as Kafka checks them."""
    try:
        document = json.loads(text)
    except ValueError:
        raise ToolError("The input string is not a valid JSON") from None
    document = _object(document)
    version = _integer(document.get("version", 1))
    if version != 1:
        raise ToolError(f"Not supported version field value {version}")
    if "partitions" not in document:
        raise ToolError("Missing partitions field")
    rows = document["partitions"]
    if not isinstance(rows, list):
        raise ToolError(f"Expected JSON array, received {json.dumps(rows)}")
    found: dict[TopicPartition, int] = {}
    doubles: list[TopicPartition] = []
    for row in map(_object, rows):
        tp = TopicPartition(_text(_field(row, "topic")), _integer(_field(row, "partition")))
        if tp in found:
            doubles.append(tp)
        found[tp] = _integer(_field(row, "offset"), bits=64)
    if doubles:
        listed = ",".join(map(str, doubles))
        raise ToolError(f"Offset json file contains duplicate topic partitions: {listed}")
    return found


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ToolError(f"Expected JSON object, received {json.dumps(value)}")
    return value


def _field(row: dict[str, Any], name: str) -> Any:
    if name not in row:
        raise ToolError(f"No such field exists: `{name}`")
    return row[name]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ToolError(f"Expected `String` value, received {json.dumps(value)}")
    return value


def _integer(value: Any, *, bits: int = 32) -> int:
    """A number as it stands: one in quotes may be a mistake, and what it cuts off is gone."""
    limit = 1 << (bits - 1)
    if type(value) is not int or not -limit <= value < limit:
        kind = "Integer" if bits == 32 else "Long"
        raise ToolError(f"Expected `{kind}` value, received {json.dumps(value)}")
    return value
