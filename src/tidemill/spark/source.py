"""`format("tidemill")`: the classes that Spark calls, each a thin layer over our own parts.

Spark makes a `TidemillDataSource` from a query's options, in a Python process of the driver, and
asks it for a reader or a writer. `partitions` and the methods about offsets run in the driver
(`planning`), `read` runs in the executors' Python workers (`reading`). Readers travel there
pickled, so they hold options and types, and connect when they are first asked something.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tidemill.spark.columns import check_schema, spark_schema
from tidemill.spark.daemon import end_quietly
from tidemill.spark.decoding import settled
from tidemill.spark.lookup import BrokerLookup
from tidemill.spark.offsets import OffsetRange, Position
from tidemill.spark.options import ColumnOptions, SourceOptions
from tidemill.spark.planning import Planner, StreamPlanner
from tidemill.spark.reading import read_range
from tidemill.spark.settling import settle
from tidemill.spark.sink import writer_for

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "tidemill"

end_quietly()  # Spark imports this module in each Python process that plans a query.


class TidemillDataSource(DataSource):  # type: ignore[misc]
    """Topics as tables; see docs/spark.md for the options."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        schema = spark_schema(settled(ColumnOptions.parse(self.options)))
        settle()
        return schema

    def reader(self, schema: StructType) -> TidemillReader:
        return TidemillReader(self._source_options(streaming=False), schema)

    def streamReader(self, schema: StructType) -> TidemillStreamReader:  # noqa: N802
        return TidemillStreamReader(self._source_options(streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return writer_for(self.options, schema, overwrite, streaming=False)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        return writer_for(self.options, schema, overwrite, streaming=True)

    def _source_options(self, *, streaming: bool) -> SourceOptions:
        parsed = SourceOptions.parse(self.options, streaming=streaming)
        return replace(parsed, columns=settled(parsed.columns))


class TidemillReader(DataSourceReader):  # type: ignore[misc]
    """A query that ends."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_schema(schema, options.columns)
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        lookup = BrokerLookup(self._options)
        try:
            ranges = Planner(self._options, lookup).batch_ranges()
        finally:
            lookup.close()
        settle()
        return [InputPartition(each) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._schema, partition)


class TidemillStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """A query that goes on, or reads what is there and ends (the trigger availableNow)."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_schema(schema, options.columns)
        self._options = options
        self._schema = schema
        self._planner: StreamPlanner | None = None
        self._lookup: BrokerLookup | None = None

    # --- in the driver ---------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._plan().initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """What Spark hands back to `latestOffset`, unless the trigger asks for everything."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """How far the next batch goes. Spark asks when it is done with all before `start`."""
        position = Position.from_json(start)
        planner = self._plan()
        planner.commit(position)
        end = planner.next_end(position, limited=not isinstance(limit, ReadAllAvailable))
        return start if end is position else end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        available = self._plan().available
        return available.to_json() if available is not None else None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._plan().stop_at_what_is_there()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        ranges = self._plan().ranges(Position.from_json(start), Position.from_json(end))
        return [InputPartition(each) for each in ranges]

    def commit(self, end: dict[str, Any]) -> None:
        """Spark calls this a batch late and never for the last one: see `latestOffset`."""

    def stop(self) -> None:
        if self._lookup is not None:
            self._lookup.close()
        self._planner = self._lookup = None

    def _plan(self) -> StreamPlanner:
        if self._planner is None:
            self._lookup = BrokerLookup(self._options)
            self._planner = StreamPlanner(self._options, self._lookup)
        return self._planner

    # --- in an executor --------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._schema, partition)


def _read(
    options: SourceOptions, schema: StructType, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    from pyspark.sql.pandas.types import to_arrow_schema

    piece: OffsetRange | None = partition.value
    if piece is None:  # What Spark makes up for a query that has nothing to read.
        return iter(())
    return _settling(read_range(options, to_arrow_schema(schema, timezone="UTC"), piece))


def _settling(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    settle()
