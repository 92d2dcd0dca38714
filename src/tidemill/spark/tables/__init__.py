"""Tables as targets of Spark queries: Parquet folders, Delta and Iceberg, each batch exactly once.

Start at `target.py` for what a target is, then `committing.py` for how a batch gets into a table of
any format. `parquet.py`, `delta.py` and `iceberg.py` know one format each; `writing.py` is what
runs on executors, `upsert.py` what turns changes by key into files, `orphans.py` what clears up,
`rows.py` what reads a table for a report.
"""
