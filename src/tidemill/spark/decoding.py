"""Values decoded while they are read: `value` becomes a struct, what cannot be read goes aside.

A bad record never fails a query. Without a dead-letter topic its bytes are in the column
`_corrupt`. With one it is sent there, with its cause in headers, and has no row. It is sent before
the task ends, so a task that is run again sends it again: no bad record is lost, and one may be
there twice.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tidemill.client.columnar import ColumnarProducer
from tidemill.spark.connecting import started
from tidemill.spark.formats import Decoded, FormatOptions, ValueFormat, pinned, value_format
from tidemill.spark.formats.dead_letters import dead_letters
from tidemill.spark.offsets import OffsetRange
from tidemill.spark.options import ColumnOptions, SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemill.wire.columns import ColumnBatch

CORRUPT: Final = "_corrupt"


def settled(columns: ColumnOptions) -> ColumnOptions:
    """The same, with the schema's text in place of its file or registry: all tasks see one."""
    return columns if columns.value is None else replace(columns, value=pinned(columns.value))


class Decoding:
    """Decodes the values of one range; use it inside `with`, which sends what is left to send."""

    def __init__(self, options: SourceOptions, value: FormatOptions, piece: OffsetRange) -> None:
        self._options = options
        self._piece = piece
        self._format: ValueFormat = value_format(value)
        self._producer: ColumnarProducer | None = None

    def __enter__(self) -> Decoding:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            try:
                if kind is None:
                    producer.flush()
            finally:
                producer.close()

    def of(self, columns: ColumnBatch) -> tuple[dict[str, pa.Array], pa.Array | None]:
        """The columns that come of the values, and which rows to keep where not all are."""
        import pyarrow as pa
        import pyarrow.compute as pc

        decoded = self._format.decode(columns.value)
        bad = pa.array(decoded.bad)
        if self._options.columns.dead_letter_topic is None:
            corrupt = pc.if_else(bad, columns.value, pa.scalar(None, pa.binary()))
            return {"value": decoded.values, CORRUPT: corrupt}, None
        if not decoded.bad.any():
            return {"value": decoded.values}, None
        self._send(columns, decoded)
        return {"value": decoded.values}, pc.invert(bad)

    def _send(self, columns: ColumnBatch, decoded: Decoded) -> None:
        if self._producer is None:
            self._producer = started(
                lambda: ColumnarProducer(
                    self._options.bootstrap, settings=self._options.common_settings
                ),
                self._options.api_timeout_ms,
            )
        letters = dead_letters(
            columns, decoded, topic=self._piece.topic, partition=self._piece.partition
        )
        topic = self._options.columns.dead_letter_topic
        assert topic is not None
        self._producer.send(
            topic, None, letters.keys, letters.values, letters.headers, letters.timestamps_ms
        )
