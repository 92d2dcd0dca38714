"""Where a pipeline's frames begin: topics, through the `tidemill` data source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidemill.spark.pipeline.decoding import value_options
from tidemill.spark.pipeline.model import Source, Table
from tidemill.spark.pipeline.start import parse_start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = "tidemill"


class TopicInputs:
    """Frames over topics of one cluster. Making one reads nothing yet."""

    def __init__(self, spark: SparkSession, bootstrap: str, client: Mapping[str, str]) -> None:
        self._spark = spark
        self._client = client_options(bootstrap, client)

    def stream(self, source: Source, group: str) -> DataFrame:
        """The source as a stream that tells the group how far it has come."""
        options = self._client | source_options(source, group)
        return self._spark.readStream.format(FORMAT).options(**options).load()

    def table(self, table: Table) -> DataFrame:
        """The whole topic, from its beginning to the end it has when the frame is computed."""
        options = self._client | table_options(table)
        return self._spark.read.format(FORMAT).options(**options).load()


class InputsToJudge:
    """One frame per source or table, whatever the query: enough to judge expressions by.

    Spark starts a Python process for each frame, so that one per query would take its time.
    """

    def __init__(self, inputs: TopicInputs) -> None:
        self._inputs = inputs
        self._frames: dict[str, DataFrame] = {}

    def stream(self, source: Source, group: str) -> DataFrame:
        key = repr(source_options(source, ""))
        if key not in self._frames:
            self._frames[key] = self._inputs.stream(source, group)
        return self._frames[key]

    def table(self, table: Table) -> DataFrame:
        key = repr(table)
        if key not in self._frames:
            self._frames[key] = self._inputs.table(table)
        return self._frames[key]


def client_options(bootstrap: str, client: Mapping[str, str]) -> dict[str, str]:
    """A client's settings under the names that sources and sinks take them by."""
    settings = {f"kafka.{name}": text for name, text in client.items()}
    return settings | {"kafka.bootstrap.servers": bootstrap}


def source_options(source: Source, group: str) -> dict[str, str]:
    """What the data source is told about one source of one query."""
    options = {"commitOffsets": group, **(parse_start(source.start) or {})}
    if source.pattern:
        options["subscribePattern"] = source.pattern
    else:
        options["subscribe"] = ",".join(source.topics)
    if source.headers:
        options["includeHeaders"] = "true"
    if source.records_per_trigger:
        options["maxOffsetsPerTrigger"] = str(source.records_per_trigger)
    if source.allow_data_loss:
        options["failOnDataLoss"] = "false"
    return options | value_options(source.decode) | dict(source.options)


def table_options(table: Table) -> dict[str, str]:
    """What the data source is told about a topic that is read as a table."""
    return {
        "subscribe": table.topic,
        "startingOffsets": "earliest",
        "endingOffsets": "whenRead",
        **value_options(table.decode),
        **table.options,
    }
