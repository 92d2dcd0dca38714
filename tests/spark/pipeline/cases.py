"""Pipelines that run in tests: a file, its topics, what came out."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidemill.client.admin_types import NewTopic, OffsetSpec
from tidemill.client.blocking import Admin, Consumer, Producer
from tidemill.client.consumer_types import ConsumerRecord
from tidemill.clock import SystemClock
from tidemill.spark.pipeline.load import Problems, parse
from tidemill.spark.pipeline.model import Pipeline
from tidemill.spark.pipeline.run import Setting, run
from tidemill.spark.pipeline.state import PipelineState, RunNote
from tidemill.types import TopicPartition

WAIT_S = 240
"""A generous limit; a test that passes never waits so long."""


def create(bootstrap: str, *topics: str, partitions: int = 1) -> None:
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic(name, partitions) for name in topics]).raise_first()


def send(bootstrap: str, topic: str, records: Iterable[tuple[str | None, Any]]) -> None:
    """Key and value each; what is no bytes is sent as JSON, None as a tombstone."""
    with Producer(bootstrap) as producer:
        for key, value in records:
            raw = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
            producer.send_soon(topic, raw, key=None if key is None else key.encode())
        producer.flush()


def records_of(bootstrap: str, topic: str) -> list[ConsumerRecord]:
    """Everything that is in a topic now."""
    with Admin(bootstrap) as admin:
        description = admin.describe_topics([topic]).raise_first()[topic]
        partitions = [TopicPartition(topic, each.index) for each in description.partitions]
        listed = admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST)).raise_first()
    left = {tp: at.offset for tp, at in listed.items() if at.offset}
    found: list[ConsumerRecord] = []
    if not left:
        return found
    with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(list(left))
        while any(consumer.position(tp) < end for tp, end in left.items()):
            found += consumer.poll(timeout_ms=500)
    return found


def rows_of(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    """The values of a topic, read as JSON."""
    return [json.loads(record.value) for record in records_of(bootstrap, topic)]


class Case:
    """One pipeline on one broker, with state of its own, on the session of the test run."""

    def __init__(self, text: str, spark: Any, bootstrap: str, folder: Path) -> None:
        self.text = text
        self.bootstrap = bootstrap
        self._spark = spark
        self.state = PipelineState(folder, self.pipeline.name)

    @property
    def pipeline(self) -> Pipeline:
        return self._parsed()[0]

    def _parsed(self) -> tuple[Pipeline, Problems]:
        from tidemill.spark.pipeline.check import check_parts

        pipeline, problems = parse(self.text, "test.toml")
        assert pipeline is not None, problems.found
        check_parts(pipeline, problems)
        assert not problems.are_fatal, [str(each) for each in problems.found]
        return pipeline, problems

    def run(self, *, once: bool = True, stop: threading.Event | None = None) -> RunNote:
        pipeline, problems = self._parsed()
        setting = Setting(bootstrap=self.bootstrap, master="local[2]", once=once)
        return run(
            pipeline,
            problems,
            setting,
            session=lambda: self._spark() if callable(self._spark) else self._spark,
            state=self.state,
            clock=SystemClock(),
            stop=stop or threading.Event(),
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        """In here the pipeline runs; what it raises, or how it failed, is raised at the end."""
        stop = threading.Event()
        ended: list[Any] = []

        def live() -> None:
            # Spark looks for Python sources in the session that is the calling thread's.
            kind = self._spark._get_j_spark_session_class(self._spark._jvm)
            kind.setActiveSession(self._spark._jsparkSession)
            try:
                ended.append(self.run(once=False, stop=stop))
            except BaseException as error:  # noqa: BLE001 - raised below, in the test's thread
                ended.append(error)

        thread = threading.Thread(target=live)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(WAIT_S)
            if isinstance(ended[0], BaseException):
                raise ended[0]
        assert ended[0].state == "stopped", ended[0].error


def committed(bootstrap: str, group: str) -> Mapping[TopicPartition, int]:
    with Admin(bootstrap) as admin:
        found = admin.list_group_offsets(group).raise_first()
    return {tp: at.offset for tp, at in found.items() if at is not None}


def until(is_so: Any, what: str) -> None:
    """Ask again and again until it is so."""
    pause = threading.Event()
    for _ in range(WAIT_S * 5):
        if is_so():
            return
        pause.wait(0.2)
    raise AssertionError(f"not within {WAIT_S} s: {what}")
