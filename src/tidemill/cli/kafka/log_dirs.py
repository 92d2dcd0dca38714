"""`kafka-log-dirs`: what each broker keeps in each of its log directories, as JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidemill.cli.kafka import common
from tidemill.cli.kafka.common import Options, ToolError, UsageError, out

if TYPE_CHECKING:
    from tidemill.client.admin_types import LogDirDescription


def parser() -> Options:
    p = Options("kafka-log-dirs", "Query log directory usage on brokers.")
    common.address_options(p, broker_list=False)
    p.flag("describe", "Describe the log directories.")
    p.value("broker-list", "Comma-separated ids of the brokers to ask; all when not given.")
    p.value("topic-list", "Comma-separated topics; all when not given.")
    return p


def main(argv: Sequence[str]) -> int:
    return common.run(argv, parser(), _work)


async def _work(options: argparse.Namespace) -> int:
    ids = _ids(options.broker_list)
    target = common.target(options, 'Missing required argument "[bootstrap-server]"')
    if not options.describe:
        raise UsageError('Missing required argument "[describe]"')
    topics = set(options.topic_list.split(",")) - {""} if options.topic_list else set()
    async with common.for_client(target, "admin").admin() as admin:
        existing = [b.broker_id for b in (await admin.describe_cluster()).brokers]
        unknown = [i for i in ids if i not in existing]
        if unknown:
            raise ToolError(
                "ERROR: The given brokers do not exist from --broker-list: "
                f"{','.join(map(str, unknown))}. "
                f"Current existent brokers: {','.join(map(str, existing))}"
            )
        wanted = ids or existing
        out("Querying brokers for log directories information")
        found = (await admin.describe_log_dirs(wanted)).raise_first()
    out(f"Received log directory information from brokers {','.join(map(str, wanted))}")
    out(as_json(found, topics))
    return 0


def _ids(text: str | None) -> list[int]:
    try:
        return [int(word) for word in (text or "").split(",") if word.strip()]
    except ValueError:
        raise ToolError(f'For input string: "{text}"') from None


def as_json(found: Mapping[int, Mapping[str, LogDirDescription]], topics: Collection[str]) -> str:
    """Kafka's document, version 1; without `topics` every partition is in it."""
    brokers = [
        {"broker": broker, "logDirs": [_directory(d, topics) for d in directories.values()]}
        for broker, directories in found.items()
    ]
    return json.dumps({"brokers": brokers, "version": 1}, separators=(",", ":"))


def _directory(d: LogDirDescription, topics: Collection[str]) -> dict[str, Any]:
    partitions = [
        {
            "partition": str(tp),
            "size": replica.size_bytes,
            "offsetLag": replica.offset_lag,
            "isFuture": replica.is_future,
        }
        for tp, replica in d.replicas.items()
        if not topics or tp.topic in topics
    ]
    error = None if d.error is None else common.message_of(d.error)
    return {"partitions": partitions, "error": error, "logDir": d.path}
