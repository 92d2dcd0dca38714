"""What an idempotent producer had sent behind a refused batch is refused like it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.replication.helpers import OTHER, SELF, World, partition_image

from tidemill.errors import ApiError, ErrorCode
from tidemill.replication import refusals
from tidemill.replication.partition import Partition
from tidemill.wire.records import Record, build_batch

ELSEWHERE: dict[str, Any] = {
    "leader": OTHER,
    "leader_epoch": 1,
    "replicas": (SELF, OTHER),
    "isr": (SELF, OTHER),
}
BACK: dict[str, Any] = {**ELSEWHERE, "leader": SELF, "leader_epoch": 2}


def numbered(sequence: int, *, producer_id: int = 7, epoch: int = 0) -> bytes:
    record = Record(0, 1_000, None, b"v", ())
    return build_batch(
        [record], producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
    )


def code(partition: Partition, records: bytes) -> ErrorCode:
    """What an append is answered."""
    try:
        partition.append(records, required_acks=1)
    except ApiError as error:
        return error.code
    return ErrorCode.NONE


@pytest.fixture
def world() -> World:
    return World()


def lead_again_after_refusing(partition: Partition, *sequences: int) -> None:
    partition.apply(partition_image(partition_epoch=1, **ELSEWHERE))
    for sequence in sequences:
        assert code(partition, numbered(sequence)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    partition.apply(partition_image(partition_epoch=2, **BACK))


def test_what_comes_behind_a_refused_batch_has_to_come_again(world: World) -> None:
    """Rule G3: no client is told of a gap that it did not make."""
    partition = world.only()
    assert code(partition, numbered(0)) is ErrorCode.NONE
    lead_again_after_refusing(partition, 1, 2)
    assert code(partition, numbered(3)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    for sequence in (1, 2, 3):
        assert code(partition, numbered(sequence)) is ErrorCode.NONE
    assert code(partition, numbered(5)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "its own doing"


def test_a_new_producer_does_not_begin_behind_its_refused_first_batch(world: World) -> None:
    partition = world.only()
    lead_again_after_refusing(partition, 0)
    assert code(partition, numbered(1)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert partition.log.log_end_offset == 0
    assert code(partition, numbered(0)) is ErrorCode.NONE
    assert code(partition, numbered(1)) is ErrorCode.NONE


def test_a_batch_that_another_leader_took_holds_up_nothing(world: World) -> None:
    """The refused one was written elsewhere and copied here: the next is in order."""
    partition = world.only()
    assert code(partition, numbered(0)) is ErrorCode.NONE
    lead_again_after_refusing(partition, 0)
    assert code(partition, numbered(1)) is ErrorCode.NONE


def test_another_epoch_or_another_producer_is_not_concerned(world: World) -> None:
    partition = world.only()
    lead_again_after_refusing(partition, 3)
    assert code(partition, numbered(4, producer_id=8)) is ErrorCode.NONE
    assert code(partition, numbered(0, epoch=1)) is ErrorCode.NONE


def test_a_refusal_is_not_remembered_for_ever(world: World) -> None:
    partition = world.only()
    assert code(partition, numbered(0)) is ErrorCode.NONE
    lead_again_after_refusing(partition, 1)
    world.clock.advance(refusals.REMEMBERED_MS)
    assert code(partition, numbered(2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_bounded_number_of_producers_is_remembered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "PRODUCERS_MAX", 2)
    partition = world.only()
    partition.apply(partition_image(partition_epoch=1, **ELSEWHERE))
    for producer_id in (1, 2, 3):
        code(partition, numbered(0, producer_id=producer_id))
    partition.apply(partition_image(partition_epoch=2, **BACK))
    answers = [code(partition, numbered(1, producer_id=each)) for each in (1, 2, 3)]
    assert answers == [ErrorCode.NONE, *[ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2]
