"""Writing a directory's checkpoints from a thread without an old picture overtaking a new one.

A checkpoint is captured on the loop and written elsewhere. Meanwhile a truncation may have to lower
an offset at once, and that must win: each picture has a number, and one that is older than what is
on disk is not written any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from tidemill.storage.checkpoint import format_offsets, read_offsets
from tidemill.storage.files import Files, replace_file
from tidemill.types import TopicPartition

Offsets = Mapping[TopicPartition, int]


class CheckpointWriter:
    """Writes the checkpoint files of one log directory in the order they were captured."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._lock = threading.Lock()
        self._captured = 0
        self._written = 0
        self._on_disk: dict[str, Offsets] = {}
        self._unsure: set[str] = set()
        """Files whose last replacement failed: it may have come as far as the name."""

    def prepare(self, files: Mapping[str, Offsets]) -> Callable[[], None]:
        """The work of writing these files; call this on the loop, and the result anywhere.

        The offsets must not change any more. They become text in the work, not here: for ten
        thousand partitions that takes longer than the loop may stand still.
        """
        self._captured += 1
        number = self._captured
        return lambda: self._write(number, files)

    def read(self, *names: str) -> list[dict[TopicPartition, int]]:
        """What these files say now; before the first of them is written."""
        found = {name: read_offsets(self._files, self._directory, name) for name in names}
        self._on_disk |= {name: dict(offsets) for name, offsets in found.items() if offsets}
        return list(found.values())

    def mentions(self, topic_partition: TopicPartition) -> bool:
        """Whether a file has an offset of this partition."""
        known = any(topic_partition in offsets for offsets in self._on_disk.values())
        return known or bool(self._unsure)

    def on_disk(self, name: str) -> Offsets:
        """What the file says, as far as it was written here."""
        return {} if name in self._unsure else self._on_disk.get(name, {})

    def _write(self, number: int, files: Mapping[str, Offsets]) -> None:
        with self._lock:
            if number < self._written:
                return
            self._written = number
            for name, offsets in files.items():
                if self._on_disk.get(name) != offsets or name in self._unsure:
                    self._unsure.add(name)
                    replace_file(self._files, self._directory, name, format_offsets(offsets))
                    self._unsure.discard(name)
                    self._on_disk[name] = offsets
