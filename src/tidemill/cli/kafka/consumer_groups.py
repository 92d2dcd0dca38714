"""`kafka-consumer-groups`: list, describe and delete groups, reset and delete their offsets."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tidemill.cli.group_moves import STATES, ends, readers
from tidemill.cli.kafka import common, group_resets
from tidemill.cli.kafka.common import Options, ToolError, UsageError, out
from tidemill.errors import ApiError, ErrorCode
from tidemill.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.client import Admin
    from tidemill.client.admin_groups import GroupDescription
    from tidemill.client.errors import ClientError
    from tidemill.client.group_offsets import OffsetAndMetadata

ACTIONS = ("list", "describe", "delete", "reset_offsets", "delete_offsets", "validate_regex")
NONE = "-"
TYPES = ("Consumer", "Classic")
_SEVERAL_GROUPS = "Found multiple arguments for option group, but you asked for only one"

_JAVA_ERRORS: dict[ErrorCode, tuple[str, str]] = {
    ErrorCode.GROUP_ID_NOT_FOUND: ("GroupIdNotFoundException", "The group id does not exist."),
    ErrorCode.NON_EMPTY_GROUP: ("GroupNotEmptyException", "The group is not empty."),
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: (
        "GroupSubscribedToTopicException",
        "Deleting offsets of a topic is forbidden while the consumer group is actively "
        "subscribed to it.",
    ),
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: (
        "UnknownTopicOrPartitionException",
        "This server does not host this topic-partition.",
    ),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: (
        "GroupAuthorizationException",
        "Group authorization failed.",
    ),
}


def parser() -> Options:
    p = Options(
        "kafka-consumer-groups",
        "This tool helps to list all consumer groups, describe a consumer group, delete consumer "
        "group info, or reset consumer group offsets.",
    )
    common.address_options(p, broker_list=False)
    p.flag("list", "List all groups.")
    p.flag("describe", "Describe groups: offsets and lag, members, or state.")
    p.flag("delete", "Delete groups that have no members.")
    p.flag("reset-offsets", "Move the offsets of groups that have no members.")
    p.flag("delete-offsets", "Delete a group's offsets of topics that it does not read.")
    p.value("validate-regex", "Say whether this is a regular expression that brokers take.")
    p.many("group", "The group to work on; repeatable.")
    p.flag("all-groups", "Work on all groups.")
    p.many("topic", "A topic, or with topic:0,1 partitions of it; repeatable.")
    p.flag("all-topics", "Work on all topics of the group.")
    p.flag("members", "With --describe: the members.")
    p.flag("offsets", "With --describe: offsets and lag, as without it.")
    p.add_argument("--state", nargs="?", const="", help="With --list a filter, else a report.")
    p.add_argument("--type", nargs="?", const="", help="With --list: show or filter types.")
    p.flag("verbose", "With --describe: more columns.")
    p.value("timeout", "How many ms a call may take.", type=int, default=5000)
    p.flag("dry-run", "With --reset-offsets: only show.")
    p.flag("execute", "With --reset-offsets: do it.")
    p.flag("export", "With --reset-offsets: print as CSV.")
    group_resets.add_options(p)
    return p


def main(argv: Sequence[str]) -> int:
    return common.run(argv, parser(), _work)


async def _work(options: argparse.Namespace) -> int:
    action = _check(options)
    if action == "validate_regex":
        return _validate(options.validate_regex)
    if action == "delete_offsets" and len(options.group) > 1:
        _give_up(
            _SEVERAL_GROUPS, f"joptsimple.MultipleArgumentsForOptionException: {_SEVERAL_GROUPS}"
        )
        return 0
    target = common.target(options, 'Missing required argument "[bootstrap-server]"')
    work = {
        "list": _list,
        "describe": _describe,
        "delete": _delete,
        "reset_offsets": group_resets.reset,
        "delete_offsets": _delete_offsets,
    }
    target = replace(common.for_client(target, "admin"), timeout_ms=options.timeout)
    async with target.admin() as admin:
        try:
            await work[action](admin, options)
        except ApiError as error:
            _give_up(_java_text(error), _java_trace(error))
        except (ToolError, OSError) as error:
            _give_up(str(error), f"java.lang.RuntimeException: {error}")
    return 0


def _give_up(text: str, trace: str) -> None:
    print_error(f"Executing consumer group command failed due to {text}")
    common.err(trace)


def print_error(text: str) -> None:
    """Kafka's tool complains on stdout, and its exit status is 0 all the same."""
    out(f"\nError: {text}")


def java_error(error: ClientError) -> str:
    """The exception that the Java client would have raised, as it prints."""
    name, text = _JAVA_ERRORS.get(error.code, (_camel(error.code.name) + "Exception", ""))
    return f"org.apache.kafka.common.errors.{name}: {text or error.message or ''}"


def _java_text(error: ApiError) -> str:
    name, text = _JAVA_ERRORS.get(error.code, ("", ""))
    if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return text
    if name:
        return f"org.apache.kafka.common.errors.{name}: {error.message or text}"
    return common.message_of(error)


def _java_trace(error: ApiError) -> str:
    """The first line of the trace that Kafka's tool leaves on stderr."""
    name, text = _JAVA_ERRORS.get(error.code, ("", ""))
    if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return f"org.apache.kafka.common.errors.{name}: {text}"
    return f"java.util.concurrent.ExecutionException: {_java_text(error)}"


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


# --- the command line -----------------------------------------------------------------------------


def _check(options: argparse.Namespace) -> str:
    """The one action, if nothing is given that it does not take: Kafka's checks, in their order.

    Whoever names a group, and all of them by mistake, must not see all of them deleted.
    """
    _check_available(options)
    if options.describe:
        _check_describe(options)
    if options.delete:
        _need_groups(options, "delete")
        if options.topic:
            raise UsageError(
                "The consumer does not support topic-specific offset deletion from a consumer "
                "group."
            )
    if options.delete_offsets and not (options.group and options.topic):
        raise UsageError("Option [delete-offsets] takes the following options: [group], [topic]")
    if options.reset_offsets:
        group_resets.check_manner(options)
        _need_groups(options, "reset-offsets")
        group_resets.check_scenarios(options)
    for name, others in (("group", ("all_groups", "list")), ("topic", ("list", "describe"))):
        for other in others:
            if getattr(options, name) and getattr(options, other):
                raise common.cannot_be_used_with(name, other)
    return _only_action(options)


def _check_available(options: argparse.Namespace) -> None:
    """Some options are known only beside the actions that they belong to."""
    given = {
        "members": (options.members, options.describe),
        "verbose": (options.verbose, options.describe),
        "offsets": (options.offsets, options.describe),
        "state": (options.state is not None, options.describe or options.list),
        "type": (options.type is not None, options.list),
    }
    astray = sorted(name for name, (is_given, may_be) in given.items() if is_given and not may_be)
    if astray:
        raise UsageError(
            f"Option(s) [{', '.join(astray)}] are unavailable given other options on the command "
            "line"
        )


def _only_action(options: argparse.Namespace) -> str:
    chosen = [action for action in ACTIONS if getattr(options, action)]
    if len(chosen) != 1:
        raise UsageError(
            "Command must include exactly one action: --list, --describe, --delete, "
            "--reset-offsets, --delete-offsets, --validate-regex"
        )
    return chosen[0]


def _need_groups(options: argparse.Namespace, action: str) -> None:
    if not options.group and not options.all_groups:
        raise UsageError(f"Option [{action}] takes one of these options: [group], [all-groups]")


def _check_describe(options: argparse.Namespace) -> None:
    _need_groups(options, "describe")
    shown = [options.members, options.offsets, options.state is not None]
    if sum(shown) > 1:
        raise UsageError(
            "Option [describe] takes at most one of these options: [members], [offsets], [state]"
        )
    if options.state:
        raise UsageError("Option [describe] does not take a value for [state]")


def _validate(pattern: str) -> int:
    """The exit status is 0 either way, as that of Kafka's tool."""
    from tidemill.coordinators.regex import RegexError, compile_regex

    try:
        compile_regex(pattern)
    except RegexError as error:
        out(f"The regular expression `{pattern}` is invalid: {error}.")
    else:
        out(f"The regular expression `{pattern}` is valid.")
    return 0


# --- list -----------------------------------------------------------------------------------------


async def _list(admin: Admin, options: argparse.Namespace) -> None:
    states = _filter(options.state, STATES, "state")
    types = _filter(options.type, TYPES, "types")
    found = await admin.list_groups(states, [name.lower() for name in types])
    groups = [g for g in found if g.protocol_type in ("consumer", "") or g.type == "consumer"]
    if options.state is None and options.type is None:
        for group in groups:
            out(group.group_id)
        return
    columns = [("GROUP", [g.group_id for g in groups], 25)]
    if options.type is not None:
        columns.append(("TYPE", [g.type.capitalize() for g in groups], 20))
    if options.state is not None:
        columns.append(("STATE", [g.state for g in groups], 20))
    _table(columns, blank_line=False)


def _filter(text: str | None, known: Sequence[str], what: str) -> list[str]:
    if not text:
        return []
    by_name = {name.lower(): name for name in known}
    words = [word.strip() for word in text.split(",")]
    wrong = [word for word in words if word.lower() not in by_name]
    if wrong:
        raise UsageError(
            f"Invalid {what} list '{text}'. Valid {what.removesuffix('s')}s are: "
            f"{', '.join(known)}",
            with_options=False,
        )
    return [by_name[word.lower()] for word in words]


def _table(
    columns: Sequence[tuple[str, Sequence[str], int]], *, blank_line: bool = True, last: bool = True
) -> None:
    """Left-aligned columns of at least so many characters, or if negative of exactly so many;
    `last` pads the last one, too."""
    widths = [
        -least if least < 0 else max([least, *(len(cell) for cell in cells)])
        for _, cells, least in columns
    ]
    widths[-1] = widths[-1] if last else 0
    heads = [head for head, _, _ in columns]
    if blank_line:
        out()
    for row in [heads, *zip(*(cells for _, cells, _ in columns), strict=True)]:
        out(" ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))


# --- describe -------------------------------------------------------------------------------------


async def _groups(admin: Admin, options: argparse.Namespace) -> list[str]:
    if not options.all_groups:
        return list(dict.fromkeys(options.group))
    found = await admin.list_groups()
    return [g.group_id for g in found if g.protocol_type in ("consumer", "")]


async def _describe(admin: Admin, options: argparse.Namespace) -> None:
    names = sorted(await _groups(admin, options))
    described = (await admin.describe_groups(names)).raise_first()
    for name in names:
        group = described[name]
        _remark(group)
        if options.members:
            _print_members(group, verbose=options.verbose)
        elif options.state is not None:
            _print_state(group, verbose=options.verbose)
        else:
            await _print_offsets(admin, group, verbose=options.verbose)


def _remark(group: GroupDescription) -> None:
    if group.state == "Empty":
        common.err(f"\nConsumer group '{group.group_id}' has no active members.")
    elif group.state in ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"):
        common.err(f"\nWarning: Consumer group '{group.group_id}' is rebalancing.")


async def _print_offsets(admin: Admin, group: GroupDescription, *, verbose: bool) -> None:
    found = (await admin.list_group_offsets(group.group_id)).successes()
    committed = {tp: at for tp, at in found.items() if at is not None}
    reading = readers(group)
    wanted = sorted({*committed, *reading})
    last = await ends(admin, wanted)
    rows = [_offset_row(group, tp, committed.get(tp), last.get(tp)) for tp in wanted]
    rows += [
        [group.group_id, *[NONE] * 6, m.member_id, m.host, m.client_id]
        for m in group.members
        if not m.assignment
    ]
    heads = [("GROUP", 15), ("TOPIC", 15), ("PARTITION", 10), ("LEADER-EPOCH", 15),
             ("CURRENT-OFFSET", 15), ("LOG-END-OFFSET", 15), ("LAG", 15), ("CONSUMER-ID", 15),
             ("HOST", 15), ("CLIENT-ID", 0)]  # fmt: skip
    kept = [i for i, (head, _) in enumerate(heads) if verbose or head != "LEADER-EPOCH"]
    columns = [(heads[i][0], [row[i] for row in rows], heads[i][1]) for i in kept]
    _table(columns, last=False)


def _offset_row(
    group: GroupDescription,
    tp: TopicPartition,
    committed: OffsetAndMetadata | None,
    end: int | None,
) -> list[str]:
    reader = readers(group).get(tp)
    lag = None if committed is None or end is None else end - committed.offset
    epoch = committed.leader_epoch if committed is not None else -1
    cells: list[object] = [
        group.group_id,
        tp.topic,
        tp.partition,
        epoch if epoch >= 0 else None,
        committed.offset if committed is not None else None,
        end,
        lag,
        reader.member_id if reader else None,
        reader.host if reader else None,
        reader.client_id if reader else None,
    ]
    return [NONE if cell is None else str(cell) for cell in cells]


def _print_members(group: GroupDescription, *, verbose: bool) -> None:
    found = sorted(group.members, key=lambda m: m.member_id)
    columns = [
        ("GROUP", [group.group_id for _ in found], 15),
        ("CONSUMER-ID", [m.member_id for m in found], 15),
    ]
    if any(m.instance_id for m in found):
        columns.append(("GROUP-INSTANCE-ID", [m.instance_id or "" for m in found], 17))
    columns += [
        ("HOST", [m.host for m in found], 15),
        ("CLIENT-ID", [m.client_id for m in found], 15),
        ("#PARTITIONS", [str(len(m.assignment)) for m in found], 15),
    ]
    if verbose:
        newer = group.type == "consumer"
        target = str(group.target_epoch) if newer else NONE
        columns += [
            ("CURRENT-EPOCH", [str(m.epoch) if newer else NONE for m in found], 15),
            ("CURRENT-ASSIGNMENT", [_by_topic(m.assignment) for m in found], 20),
            ("TARGET-EPOCH", [target for _ in found], 15),
            ("TARGET-ASSIGNMENT", [_by_topic(m.target or ()) for m in found], 20),
        ]
    else:
        columns.append(("", ["" for _ in found], 0))
    _table(columns)


def _by_topic(partitions: Sequence[TopicPartition] | frozenset[TopicPartition]) -> str:
    """`clicks:0,1;orders:2`."""
    topics: dict[str, list[str]] = {}
    for tp in sorted(partitions):
        topics.setdefault(tp.topic, []).append(str(tp.partition))
    return ";".join(f"{name}:{','.join(found)}" for name, found in topics.items()) or NONE


def _print_state(group: GroupDescription, *, verbose: bool) -> None:
    where = f"{group.coordinator}  ({group.coordinator_id})"
    columns = [
        ("GROUP", [group.group_id], 15),
        ("COORDINATOR (ID)", [where], 25),
        ("ASSIGNMENT-STRATEGY", [group.assignor or NONE], 20),
        ("STATE", [group.state], 20),
    ]
    if verbose:
        epochs = (group.epoch, group.target_epoch)
        shown = [NONE if epoch is None else str(epoch) for epoch in epochs]
        columns += [("GROUP-EPOCH", shown[:1], 15), ("TARGET-ASSIGNMENT-EPOCH", shown[1:], 25)]
    columns.append(("#MEMBERS", [str(len(group.members))], 0))
    _table(columns, last=False)


# --- delete ---------------------------------------------------------------------------------------


async def _delete(admin: Admin, options: argparse.Namespace) -> None:
    results = await admin.delete_groups(await _groups(admin, options))
    failed, done = results.errors(), list(results.successes())
    named = ", ".join(f"'{name}'" for name in done)
    if not failed:
        out(f"Deletion of requested consumer groups ({named}) was successful.")
        return
    print_error("Deletion of some consumer groups failed:")
    for name, error in failed.items():
        out(f"* Group '{name}' could not be deleted due to: {java_error(error)}")
    if done:
        out(f"\nThese consumer groups were deleted successfully: {named}")


async def _delete_offsets(admin: Admin, options: argparse.Namespace) -> None:
    from tidemill.client.errors import ClientError

    (group,) = options.group
    wanted = await group_resets.named_partitions(admin, options.topic)
    statuses: dict[TopicPartition, ClientError | None]
    try:
        statuses = dict(await admin.delete_group_offsets(group, wanted))
    except ClientError as error:
        _, text = _JAVA_ERRORS.get(error.code, ("", common.message_of(error)))
        print_error(text)
        statuses = dict.fromkeys(wanted, error)
    else:
        if any(statuses.values()):
            print_error("Encountered some partition-level error, see the follow-up details.")
        else:
            out(f"Request succeeded for deleting offsets from group {group}.")
    rows = sorted(statuses.items())
    _table(
        [
            ("TOPIC", [tp.topic for tp, _ in rows], 15),
            ("PARTITION", [str(tp.partition) for tp, _ in rows], 10),
            ("STATUS", [f"Error: {java_error(e)}" if e else "Successful" for _, e in rows], -15),
        ]
    )
