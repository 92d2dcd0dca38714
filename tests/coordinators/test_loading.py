"""Loading a coordinator's partition while its log is compacted, moved or refused (rule J1)."""

from __future__ import annotations

import asyncio

import pytest
from tests.coordinators.shard_world import ShardWorld
from tests.coordinators.test_runtime import commit, offset_of, settled_world, write
from tests.replication.helpers import partition_image
from tests.storage.cleaning import Cleaning, key
from tests.storage.helpers import StepExecutor

from tidemill.coordinators.host import LOAD_RETRY_MS, LOAD_RETRY_MS_MAX
from tidemill.coordinators.loading import EMPTY_READS_MAX, READ_BYTES_MIN, Loader
from tidemill.coordinators.records import OffsetCommitKey, OffsetCommitValue
from tidemill.coordinators.result import CoordinatorRecord
from tidemill.coordinators.runtime import RuntimeSettings
from tidemill.errors import ErrorCode
from tidemill.storage.disk_errors import OutOfFilesError
from tidemill.wire.control import ControlType


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


class NoFiles:
    """There is no descriptor for a read, until they are `back`."""

    def __init__(self, world: ShardWorld) -> None:
        self._disk = world.world.disk
        self._pread = self._disk.pread
        self.refused = 0
        self._disk.pread = self._read  # type: ignore[method-assign]

    def _read(self, path: str, position: int, length: int) -> bytes:
        self.refused += 1
        raise OutOfFilesError("Too many open files")

    def back(self) -> None:
        self._disk.pread = self._pread  # type: ignore[method-assign]


def world_that_cannot_load() -> tuple[ShardWorld, NoFiles]:
    world = settled_world()
    assert write(world, commit(5)) == ["done"]
    no_files = NoFiles(world)
    world.restart()
    assert world.state() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    return world, no_files


def test_a_load_that_failed_for_want_of_descriptors_is_tried_again() -> None:
    """rule J1: nobody is answered from half a state, and nobody is refused for ever."""
    world, no_files = world_that_cannot_load()
    assert write(world, commit(6)) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    world.wait(LOAD_RETRY_MS)
    assert no_files.refused == 2
    no_files.back()
    world.wait(2 * LOAD_RETRY_MS)
    assert world.state() is ErrorCode.NONE
    assert offset_of(world) == 5
    assert write(world, commit(6)) == ["done"]


def test_a_load_that_is_tried_again_begins_with_nothing() -> None:
    """What was replayed before the failure may be deleted by compaction until the next try."""
    world = settled_world(runtime_settings=RuntimeSettings(load_buffer_bytes=READ_BYTES_MIN))
    for start in range(0, 3_000, 500):
        write(world, *(commit(number, number) for number in range(start, start + 500)))
    world.runtime.close()
    world.runtime = world._start()
    while len(world.shard.offsets) == 0:
        world.soon.popleft()()
    no_files = NoFiles(world)
    world.pump()
    assert no_files.refused == 1
    assert len(world.shard.offsets) == 0
    no_files.back()
    world.wait(LOAD_RETRY_MS)
    assert len(world.shard.offsets) == 3_000


def test_a_log_that_can_never_be_loaded_is_tried_ever_less_often(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world, no_files = world_that_cannot_load()
    world.wait(LOAD_RETRY_MS_MAX)
    before = no_files.refused
    world.wait(10 * LOAD_RETRY_MS_MAX)
    assert no_files.refused - before in (10, 11)
    assert len(caplog.records) == no_files.refused < 20


def test_a_coordinator_that_is_closed_does_not_try_again() -> None:
    world, no_files = world_that_cannot_load()
    world.runtime.close()
    world.wait(10 * LOAD_RETRY_MS_MAX)
    assert no_files.refused == 1


def test_a_leader_of_another_time_does_not_try_again() -> None:
    """Not even if the next try is due before it is closed."""
    world, no_files = world_that_cannot_load()
    image = partition_image(leader=1, leader_epoch=1, partition_epoch=1, replicas=(0, 1), isr=(1,))
    world.partition.apply(image)
    world.clock.advance(LOAD_RETRY_MS)
    world.wheel.advance(world.clock.monotonic_ms())
    world.wait(10 * LOAD_RETRY_MS_MAX)
    assert no_files.refused == 1
    assert world.state() is ErrorCode.NOT_COORDINATOR
    no_files.back()
    world.regain_leadership()
    assert world.state() is ErrorCode.NONE
    assert offset_of(world) == 5


async def test_a_log_that_is_moved_under_a_read_is_loaded_from_its_new_place() -> None:
    """rule J1; the files that the load reads are gone, and the partition has another log."""
    executor = StepExecutor()
    world = settled_world(executor=executor, dirs=("/one", "/two"))

    def go_on() -> None:
        while executor.waiting:
            executor.run_all()
            world.pump()

    go_on()
    answers = write(world, commit(5))
    go_on()
    assert answers == ["done"]
    world.restart()
    read = executor.waiting.pop()
    moves, source = world.world.replicas.moves, world.partition.log
    moves.move(world.partition, "/two" if source.dir.path == "/one" else "/one")
    while moves.under_way:
        go_on()
        await asyncio.sleep(0)
    assert world.partition.log is not source
    executor.waiting.append(read)
    go_on()
    assert world.state() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.wait(LOAD_RETRY_MS)
    go_on()
    assert world.state() is ErrorCode.NONE
    assert offset_of(world) == 5


class Transactions:
    """A log of groups as Apache Kafka writes it, with offsets that belong to transactions."""

    def __init__(self) -> None:
        self.world = Cleaning()
        self._sequences: dict[int, int] = {}

    def commit(self, name: bytes, offset: int | None, producer_id: int = -1) -> None:
        pair = (name, None if offset is None else b"%d" % offset)
        if producer_id < 0:
            self.world.put(pair)
            return
        sequence = self._sequences.get(producer_id, 0)
        self._sequences[producer_id] = sequence + 1
        self.world.put(
            pair, producer_id=producer_id, epoch=0, sequence=sequence, transactional=True
        )

    def end(self, producer_id: int, control_type: ControlType) -> None:
        self.world.end_transaction(control_type, producer_id)

    def fill(self) -> None:
        """So much that what follows is read another time."""
        for number in range(40):
            self.world.put((b"filler", b"%d" % number))

    def loaded(self) -> dict[str, int]:
        load = Load(self.world)
        while load.executor.waiting:
            load.step()
        assert load.ends == [None]
        load.offsets.pop("filler", None)
        return load.offsets


@pytest.fixture
def log() -> Transactions:
    return Transactions()


@pytest.mark.parametrize("apart", [False, True])
def test_offsets_of_a_transaction_count_when_it_was_committed(
    log: Transactions, apart: bool
) -> None:
    """Rule H11: an aborted commit was never one, and an open one is none yet."""
    for producer_id, name in ((1, b"kept"), (2, b"aborted"), (3, b"open")):
        log.commit(name, 5)
        log.commit(name, 7, producer_id)
    if apart:
        log.fill()
    log.end(2, ControlType.ABORT)
    log.end(1, ControlType.COMMIT)
    log.commit(b"aborted", 8, 1)
    log.end(1, ControlType.ABORT)
    assert log.loaded() == {"kept": 7, "aborted": 5, "open": 5}


def test_a_later_commit_is_not_undone_by_a_marker(log: Transactions) -> None:
    """What counts is when the offset was written, as in Kafka."""
    log.commit(b"overtaken", 7, 1)
    log.commit(b"overtaken", 9)
    log.commit(b"deleted", 7, 1)
    log.commit(b"deleted", None)
    log.end(1, ControlType.COMMIT)
    assert log.loaded() == {"overtaken": 9, "deleted": -1}


def test_of_two_transactions_the_later_offset_counts(log: Transactions) -> None:
    log.commit(b"a", 7, 1)
    log.commit(b"a", 8, 2)
    log.commit(b"b", 7, 1)
    log.commit(b"b", 6, 1)
    log.end(2, ControlType.COMMIT)
    log.end(1, ControlType.COMMIT)
    assert log.loaded() == {"a": 8, "b": 6}
