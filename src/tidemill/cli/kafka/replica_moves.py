"""Moves of replicas between the directories of their brokers, in `kafka-reassign-partitions`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.cli.kafka.common import ToolError, out
from tidemill.cli.moves import Assignment
from tidemill.errors import ErrorCode
from tidemill.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.client import Admin
    from tidemill.client.admin_types import LogDirDescription, Replica

Directories = Mapping["Replica", str]
RETRY_S = 0.1


@dataclass(frozen=True, slots=True)
class Place:
    """Where a replica is, and where it is on its way to."""

    current: str | None
    future: str | None


async def begin_moves(admin: Admin, directories: Directories, timeout_s: float) -> None:
    """Ask until every broker has the replica that it is to move; it may only just be on its way."""
    pending = dict(directories)
    deadline = time.monotonic() + timeout_s
    while pending:
        pending = await _ask(admin, pending)
        if pending and time.monotonic() > deadline:
            listed = ",".join(map(str, sorted(pending)))
            plural = "" if len(pending) == 1 else "s"
            raise ToolError(
                f"Timed out before log directory move{plural} could be started for: {listed}"
            )
        await asyncio.sleep(RETRY_S if pending else 0)


async def _ask(admin: Admin, pending: dict[Replica, str]) -> dict[Replica, str]:
    """Those that have to be asked for again."""
    results = await admin.alter_replica_log_dirs(pending)
    failed = results.errors()
    for replica, error in failed.items():
        if error.code is not ErrorCode.REPLICA_NOT_AVAILABLE:
            raise ToolError(f"Error: Failed to alter dir for {replica}")
    for replica in results.successes():
        out(
            f"Successfully started moving log directory to {pending[replica]} for replica "
            f"{replica.topic}-{replica.partition} with broker {replica.broker_id} "
        )
    return {replica: pending[replica] for replica in failed}


async def print_move_states(admin: Admin, directories: Directories) -> bool:
    """Say how far each one is; whether any is still moving."""
    places = await _places(admin, directories)
    lines = [_in_words(replica, directories[replica], places) for replica in sorted(directories)]
    out("\n".join(lines))
    return any(
        place.future is not None for replica, place in places.items() if replica in directories
    )


async def cancel_moves(admin: Admin, directories: Directories) -> None:
    """A move is taken back by asking for the directory where the replica is."""
    places = await _places(admin, directories)
    back = {
        replica: place.current
        for replica, place in places.items()
        if replica in directories and place.future is not None and place.current is not None
    }
    if not back:
        out("None of the specified partition moves are active.", end="")  # as Kafka has it
        return
    await _ask(admin, back)


async def directories_of(admin: Admin, current: Assignment) -> dict[Replica, str]:
    """Where each replica lies; nothing where brokers could not be asked to put it back there."""
    from tidemill.client.admin_types import Replica
    from tidemill.wire.apis import ApiKey

    offered = {each.api_key for each in (await admin.api_versions()).apis}
    if ApiKey.ALTER_REPLICA_LOG_DIRS not in offered:
        return {}
    wanted = {Replica(*tp, broker): "" for tp, brokers in current.items() for broker in brokers}
    places = await _places(admin, wanted)
    return {
        replica: place.current
        for replica, place in places.items()
        if replica in wanted and place.current is not None
    }


async def _places(admin: Admin, directories: Directories) -> dict[Replica, Place]:
    brokers = sorted({replica.broker_id for replica in directories})
    if not brokers:
        return {}
    found = (await admin.describe_log_dirs(brokers)).successes()
    return {
        replica: place
        for broker, paths in found.items()
        for replica, place in _of_broker(broker, paths).items()
    }


def _of_broker(broker: int, paths: Mapping[str, LogDirDescription]) -> dict[Replica, Place]:
    from tidemill.client.admin_types import Replica

    places: dict[Replica, Place] = {}
    for path, directory in paths.items():
        for tp, info in directory.replicas.items():
            replica = Replica(*tp, broker)
            known = places.get(replica, Place(None, None))
            places[replica] = (
                Place(known.current, path) if info.is_future else Place(path, known.future)
            )
    return places


def _in_words(replica: Replica, target: str, places: Mapping[Replica, Place]) -> str:
    partition = TopicPartition(replica.topic, replica.partition)
    place = places.get(replica)
    if place is None:
        return (
            f"Partition {partition} is not found in any live log dir on broker "
            f"{replica.broker_id}. There is likely an offline log directory on the broker."
        )
    if place.future == target:
        return f"Reassignment of replica {replica} is still in progress."
    if place.future is not None:
        return (
            f"Partition {partition} on broker {replica.broker_id} is being moved to log dir "
            f"{place.future} instead of {target}."
        )
    if place.current == target:
        return f"Reassignment of replica {replica} completed successfully."
    return (
        f"Partition {partition} on broker {replica.broker_id} is not being moved from log dir "
        f"{place.current} to {target}."
    )
