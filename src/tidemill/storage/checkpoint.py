"""The small text files around the logs, in Kafka's formats.

Per log directory: `recovery-point-offset-checkpoint`, `log-start-offset-checkpoint`,
`replication-offset-checkpoint` (the high watermarks) and `cleaner-offset-checkpoint` (where the
last compaction ended), all `version 0`, a count, then one line `topic partition offset` each;
`meta.properties`, `.kafka_cleanshutdown`. Per partition: `partition.metadata` and
`leader-epoch-checkpoint` (lines `epoch start-offset`). Each is replaced atomically; a checkpoint
that does not parse counts as lost, which costs time, never data (rule B7).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from tidemill.errors import TidemillError
from tidemill.storage.files import Files, read_if_there, replace_file
from tidemill.types import TopicId, TopicPartition

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
META_PROPERTIES = "meta.properties"
PARTITION_METADATA = "partition.metadata"
LEADER_EPOCHS = "leader-epoch-checkpoint"
LOCK_FILE = ".lock"

_VERSION = "0"


class BadCheckpointError(TidemillError):
    """A file of this module that does not say what it should."""


def format_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    lines = [_VERSION, str(len(offsets))]
    lines += [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    return ("\n".join(lines) + "\n").encode()


def parse_offsets(data: bytes) -> dict[TopicPartition, int]:
    """The offsets by partition; raises `BadCheckpointError` when a line or the count is wrong."""
    offsets: dict[TopicPartition, int] = {}
    for line in _body_lines(data):
        parts = line.split()
        if len(parts) != 3:
            raise BadCheckpointError(f"bad line in an offset checkpoint: {line!r}")
        topic, partition, offset = parts
        offsets[TopicPartition(topic, _number(partition))] = _number(offset)
    return offsets


def read_offsets(files: Files, directory: str, name: str) -> dict[TopicPartition, int]:
    """The checkpoint's offsets; empty when the file is missing or damaged."""
    path = f"{directory}/{name}"
    if not files.exists(path):
        return {}
    try:
        return parse_offsets(files.read_file(path))
    except BadCheckpointError:
        return {}


def format_epochs(entries: Iterable[tuple[int, int]]) -> bytes:
    rows = [f"{epoch} {start}" for epoch, start in entries]
    return ("\n".join([_VERSION, str(len(rows)), *rows]) + "\n").encode()


def parse_epochs(data: bytes) -> list[tuple[int, int]]:
    entries: list[tuple[int, int]] = []
    for line in _body_lines(data):
        parts = line.split()
        if len(parts) != 2:
            raise BadCheckpointError(f"bad line in a leader-epoch checkpoint: {line!r}")
        entries.append((_number(parts[0]), _number(parts[1])))
    return entries


def _body_lines(data: bytes) -> list[str]:
    lines = data.decode("utf-8", "replace").splitlines()
    if len(lines) < 2 or lines[0] != _VERSION:
        raise BadCheckpointError("a checkpoint starts with its version, 0, and a count")
    body = lines[2:]
    if len(body) != _number(lines[1]):
        raise BadCheckpointError(f"a checkpoint of {lines[1]} lines has {len(body)}")
    return body


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise BadCheckpointError(f"not a number in a checkpoint: {text!r}") from None


def uuid_text(identity: UUID) -> str:
    """Kafka's spelling of ids: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(identity.bytes).decode().rstrip("=")


def parse_uuid(text: str) -> UUID:
    try:
        return UUID(bytes=base64.urlsafe_b64decode(text + "=="))
    except ValueError:
        raise BadCheckpointError(f"not an id: {text!r}") from None


def format_partition_metadata(topic_id: TopicId) -> bytes:
    return f"version: 0\ntopic_id: {uuid_text(topic_id)}".encode()


def write_partition_metadata(files: Files, directory: str, topic_id: TopicId) -> None:
    replace_file(files, directory, PARTITION_METADATA, format_partition_metadata(topic_id))


def read_partition_metadata(files: Files, directory: str) -> TopicId | None:
    """The topic id that the directory belongs to; None when it does not say."""
    path = f"{directory}/{PARTITION_METADATA}"
    data = read_if_there(files, path)
    for line in (data or b"").decode("utf-8", "replace").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "topic_id":
            try:
                return parse_uuid(value.strip())
            except BadCheckpointError:
                return None
    return None


@dataclass(frozen=True, slots=True)
class DirIdentity:
    """Whose log directory this is."""

    cluster_id: str
    node_id: int
    directory_id: UUID


def write_identity(files: Files, directory: str, identity: DirIdentity) -> None:
    lines = (
        "#",
        f"node.id={identity.node_id}",
        f"directory.id={uuid_text(identity.directory_id)}",
        "version=1",
        f"cluster.id={identity.cluster_id}",
    )
    replace_file(files, directory, META_PROPERTIES, ("\n".join(lines) + "\n").encode())


def read_identity(files: Files, directory: str) -> DirIdentity | None:
    """The identity in `meta.properties`; None when the directory is new."""
    path = f"{directory}/{META_PROPERTIES}"
    if not files.exists(path):
        return None
    values: dict[str, str] = {}
    for line in files.read_file(path).decode("utf-8", "replace").splitlines():
        if line.strip() and not line.startswith(("#", "!")):
            key, _, value = line.partition("=")
            values[key.strip()] = value.strip()
    return _identity_of(path, values)


def _identity_of(path: str, values: Mapping[str, str]) -> DirIdentity:
    try:
        node_id = int(values["node.id"] if "node.id" in values else values["broker.id"])
        cluster_id = values["cluster.id"]
    except (KeyError, ValueError):
        raise BadCheckpointError(
            f"{path} lacks node.id or cluster.id; restore it, or start with an empty directory"
        ) from None
    directory_id = values.get("directory.id")
    return DirIdentity(
        cluster_id, node_id, parse_uuid(directory_id) if directory_id else UUID(int=0)
    )


def write_clean_shutdown(files: Files, directory: str, broker_epoch: int) -> None:
    data = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    replace_file(files, directory, CLEAN_SHUTDOWN, data.encode())


def take_clean_shutdown(files: Files, directory: str) -> int | None:
    """Remove the marker, durably, and return its broker epoch (-1 if unreadable); None without.

    It goes first thing at start: a crash while loading must not look like a clean stop (rule E3).
    """
    path = f"{directory}/{CLEAN_SHUTDOWN}"
    if not files.exists(path):
        return None
    data = files.read_file(path)
    files.unlink(path)
    files.fsync_dir(directory)
    try:
        return int(json.loads(data)["brokerEpoch"])
    except (ValueError, KeyError, TypeError):
        return -1
