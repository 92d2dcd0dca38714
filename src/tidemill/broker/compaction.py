"""Compaction in a broker: the storage layer's cleaner with the broker's settings and clocks.

The settings are read anew for each pass, so a change of `log.cleaner.*` counts from the next one.
"""

from __future__ import annotations

from tidemill.clock import Clock
from tidemill.config import BrokerConfig
from tidemill.executor import Executor
from tidemill.replication.manager import ReplicaManager
from tidemill.storage.cleaner import LogCleaner
from tidemill.storage.cleaner_run import CleanerSettings
from tidemill.storage.manager import LogManager
from tidemill.timers import TimingWheel


def make_cleaner(
    logs: LogManager,
    replicas: ReplicaManager,
    config: BrokerConfig,
    clock: Clock,
    executor: Executor,
    timers: TimingWheel,
) -> LogCleaner:
    """The cleaner of a broker's logs; it begins with the first call of `run`."""
    return LogCleaner(
        logs,
        clock=clock,
        executor=executor,
        call_later=timers.schedule,
        settings=lambda: cleaner_settings(config),
        high_watermarks=replicas.high_watermarks,
        on_damage=replicas.damaged,
    )


def cleaner_settings(config: BrokerConfig) -> CleanerSettings:
    return CleanerSettings(
        is_enabled=config.bool("log.cleaner.enable"),
        dedupe_buffer_bytes=config.int("log.cleaner.dedupe.buffer.size"),
        io_buffer_bytes=config.int("log.cleaner.io.buffer.size"),
        load_factor=config.float("log.cleaner.io.buffer.load.factor"),
        io_bytes_per_second_max=config.float("log.cleaner.io.max.bytes.per.second"),
    )
