"""`kafka-delete-records`: cut the oldest records off, by a JSON file of offsets."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

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
    version = document.get("version", 1) if isinstance(document, dict) else None
    if version != 1:
        raise ToolError(f"Not supported version field value {version}")
    if "partitions" not in document:
        raise ToolError("Missing partitions field")
    found: dict[TopicPartition, int] = {}
    doubles: list[TopicPartition] = []
    for row in document["partitions"]:
        try:
            tp = TopicPartition(str(row["topic"]), int(row["partition"]))
            offset = int(row["offset"])
        except (KeyError, TypeError, ValueError) as error:
            raise ToolError(f"Offset json file is missing or has a wrong field: {error}") from None
        if tp in found:
            doubles.append(tp)
        found[tp] = offset
    if doubles:
        listed = ",".join(map(str, doubles))
        raise ToolError(f"Offset json file contains duplicate topic partitions: {listed}")
    return found
