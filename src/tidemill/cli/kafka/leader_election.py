"""`kafka-leader-election`: back to the preferred leaders, or any leader where there is none."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidemill.cli import moves
from tidemill.cli.connect import Target
from tidemill.cli.kafka import common
from tidemill.cli.kafka.common import Options, ToolError, UsageError, err, out
from tidemill.errors import ErrorCode
from tidemill.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.client.admin_types import Results

WHICH = ("topic", "all-topic-partitions", "path-to-json-file")
ADMIN_CONFIG_IS_OLD = (
    "Option --admin.config has been deprecated and will be removed in a future version. Use "
    "--command-config instead."
)


def parser() -> Options:
    p = Options(
        "kafka-leader-election",
        "This tool attempts to elect a new leader for a set of topic partitions. The type of "
        "elections supported are preferred replicas and unclean replicas.",
    )
    common.address_options(p)
    p.value("admin.config", "Old spelling of --command-config.", dest="admin_config")
    p.value("election-type", '"preferred" or "unclean".')
    p.value("topic", "The topic; takes --partition.")
    p.value("partition", "The partition of --topic.", type=int)
    p.flag("all-topic-partitions", "Every partition that can have an election of this type.")
    p.value("path-to-json-file", '{"partitions":[{"topic":"foo","partition":1}]}')
    return p


def main(argv: Sequence[str]) -> int:
    return common.run(argv, parser(), _work)


async def _work(options: argparse.Namespace) -> int:
    from tidemill.client.admin_types import ElectionType

    target = _target(options)
    election = _election(options.election_type)
    partitions = _partitions(options)
    async with common.for_client(target, "admin").admin() as admin:
        results = await admin.elect_leaders(ElectionType[election], partitions)
    return _print(results, election)


def _target(options: argparse.Namespace) -> Target:
    """The cluster, once the options make sense; Kafka complains about all of them first."""
    old = options.zookeeper or options.old_bootstrap
    missing = [] if options.bootstrap_server or old else ["bootstrap-server"]
    missing += [] if options.election_type else ["election-type"]
    if options.admin_config:
        out(ADMIN_CONFIG_IS_OLD)
        options.command_config = options.command_config or options.admin_config
    complaint = f"Missing required option(s): {', '.join(missing)}"
    if not options.election_type:
        raise ToolError(complaint)
    try:
        target = common.target(options, complaint)
    except UsageError as error:
        raise ToolError(str(error)) from None
    _check_which(options)
    return target


def _check_which(options: argparse.Namespace) -> None:
    given = [name for name in WHICH if getattr(options, name.replace("-", "_"))]
    if len(given) != 1:
        listed = ", ".join(WHICH)
        raise ToolError(f"One and only one of the following options is required: {listed}")
    if options.topic and options.partition is None:
        raise ToolError("Missing required option(s): partition")
    if not options.topic and options.partition is not None:
        raise ToolError("Option partition is only allowed if topic is used")


def _election(text: str) -> str:
    if text.lower() not in ("preferred", "unclean"):
        raise UsageError(f"Cannot parse argument '{text}' of option election-type")
    return text.upper()


def _partitions(options: argparse.Namespace) -> list[TopicPartition] | None:
    if options.topic:
        return [TopicPartition(options.topic, options.partition)]
    if options.path_to_json_file:
        return parse_partitions(_read(options.path_to_json_file))
    return None


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        raise ToolError(f"java.io.IOException: Unable to read file {path}") from None


def parse_partitions(text: str) -> list[TopicPartition]:
    try:
        document = json.loads(text)
    except ValueError:
        raise ToolError("Replica election data is empty") from None
    if not isinstance(document, dict) or "partitions" not in document:
        raise ToolError('Replica election data is missing "partitions" field')
    try:
        found = [
            TopicPartition(str(row["topic"]), int(row["partition"]))
            for row in document["partitions"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise ToolError(f"Replica election data is missing a field: {error}") from None
    if twice := moves.doubles(found):
        listed = ", ".join(map(str, twice))
        raise ToolError(f"Replica election data contains duplicate partitions: [{listed}]")
    return found


def _print(results: Results[TopicPartition, None], election: str) -> int:
    """Who was elected, who needed no election, and who could not be."""
    failed = results.errors()
    needless = [tp for tp in failed if failed[tp].code is ErrorCode.ELECTION_NOT_NEEDED]
    for tp in needless:
        del failed[tp]
    if done := sorted(results.successes()):
        listed = ", ".join(map(str, done))
        out(f"Successfully completed leader election ({election}) for partitions {listed}")
    if needless:
        listed = ", ".join(map(str, sorted(needless)))
        out(f"Valid replica already elected for partitions {listed}")
    for tp in sorted(failed):
        reason = common.java_error(failed[tp])
        out(f"Error completing leader election ({election}) for partition: {tp}: {reason}")
    if failed:
        err(f"{len(failed)} replica(s) could not be elected")
    return 1 if failed else 0
