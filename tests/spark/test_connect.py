"""Spark Connect finds the source by itself and reads topics with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

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
    return {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}


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
