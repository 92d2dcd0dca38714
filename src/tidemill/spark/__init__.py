"""Topics as Spark tables: the data source, the sinks, and the pipelines that users declare.

    import tidemill.spark

    spark = tidemill.spark.session("clicks")

Importing this package imports neither pyspark nor pyarrow: commands that never touch Spark must not
pay for it. What it offers is imported when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemill.spark.sessions import recommended_conf, session

__all__ = ["recommended_conf", "session"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tidemill.spark import sessions

    return getattr(sessions, name)
