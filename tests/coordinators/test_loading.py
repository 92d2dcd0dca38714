"""Loading a coordinator's partition while its log is compacted (rule J1)."""

from __future__ import annotations

from tests.storage.cleaning import Cleaning, key
from tests.storage.helpers import StepExecutor

from tidemill.coordinators.loading import EMPTY_READS_MAX, Loader
from tidemill.coordinators.records import OffsetCommitKey, OffsetCommitValue
from tidemill.coordinators.result import CoordinatorRecord


def decode(key: bytes, value: bytes | None) -> CoordinatorRecord:
    name = OffsetCommitKey(group="g", topic=key.decode(), partition=0)
    return CoordinatorRecord(name, OffsetCommitValue(offset=int(value or b"-1")))


class Load:
    """A load that goes on a step at a time, and what came of it."""

    def __init__(self, world: Cleaning) -> None:
        self.executor = StepExecutor()
        self.offsets: dict[str, int] = {}
        self.ends: list[BaseException | None] = []
        self.reads = 0
        loader = Loader(
            world.log,
            self.executor,
            lambda callback: callback(),
            decode,
            buffer_bytes=1,
            replay=self._replay,
            done=self.ends.append,
        )
        loader.start()

    def _replay(self, record: CoordinatorRecord, _: int) -> None:
        assert isinstance(record.key, OffsetCommitKey)
        assert isinstance(record.value, OffsetCommitValue)
        self.offsets[record.key.topic] = record.value.offset

    def step(self) -> None:
        self.reads += 1
        self.executor.waiting.pop(0)()


def world_to_load() -> Cleaning:
    world = Cleaning()
    for number in range(40):
        world.put((key(number % 3), b"%d" % number))
    world.settle()
    world.log.release_memory()
    return world


def test_a_file_that_compaction_deletes_under_a_read() -> None:
    """It is read again from what took its place: a coordinator that gives up serves nobody."""
    world = world_to_load()
    load = Load(world)
    assert world.clean()
    world.manager.remove_doomed()
    while not load.ends:
        load.step()
    assert load.ends == [None]
    assert load.offsets == {"key-0000": 39, "key-0001": 37, "key-0002": 38}


def test_a_log_that_never_gives_anything_is_an_error() -> None:
    world = world_to_load()
    load = Load(world)
    while not load.ends:
        world.log.segments[0].forsake()
        load.step()
    assert "cannot be read beyond offset 0" in str(load.ends[0])
    assert load.reads == EMPTY_READS_MAX + 1
