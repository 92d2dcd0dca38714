"""The rows of a local Delta table, for reports and summaries: few columns, all rows, no Spark.

`deltalake` by default hands Arrow a file system written in Python. Arrow's threads then still call
into the interpreter while it ends, and the process aborts after its work is done: with 4 of them at
a time on 2 cores, one run in ten. A native file system has no such calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def local_rows(table: Path, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Some columns of every row; no rows of a table to which nothing has been written yet."""
    from deltalake import DeltaTable
    from pyarrow import fs

    if not DeltaTable.is_deltatable(str(table)):
        return []
    files = fs.SubTreeFileSystem(str(table.absolute()), fs.LocalFileSystem())
    dataset = DeltaTable(str(table)).to_pyarrow_dataset(filesystem=files)
    found: list[dict[str, Any]] = dataset.to_table(columns=list(columns)).to_pylist()
    return found
