"""Compaction and power cuts: whatever step they hit, the log is whole after the restart.

A model beside the log knows every record. After any number of passes and crashes the last committed
value of each key is there under its own offset, nothing is there that was never written, and what
compaction had decided is either done or not done at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.storage.cleaning import COMPACTED, Cleaning, key
from tests.storage.helpers import DIR, TP

from tidemill.storage.checkpoint import CLEANER_OFFSETS, read_offsets
from tidemill.storage.cleaner_map import ENTRY_BYTES
from tidemill.storage.cleaner_run import CleanerSettings
from tidemill.storage.inspect_verify import verify_log
from tidemill.testing.disk import CrashDisk, PowerCut
from tidemill.wire.compression import Codec

TEMPORARY = (".cleaned", ".swap", ".deleted")


@dataclass
class Model:
    """What was appended, and what a reader may expect to find."""

    written: dict[int, tuple[bytes, bytes | None, int]] = field(default_factory=dict)
    """Offset to key, value and time of writing; only what a flush has covered."""

    def note(self, offset: int, key: bytes, value: bytes | None, now_ms: int) -> None:
        self.written[offset] = (key, value, now_ms)

    def last_offsets(self) -> dict[bytes, int]:
        return {each: offset for offset, (each, _, _) in sorted(self.written.items())}

    def check(self, world: Cleaning) -> None:
        """Rules I3 and I4, whatever has happened."""
        found = world.records()
        offsets = [offset for offset, _, _ in found]
        assert offsets == sorted(set(offsets))
        for offset, name, value in found:
            assert self.written[offset][:2] == (name, value), f"offset {offset} has changed"
        horizon_ms = world.clock.now_ms() - COMPACTED.delete_retention_ms
        for name, offset in self.last_offsets().items():
            value, written_ms = self.written[offset][1:]
            may_be_gone = value is None and written_ms <= horizon_ms
            assert offset in offsets or may_be_gone, f"the last record of {name!r} is lost"

    def check_compacted(self, world: Cleaning, end_offset: int) -> None:
        """Below the cleaner's offset each key is there once, at most."""
        last = self.last_offsets()
        below = [(offset, name) for offset, name, _ in world.records() if offset < end_offset]
        for offset, name in below:
            newer = [each for each in self.written if self.written[each][0] == name]
            newest_below = max(each for each in newer if each < end_offset)
            assert offset == newest_below or (name is not None and last[name] == offset)


def filled(disk: CrashDisk, model: Model, *, count: int = 40) -> Cleaning:
    world = Cleaning(disk=disk)
    for number in range(count):
        pairs = [(key(number % 5), b"value-%d" % number), (key(number % 7), b"other-%d" % number)]
        codec = (Codec.NONE, Codec.LZ4)[number % 2]
        base = world.put(*pairs, codec=codec)
        for index, (name, value) in enumerate(pairs):
            model.note(base + index, name, value, world.clock.now_ms())
    world.settle()
    return world


def steps_of_one_pass() -> int:
    disk = CrashDisk()
    world = filled(disk, Model())
    before = disk.steps
    world.clean()
    return disk.steps - before


# Writes count by the byte, so that every cut inside one is a case of its own; the renames and
# flushes of the swap are one step each. Every 23rd step still hits each kind of both many times.
CUTS = range(0, steps_of_one_pass() + 1, 23)


@pytest.mark.parametrize("kind", ["power cut", "kill"])
def test_a_crash_at_each_step_of_a_pass(kind: str) -> None:
    """Rule I5 and rule E4: `.cleaned`, `.swap` and final names, a crash between any two of them."""
    for cut in CUTS:
        disk, model = CrashDisk(Random(cut)), Model()
        world = filled(disk, model)
        disk.cut_after(cut)
        try:
            world.clean()
        except PowerCut:
            pass
        check_after_crash(disk, world, model, kind)


def check_after_crash(disk: CrashDisk, world: Cleaning, model: Model, kind: str) -> None:
    disk.power_on() if kind == "power cut" else disk.restart()
    world.boot()
    assert not [name for name in world.names() if name.endswith(TEMPORARY)]
    assert world.log.log_end_offset == 80
    model.check(world)
    end_offset = read_offsets(disk, DIR, CLEANER_OFFSETS).get(TP, 0)
    model.check_compacted(world, end_offset)
    world.settle()
    world.clean()
    assert not world.cleaner.uncleanable
    model.check(world)
    model.check_compacted(world, 80)
    world.manager.remove_doomed()
    world.manager.shutdown({TP: 80})
    report = verify_log(disk, world.log.directory, deep=True)
    assert report.problems == [], "indexes, epochs, snapshots or checksums are not as they should"


SWAP_STEPS = [
    "created .cleaned",
    "flushed .cleaned",
    "renamed an index to .swap",
    "renamed all indexes to .swap",
    "renamed the log to .swap",
    "flushed .swap",
    "renamed one original to .deleted",
    "renamed all originals to .deleted",
    "renamed an index to its final name",
    "renamed the log to its final name",
    "flushed the final names",
]


@pytest.mark.parametrize("step", range(len(SWAP_STEPS)), ids=SWAP_STEPS)
@pytest.mark.parametrize("is_second", [False, True], ids=["crash", "crash, then in recovery"])
def test_a_crash_after_each_named_step_of_the_swap(step: int, is_second: bool) -> None:
    """Rule I5: the list of `log_replace.py`, one by one; recovery itself may be cut short, too."""
    disk, model = CrashDisk(Random(step)), Model()
    world = filled(disk, model)
    watcher = _Watcher(disk, step)
    with pytest.raises(PowerCut):
        watcher.run(world)
    for again in range(12 if is_second else 0):
        disk.restart()
        disk.cut_after(2 * again)
        try:
            world.boot()
        except PowerCut:
            continue
        break
    disk.cut_after(None)
    check_after_crash(disk, world, model, "kill" if is_second else "power cut")


class _Watcher:
    """Cuts the power as soon as the disk shows that a named step was taken."""

    def __init__(self, disk: CrashDisk, step: int) -> None:
        self._disk = disk
        self._step = step
        self._is_placed = False
        self._seen = ""

    def run(self, world: Cleaning) -> None:
        replace, fsync_dir, write_at = (
            self._disk.replace,
            self._disk.fsync_dir,
            self._disk.write_at,
        )
        directory = world.log.directory

        def on_replace(source: str, target: str) -> None:
            replace(source, target)
            self._note(f"{source.rpartition('/')[2]}>{target.rpartition('/')[2]}")

        def on_sync(path: str) -> None:
            fsync_dir(path)
            if path == directory:
                self._note("sync")

        def on_write(path: str, position: int, parts: object) -> None:
            write_at(path, position, parts)  # type: ignore[arg-type]
            if path.endswith(".log.cleaned"):
                self._note("write")

        self._disk.replace = on_replace  # type: ignore[method-assign]
        self._disk.fsync_dir = on_sync  # type: ignore[method-assign]
        self._disk.write_at = on_write  # type: ignore[method-assign]
        try:
            world.clean()
        finally:
            self._disk.replace = replace  # type: ignore[method-assign]
            self._disk.fsync_dir = fsync_dir  # type: ignore[method-assign]
            self._disk.write_at = write_at  # type: ignore[method-assign]

    def _note(self, event: str) -> None:
        if self._is_it(event):
            self._disk.cut_after(0)
        self._seen = event
        self._is_placed |= ".log.swap>" in event

    def _is_it(self, event: str) -> bool:
        source, _, target = event.partition(">")
        to_swap = target.endswith(".swap") and source.endswith(".cleaned")
        to_deleted = target.endswith(".deleted")
        to_final = source.endswith(".swap")
        was_swapped = ".log.swap" in self._seen
        return [
            event == "write",
            event == "sync",
            to_swap and ".index" in event,
            to_swap and ".txnindex" in event,
            to_swap and ".log" in event,
            event == "sync" and was_swapped,
            to_deleted and ".log" in event,
            to_deleted and ".timeindex" in event,
            to_final and ".index" in event,
            to_final and ".log" in event,
            event == "sync" and self._is_placed,
        ][self._step]


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_any_life_of_a_compacted_log(data: st.DataObject, seed: int) -> None:
    """Rules I1 to I5: updates, tombstones, passes, time and crashes in any order."""
    disk, model, random = CrashDisk(Random(seed)), Model(), Random(seed)
    world = Cleaning(
        disk=disk,
        settings=CleanerSettings(
            dedupe_buffer_bytes=ENTRY_BYTES * random.choice((3, 8, 1000)), load_factor=1.0
        ),
    )
    operations = st.sampled_from(["put", "put", "put", "delete", "clean", "clean", "time", "crash"])
    for operation in data.draw(st.lists(operations, min_size=5, max_size=40)):
        if operation in ("put", "delete"):
            put_some(world, model, random, is_delete=operation == "delete")
        elif operation == "time":
            world.clock.advance(random.choice((1, COMPACTED.delete_retention_ms)))
        elif operation == "clean":
            world.settle()
            world.clean()
            model.check(world)
        else:
            crash_while_cleaning(disk, world, random)
            model.check(world)
    world.settle()
    world.clean()
    model.check(world)
    model.check_compacted(world, world.log.log_end_offset)


def put_some(world: Cleaning, model: Model, random: Random, *, is_delete: bool) -> None:
    pairs: list[tuple[bytes, bytes | None]] = [
        (key(random.randrange(6)), None if is_delete else random.randbytes(random.randrange(40)))
        for _ in range(random.randint(1, 6))
    ]
    codec = random.choice((Codec.NONE, Codec.ZSTD))
    base = world.put(*pairs, codec=codec)
    for index, (name, value) in enumerate(pairs):
        model.note(base + index, name, value, world.clock.now_ms())


def crash_while_cleaning(disk: CrashDisk, world: Cleaning, random: Random) -> None:
    world.settle()
    disk.cut_after(random.randrange(2000))
    try:
        world.clean()
        world.manager.write_checkpoints({TP: world.log.log_end_offset})
    except PowerCut:
        pass
    disk.power_on()
    while True:
        disk.cut_after(random.choice((3, 30, 300, None)))
        try:
            world.boot()
        except PowerCut:
            disk.power_on()
            continue
        disk.cut_after(None)
        return
