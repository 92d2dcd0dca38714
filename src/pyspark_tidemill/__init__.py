"""Where Spark looks for data sources by itself: packages named `pyspark_*`."""

from __future__ import annotations

from tidemill.spark.source import TidemillDataSource as DefaultSource

__all__ = ["DefaultSource"]
