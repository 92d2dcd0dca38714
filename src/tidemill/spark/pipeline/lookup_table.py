"""A table that streams are joined with: cached in Spark, and read again when it is too old."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tidemill.clock import Clock
from tidemill.spark.pipeline import spark_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger(__name__)


class LookupTable:
    """A micro-batch plans its join anew and takes the cache that there is then. Without the cache
    each would read the whole topic.

    Spark knows a cache by its plan, so there cannot be an old and a new one of the same table. A
    refresh that fails leaves a cache that the next micro-batch fills, or the next refresh.
    """

    def __init__(self, name: str, frame: DataFrame, refresh_ms: int, clock: Clock) -> None:
        self._name = name
        self._frame = frame
        self._refresh_ms = refresh_ms
        self._clock = clock
        self._loaded_ms: int = clock.monotonic_ms()
        self._load()

    def refresh_if_due(self) -> None:
        """Read the table again if it is time. A failure is no reason to end what reads it: whether
        the queries can go on is for themselves to find out."""
        if self._clock.monotonic_ms() - self._loaded_ms < self._refresh_ms:
            return
        try:
            self.forget()
            self._load()
        except Exception as error:  # noqa: BLE001 - whatever Spark, Java and brokers throw
            self._loaded_ms = self._clock.monotonic_ms()
            cause = spark_errors.root_cause(str(error)) or type(error).__name__
            logger.warning("table %s was not read again: %s", self._name, cause)

    def forget(self) -> None:
        self._frame.unpersist()

    def _load(self) -> None:
        self._frame.persist()
        self._frame.count()
        self._loaded_ms = self._clock.monotonic_ms()
