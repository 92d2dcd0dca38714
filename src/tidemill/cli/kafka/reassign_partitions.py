"""`kafka-reassign-partitions`: plan moves of replicas, begin, verify, cancel and list them.

`--generate` proposes the assignment that moves least (`controller/rebalance.py`), where Kafka's
draws a new one; everything else is said and done in Kafka's words.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tidemill.cli import moves
from tidemill.cli.kafka import common
from tidemill.cli.kafka.common import Options, ToolError, UsageError, out
from tidemill.cli.kafka.replica_moves import (
    begin_moves,
    cancel_moves,
    directories_of,
    print_move_states,
)
from tidemill.cli.moves import Assignment, Document, DocumentError, State
from tidemill.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.client import Admin
    from tidemill.client.admin_types import Reassignment

ACTIONS = ("generate", "execute", "verify", "cancel", "list")
REQUIRED: Mapping[str, tuple[str, ...]] = {
    "verify": ("reassignment-json-file",),
    "generate": ("topics-to-move-json-file", "broker-list"),
    "execute": ("reassignment-json-file",),
    "cancel": ("reassignment-json-file",),
    "list": (),
}
PERMITTED: Mapping[str, tuple[str, ...]] = {
    "verify": ("preserve-throttles",),
    "generate": ("disable-rack-aware",),
    "execute": (
        "additional",
        "throttle",
        "replica-alter-log-dirs-throttle",
        "timeout",
        "disallow-replication-factor-change",
    ),
    "cancel": ("bootstrap-controller", "preserve-throttles", "timeout"),
    "list": ("bootstrap-controller",),
}
EXISTING = (
    "Cannot execute because there is an existing partition assignment.  Use --additional to "
    "override this and create a new partition assignment in addition to the existing one. The "
    "--additional flag can also be used to change the throttle by resubmitting the current "
    "reassignment."
)
RUN_VERIFY = (
    "Warning: You must run --verify periodically, until the reassignment completes, to ensure the "
    "throttle is removed."
)
TOO_FEW_BROKERS = (
    "The target replication factor of %d cannot be reached because only %d broker(s) are "
    "registered or some brokers have all their log directories cordoned."
)
NO_RACKS = (
    "Not all brokers have rack information. Add --disable-rack-aware in command line to make "
    "replica assignment without rack information."
)


def parser() -> Options:
    p = Options(
        "kafka-reassign-partitions", "This tool helps to move topic partitions between replicas."
    )
    common.address_options(p, broker_list=False)
    p.value("bootstrap-controller", "Old and new name alike: any broker finds the controller.")
    p.flag("verify", "Say how far the moves of --reassignment-json-file are.")
    p.flag("generate", "Propose where the topics could go; nothing is done.")
    p.flag("execute", "Begin the moves of --reassignment-json-file.")
    p.flag("cancel", "Take moves back that are under way.")
    p.flag("list", "Show all moves that are under way.")
    p.value("reassignment-json-file", "Where partitions shall be, as --generate prints it.")
    p.value("topics-to-move-json-file", '{"topics":[{"topic":"foo"}],"version":1}')
    p.value("broker-list", "With --generate: the brokers that may have them, as 0,1,2.")
    p.flag("disable-rack-aware", "With --generate: do not look at racks.")
    p.value("throttle", "With --execute: bytes per second between brokers.", type=int)
    p.value(
        "replica-alter-log-dirs-throttle",
        "With --execute: bytes per second between directories of a broker.",
        type=int,
    )
    p.value("timeout", "How long moves between directories may take to begin, in ms.", type=int)
    p.flag("additional", "With --execute: though other moves are under way; changes throttles.")
    p.flag("preserve-throttles", "Leave throttles as they are.")
    p.flag("disallow-replication-factor-change", "With --execute: refuse more or fewer replicas.")
    return p


def main(argv: Sequence[str]) -> int:
    return common.run(argv, parser(), _work, on_failure=lambda text: out(f"Error: {text}"))


async def _work(options: argparse.Namespace) -> int:
    action = _check(options)
    options.bootstrap_server = options.bootstrap_server or options.bootstrap_controller
    target = common.target(
        options, "Please specify either --bootstrap-server or --bootstrap-controller"
    )
    _check_arguments(options, action)
    work = {
        "verify": _verify,
        "generate": _generate,
        "execute": _execute,
        "cancel": _cancel,
        "list": _list,
    }
    try:
        async with common.for_client(target, "admin").admin() as admin:
            await work[action](admin, options)
    except ToolError as error:
        out(str(error))
        return 1
    except DocumentError as error:
        out(f"Error: {error}")
        return 1
    return 0


def _check(options: argparse.Namespace) -> str:
    chosen = [action for action in ACTIONS if getattr(options, action)]
    if len(chosen) != 1:
        listed = ", ".join(f"--{action}" for action in ACTIONS)
        raise UsageError(f"Command must include exactly one action: {listed}")
    if options.bootstrap_server and options.bootstrap_controller:
        raise UsageError("Please don't specify both --bootstrap-server and --bootstrap-controller")
    return chosen[0]


def _check_arguments(options: argparse.Namespace, action: str) -> None:
    for name in REQUIRED[action]:
        if not _given(options, name):
            raise UsageError(f'Missing required argument "[{name}]"')
    allowed = {*REQUIRED[action], *PERMITTED[action]}
    known = {name for table in (REQUIRED, PERMITTED) for names in table.values() for name in names}
    for name in sorted(known - allowed):
        if _given(options, name):
            raise UsageError(f'Option "[{name}]" can\'t be used with action "[{action}]"')


def _given(options: argparse.Namespace, name: str) -> bool:
    return getattr(options, name.replace("-", "_")) not in (None, False)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        raise DocumentError(f"Unable to read file {path}") from None


def _unknown(what: str) -> str:
    return f"Error: org.apache.kafka.common.errors.UnknownTopicOrPartitionException: {what}"


def _listed(partitions: Sequence[TopicPartition]) -> str:
    return ",".join(map(str, sorted(partitions)))


def _s(count: int) -> str:
    return "" if count == 1 else "s"


# --- generate -------------------------------------------------------------------------------------


async def _generate(admin: Admin, options: argparse.Namespace) -> None:
    from tidemill.controller.rebalance import plan_rebalance

    ids, topics = _generate_arguments(options)
    described = await admin.describe_topics(topics)
    for name in sorted(described.errors()):
        raise ToolError(_unknown(f"Topic {name} not found."))
    current = moves.assignment_of(described.successes().values())
    cluster = await admin.describe_cluster()
    brokers = {b.broker_id: b.rack for b in cluster.brokers if b.broker_id in ids}
    rack_aware = not options.disable_rack_aware
    if rack_aware and 0 < sum(rack is not None for rack in brokers.values()) < len(brokers):
        raise ToolError(f"Error: {NO_RACKS}")
    factor = max(map(len, current.values()), default=0)
    if factor > len(brokers):
        raise ToolError(f"Error: {TOO_FEW_BROKERS % (factor, len(brokers))}")
    sizes = moves.largest(await moves.sizes(admin))
    plan = plan_rebalance(current, brokers, sizes_bytes=sizes, rack_aware=rack_aware)
    now = moves.to_document(current, await directories_of(admin, current))
    out(f"Current partition replica assignment\n{now}\n")
    out(f"Proposed partition reassignment configuration\n{moves.to_document(plan.assignment)}")


def _generate_arguments(options: argparse.Namespace) -> tuple[set[int], list[str]]:
    words = options.broker_list.split(",")
    try:
        ids = [int(word) for word in words]
    except ValueError:
        wrong = next(word for word in words if not word.strip().lstrip("-").isdigit())
        raise ToolError(f'Error: For input string: "{wrong}"') from None
    if twice := moves.doubles(ids):
        listed = ", ".join(map(str, twice))
        raise ToolError(f"Error: Broker list contains duplicate entries: [{listed}]")
    topics = moves.parse_topics(_read(options.topics_to_move_json_file))
    if again := moves.doubles(topics):
        listed = ", ".join(again)
        raise ToolError(f"Error: List of topics to reassign contains duplicate entries: [{listed}]")
    return set(ids), topics


# --- execute --------------------------------------------------------------------------------------


async def _execute(admin: Admin, options: argparse.Namespace) -> None:
    document = moves.parse(_read(options.reassignment_json_file))
    moves.check_executable(document)
    ongoing = await admin.list_partition_reassignments()
    if ongoing and not options.additional:
        raise ToolError(EXISTING)
    proposed = document.assignment
    await _check_brokers(admin, proposed)
    current = await _current(admin, proposed)
    now = moves.to_document(current, await directories_of(admin, current))
    out(
        f"Current partition replica assignment\n\n{now}\n\n"
        "Save this to use as the --reassignment-json-file option during rollback"
    )
    await _throttle(admin, options, document, ongoing, current)
    results = await admin.alter_partition_reassignments(
        proposed,
        allow_replication_factor_change=not options.disallow_replication_factor_change,
    )
    if failed := results.errors():
        lines = [f"{tp}: {common.message_of(failed[tp])}" for tp in sorted(failed)]
        raise ToolError("\n".join(["Error reassigning partition(s):", *lines]))
    out(
        f"Successfully started partition reassignment{_s(len(proposed))} for "
        f"{_listed(list(proposed))}"
    )
    if document.directories:
        await begin_moves(admin, document.directories, _timeout_s(options))


async def _check_brokers(admin: Admin, proposed: Assignment) -> None:
    known = {broker.broker_id for broker in (await admin.describe_cluster()).brokers}
    wanted = sorted({broker for replicas in proposed.values() for broker in replicas})
    for broker in wanted:
        if broker not in known:
            raise ToolError(f"Error: Unknown broker id {broker}")


async def _current(admin: Admin, proposed: Assignment) -> dict[TopicPartition, tuple[int, ...]]:
    described = await admin.describe_topics(sorted({tp.topic for tp in proposed}))
    for name in sorted(described.errors()):
        raise ToolError(_unknown(f"Topic {name} not found."))
    everything = moves.assignment_of(described.successes().values())
    for tp in sorted(proposed):
        if tp not in everything:
            raise ToolError(_unknown(f"Unable to find partition: {tp}"))
    return {tp: everything[tp] for tp in proposed}


async def _throttle(
    admin: Admin,
    options: argparse.Namespace,
    document: Document,
    ongoing: Mapping[TopicPartition, Reassignment],
    current: Assignment,
) -> None:
    between_brokers = _rate(options.throttle)
    between_directories = _rate(options.replica_alter_log_dirs_throttle)
    if between_brokers is not None or between_directories is not None:
        out(RUN_VERIFY)
    if between_brokers is not None:
        throttle = moves.throttle_of(ongoing, current, document.assignment)
        await moves.set_throttle(admin, throttle, between_brokers)
        out(f"The inter-broker throttle limit was set to {between_brokers} B/s")
    if between_directories is not None:
        brokers = sorted({replica.broker_id for replica in document.directories})
        await moves.set_directory_throttle(admin, brokers, between_directories)
        out(f"The replica-alter-dir throttle limit was set to {between_directories} B/s")


def _rate(given: int | None) -> int | None:
    return given if given is not None and given >= 0 else None


def _timeout_s(options: argparse.Namespace) -> float:
    return (10_000 if options.timeout is None else options.timeout) / 1000


# --- verify ---------------------------------------------------------------------------------------


async def _verify(admin: Admin, options: argparse.Namespace) -> None:
    document = moves.parse(_read(options.reassignment_json_file))
    ongoing = await admin.list_partition_reassignments()
    out("Status of partition reassignment:")
    for tp, state in (await moves.states(admin, document, ongoing)).items():
        out(_in_words(tp, state))
    moving = await print_move_states(admin, document.directories)
    if not ongoing and not moving and not options.preserve_throttles:
        await _clear_throttles(admin, document)


def _in_words(tp: TopicPartition, state: State) -> str:
    if not state.done:
        return f"Reassignment of partition {tp} is still in progress."
    if state.reached:
        return f"Reassignment of partition {tp} is completed."
    current, target = (",".join(map(str, each)) for each in (state.current, state.target))
    return (
        f"There is no active reassignment of partition {tp}, but replica set is {current} "
        f"rather than {target}."
    )


async def _clear_throttles(admin: Admin, document: Document) -> None:
    brokers = [broker.broker_id for broker in (await admin.describe_cluster()).brokers]
    topics = document.topics
    listed = ",".join(map(str, brokers))
    out(f"Clearing broker-level throttles on broker{_s(len(brokers))} {listed}")
    out(f"Clearing topic-level throttles on topic{_s(len(topics))} {','.join(topics)}")
    await moves.clear_throttles(admin, brokers, topics)


# --- cancel and list ------------------------------------------------------------------------------


async def _cancel(admin: Admin, options: argparse.Namespace) -> None:
    document = moves.parse(_read(options.reassignment_json_file))
    targets = list(document.assignment)
    ongoing = await admin.list_partition_reassignments(targets) if targets else {}
    if ongoing:
        results = await admin.alter_partition_reassignments(dict.fromkeys(ongoing))
        if failed := results.errors():
            lines = [f"{tp}: {common.message_of(failed[tp])}" for tp in sorted(failed)]
            title = f"Error cancelling partition reassignment{_s(len(failed))} for:"
            raise ToolError("\n".join([title, *lines]))
        out(
            f"Successfully cancelled partition reassignment{_s(len(ongoing))} for: "
            f"{_listed(list(ongoing))}"
        )
    else:
        out("None of the specified partition reassignments are active.")
    async with asyncio.timeout(_timeout_s(options)):
        await cancel_moves(admin, document.directories)
    if not options.preserve_throttles:
        await _clear_throttles(admin, document)


async def _list(admin: Admin, options: argparse.Namespace) -> None:
    ongoing = await admin.list_partition_reassignments()
    if not ongoing:
        out("No partition reassignments found.")
        return
    out("Current partition reassignments:")
    for tp in sorted(ongoing):
        out(_describe(tp, ongoing[tp]))


def _describe(tp: TopicPartition, move: Reassignment) -> str:
    replicas, adding, removing = (
        ",".join(map(str, each)) for each in (move.replicas, move.adding, move.removing)
    )
    return (
        f"{tp}: replicas: {replicas}."
        + (f" adding: {adding}." if adding else "")
        + (f" removing: {removing}." if removing else "")
    )
