"""A log directory with all that belongs to it: lock, flusher, checkpoints, identity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

from tidemill.errors import TidemillError
from tidemill.storage import checkpoint
from tidemill.storage.checkpoint import DirIdentity
from tidemill.storage.checkpoint_writer import CheckpointWriter
from tidemill.storage.disk_errors import DiskError
from tidemill.storage.files import FileLock, Files
from tidemill.storage.flusher import Flusher
from tidemill.storage.log_dir import LogDir
from tidemill.types import TopicPartition

DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
"""Kafka's endings for directories of deleted partitions, and of those that nobody knows."""
FUTURE_SUFFIX = "-future"
"""Kafka's ending for a copy under way, which is to replace the log in another directory."""
MOVED_SUFFIX = "-moved"
"""A copy that is complete: it is the log if there is no other."""


class DirInUseError(TidemillError):
    """Another process has locked the log directory, or it belongs to another broker."""


@dataclass(frozen=True, slots=True)
class DirDescription:
    """What DescribeLogDirs tells about one directory."""

    path: str
    error: DiskError | None
    total_bytes: int
    usable_bytes: int
    log_sizes: Mapping[TopicPartition, int]


@dataclass(slots=True)
class Place:
    """A log directory with what belongs to it alone."""

    dir: LogDir
    flusher: Flusher
    lock: FileLock | None = None
    checkpoints: CheckpointWriter | None = None
    log_count: int = 0
    recovery_points: dict[TopicPartition, int] = field(default_factory=dict)
    log_starts: dict[TopicPartition, int] = field(default_factory=dict)
    copies: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    """Where complete copies begin and end that are to be the log here: noted as if they were."""
    cleaned: dict[TopicPartition, int] = field(default_factory=dict)
    """Where the last compaction of each partition ended; a file of its own, so a writer, too."""
    cleaner_checkpoint: CheckpointWriter | None = None


def check_identity(
    files: Files, random: Random, place: Place, cluster_id: str, node_id: int
) -> None:
    """Refuse a directory of another cluster or node; a new one is given its identity."""
    path = place.dir.path
    identity = checkpoint.read_identity(files, path)
    if identity is None:
        directory_id = UUID(int=random.getrandbits(128), version=4)
        identity = DirIdentity(cluster_id, node_id, directory_id)
        checkpoint.write_identity(files, path, identity)
    if cluster_id and identity.cluster_id != cluster_id:
        raise DirInUseError(
            f"{path} belongs to cluster {identity.cluster_id}, this broker to "
            f"{cluster_id}; use another log directory, or the right cluster"
        )
    if identity.node_id != node_id:
        raise DirInUseError(f"{path} belongs to node {identity.node_id}, this broker is {node_id}")
    place.dir.directory_id = identity.directory_id


def parse_directory_name(name: str) -> TopicPartition | None:
    """The partition whose log a directory of this name holds; None for anything else."""
    topic, dash, number = name.rpartition("-")
    if not dash or not topic or not number.isdigit() or name == "__cluster_metadata-0":
        return None
    return TopicPartition(topic, int(number))
