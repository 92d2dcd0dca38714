"""The kinds of tables that streams are written into, and how to read them back without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

UPSERT = "upsert"
UPSERT_KEYS = 40
"""A number goes to the partition that is left when it is divided by their count, and their count
divides this: so all numbers of a key are in one partition, in their order."""


class TableKind(Protocol):
    """A table below a folder: what the sink is told, and what is in it."""

    table: str
    environment: Mapping[str, str]

    def __init__(self, folder: Path) -> None: ...

    def values(self) -> list[str]:
        """The column `value` of all rows."""
        ...

    def expected(self, values: list[str]) -> list[str]:
        """What it has to hold once all of these, which are numbers, were written into it."""
        ...


class Appended:
    """Every row stays."""

    def expected(self, values: list[str]) -> list[str]:
        return values


class ParquetTable(Appended):
    def __init__(self, folder: Path) -> None:
        self._path = folder
        self.table = f"parquet:{folder}"
        self.environment: Mapping[str, str] = {}

    def values(self) -> list[str]:
        import pyarrow.dataset

        dataset = pyarrow.dataset.dataset(self._path, format="parquet")
        found: list[str] = dataset.to_table(columns=["value"])["value"].to_pylist()
        return found


class DeltaTable(Appended):
    def __init__(self, folder: Path) -> None:
        self._path = folder
        self.table = f"delta:{folder}"
        self.environment: Mapping[str, str] = {}

    def values(self) -> list[str]:
        import deltalake

        table = deltalake.DeltaTable(str(self._path)).to_pyarrow_table(columns=["value"])
        found: list[str] = table["value"].to_pylist()
        return found


class UpsertedTable(DeltaTable):
    """One row per key, the last; `stream_program` makes the keys of the numbers."""

    def expected(self, values: list[str]) -> list[str]:
        last = {int(value) % UPSERT_KEYS: value for value in values}
        return list(last.values())


class IcebergTable(Appended):
    """In a catalog of its own, which pyiceberg finds by its environment."""

    def __init__(self, folder: Path) -> None:
        self.table = "iceberg:test.db.numbers"
        folder.mkdir(parents=True, exist_ok=True)
        self._settings = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
        self.environment: Mapping[str, str] = {
            f"PYICEBERG_CATALOG__TEST__{key.upper()}": text for key, text in self._settings.items()
        } | {"PYICEBERG_CATALOG__TEST__TYPE": "sql"}

    def values(self) -> list[str]:
        from pyiceberg.catalog.sql import SqlCatalog

        table = SqlCatalog("test", **self._settings).load_table("db.numbers")
        found: list[str] = table.scan(selected_fields=("value",)).to_arrow()["value"].to_pylist()
        return found


KINDS: dict[str, type[TableKind]] = {
    "parquet": ParquetTable,
    "delta": DeltaTable,
    "iceberg": IcebergTable,
    UPSERT: UpsertedTable,
}
