"""Writing a directory's checkpoints from a thread without an old picture overtaking a new one.

A checkpoint is captured on the loop and written elsewhere. Meanwhile a truncation may have to lower
an offset at once, and that must win: each picture has a number, and one that is older than what is
on disk is not written any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from tidemill.storage.files import Files, replace_file


class CheckpointWriter:
    """Writes the checkpoint files of one log directory in the order they were captured."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._lock = threading.Lock()
        self._captured = 0
        self._written = 0
        self._on_disk: dict[str, bytes] = {}

    def prepare(self, texts: Mapping[str, bytes]) -> Callable[[], None]:
        """The work of writing these files; call this on the loop, and the result anywhere."""
        self._captured += 1
        number = self._captured
        return lambda: self._write(number, texts)

    def _write(self, number: int, texts: Mapping[str, bytes]) -> None:
        with self._lock:
            if number < self._written:
                return
            self._written = number
            for name, data in texts.items():
                if self._on_disk.get(name) != data:
                    replace_file(self._files, self._directory, name, data)
                    self._on_disk[name] = data
