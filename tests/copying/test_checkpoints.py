"""What follows from checkpoints: no record twice, no position beyond what was read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.client.consumer_types import ConsumerRecord
from tidemill.copying.checkpoints import Already, Checkpoint, about, content_of, tail_of, translate
from tidemill.copying.groups import moves
from tidemill.copying.topics import CopyError
from tidemill.types import TopicPartition


def record(
    offset: int, value: bytes = b"v", *, partition: int = 0, timestamp_ms: int = 1_000
) -> ConsumerRecord:
    return ConsumerRecord("t", partition, offset, timestamp_ms, 0, b"k", value, (), 0)


def test_a_checkpoint_survives_being_written() -> None:
    for topics in (None, ("source", "target")):
        checkpoint = Checkpoint(7, {0: 5, 11: 2**40}, {3: 0}, topics)
        assert Checkpoint.decode(checkpoint.encode()) == checkpoint
    assert Checkpoint.decode(b'{"number": 1, "source": {}, "target": {}}').topics is None


@pytest.mark.parametrize("data", [b"", b"1", b"[]", b"{}", b'{"number": 1, "source": 3}'])
def test_what_is_no_checkpoint_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        Checkpoint.decode(data)


def test_a_checkpoint_is_believed_about_the_very_topics_it_speaks_of() -> None:
    """A topic that was deleted and made anew has the same name, and offsets from nought again."""
    earlier, last = Checkpoint(1, {0: 9}, {0: 9}, ("x", "y")), Checkpoint(2, {}, {}, ("a", "b"))
    assert about([earlier, last], "t", "copy", ("a", "b")) == [last]
    assert about([last], "t", "copy", ("a", "anew")) == (), "an empty copy is begun anew"
    with pytest.raises(CopyError, match=r"t was deleted and created anew.*delete copy"):
        about([last], "t", "copy", ("anew", "b"))
    unmarked = [Checkpoint(1, {0: 9}, {0: 9})]
    assert about(unmarked, "t", "copy", ("a", "b")) == unmarked
    assert about([], "t", "copy", ("a", "b")) == []


def test_each_copy_accounts_for_one_original() -> None:
    copied = [record(0), record(1), record(2, b"other")]
    already = Already({0: map(content_of, copied)}, {0: 10})
    assert [already.has(each, 0) for each in copied] == [True, True, True]
    assert not already.has(record(3), 0)


def test_a_record_without_a_timestamp_is_found_at_the_time_of_its_copy() -> None:
    originals = [record(at, timestamp_ms=-1) for at in range(3)]
    copies = [record(0, timestamp_ms=5_000), record(1, timestamp_ms=6_000)]
    already = Already({0: map(content_of, copies)}, {0: 10})
    assert [already.has(each, 0) for each in originals] == [True, True, False]
    already = Already({0: map(content_of, copies)}, {0: 10})
    assert not already.has(record(0, b"other", timestamp_ms=-1), 0)
    assert already.has(record(1, timestamp_ms=6_000), 0)
    assert [already.has(each, 0) for each in originals] == [True, False, False]


def test_after_the_tail_was_compacted_no_old_value_comes_last() -> None:
    """Of two values of a key only the newer is left: both are copied again, the newer one last."""
    copied = [record(0, b"old"), record(1, b"new")]
    whole, compacted = tail_of(copied, 2), tail_of(copied[1:], 2)
    already = Already({0: whole}, {0: 10})
    assert [each.value for each in copied if not already.has(each, 0)] == []
    already = Already({0: compacted}, {0: 10})
    assert [each.value for each in copied if not already.has(each, 0)] == [b"old", b"new"]


def test_what_came_after_the_crash_is_never_taken_for_copied() -> None:
    already = Already({0: [content_of(record(0))]}, {0: 1})
    assert not already.has(record(1), 0)
    assert not Already({0: [content_of(record(0))]}, {0: 1}).has(record(0), 1)


@given(
    gaps=st.lists(st.integers(1, 4), min_size=1, max_size=60),
    every=st.integers(1, 7),
    kept=st.integers(1, 9),
    offset=st.integers(0, 300),
)
def test_a_translated_position_skips_nothing_and_is_exact_without_gaps(
    gaps: list[int], every: int, kept: int, offset: int
) -> None:
    """However many offsets of the source hold no record, and however few checkpoints are left."""
    originals: list[int] = []
    for gap in gaps:
        originals.append((originals[-1] if originals else -1) + gap)
    checkpoints = [
        Checkpoint(number, {0: originals[count - 1] + 1 if count else 0}, {0: count})
        for number, count in enumerate(range(0, len(originals) + 1, every))
    ][-kept:]
    found = translate(checkpoints, 0, offset)
    right = sum(original < offset for original in originals)
    if found is None:
        assert offset > checkpoints[-1].source[0]
        return
    assert found <= right
    if all(gap == 1 for gap in gaps):
        assert found == right


def test_groups_move_forward_only_and_only_in_mirrored_topics() -> None:
    checkpoints = {"a": [Checkpoint(0, {0: 100}, {0: 60})]}
    committed = {TopicPartition("a", 0): 100, TopicPartition("b", 0): 5}
    goal = TopicPartition("x.a", 0)
    assert moves(committed, {}, {"a": "x.a"}, checkpoints) == {goal: 60}
    assert moves(committed, {goal: 60}, {"a": "x.a"}, checkpoints) == {}
    assert moves(committed, {goal: 61}, {"a": "x.a"}, checkpoints) == {}
