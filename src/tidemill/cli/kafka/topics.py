"""`kafka-topics`: create, list, describe, alter and delete topics.

Beyond today's tool it takes what runbooks of older releases hold: `--zookeeper`, `--broker-list`,
and with `--alter` the flags `--config name=value` and `--delete-config name[=anything]`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tidemill.cli.kafka import common
from tidemill.cli.kafka.common import Options, ToolError, UsageError, err, out

if TYPE_CHECKING:
    from tidemill.client import Admin
    from tidemill.client.admin_types import ConfigEntry, PartitionDescription, TopicDescription

ACTIONS = ("list", "describe", "create", "alter", "delete")
COLLISION_WARNING = (
    "WARNING: Due to limitations in metric names, topics with a period ('.') or underscore ('_') "
    "could collide. To avoid issues it is best to use either, but not both."
)
_REPORTS = (
    "under_replicated_partitions",
    "unavailable_partitions",
    "under_min_isr_partitions",
    "at_min_isr_partitions",
)
_ONLY_WITH: dict[str, tuple[str, ...]] = {
    "config": ("create", "alter"),
    "partitions": ("create", "alter"),
    "replication_factor": ("create",),
    "replica_assignment": ("create", "alter"),
    "if_exists": ("describe", "alter", "delete"),
    "if_not_exists": ("create",),
    "exclude_internal": ("list", "describe"),
    "topics_with_overrides": ("describe",),
    **dict.fromkeys(_REPORTS, ("describe",)),
}
_NOT_WITH = {
    "replica_assignment": ("partitions", "replication_factor"),
    **dict.fromkeys(_REPORTS, ("topics_with_overrides",)),
}
"""What else a flag excludes; with --alter an assignment goes with the number of partitions."""
_DELETE_CONFIG_IS_GONE = (
    "delete-config option is no longer supported and deprecated since version 4.0. "
    "The config will be fully removed in future releases."
)


def parser() -> Options:
    p = Options("kafka-topics", "Create, delete, describe, or change a topic.")
    common.address_options(p)
    for action in ACTIONS:
        p.flag(action, f"{action.capitalize()} topics.")
    p.value("topic", "The topic; a regular expression except with --create.")
    p.value("topic-id", "The id of a topic to describe.")
    p.value("partitions", "How many partitions the topic shall have.", type=int)
    p.value("replication-factor", "How many replicas each partition shall have.", type=int)
    p.value("replica-assignment", "Brokers by hand: b1:b2,b3:b4 has two partitions.")
    p.many("config", "A setting name=value for the topic.")
    p.many("delete-config", "With --alter: put a setting back to its default.")
    p.flag("if-exists", "A topic that does not exist is no failure.")
    p.flag("if-not-exists", "A topic that exists is no failure.")
    p.flag("exclude-internal", "Leave internal topics out.")
    p.flag("topics-with-overrides", "Describe only topics with settings of their own.")
    p.flag("under-replicated-partitions", "Show only partitions with replicas out of sync.")
    p.flag("unavailable-partitions", "Show only partitions without a leader.")
    p.flag("under-min-isr-partitions", "Show only partitions below min.insync.replicas.")
    p.flag("at-min-isr-partitions", "Show only partitions at min.insync.replicas.")
    p.flag("force", "Accepted and without effect, as in Kafka.")
    p.value("partition-size-limit-per-response", "Accepted; answers are bounded here.", type=int)
    return p


def main(argv: Sequence[str]) -> int:
    return common.run(
        argv,
        parser(),
        _work,
        on_failure=lambda text: out(f"Error while executing topic command : {text}"),
    )


async def _work(options: argparse.Namespace) -> int:
    action = check(options)
    target = common.target(
        options,
        "--bootstrap-server must be specified",
        old_spelling=options.alter and bool(options.config or options.delete_config),
    )
    handlers = {
        "create": _create,
        "list": _list,
        "describe": _describe,
        "alter": _alter,
        "delete": _delete,
    }
    async with common.for_client(target, "admin").admin() as admin:
        try:
            await handlers[action](admin, options)
        except ToolError as error:
            out(f"Error while executing topic command : {error}")
            return 1
    return 0


def check(options: argparse.Namespace) -> str:
    """The action, if the options go together."""
    chosen = [action for action in ACTIONS if getattr(options, action)]
    if len(chosen) != 1:
        raise UsageError(
            "Command must include exactly one action: "
            "--list, --describe, --create, --alter or --delete"
        )
    action = chosen[0]
    if options.delete_config and action != "alter":
        raise UsageError(_DELETE_CONFIG_IS_GONE, with_options=False)
    _check_required(action, options)
    _check_excluded(action, options)
    return action


def _check_required(action: str, options: argparse.Namespace) -> None:
    if action == "describe" and options.if_exists and not (options.topic or options.topic_id):
        raise UsageError("--topic or --topic-id is required to describe a topic")
    if action not in ("list", "describe") and not options.topic:
        raise UsageError('Missing required argument "[topic]"')
    changes_settings = options.config or options.delete_config
    if action == "alter" and options.partitions is None and not changes_settings:
        raise UsageError('Missing required argument "[partitions]"')


def _check_excluded(action: str, options: argparse.Namespace) -> None:
    """A flag that has no meaning here was meant for something else: nothing is done."""
    given = [flag for flag in _ONLY_WITH if common.is_given(options, flag)]
    for flag in given:
        if action not in _ONLY_WITH[flag]:
            raise common.cannot_be_used_with(flag, action)
        if action != "alter":
            for other in _NOT_WITH.get(flag, ()):
                if other in given:
                    raise common.cannot_be_used_with(flag, other)


def split_config(words: Sequence[str]) -> dict[str, str]:
    """`name=value` words; Kafka's complaint about any other."""
    found: dict[str, str] = {}
    for word in words:
        parts = re.split(r"\s*=\s*", word, maxsplit=1)
        if len(parts) != 2:
            raise ToolError(
                "requirement failed: Invalid topic config: all configs to be added must be in "
                'the format "key=val".'
            )
        found[parts[0].strip()] = parts[1].strip()
    return found


def parse_assignment(text: str) -> dict[int, list[int]]:
    """`1:2,2:1` as the replicas of partitions 0 and 1."""
    found: dict[int, list[int]] = {}
    for index, word in enumerate(text.split(",")):
        try:
            brokers = [int(part) for part in word.split(":")]
        except ValueError:
            raise ToolError(f'For input string: "{word}"') from None
        doubles = sorted({b for b in brokers if brokers.count(b) > 1})
        if doubles:
            listed = ",".join(map(str, doubles))
            raise ToolError(f"Partition replica lists may not contain duplicate entries: {listed}")
        found[index] = brokers
        if len(brokers) != len(found[0]):
            raise ToolError(
                f"Partition {index} has different replication factor: {_java_list(brokers)}"
            )
    return found


def _java_list(values: Sequence[int]) -> str:
    return "[" + ", ".join(map(str, values)) + "]"


async def _create(admin: Admin, options: argparse.Namespace) -> None:
    from tidemill.client.admin_types import NewTopic
    from tidemill.errors import ErrorCode

    name = options.topic
    configs: dict[str, str | None] = dict(split_config(options.config))
    if "." in name or "_" in name:
        out(COLLISION_WARNING)
    replicas, partitions = options.replication_factor, options.partitions
    if replicas is not None and not 1 <= replicas <= 32767:
        raise ToolError("The replication factor must be between 1 and 32767 inclusive")
    if partitions is not None and partitions < 1:
        raise ToolError("The partitions must be greater than 0")
    by_hand = parse_assignment(options.replica_assignment) if options.replica_assignment else None
    wanted = NewTopic(name, partitions or -1, replicas or -1, by_hand, configs)
    error = (await admin.create_topics([wanted])).errors().get(name)
    if error is None:
        out(f"Created topic {name}.")
    elif not (options.if_not_exists and error.code is ErrorCode.TOPIC_ALREADY_EXISTS):
        raise error


async def _names(admin: Admin, options: argparse.Namespace) -> list[str]:
    """The topics that `--topic` means, sorted; a missing one is an error unless allowed."""
    everything = sorted(t.name for t in await admin.list_topics(internal=True))
    if options.exclude_internal:
        everything = [name for name in everything if name not in common.INTERNAL_TOPICS]
    if not options.topic:
        return everything
    matches = common.topic_filter(options.topic)
    return [name for name in everything if matches(name)]


async def _existing(admin: Admin, options: argparse.Namespace) -> list[str]:
    names = await _names(admin, options)
    if options.topic and not names and not options.if_exists:
        raise ToolError(f"Topic '{options.topic}' does not exist as expected")
    return names


async def _list(admin: Admin, options: argparse.Namespace) -> None:
    out("\n".join(await _names(admin, options)))


async def _delete(admin: Admin, options: argparse.Namespace) -> None:
    names = await _existing(admin, options)
    if names:
        (await admin.delete_topics(names)).raise_first()


async def _alter(admin: Admin, options: argparse.Namespace) -> None:
    from tidemill.client.admin_types import NewPartitions

    names = await _existing(admin, options)
    if not names:
        return
    if options.config or options.delete_config:
        await _alter_settings(admin, names, options)
    if options.partitions is None:
        return
    by_hand = parse_assignment(options.replica_assignment) if options.replica_assignment else None
    described = (await admin.describe_topics(names)).raise_first()
    wanted = {}
    for name in names:
        added = None
        if by_hand is not None:
            added = list(by_hand.values())[len(described[name].partitions) :]
        wanted[name] = NewPartitions(options.partitions, added)
    (await admin.create_partitions(wanted)).raise_first()


async def _alter_settings(admin: Admin, names: Sequence[str], options: argparse.Namespace) -> None:
    """The way of releases before 3.0, with what they printed."""
    from tidemill.client.admin_types import AlterOp, ConfigResource

    # `--delete-config flush.messages=1` is in many runbooks: what follows the name never counted.
    removed = [word.partition("=")[0].strip() for word in options.delete_config]
    ops = [AlterOp.set(name, value) for name, value in split_config(options.config).items()]
    ops += [AlterOp.delete(name) for name in removed]
    err("WARNING: Altering topic configuration from this script has been deprecated.")
    err("         Going forward, please use kafka-configs.sh for this functionality")
    changes = {ConfigResource.topic(name): ops for name in names}
    (await admin.alter_configs(changes)).raise_first()
    for name in names:
        out(f"Updated config for topic {name}.")


async def _describe(admin: Admin, options: argparse.Namespace) -> None:
    from tidemill.client.admin_types import ConfigResource

    names = await _by_id(admin, options) if options.topic_id else await _existing(admin, options)
    if not names:
        return
    topics = (await admin.describe_topics(names)).raise_first()
    resources = [ConfigResource.topic(name) for name in names]
    configs = (await admin.describe_configs(resources)).raise_first()
    alive = {broker.broker_id for broker in (await admin.describe_cluster()).brokers}
    for name in names:
        entries = configs[ConfigResource.topic(name)]
        _print_topic(topics[name], entries, options)
        if not options.topics_with_overrides:
            for partition in topics[name].partitions:
                if _wanted(partition, entries, options, alive):
                    out(partition_line(name, partition))


async def _by_id(admin: Admin, options: argparse.Namespace) -> list[str]:
    for topic in await admin.list_topics(internal=True):
        if common.java_uuid(topic.topic_id) == options.topic_id:
            return [topic.name]
    if options.if_exists:
        return []
    raise ToolError(f"TopicId '{options.topic_id}' does not exist as expected")


def _print_topic(
    topic: TopicDescription, entries: Mapping[str, ConfigEntry], options: argparse.Namespace
) -> None:
    if any(getattr(options, report) for report in _REPORTS):
        return
    overrides = [f"{e.name}={e.value or ''}" for e in entries.values() if not e.is_default]
    if options.topics_with_overrides and not overrides:
        return
    topic_id = f"\tTopicId: {common.java_uuid(topic.topic_id)}" if topic.topic_id.int else ""
    out(
        f"Topic: {topic.name}{topic_id}\tPartitionCount: {len(topic.partitions)}"
        f"\tReplicationFactor: {topic.replication_factor}\tConfigs: {','.join(overrides)}"
    )


def _wanted(
    partition: PartitionDescription,
    entries: Mapping[str, ConfigEntry],
    options: argparse.Namespace,
    alive: set[int],
) -> bool:
    minimum = int(entries["min.insync.replicas"].value or 1)
    in_sync, leads = len(partition.isr), partition.leader is not None
    found = {
        "under_replicated_partitions": in_sync < len(partition.replicas),
        "unavailable_partitions": partition.leader not in alive,
        "under_min_isr_partitions": not leads or in_sync < minimum,
        "at_min_isr_partitions": in_sync == minimum,
    }
    asked = [report for report in _REPORTS if getattr(options, report)]
    return not asked or any(found[report] for report in asked)


def partition_line(topic: str, p: PartitionDescription) -> str:
    leader = "none" if p.leader is None else str(p.leader)

    def ids(values: Sequence[int] | None) -> str:
        return "N/A" if values is None else ",".join(map(str, values))

    return (
        f"\tTopic: {topic}\tPartition: {p.index}\tLeader: {leader}\tReplicas: {ids(p.replicas)}"
        f"\tIsr: {ids(p.isr)}\tElr: {ids(p.elr)}\tLastKnownElr: {ids(p.last_known_elr)}"
    )
