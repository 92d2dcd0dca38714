"""Where a pipeline's rows go: the options of the data source's sinks, and the topics they want."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tidemill.client.settings import CommonSettings, is_known
from tidemill.spark.pipeline.inputs import FORMAT, client_options
from tidemill.spark.pipeline.model import Pipeline, Sink
from tidemill.spark.pipeline.plan import dead_letter_topics, own_bootstrap, table_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def sink_options(
    pipeline: Pipeline, sink: Sink | None, bootstrap: str, client: Mapping[str, str]
) -> dict[str, str]:
    """What the data source is told about where rows go; dead letters name their topic by row."""
    if sink is not None and sink.table:
        options = {"table": table_of(pipeline, sink), "mode": sink.mode}
        if sink.keys:
            options["keys"] = ",".join(sink.keys)
        if sink.order_by:
            options["table.orderBy"] = ",".join(sink.order_by)
        if sink.tombstone:
            options["table.tombstone"] = sink.tombstone
        return options | dict(sink.options)
    options = client_options(bootstrap, client)
    if sink is None:
        return options
    if sink.topic:
        options["topic"] = sink.topic
    return options | dict(sink.options)


def frame_by_frame(options: Mapping[str, str]) -> Callable[[DataFrame, int], None]:
    """Writes each batch of a query as a frame: Spark gives updates to no sink made in Python.

    A table knows the batch by the same two names as if the query had written it itself.
    """

    def write(frame: DataFrame, batch: int) -> None:
        known_by = {}
        if "table" in options:
            query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
            known_by = {"table.txnAppId": query, "table.txnVersion": str(batch)}
        frame.write.format(FORMAT).options(**options, **known_by).mode("append").save()

    return write


def make_topics(pipeline: Pipeline, bootstrap: str, client: Mapping[str, str]) -> None:
    """Create the topics of sinks that say how many partitions, each in the sink's cluster, and
    those of dead letters."""
    wanted = {bootstrap: dict.fromkeys(sorted(dead_letter_topics(pipeline)), 1)}
    for sink in pipeline.sink.values():
        if sink.topic and sink.partitions is not None:
            there = wanted.setdefault(own_bootstrap(sink) or bootstrap, {})
            there[sink.topic] = sink.partitions
    for address, topics in wanted.items():
        if topics:
            _make_topics(topics, address, client)


def _make_topics(wanted: Mapping[str, int], bootstrap: str, client: Mapping[str, str]) -> None:
    from tidemill.client.admin_types import NewTopic
    from tidemill.client.blocking import Admin

    # What only Java's clients know is taken in a file, and means nothing here.
    settings: dict[str, Any] = {
        name.replace(".", "_"): text
        for name, text in client.items()
        if is_known(CommonSettings, name)
    }
    with Admin(bootstrap, **settings) as admin:
        there = {topic.name for topic in admin.list_topics()}
        missing = [NewTopic(name, count) for name, count in wanted.items() if name not in there]
        if missing:
            admin.create_topics(missing).raise_first()
