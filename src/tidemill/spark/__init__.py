"""Topics as Spark tables: the data source, the sinks, and the pipelines that users declare.

Importing this package imports neither pyspark nor pyarrow: commands that never touch Spark must not
pay for it.
"""
