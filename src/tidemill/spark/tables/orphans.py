"""Files that no commit names: how they come about, and how they are deleted.

A task that dies half way, the slower of two speculative attempts, and a driver that is killed
before its commit all leave files behind. Most are deleted with the commit of their batch; this
finds the rest. Only files that look like ours are touched, and only when they have not been written
to for a while, since a batch that is still running has files that nothing names yet. A file stays
where a storage does not say when it was written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

from tidemill.spark.tables.files import TableFiles

OUR_FILE: Final = re.compile(
    r".*/[A-Za-z0-9-]+/\d{10}/(?:\d{5,}|merged-\d{2})-\d{4}-[0-9a-f]+\.parquet"
)
DELETED_MAX: Final = 10_000
"""At a time; the next clean-up finds the rest."""


def delete_orphans(
    files: TableFiles,
    folders: Iterable[str],
    named: Callable[[set[str]], set[str]],
    *,
    before_ms: int,
) -> list[str]:
    """Deletes what is ours, old and named by no commit; says what it deleted.

    `named` says which of some files a commit names.
    """
    old = [
        found.path
        for folder in folders
        for found in files.list(folder)
        if found.modified_ms is not None
        and found.modified_ms <= before_ms
        and OUR_FILE.fullmatch(found.path)
    ]
    if not old:
        return []
    keep = named(set(old))
    unnamed = [path for path in old if path not in keep][:DELETED_MAX]
    orphans = [path for path in unnamed if files.exists(path)]
    for path in orphans:
        files.delete(path)
    return orphans
