"""`make bench-spark`: topics into Spark and back, beside Spark's own Kafka connector, as ratios.

One Tidemill broker, one Spark session with both connectors, one topic for each case; both read the
same topic, and write alike, in turns. The connector is measured twice: with its defaults, and with
the settings that suit it best. The report is the median ratio over the rounds with its spread,
beside the bar it has to meet (`report.py`), and a plot in `bench/out`.

`python -m bench.spark --quick` does one short round, to see that everything works; `--part read`
or `--part write` does half; `--size`, `--codec` and `--partitions` do some of the cases. There are
three rounds of each case, fewer where `--minutes` would not do for all cases.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tests.reference.spark_kafka import CONNECTOR_VERSION, connector_jars, connector_missing

from bench.measure import run_load
from bench.report import Figures, Report
from bench.run import OUT
from bench.systems import COMMON, MODES, Tidemill, wait_until_quiet
from tidemill.spark import session
from tidemill.testing.running import end_in_order

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SIZES = (100, 1000)
CODECS = ("none", "lz4")
PARTITIONS = (1, 6)
READ_BYTES = 300_000_000
WRITE_BYTES = 150_000_000
CORES = 2
WARM_UP_S = 40.0
"""For each half: the JVM's compiler is busy for about so long."""
WARM_UP_ROUNDS = 8
MINUTES = 30.0
"""Enough for three rounds of every case on two cores with nothing else to do."""


@dataclass(frozen=True)
class Connector:
    """A way for Spark to reach topics: the format's name and the options on top of its defaults."""

    name: str
    format: str
    reading: Mapping[str, str]
    writing: Mapping[str, str]


OURS = Connector("tidemill", "tidemill", {}, {})
DEFAULTS = Connector("defaults", "kafka", {}, {})
BEST = Connector(
    "best",
    "kafka",
    # Found by trying: fewer polls, for each of which the connector asks for two more offsets.
    {
        "kafka.max.poll.records": "20000",
        "kafka.max.partition.fetch.bytes": "10485760",
        "kafka.fetch.max.bytes": "10485760",
    },
    {"kafka.batch.size": "262144", "kafka.linger.ms": "5", "kafka.buffer.memory": "134217728"},
)
CONNECTORS = (OURS, DEFAULTS, BEST)


@dataclass(frozen=True)
class Case:
    """What is in a topic."""

    size: int
    codec: str
    partitions: int

    @property
    def topic(self) -> str:
        return f"spark-{self.size}-{self.codec}-{self.partitions}"

    @property
    def label(self) -> str:
        return f"{self.size} B {self.codec} {self.partitions}p"

    def count(self, total_bytes: float) -> int:
        return int(total_bytes / self.size)


class Broker(Protocol):
    """Where the topics are."""

    @property
    def bootstrap(self) -> str: ...

    @property
    def pid(self) -> int: ...


class Bench:
    """A broker, a session, and the seconds that each piece of work takes."""

    def __init__(self, spark: SparkSession, broker: Broker, scale: float) -> None:
        self.spark = spark
        self.broker = broker
        self.scale = scale
        self.folder = Path(tempfile.mkdtemp(prefix="tidemill-bench-spark-"))

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    # Reading.

    def fill(self, case: Case) -> int:
        """The topic of a case; the number of records in it."""
        count = case.count(READ_BYTES * self.scale)
        run_load(
            "create",
            bootstrap=self.broker.bootstrap,
            topic=case.topic,
            partitions=case.partitions,
        )
        run_load(
            "produce",
            bootstrap=self.broker.bootstrap,
            topic=case.topic,
            count=count,
            size=case.size,
            acks="1",
            partitions=case.partitions,
            codec=case.codec,
            varied=True,
        )
        return count

    def frame(self, connector: Connector, case: Case) -> DataFrame:
        reader = self.spark.read.format(connector.format).options(**connector.reading)
        reader = reader.option("kafka.bootstrap.servers", self.broker.bootstrap)
        return reader.option("subscribe", case.topic).load()

    def read_noop(self, connector: Connector, case: Case) -> None:
        self.frame(connector, case).write.format("noop").mode("overwrite").save()

    def read_parquet(self, connector: Connector, case: Case) -> None:
        target = self.folder / "parquet"
        self.frame(connector, case).write.mode("overwrite").parquet(str(target))

    def check(self, case: Case, count: int) -> None:
        """Who is fast because it leaves something out is found out before it is measured."""
        for connector in (OURS, DEFAULTS):
            seen = self.frame(connector, case).selectExpr("count(*)", "sum(length(value))").first()
            if seen is None or tuple(seen) != (count, count * case.size):
                raise RuntimeError(f"{connector.name} read {seen} of {case.label}, not {count}")

    # Writing.

    def rows(self, case: Case) -> tuple[DataFrame, int]:
        """Rows in memory, so that only the way to the topic is measured."""
        count = case.count(WRITE_BYTES * self.scale)
        # Hex digits of a hash: lz4 finds something to do, but no miracles.
        digits = "concat_ws('', transform(sequence(0, {last}), i -> sha2(concat(id, '-', i), 256)))"
        value = digits.format(last=case.size // 64)
        frame = self.spark.range(0, count, numPartitions=CORES).selectExpr(
            "cast(cast(id as string) as binary) as key",
            f"cast(substr({value}, 1, {case.size}) as binary) as value",
        )
        frame = frame.cache()
        frame.count()
        return frame, count

    def write(self, connector: Connector, case: Case, frame: DataFrame) -> None:
        writer = frame.write.format(connector.format).options(**connector.writing)
        writer = writer.option("kafka.bootstrap.servers", self.broker.bootstrap)
        writer = writer.option("kafka.compression.type", case.codec).mode("append")
        writer.option("topic", f"{case.topic}-{connector.name}").save()


def timed(work: Callable[[], None], broker: Broker) -> float:
    wait_until_quiet(broker.pid)
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def in_turn(number: int) -> tuple[Connector, ...]:
    """Who goes first changes from round to round."""
    at = number % len(CONNECTORS)
    return CONNECTORS[at:] + CONNECTORS[:at]


class Rounds:
    """As many rounds as were asked for; after the first, only until the case's time is up."""

    def __init__(self, wanted: int, seconds: float) -> None:
        self._wanted = wanted
        self._deadline = time.monotonic() + seconds

    def __iter__(self) -> Iterator[int]:
        for number in range(self._wanted):
            if number and time.monotonic() > self._deadline:
                return
            yield number


def reading(bench: Bench, case: Case, rounds: Rounds) -> Iterator[tuple[str, str, float]]:
    """(what, connector, rows/s) of one case."""
    count = bench.fill(case)
    bench.check(case, count)
    for number in rounds:
        for connector in in_turn(number):
            sinks = {"noop": bench.read_noop, "parquet": bench.read_parquet}
            if connector is BEST:
                del sinks["parquet"]  # Most of that time is Parquet's, whoever reads.
            for sink, work in sinks.items():
                elapsed = timed(partial(work, connector, case), bench.broker)
                yield f"read {case.label} {sink}", connector.name, count / elapsed
    run_load("delete", bootstrap=bench.broker.bootstrap, topic=case.topic)


def writing(bench: Bench, case: Case, rounds: Rounds) -> Iterator[tuple[str, str, float]]:
    frame, count = bench.rows(case)
    for number in rounds:
        for connector in in_turn(number):
            topic = {"bootstrap": bench.broker.bootstrap, "topic": f"{case.topic}-{connector.name}"}
            run_load("create", **topic, partitions=case.partitions)
            elapsed = timed(partial(bench.write, connector, case, frame), bench.broker)
            ends = run_load("ends", **topic, partitions=case.partitions)
            if ends["count"] != count:
                raise RuntimeError(f"{connector.name} wrote {ends['count']} records, not {count}")
            run_load("delete", **topic)
            yield f"write {case.label}", connector.name, count / elapsed
    frame.unpersist()


PARTS = {"read": reading, "write": writing}


def warm_up(bench: Bench) -> None:
    """A JVM is slow until it has compiled itself, and a Python worker until it is there."""
    case = Case(200, "none", 2)
    for part in PARTS.values():
        for _ in part(bench, case, Rounds(WARM_UP_ROUNDS, WARM_UP_S)):
            pass


def compared(measured: Mapping[str, Mapping[str, list[float]]]) -> dict[str, Figures]:
    """The figures as the report pairs them: ours beside each way of using theirs."""
    return {
        other.name: {
            f"{what} vs {other.name}, rows/s": {
                "tidemill": by_connector[OURS.name],
                "kafka": by_connector[other.name],
            }
            for what, by_connector in measured.items()
            if other.name in by_connector
        }
        for other in (DEFAULTS, BEST)
    }


def collect(
    bench: Bench, parts: list[str], cases: list[Case], rounds: int, minutes: float
) -> dict[str, Figures]:
    measured: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    deadline = time.monotonic() + minutes * 60
    warm_up(bench)
    todo = [(part, case) for part in parts for case in cases]
    for done, (part, case) in enumerate(todo):
        share_s = (deadline - time.monotonic()) / (len(todo) - done)
        for what, connector, rate in PARTS[part](bench, case, Rounds(rounds, share_s)):
            measured[what][connector].append(rate)
            print(f"{what} {connector:9} {rate:,.0f} rows/s", flush=True)
    return compared(measured)


def main() -> None:
    end_in_order()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all of it")
    parser.add_argument("--quick", action="store_true", help="one round of a tenth of the load")
    parser.add_argument("--part", action="append", choices=list(PARTS))
    parser.add_argument("--size", type=int, action="append", choices=SIZES)
    parser.add_argument("--codec", action="append", choices=CODECS)
    parser.add_argument("--partitions", type=int, action="append", choices=PARTITIONS)
    arguments = parser.parse_args()
    jars = connector_jars()
    if jars is None:
        raise SystemExit(f"nothing to compare with: {connector_missing()}")
    cases = [
        Case(size, codec, partitions)
        for size in arguments.size or SIZES
        for codec in arguments.codec or CODECS
        for partitions in arguments.partitions or PARTITIONS
    ]
    rounds, scale = (1, 0.1) if arguments.quick else (arguments.rounds, 1.0)
    with benching(jars, scale) as bench:
        figures = collect(bench, arguments.part or list(PARTS), cases, rounds, arguments.minutes)
    OUT.mkdir(exist_ok=True)
    (OUT / "spark.json").write_text(json.dumps(figures, indent=1))
    report = Report(figures, other=f"Spark's connector {CONNECTOR_VERSION}")
    print(report.text())
    report.plot(OUT / "spark.png")
    print(f"plot: {OUT.name}/spark.png, figures: {OUT.name}/spark.json")


@contextmanager
def benching(jars: str, scale: float) -> Iterator[Bench]:
    """A broker and a session that has both connectors."""
    ours, _ = MODES["async"]
    broker = Tidemill(COMMON | ours)
    broker.start()
    try:
        conf = {"spark.jars": jars, "spark.driver.memory": "4g", "spark.ui.enabled": "false"}
        spark: Any = session("bench", master=f"local[{CORES}]", conf=conf)
        bench = Bench(spark, broker, scale)
        try:
            yield bench
        finally:
            bench.close()
            spark.stop()
    finally:
        broker.stop()


if __name__ == "__main__":
    main()
