"""Changes by key become files: the last change of each key wins, a tombstone deletes its key.

A batch may bring a change that is older than the row which the table has: it changes nothing. A key
that was deleted has no row to compare with, so whatever comes after counts. A delete that does not
say how late it is deletes: the order is often a column of the value, which a tombstone has not.

A table is changed by writing anew those of its files that hold a changed key, without these rows,
together with the new rows. Files without a changed key stay as they are; a file whose range of keys
cannot hold one is not even opened beyond its footer. Memory holds the keys of one batch and of one
file at a time, never whole rows of more than a row group.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemill.spark.tables.files import TableFiles
from tidemill.spark.tables.schema import fill
from tidemill.spark.tables.target import (
    NO_COLUMN,
    OFFSET_COLUMN,
    PARTITION_COLUMN,
    TIMESTAMP_COLUMN,
    TOPIC_COLUMN,
    VALUE_COLUMN,
    TableError,
    TableOptions,
)
from tidemill.spark.tables.writing import RollingFiles

_ROW: Final = "__row"
_RANK: Final = "__rank"
_DELETED: Final = "__deleted"
_CHANGE: Final = "__change"
_LEVEL: Final = "__level"
READ_ROWS: Final = 64 * 1024

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Numbers = np.ndarray[Any, np.dtype[np.int64]]
Levels = np.ndarray[Any, np.dtype[np.int8]]


@dataclass(frozen=True, slots=True)
class UpsertRule:
    """Which columns are the key, which say what is later, and whose null deletes.

    Offsets order the changes of one partition only. A key has changes in several where its topic
    was given more partitions, or where it is not the record's key: of these partitions' last
    changes the latest by `between` counts.

    `beside` is what a change is compared by with the row in the table. Offsets are not: those of
    another partition say nothing, and in its own a later batch has higher ones, unless the topic
    was made anew. So an order that was given counts up to the offset.
    """

    keys: tuple[str, ...]
    order_by: tuple[str, ...]
    tombstone: str | None
    places: tuple[str, ...] = ()
    between: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()

    @property
    def columns(self) -> list[str]:
        """All but the tombstone, each once."""
        return list(dict.fromkeys((*self.keys, *self.order_by, *self.places, *self.between)))

    @classmethod
    def of(cls, options: TableOptions, schema: pa.Schema) -> UpsertRule:
        """What the options say about these columns; TableError when there is no such column."""
        order_by, tombstone = options.order_by, options.tombstone
        beside = tuple(itertools.takewhile(lambda name: name != OFFSET_COLUMN, order_by or ()))
        places: tuple[str, ...] = ()
        between: tuple[str, ...] = ()
        if order_by is None:
            order_by = (OFFSET_COLUMN,) if OFFSET_COLUMN in schema.names else ()
            if order_by and PARTITION_COLUMN in schema.names:
                places = tuple(
                    each for each in (TOPIC_COLUMN, PARTITION_COLUMN) if each in schema.names
                )
                between = (TIMESTAMP_COLUMN,) if TIMESTAMP_COLUMN in schema.names else ()
                beside = between
        if tombstone is None:
            usable = VALUE_COLUMN in schema.names and VALUE_COLUMN not in options.keys
            tombstone = VALUE_COLUMN if usable else NO_COLUMN
        deletes = None if tombstone == NO_COLUMN else tombstone
        rule = cls(options.keys, order_by, deletes, places, between, beside)
        rule._check(schema)
        return rule

    def _check(self, schema: pa.Schema) -> None:
        wanted = [("keys", each) for each in self.keys]
        wanted += [("table.orderBy", each) for each in self.order_by]
        wanted += [("table.tombstone", self.tombstone)] if self.tombstone else []
        for option, column in wanted:
            if column not in schema.names:
                raise TableError(
                    f"option {option} names {column}, and there is no such column; there are: "
                    + ", ".join(schema.names)
                )
        if self.tombstone in self.keys:
            raise TableError(f"column {self.tombstone} is a key: its null cannot delete the key")
        for column in self.keys:
            kind = schema.field(column).type
            if pa.types.is_nested(kind) or pa.types.is_floating(kind):
                raise TableError(
                    f"column {column} is {kind}, which cannot be a key; cast it to string"
                )


def merge(
    files: TableFiles,
    rule: UpsertRule,
    *,
    live: Sequence[str],
    changes: Sequence[str],
    schema: pa.Schema,
    output: RollingFiles,
) -> list[str]:
    """Writes the changed part of a table into `output`; returns the files that it replaces."""
    index = pa.concat_tables([_index(files, path, rule, schema) for path in changes])
    winners = latest(index, rule)
    changed = index.append_column(_ROW, pa.array(np.arange(len(winners)))).filter(winners)
    kept = winners & ~index.column(_DELETED).to_numpy()
    bounds = _bounds(changed.column(0))
    replaced = []
    for path in live:
        with files.open_input(path) as source:
            parquet = pq.ParquetFile(source)
            if not _may_hold(parquet.metadata, rule.keys[0], bounds):
                continue
            gone, older = _compared(parquet, rule, changed, schema)
            kept[older] = False
            if gone.any():
                replaced.append(path)
                _copy(parquet, ~gone, schema, output)
    start = 0
    for path in changes:
        with files.open_input(path) as source:
            parquet = pq.ParquetFile(source)
            rows = parquet.metadata.num_rows
            _copy(parquet, kept[start : start + rows], schema, output)
            start += rows
    return replaced


def latest(index: pa.Table, rule: UpsertRule) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """True for the last change of each key."""
    if not rule.places:
        what = "twice, and nothing says which change is the later"
        last = _last(index, rule.keys, rule.order_by, f"{what}; set table.orderBy to one that does")
    else:
        # Sorted, so that of two equally late ones the same is taken each time.
        of_places = np.sort(_last(index, (*rule.keys, *rule.places), rule.order_by, ""))
        what = "in several partitions, and offsets do not say which change is the later"
        advice = "keep the column timestamp, or set table.orderBy"
        between = _last(index.take(of_places), rule.keys, rule.between, f"{what}; {advice}")
        last = of_places[between]
    winners = np.zeros(index.num_rows, dtype=np.bool_)
    winners[last] = True
    return winners


def _last(
    index: pa.Table, keys: Sequence[str], order_by: Sequence[str], what: str
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The row of each key's last change: by the order columns, then by where it stands."""
    rows = index.num_rows
    ordered = np.arange(rows)
    if order_by:
        numbered, names = index.append_column(_ROW, pa.array(ordered)), []
        for number, name in enumerate(order_by):
            names += [f"{_LEVEL}{number}", name]
            numbered = numbered.append_column(names[-2], pa.array(_levels(index, name)))
        by = [(name, "ascending", "at_start") for name in (*names, _ROW)]
        ordered = pc.sort_indices(numbered, sort_keys=by).to_numpy()
    rank = np.empty(rows, dtype=np.int64)
    rank[ordered] = np.arange(rows)
    groups = list(dict.fromkeys(keys))
    ranked = index.select(groups).append_column(_RANK, pa.array(rank))
    last = ranked.group_by(groups).aggregate([(_RANK, "max")]).column(f"{_RANK}_max")
    if not order_by and len(last) != rows:
        raise TableError(f"a batch changes a key {what}")
    found: np.ndarray[Any, np.dtype[np.int64]] = ordered[last.to_numpy()]
    return found


def _levels(changes: pa.Table, name: str) -> Levels:
    """Null is before all that a column of changes has, and after it in one that deletes."""
    is_null = changes.column(name).is_null().to_numpy()
    return np.where(is_null, np.where(changes.column(_DELETED).to_numpy(), 1, -1), 0).astype(
        np.int8
    )


def _index(files: TableFiles, path: str, rule: UpsertRule, schema: pa.Schema) -> pa.Table:
    """Keys, order and tombstones of a file of changes; values only pass through."""
    columns = rule.columns
    wanted = pa.schema([*(schema.field(name) for name in columns), pa.field(_DELETED, pa.bool_())])
    read = columns if rule.tombstone is None else list(dict.fromkeys((*columns, rule.tombstone)))
    parts = []
    with files.open_input(path) as source:
        for batch in pq.ParquetFile(source).iter_batches(READ_ROWS, columns=read):
            deleted = (
                pc.is_null(batch.column(rule.tombstone))
                if rule.tombstone is not None
                else pa.repeat(False, batch.num_rows)
            )
            found = pa.Table.from_batches([batch]).select(columns)
            parts.append(fill(found.append_column(_DELETED, deleted), wanted))
    index = pa.concat_tables(parts) if parts else wanted.empty_table()
    for name in rule.keys:
        if index.column(name).null_count:
            raise TableError(
                f"column {name} is null in a change; a row without its key belongs nowhere: leave "
                f"such rows out, as in WHERE {name} IS NOT NULL"
            )
    return index


def _compared(
    parquet: pq.ParquetFile, rule: UpsertRule, changed: pa.Table, schema: pa.Schema
) -> tuple[Mask, Numbers]:
    """Which rows of a file a change takes the place of, and which changes are older than theirs."""
    names = list(dict.fromkeys((*rule.keys, *rule.places, *rule.beside)))
    wanted = pa.schema([schema.field(name) for name in names])
    there = fill(
        parquet.read(columns=[n for n in names if n in parquet.schema_arrow.names]), wanted
    )
    numbered = there.append_column(_ROW, pa.array(np.arange(there.num_rows)))
    changes = changed.select([*names, _ROW, _DELETED])
    pairs = numbered.join(changes, keys=list(rule.keys), join_type="inner", right_suffix=_CHANGE)
    gone = np.zeros(there.num_rows, dtype=np.bool_)
    if not pairs.num_rows:
        return gone, np.zeros(0, dtype=np.int64)
    newer = _is_later(pairs, rule)
    gone[pairs.column(_ROW).to_numpy()[~newer]] = True
    return gone, pairs.column(_ROW + _CHANGE).to_numpy()[newer]


def _is_later(pairs: pa.Table, rule: UpsertRule) -> Mask:
    """True where the table's row is later than the change that came for its key."""
    later = np.zeros(pairs.num_rows, dtype=np.bool_)
    same = np.ones(pairs.num_rows, dtype=np.bool_)
    for name in _besides(rule.beside, rule):
        there, change = _ranks(pairs, name)
        later |= same & (there > change)
        same &= there == change
    elsewhere = np.full(pairs.num_rows, not rule.places, dtype=np.bool_)
    for name in _besides(rule.places, rule):
        there, change = _ranks(pairs, name)
        elsewhere |= there != change
    return later & elsewhere


def _besides(names: Sequence[str], rule: UpsertRule) -> list[str]:
    """The keys are the same on both sides."""
    return [name for name in names if name not in rule.keys]


def _ranks(pairs: pa.Table, name: str) -> tuple[Numbers, Numbers]:
    """A column of the table and of the changes as numbers that compare as its values do; null comes
    before all others, and after them in a delete."""
    both = pa.chunked_array([*pairs.column(name).chunks, *pairs.column(name + _CHANGE).chunks])
    values = pc.unique(both)
    ordered = values.take(pc.array_sort_indices(values, null_placement="at_start"))
    ranks = pc.index_in(both, value_set=ordered).to_numpy()
    there, change = ranks[: pairs.num_rows], ranks[pairs.num_rows :]
    return there, np.where(_levels(pairs, name + _CHANGE) > 0, len(values), change)


def _copy(
    parquet: pq.ParquetFile,
    keep: np.ndarray[Any, np.dtype[np.bool_]],
    schema: pa.Schema,
    output: RollingFiles,
) -> None:
    start = 0
    for batch in parquet.iter_batches(READ_ROWS):
        mask = pa.array(keep[start : start + batch.num_rows])
        start += batch.num_rows
        for part in _filtered(batch, mask, schema):
            output.write(part)


def _filtered(batch: pa.RecordBatch, mask: pa.Array, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    found = pa.Table.from_batches([batch]).filter(mask)
    if found.num_rows:
        yield from fill(found, schema).to_batches()


Bounds = tuple[Any, Any] | None


def _bounds(column: pa.ChunkedArray) -> Bounds:
    """The least and the greatest key, for types whose statistics compare as Python values do."""
    kind = column.type
    comparable = pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind)
    if not comparable or not len(column):
        return None
    least_and_most = pc.min_max(column)
    return least_and_most["min"].as_py(), least_and_most["max"].as_py()


def _may_hold(metadata: pq.FileMetaData, key: str, bounds: Bounds) -> bool:
    """Whether the footer leaves it open that a file holds a key between the bounds."""
    if bounds is None:
        return True
    for group in range(metadata.num_row_groups):
        columns = metadata.row_group(group)
        found = [
            columns.column(at)
            for at in range(columns.num_columns)
            if columns.column(at).path_in_schema == key
        ]
        statistics = found[0].statistics if found else None
        if statistics is None or not statistics.has_min_max:
            return True
        if type(statistics.min) is not type(bounds[0]):
            return True
        if statistics.min <= bounds[1] and bounds[0] <= statistics.max:
            return True
    return False
