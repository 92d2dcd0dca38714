"""Whose data directories are: asked before anything is opened in them.

A directory that a Kafka, or `kafka-storage.sh`, prepared says in `meta.properties` to which cluster
and which node it belongs. A broker that comes up in it without a store of its own joins that
cluster instead of inventing one; another node's directory is refused while it is still untouched.
Partitions in it that this cluster knows nothing of are kept as they are, and named in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress

from tidemill.image import ClusterImage
from tidemill.storage.checkpoint import read_identity, uuid_text
from tidemill.storage.disk_errors import DiskError
from tidemill.storage.files import Files, make_dir
from tidemill.storage.log import Log
from tidemill.storage.manager import DirInUseError

log = logging.getLogger(__name__)

_NAMED_MAX = 10


NO_NODE = -1
"""The number of a node that has none yet."""


def make_directories(files: Files, directories: Sequence[str]) -> None:
    """Make those that are missing, so that a power cut does not take them away again (rule E5).

    The store is in the first. Another one that cannot be used is an offline log directory.
    """
    try:
        make_dir(files, directories[0])
        files.mkdir(directories[0])  # A file in its place is refused here.
    except DiskError as error:
        raise error.__cause__ or error from None
    for directory in directories[1:]:
        with suppress(DiskError):
            make_dir(files, directory)


def owner_of(files: Files, directories: Iterable[str], node_id: int) -> tuple[str, int]:
    """The ids of the cluster and of the node that the directories belong to.

    When they are all new, the cluster's is empty and the node's is `node_id`, which may be
    `NO_NODE`: one that is still to be given out.
    """
    cluster_id, found_in = "", ""
    for directory in directories:
        try:
            identity = read_identity(files, directory)
        except DiskError:
            continue  # A directory that cannot be read is offline; others may serve.
        if identity is None:
            continue
        if node_id >= 0 and identity.node_id != node_id:
            raise DirInUseError(
                f"{directory} belongs to node {identity.node_id}, this broker is {node_id}; "
                f"set node.id={identity.node_id}, or use another log directory"
            )
        if cluster_id and identity.cluster_id != cluster_id:
            raise DirInUseError(
                f"{found_in} belongs to cluster {cluster_id} and {directory} to "
                f"{identity.cluster_id}; one broker cannot serve both"
            )
        cluster_id, node_id, found_in = identity.cluster_id, identity.node_id, directory
    return cluster_id, node_id


def directory_ids(files: Files, directories: Iterable[str]) -> str:
    """What names these directories among all others, comma by comma; those that do not say are
    left out."""
    ids = []
    for directory in directories:
        with suppress(DiskError):
            identity = read_identity(files, directory)
            if identity is not None and identity.directory_id.int:
                ids.append(uuid_text(identity.directory_id))
    return ",".join(sorted(ids))


def report_strays(logs: Iterable[Log], image: ClusterImage) -> None:
    """Say once, at the start, which partitions on disk belong to no topic: nobody deletes them."""
    strays = sorted(each.directory for each in logs if not _is_known(each, image))
    if strays:
        more = f" and {len(strays) - _NAMED_MAX} more" if len(strays) > _NAMED_MAX else ""
        log.warning(
            "%d partitions on disk belong to no topic of this cluster and are left alone: %s%s",
            len(strays), ", ".join(strays[:_NAMED_MAX]), more,
        )  # fmt: skip


def _is_known(stored: Log, image: ClusterImage) -> bool:
    topic = image.topic(stored.topic_partition.topic)
    return topic is not None and topic.topic_id == stored.topic_id
