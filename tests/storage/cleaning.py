"""What the tests of compaction share: a log to compact, and a cleaner whose time stands still."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tests.storage.helpers import TOPIC_ID, TP, manager_on, read_all

from tidemill.executor import Executor, InlineExecutor
from tidemill.storage.cleaner import LogCleaner
from tidemill.storage.cleaner_run import CleanerSettings
from tidemill.storage.log import Log
from tidemill.storage.log_config import LogConfig
from tidemill.storage.manager import LogManager
from tidemill.testing.clock import ManualClock
from tidemill.testing.disk import CrashDisk
from tidemill.wire.batch import BatchHeader, iter_headers
from tidemill.wire.compression import Codec
from tidemill.wire.control import ControlType, build_marker
from tidemill.wire.records import Record, build_batch

COMPACTED = LogConfig(
    segment_bytes=600,
    index_interval_bytes=100,
    cleanup_compact=True,
    cleanup_delete=False,
    min_cleanable_ratio=0.0,
    delete_retention_ms=10_000,
    file_delete_delay_ms=0,
)

KeyValue = tuple[bytes | None, bytes | None]


@dataclass
class Cleaning:
    """A compacted log on a disk that can crash, and its cleaner."""

    disk: CrashDisk = field(default_factory=CrashDisk)
    clock: ManualClock = field(default_factory=ManualClock)
    config: LogConfig = COMPACTED
    settings: CleanerSettings = field(default_factory=CleanerSettings)
    executor: Executor = field(default_factory=InlineExecutor)
    high_watermark: int | None = None
    """None: everything is committed."""
    manager: LogManager = field(init=False)
    log: Log = field(init=False)
    cleaner: LogCleaner = field(init=False)
    is_done: bool = False
    later: list[tuple[int, Callable[[], None]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.boot()

    def boot(self) -> None:
        """Start on whatever the disk holds."""
        self.later = []
        self.manager = manager_on(self.disk, clock=self.clock, config=self.config)
        self.log = self.manager.create(TP, TOPIC_ID, self.config)
        self.cleaner = LogCleaner(
            self.manager,
            clock=self.clock,
            executor=self.executor,
            call_later=lambda delay_ms, callback: self.later.append((delay_ms, callback)),
            settings=lambda: self.settings,
            high_watermarks=lambda: {TP: self.watermark},
        )

    @property
    def watermark(self) -> int:
        return self.log.log_end_offset if self.high_watermark is None else self.high_watermark

    def reconfigure(self, **changes: object) -> None:
        self.config = replace(self.config, **changes)  # type: ignore[arg-type]
        self.log.reconfigure(self.config)

    def put(
        self,
        *pairs: KeyValue,
        codec: Codec = Codec.NONE,
        producer_id: int = -1,
        epoch: int = -1,
        sequence: int = -1,
        transactional: bool = False,
    ) -> int:
        """Append one batch; its base offset."""
        now_ms = self.clock.now_ms()
        records = [
            Record(index, now_ms + index, key, value) for index, (key, value) in enumerate(pairs)
        ]
        data = build_batch(
            records,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        return self.log.append_as_leader(bytearray(data), leader_epoch=0).base_offset

    def end_transaction(self, control_type: ControlType, producer_id: int, epoch: int = 0) -> int:
        marker = build_marker(
            control_type,
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=1,
            timestamp=self.clock.now_ms(),
        )
        info = self.log.append_as_leader(bytearray(marker), leader_epoch=0, producer_check=False)
        return info.base_offset

    def settle(self) -> None:
        """Close the active segment and flush: all that was appended may be compacted."""
        self.log.roll()
        self.manager.request_flush(self.log)

    def clean(self) -> bool:
        """One round of the cleaner, to its end; whether the log was compacted."""
        passes = self.cleaner.totals.passes
        self.begin()
        self.finish()
        return self.cleaner.totals.passes > passes

    def begin(self) -> None:
        self.is_done = False

        def done() -> None:
            self.is_done = True

        self.cleaner.run(done)

    def turn(self) -> bool:
        """What a timer would do next; False when nothing waits."""
        if not self.later:
            return False
        self.later.pop(0)[1]()
        return True

    def finish(self) -> None:
        turns = 0
        while self.turn():
            turns += 1
            assert turns < 100_000, "the cleaner does not come to an end"
        assert self.is_done

    # What is in the log

    def records(self) -> list[tuple[int, bytes | None, bytes | None]]:
        self.warm_up()
        return [(record.offset, record.key, record.value) for record in read_all(self.log)]

    def warm_up(self) -> None:
        """Load the indexes: a cold read may find that compaction left nothing in its segment, and
        then has to be asked again."""
        for segment in self.log.segments:
            len(segment.offset_index)

    def headers(self) -> list[BatchHeader]:
        found: list[BatchHeader] = []
        for segment in self.log.segments:
            data = self.disk.pread(segment.log_path, 0, segment.size)
            found += [header for _, header in iter_headers(data)]
        return found

    def names(self) -> list[str]:
        return self.disk.listdir(self.log.directory)


def key(number: int) -> bytes:
    return f"key-{number:04d}".encode()
