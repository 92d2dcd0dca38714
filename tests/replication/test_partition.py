"""One partition: who may write and read it, what is committed, and what each ack waits for."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from tests.replication.helpers import (
    OTHER,
    SELF,
    StepExecutor,
    World,
    partition_image,
    records,
    topic_image,
)

from tidemill.errors import ApiError, ErrorCode
from tidemill.replication.partition import (
    CONVERSIONS_QUEUED_MAX,
    AppendOutcome,
    Partition,
    PendingAppend,
)
from tidemill.storage.disk_errors import OutOfFilesError
from tidemill.storage.log import AppendInfo
from tidemill.testing.disk import CrashDisk


def append(partition: Partition, *values: bytes, acks: int = -1) -> AppendInfo:
    info = partition.append(records(*values), required_acks=acks)
    assert isinstance(info, AppendInfo)
    return info


def refused(partition: Partition, *, acks: int = -1) -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        partition.append(records(b"v"), required_acks=acks)
    return caught.value.code


def test_older_news_is_ignored() -> None:
    """Rule A1: metadata with a lower partition epoch changes nothing, the same is a refresh."""
    partition = World().only()
    partition.apply(partition_image(leader_epoch=3, partition_epoch=5))
    partition.apply(partition_image(leader=OTHER, leader_epoch=2, partition_epoch=4))
    assert partition.is_leader
    assert partition.leader_epoch == 3
    partition.apply(partition_image(leader_epoch=3, partition_epoch=5))
    assert partition.is_leader


def test_leader_epochs_fence() -> None:
    """Rule A4: an older epoch is fenced, a newer one is unknown here."""
    partition = World().only()
    partition.apply(partition_image(leader_epoch=3, partition_epoch=1))
    partition.check_leader(3)
    partition.check_leader(-1)
    for epoch, code in ((2, ErrorCode.FENCED_LEADER_EPOCH), (4, ErrorCode.UNKNOWN_LEADER_EPOCH)):
        with pytest.raises(ApiError) as caught:
            partition.check_leader(epoch)
        assert caught.value.code is code


def test_a_follower_takes_no_appends() -> None:
    partition = World().only()
    partition.apply(partition_image(leader=OTHER, leader_epoch=1, partition_epoch=1))
    assert refused(partition) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_new_epoch_begins_at_the_end_of_the_log() -> None:
    """Rule A7: the epoch's start is known before the first append, and written with the flush."""
    world = World()
    partition = world.only()
    append(partition, b"a", b"b")
    partition.apply(partition_image(leader_epoch=5, partition_epoch=1))
    assert partition.log.leader_epochs.entries == [(0, 0), (5, 2)]
    assert partition.log.end_offset_for_epoch(0) == (0, 2)


def test_the_high_watermark_follows_appends_under_async() -> None:
    partition = World().only()
    assert append(partition, b"a", b"b").last_offset == 1
    assert partition.high_watermark == 2
    assert partition.may_ack(-1, append(partition, b"c"))


def test_the_high_watermark_waits_for_the_flush_under_ack() -> None:
    """Rules B1 and E6: committed is what is fdatasynced; acks=1 does not wait for it."""
    executor = StepExecutor()
    world = World(executor=executor, flush_policy="ack")
    partition = world.only()
    info = append(partition, b"a")
    assert partition.high_watermark == 0
    assert partition.may_ack(1, info)
    assert not partition.may_ack(-1, info)
    executor.run_all()
    assert partition.high_watermark == 1
    assert partition.may_ack(-1, info)
    assert world.moved[-1] is partition


def test_appends_share_a_flush() -> None:
    """Group commit: what arrives while a flush runs is covered by one more, not by one each."""
    executor = StepExecutor()
    partition = World(executor=executor, flush_policy="ack").only()
    for _ in range(50):
        append(partition, b"a")
    assert len(executor.waiting) == 1
    executor.run_all()
    assert partition.high_watermark == 50


def test_nothing_is_written_with_too_few_in_sync() -> None:
    """Rule B9: acks=all is refused before the append; acks=1 is not."""
    partition = World(min_insync_replicas=2).only()
    partition.apply(partition_image(partition_epoch=1, replicas=(SELF, OTHER), isr=(SELF,)))
    assert refused(partition) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert partition.log.log_end_offset == 0
    append(partition, b"a", acks=1)


def test_the_high_watermark_waits_for_enough_in_sync() -> None:
    """Rule B2: it does not move while the ISR is below the minimum."""
    partition = World(min_insync_replicas=2).only()
    partition.apply(partition_image(partition_epoch=1, replicas=(SELF, OTHER), isr=(SELF,)))
    append(partition, b"a", acks=1)
    assert partition.high_watermark == 0


def test_the_minimum_is_never_more_than_the_replicas() -> None:
    """Rule B2: with one replica, `min.insync.replicas` of two asks for one."""
    partition = World(min_insync_replicas=2).only()
    assert partition.effective_min_isr == 1
    append(partition, b"a")
    assert partition.high_watermark == 1


def test_consumers_read_below_the_high_watermark() -> None:
    """Rule B8."""
    executor = StepExecutor()
    partition = World(executor=executor, flush_policy="ack").only()
    append(partition, b"a")
    assert partition.read(0, max_bytes=1000, isolation_level=0).is_empty
    executor.run_all()
    assert not partition.read(0, max_bytes=1000, isolation_level=0).is_empty
    assert partition.readable_end(1) == 1


def test_records_are_deleted_up_to_the_high_watermark_only() -> None:
    """Rule B12."""
    executor = StepExecutor()
    partition = World(executor=executor, flush_policy="ack").only()
    append(partition, b"a", b"b")
    with pytest.raises(ApiError):
        partition.delete_records_before(1)
    executor.run_all()
    assert partition.delete_records_before(1) == 1
    assert partition.delete_records_before(-1) == 2


def test_a_leader_that_follows_does_not_forget_what_it_committed() -> None:
    """Rule B5: its successor may not know yet how far the commits went."""
    world = World()
    partition = world.only()
    partition.append(records(b"a", b"b"), required_acks=-1)
    assert partition.high_watermark == 2
    both = (SELF, OTHER)
    partition.apply(
        partition_image(leader=OTHER, leader_epoch=1, partition_epoch=1, replicas=both, isr=both)
    )
    partition.follow_leader(1, 0)
    assert (partition.high_watermark, partition.copy.high_watermark) == (2, 2)


def test_whoever_waits_is_told_of_a_demotion() -> None:
    """Rule B10: a deposed leader reports, so that waiting producers are not acked."""
    world = World()
    partition = world.only()
    world.moved.clear()
    partition.apply(partition_image(leader=OTHER, leader_epoch=1, partition_epoch=1))
    assert world.moved == [partition]


def test_an_offline_partition_refuses_everything() -> None:
    """Rule E1."""
    partition = World().only()
    partition.take_offline()
    assert refused(partition) is ErrorCode.KAFKA_STORAGE_ERROR
    partition.apply(partition_image(leader_epoch=9, partition_epoch=9))
    assert not partition.is_leader


def test_no_append_overtakes_a_conversion() -> None:
    """Rule G7: what comes after a batch that is being converted waits for it."""
    executor = StepExecutor()
    world = World(executor=executor)
    world.add(topic_image(compression_type="zstd"))
    partition = world.only()
    done: list[tuple[str, AppendOutcome]] = []

    def note(name: str, outcome: AppendOutcome) -> None:
        done.append((name, outcome))

    for name, size in (("large", 100_000), ("small", 10)):
        pending = partition.append(records(b"x" * size), required_acks=1)
        assert isinstance(pending, PendingAppend)
        pending.then = partial(note, name)
    assert done == []
    executor.run_all()
    assert [name for name, _ in done] == ["large", "small"]
    outcomes = [outcome for _, outcome in done]
    assert all(isinstance(outcome, AppendInfo) for outcome in outcomes)
    assert [o.base_offset for o in outcomes if isinstance(o, AppendInfo)] == [0, 1]
    assert append(partition, b"direct again").base_offset == 2


@pytest.mark.parametrize("next_leader", [OTHER, SELF])
def test_a_conversion_that_outlives_the_term_is_refused(next_leader: int) -> None:
    """Rule 2.L: the state is looked at again after the wait.

    Of the same broker's next term, too: who asked, such as a coordinator, was told that it failed.
    """
    executor = StepExecutor()
    world = World(executor=executor)
    world.add(topic_image(compression_type="zstd"))
    partition = world.only()
    done: list[AppendOutcome] = []
    pending = partition.append(records(b"x" * 100_000), required_acks=1)
    assert isinstance(pending, PendingAppend)
    pending.then = done.append
    partition.apply(partition_image(leader=next_leader, leader_epoch=1, partition_epoch=1))
    executor.run_all()
    (outcome,) = done
    assert isinstance(outcome, ApiError)
    assert outcome.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition.log.log_end_offset == 0


def test_the_queue_behind_a_conversion_is_bounded() -> None:
    executor = StepExecutor()
    world = World(executor=executor)
    world.add(topic_image(compression_type="zstd"))
    partition = world.only()
    for _ in range(CONVERSIONS_QUEUED_MAX):
        partition.append(records(b"x" * 100_000), required_acks=1)
    assert refused(partition, acks=1) is ErrorCode.REQUEST_TIMED_OUT
    executor.run_all()
    assert partition.log.log_end_offset == CONVERSIONS_QUEUED_MAX


def test_a_borrowed_buffer_may_be_reused_at_once() -> None:
    """Rule 3.4.8: what waits for a conversion is a copy."""
    executor = StepExecutor()
    world = World(executor=executor)
    world.add(topic_image(compression_type="zstd"))
    partition = world.only()
    done: list[AppendOutcome] = []
    buffer = records(b"x" * 100_000)
    pending = partition.append(memoryview(buffer), required_acks=1)
    assert isinstance(pending, PendingAppend)
    pending.then = done.append
    buffer[:] = bytes(len(buffer))
    executor.run_all()
    assert isinstance(done[0], AppendInfo)


class FewHandlesDisk(CrashDisk):
    """A disk whose files cannot be opened to be flushed while `is_out` is set."""

    is_out = False

    def fdatasync(self, path: str) -> None:
        if self.is_out and path.endswith(".log"):
            raise OutOfFilesError(f"Out of file descriptors while opening {path}")
        super().fdatasync(path)


def test_a_flush_that_failed_without_harm_is_told_and_tried_again() -> None:
    """Rule E1 the other way round: nothing was lost, so the partition stays and heals by itself."""
    disk, executor = FewHandlesDisk(), StepExecutor()
    world = World(disk=disk, executor=executor, flush_policy="ack")
    partition = world.only()
    disk.is_out = True
    info = append(partition, b"a")
    seen = partition.failed_flushes
    partition.check_flushes(seen)
    world.moved.clear()
    executor.run_all()
    assert world.moved == [partition]
    assert not partition.may_ack(-1, info)
    with pytest.raises(ApiError, match="Out of file descriptors") as caught:
        partition.check_flushes(seen)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert partition.is_leader
    disk.is_out = False
    world.run_later()
    executor.run_all()
    assert partition.high_watermark == 1
    assert partition.may_ack(-1, info)
    assert not world.later


def test_a_repeated_batch_asks_again_for_the_flush_that_failed() -> None:
    """Rule G2: the answer to the repetition waits for a flush of its own, not for luck."""
    disk, executor = FewHandlesDisk(), StepExecutor()
    partition = World(disk=disk, executor=executor, flush_policy="ack").only()
    sent = records(b"a", producer_id=1, producer_epoch=0, base_sequence=0)
    disk.is_out = True
    partition.append(sent, required_acks=-1)
    executor.run_all()
    disk.is_out = False
    repeated = partition.append(sent, required_acks=-1)
    assert isinstance(repeated, AppendInfo)
    assert repeated.duplicate
    executor.run_all()
    assert partition.may_ack(-1, repeated)


@pytest.mark.parametrize("sequence", [0, 1])
def test_what_was_taken_is_not_refused_when_it_comes_again(sequence: int) -> None:
    """Rule G2: a topic that was sealed since, or has other settings, has the batch all the same."""
    partition = World().only()
    sent = records(b"a" * 100, producer_id=1, producer_epoch=0, base_sequence=0)
    partition.append(sent, required_acks=-1)
    partition.log.reconfigure(replace(partition.log.config, max_message_bytes=1))
    again = records(b"a" * 100, producer_id=1, producer_epoch=0, base_sequence=sequence)
    if sequence:
        with pytest.raises(ApiError) as caught:
            partition.append(again, required_acks=-1)
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
        return
    repeated = partition.append(again, required_acks=-1)
    assert isinstance(repeated, AppendInfo)
    assert (repeated.duplicate, repeated.base_offset) == (True, 0)
    assert partition.log.log_end_offset == 1
