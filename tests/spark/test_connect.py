"""Spark Connect and `spark-pipelines` find the source by themselves and read topics with it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.spark.topics import create, fill, numbers

from tidemill.testing.process import BrokerProcess

pytest.importorskip("grpc", reason="Spark Connect needs the spark extra's grpcio")

LIMIT_S = 240
pytestmark = pytest.mark.timeout(300)

CLIENT = """
import json, sys
from pyspark.sql import SparkSession

bootstrap, topic, folder = sys.argv[1:]
spark = (
    SparkSession.builder.remote("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .getOrCreate()
)
options = {
    "kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"
}
read = spark.read.format("tidemill").options(**options).load().count()
query = (
    spark.readStream.format("tidemill").options(**options).load().writeStream.format("parquet")
    .option("path", folder + "/out").option("checkpointLocation", folder + "/checkpoint")
    .trigger(availableNow=True).start()
)
query.awaitTermination()
followed = spark.read.parquet(folder + "/out").count()
print("FOUND " + json.dumps([type(spark).__module__, read, followed]))
spark.stop()
"""


def environment() -> dict[str, str]:
    """A user's: SPARK_HOME is what the session of the test run has set for itself.

    The one thing that a user has not is SPARK_TESTING, by which Spark Connect takes a free port
    instead of 15002, where the JVM of the test before may still be.
    """
    kept = {name: text for name, text in os.environ.items() if name != "SPARK_HOME"}
    here = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    return {**kept, **here, "SPARK_TESTING": "1"}


def run(command: list[str], cwd: Path) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout + done.stderr


@pytest.mark.xdist_group("spark")
def test_spark_connect(broker: BrokerProcess, name: str, tmp_path: Path) -> None:
    create(broker.bootstrap, name, partitions=2)
    fill(broker.bootstrap, name, numbers(0, 10))
    script = tmp_path / "client.py"
    script.write_text(CLIENT)
    said = run([sys.executable, str(script), broker.bootstrap, name, str(tmp_path)], tmp_path)
    (line,) = [line for line in said.splitlines() if line.startswith("FOUND ")]
    module, read, followed = json.loads(line.removeprefix("FOUND "))
    assert "connect" in module, "this was to be a Connect session"
    assert (read, followed) == (10, 10)


@pytest.mark.xdist_group("spark")
def test_spark_pipelines(broker: BrokerProcess, name: str, tmp_path: Path) -> None:
    """As docs/spark.md shows it."""
    import pyspark

    text = (Path(__file__).resolve().parents[2] / "docs" / "spark.md").read_text()
    (definitions,) = re.findall(r"^```py\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (settings,) = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    definitions = definitions.replace("127.0.0.1:9092", broker.bootstrap)
    (tmp_path / "transformations").mkdir()
    (tmp_path / "transformations" / "pages.py").write_text(
        definitions.replace('"clicks"', f'"{name}"')
    )
    (tmp_path / "spark-pipeline.yml").write_text(settings.replace("/data", str(tmp_path)))
    create(broker.bootstrap, name)
    command = str(Path(pyspark.__file__).parent / "bin" / "spark-pipelines")
    fill(broker.bootstrap, name, numbers(0, 10))
    run([command, "run"], tmp_path)
    rows = parquet_rows(tmp_path / "spark-warehouse" / "pages")
    assert sorted(rows, key=int) == [str(number) for number in range(10)]


def parquet_rows(folder: Path) -> list[Any]:
    import pyarrow.parquet as pq

    files = sorted(folder.glob("*.parquet"))
    return [page for file in files for page in pq.read_table(file).column("page").to_pylist()]
