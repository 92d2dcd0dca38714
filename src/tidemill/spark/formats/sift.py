"""Finds the bad records of a piece, so that the good ones need not suffer.

A reader is tried on the whole piece first, which is how nearly all pieces end. Where it fails, a
plain decoder says which rows look bad; those are tried one by one, the others together, in halves
where they fail again. So the reader alone decides about every row, and a row's fate does not depend
on its neighbours: the plain decoder only saves attempts, where it is known to refuse nothing that
the reader takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.spark.formats import Decoded
from tidemill.spark.formats.model import Limits, UnreadableError

Rows = np.ndarray[tuple[int], np.dtype[np.int64]]
"""Numbers of rows."""


class Complaint(NamedTuple):
    """What a plain decoder says against a value, worded for people."""

    cause: str
    certain: bool = True
    """Whether the reader is known to refuse the value, too; else it has to be tried."""


class PieceReader(Protocol):
    """One way from values, none of which is null, to structs."""

    def read(self, values: pa.BinaryArray) -> pa.StructArray:
        """As many structs as values; raises UnreadableError where one cannot be decoded."""
        ...

    def complaint(self, value: bytes) -> Complaint | None:
        """What a plain decoder says against a value, None where it has nothing to say."""
        ...


def decode_rows(
    values: pa.BinaryArray, reader: PieceReader, kind: pa.StructType, limits: Limits
) -> Decoded:
    """Every value through the reader: null stays null, bad becomes null and is marked."""
    lengths = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False)
    too_long = lengths > limits.record_bytes_max
    present = values.is_valid().to_numpy(zero_copy_only=False) & ~too_long
    found = Found(kind, len(values))
    for at in np.flatnonzero(too_long):
        found.bad[int(at)] = (
            f"{lengths[at]} bytes are more than the {limits.record_bytes_max} of one record"
        )
    for rows in _pieces(np.flatnonzero(present), lengths, limits):
        piece = values if len(rows) == len(values) else values.take(pa.array(rows))
        try:
            found.good(rows, reader.read(piece))
        except UnreadableError:
            _sift(piece, rows, reader, found)
    return found.decoded(limits)


class Found:
    """What is known of a piece so far; rows are numbers of the original values."""

    def __init__(self, kind: pa.StructType, length: int) -> None:
        self.bad: dict[int, str] = {}
        self._kind = kind
        self._length = length
        self._rows: list[Rows] = []
        self._structs: list[pa.StructArray] = []

    def good(self, rows: Rows, it: pa.StructArray) -> None:
        self._rows.append(rows)
        self._structs.append(it)

    def add(self, rows: Rows, part: Decoded) -> None:
        """What some of the rows came to."""
        self.good(rows, part.values)
        self.bad.update(zip(rows[part.bad].tolist(), part.causes, strict=True))

    def decoded(self, limits: Limits) -> Decoded:
        bad = np.zeros(self._length, dtype=bool)
        bad[list(self.bad)] = True
        causes = [self.bad[at][: limits.cause_chars_max] for at in sorted(self.bad)]
        return Decoded(self._values(), bad, causes)

    def _values(self) -> pa.StructArray:
        if len(self._structs) == 1 and len(self._structs[0]) == self._length:
            return self._structs[0]
        if not self._structs:
            return pa.nulls(self._length, self._kind)
        # Each row takes its struct from where it lies in the pieces; from nowhere means null.
        places = np.zeros(self._length, dtype=np.int64)
        nowhere = np.ones(self._length, dtype=bool)
        rows = np.concatenate(self._rows)
        places[rows] = np.arange(len(rows))
        nowhere[rows] = False
        return pa.concat_arrays(self._structs).take(pa.array(places, mask=nowhere))


def _pieces(
    rows: Rows,
    lengths: Rows,
    limits: Limits,
) -> Iterator[Rows]:
    """The rows in pieces that keep to the limits of one piece; each has at least one row."""
    while len(rows):
        sizes = np.cumsum(lengths[rows[: limits.piece_rows_max]], dtype=np.int64)
        fitting = max(1, int(np.searchsorted(sizes, limits.piece_bytes_max, side="right")))
        yield rows[:fitting]
        rows = rows[fitting:]


def _sift(piece: pa.BinaryArray, rows: Rows, reader: PieceReader, found: Found) -> None:
    complaints = [reader.complaint(value) for value in piece.to_pylist()]
    silent: list[int] = []
    for at, complaint in enumerate(complaints):
        if complaint is None:
            silent.append(at)
        elif complaint.certain:
            found.bad[int(rows[at])] = complaint.cause
        else:
            _halve(piece, rows, np.array([at]), complaints, reader, found)
    _halve(piece, rows, np.array(silent, np.int64), complaints, reader, found)


def _halve(
    piece: pa.BinaryArray,
    rows: Rows,
    places: Rows,
    complaints: list[Complaint | None],
    reader: PieceReader,
    found: Found,
) -> None:
    """Tries these places of the piece together, then each half of them, down to single rows."""
    if not len(places):
        return
    try:
        found.good(rows[places], reader.read(piece.take(pa.array(places))))
    except UnreadableError as error:
        if len(places) == 1:
            complaint = complaints[places[0]]
            found.bad[int(rows[places[0]])] = complaint.cause if complaint else str(error)
            return
        middle = len(places) // 2
        for half in (places[:middle], places[middle:]):
            _halve(piece, rows, half, complaints, reader, found)
