"""Where Spark looks for data sources by itself: packages named `pyspark_*`."""
