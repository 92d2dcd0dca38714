"""The numbering of an idempotent producer's batches, as a state machine (rules G1 to G3)."""

from __future__ import annotations

from tidemill.client.accumulator import PartitionQueue
from tidemill.client.batches import NO_SEQUENCE, Batch
from tidemill.client.sequences import EPOCH_MAX, Identity, Sequences, after
from tidemill.types import TopicPartition

TP = TopicPartition("t", 0)


def batch(order: int, count: int = 10) -> Batch:
    made = Batch(TP, 0, (order,))
    made.record_count = count
    return made


def identity(epoch: int = 0) -> Identity:
    known = Identity()
    known.assign(7, epoch)
    return known


def started(acknowledged: int = 10) -> tuple[Sequences, Identity]:
    """A partition whose first batch arrived."""
    sequences, known = Sequences(), identity()
    assert sequences.prepare(known, [])
    first = batch(0, acknowledged)
    sequences.sent(first)
    sequences.returned(first)
    sequences.acknowledged(first)
    return sequences, known


def test_numbers_follow_each_other_and_wrap() -> None:
    assert after(2**31 - 3, 5) == 2
    sequences, _ = started()
    first, second = batch(1), batch(2)
    sequences.sent(first)
    sequences.sent(second)
    assert (first.base_sequence, second.base_sequence) == (10, 20)


def test_the_first_batch_goes_alone() -> None:
    """Rule G3: without state a leader accepts any sequence, so nothing may overtake the first."""
    sequences, known = Sequences(), identity()
    assert sequences.prepare(known, [])
    sequences.sent(batch(1))
    assert not sequences.may_send(batch(2))


def test_at_most_five_batches_are_under_way() -> None:
    """Rule G1: a leader remembers five batches, so a sixth could not be recognised."""
    sequences, _ = started()
    for order in range(1, 6):
        assert sequences.may_send(batch(order))
        sequences.sent(batch(order))
    assert not sequences.may_send(batch(9))


def test_no_more_than_four_batches_are_sent_behind_one_that_is_unsettled() -> None:
    """Rule G1: those acknowledged by now fill the leader's memory like any other.

    The oldest of five ran into the leader's time limit though it is written; the others are
    acknowledged while it is on its way again. One more would make the leader forget it, and then it
    would be taken for lost and written twice.
    """
    sequences, _ = started()
    oldest, *others = [batch(order) for order in range(1, 6)]
    for each in (oldest, *others):
        sequences.sent(each)
    sequences.returned(oldest)
    sequences.sent(oldest)
    for each in others:
        sequences.returned(each)
        sequences.acknowledged(each)
        assert not sequences.may_send(batch(6))
    sequences.returned(oldest)
    sequences.acknowledged(oldest)
    for order in range(6, 11):
        assert sequences.may_send(batch(order))
        sequences.sent(batch(order))


def test_a_repeated_batch_waits_for_those_before_it() -> None:
    sequences, _ = started()
    first, second = batch(1), batch(2)
    sequences.sent(first)
    sequences.sent(second)
    sequences.returned(second)
    assert not sequences.may_send(second)
    sequences.returned(first)
    sequences.acknowledged(first)
    assert sequences.may_send(second)


def test_out_of_order_behind_a_failed_batch_is_no_reason_to_restart() -> None:
    sequences, known = started()
    first, second = batch(1), batch(2)
    sequences.sent(first)
    sequences.sent(second)
    sequences.returned(first)
    sequences.returned(second)
    sequences.out_of_order(second, [first])
    assert sequences.prepare(known, [])
    assert (known.epoch, second.base_sequence) == (0, 20)


def test_out_of_order_of_the_next_batch_starts_a_new_epoch() -> None:
    sequences, known = started()
    first = batch(1)
    sequences.sent(first)
    sequences.returned(first)
    sequences.out_of_order(first, [])
    assert sequences.may_send(first)
    assert sequences.prepare(known, [first])
    assert (sequences.epoch, known.epoch, first.base_sequence) == (1, 1, NO_SEQUENCE)
    sequences.sent(first)
    assert first.base_sequence == 0


def test_a_restart_waits_for_what_is_under_way() -> None:
    sequences, _ = started()
    sequences.sent(batch(1))
    sequences.forgotten()
    assert not sequences.may_send(batch(2))


def test_a_partition_adopts_an_epoch_that_another_one_bumped() -> None:
    sequences, known = started()
    known.bump()
    sequences.forgotten()
    assert sequences.prepare(known, [])
    assert (sequences.epoch, known.epoch) == (1, 1)


def test_used_up_epochs_ask_for_a_new_id() -> None:
    sequences, known = Sequences(), identity(EPOCH_MAX)
    assert sequences.prepare(known, [])
    sequences.forgotten()
    assert not sequences.prepare(known, [])
    known.assign(8, 0)
    assert sequences.prepare(known, [])
    assert (sequences.producer_id, sequences.epoch) == (8, 0)


def test_a_refused_last_batch_gives_its_numbers_back() -> None:
    sequences, known = started()
    refused = batch(1)
    sequences.sent(refused)
    sequences.returned(refused)
    sequences.gave_up(refused)
    following = batch(2)
    assert sequences.prepare(known, [])
    sequences.sent(following)
    assert (known.epoch, following.base_sequence) == (0, 10)


def test_giving_up_what_may_be_written_starts_a_new_epoch() -> None:
    sequences, known = started()
    lost = batch(1)
    lost.maybe_written = True
    sequences.sent(lost)
    sequences.returned(lost)
    sequences.gave_up(lost)
    assert sequences.prepare(known, [])
    assert known.epoch == 1


def given_up_before(second: Batch) -> tuple[Sequences, Identity]:
    """A batch was given up, and the next one waits to be sent again: perhaps it is written."""
    sequences, known = started()
    lost = batch(1)
    for sent in (lost, second):
        sent.maybe_written = True
        sequences.sent(sent)
    sequences.returned(lost)
    sequences.gave_up(lost)
    sequences.returned(second)
    return sequences, known


def test_a_batch_behind_one_that_was_given_up_keeps_its_number() -> None:
    """Rule G2: it may have been written, and under another number nobody would recognise it."""
    second, third = batch(2), batch(3)
    sequences, known = given_up_before(second)
    assert sequences.may_send(second)
    assert sequences.prepare(known, [second, third])
    sequences.sent(second)
    assert (sequences.epoch, second.base_sequence) == (0, 20)
    assert not sequences.may_send(third)
    sequences.returned(second)
    sequences.acknowledged(second)
    assert sequences.may_send(third)
    assert sequences.prepare(known, [third])
    sequences.sent(third)
    assert (sequences.epoch, third.base_sequence) == (1, 0)


def test_a_batch_that_was_refused_is_numbered_anew_at_once() -> None:
    second, third = batch(2), batch(3)
    sequences, known = given_up_before(second)
    second.maybe_written = False
    assert sequences.prepare(known, [second, third])
    sequences.sent(second)
    assert (sequences.epoch, second.base_sequence) == (1, 0)


def test_a_batch_that_the_gap_proves_unwritten_is_numbered_anew() -> None:
    second, third = batch(2), batch(3)
    sequences, known = given_up_before(second)
    assert sequences.prepare(known, [second, third])
    sequences.sent(second)
    sequences.returned(second)
    sequences.out_of_order(second, [third])
    assert sequences.prepare(known, [second, third])
    sequences.sent(second)
    assert (sequences.epoch, second.base_sequence) == (1, 0)


def test_batches_at_large_behind_a_gap_that_may_close_are_given_up() -> None:
    """Rule G2: "out of order" is no proof for long if the one given up may arrive after all.

    The leader misses it now; a moment later it takes it from the connection that broke, and all
    that was sent behind it there. Under other numbers those would be written twice.
    """
    second, third, unsent = batch(2), batch(3), batch(4)
    sequences, known = started()
    lost = batch(1)
    for sent in (lost, second, third):
        sequences.sent(sent)
    for returned in (lost, second, third):
        returned.at_large = returned.maybe_written = True
        sequences.returned(returned)
    sequences.gave_up(lost)
    assert sequences.prepare(known, [second, third, unsent])
    sequences.sent(second)
    sequences.returned(second)
    assert sequences.adrift([second, third, unsent]) == []
    sequences.out_of_order(second, [third, unsent])
    assert sequences.adrift([second, third, unsent]) == [second, third]
    for adrift in (second, third):
        sequences.gave_up(adrift)
    assert sequences.prepare(known, [unsent])
    sequences.sent(unsent)
    assert (sequences.epoch, unsent.base_sequence) == (1, 0)
    sequences.returned(unsent)
    sequences.out_of_order(unsent, [])
    assert sequences.adrift([unsent]) == []


def test_a_batch_that_was_given_up_under_way_may_be_at_large_later() -> None:
    """Rule G2: it ran out of time first, and then its connection broke."""
    lost, second = batch(1), batch(2)
    sequences, known = started()
    sequences.sent(lost)
    sequences.sent(second)
    lost.maybe_written = True
    sequences.gave_up(lost)
    for broken in (lost, second):
        broken.at_large = broken.maybe_written = True
        sequences.returned(broken)
    sequences.gave_up(lost)
    assert sequences.prepare(known, [second])
    sequences.sent(second)
    sequences.returned(second)
    sequences.out_of_order(second, [])
    assert sequences.adrift([second]) == [second]


def test_what_was_numbered_anew_is_not_at_large_any_longer() -> None:
    """Its copies have numbers that no leader takes by now: it may fail, and be numbered again."""
    first, second = batch(1), batch(2)
    sequences, known = started()
    for sent in (first, second):
        sequences.sent(sent)
    for broken in (first, second):
        broken.at_large = broken.maybe_written = True
        sequences.returned(broken)
    sequences.out_of_order(first, [second])
    assert sequences.prepare(known, [first, second])
    sequences.sent(first)
    sequences.returned(first)
    sequences.gave_up(first)
    sequences.out_of_order(second, [])
    assert sequences.adrift([second]) == []


def test_batches_return_to_their_places() -> None:
    queue = PartitionQueue(TP)
    first, second, third, fourth = (batch(order) for order in range(4))
    queue.batches.extend([second, fourth])
    queue.put_back(third)
    queue.put_back(first)
    assert list(queue.batches) == [first, second, third, fourth]
