"""Documents of moves and what is worked out from them: pure, no cluster."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.cli import moves
from tidemill.cli.moves import DocumentError, throttle_of
from tidemill.client.admin_types import Reassignment, Replica
from tidemill.types import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)

assignments = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["a", "b.c", "d-1"]), st.integers(0, 9)),
    st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True).map(tuple),
)


@given(assignments)
def test_what_is_written_is_read_again(
    assignment: dict[TopicPartition, tuple[int, ...]],
) -> None:
    document = moves.parse(moves.to_document(assignment))
    assert document.assignment == assignment
    assert document.directories == {}


def test_the_document_is_kafkas() -> None:
    assert moves.to_document({A1: (3, 4), A0: (1,)}) == (
        '{"version":1,"partitions":['
        '{"topic":"a","partition":0,"replicas":[1],"log_dirs":["any"]},'
        '{"topic":"a","partition":1,"replicas":[3,4],"log_dirs":["any","any"]}]}'
    )


def test_directories_that_are_named() -> None:
    text = '{"partitions":[{"topic":"a","partition":0,"replicas":[1,2],"log_dirs":["any","/d"]}]}'
    assert moves.parse(text).directories == {Replica("a", 0, 2): "/d"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "The input string is not a valid JSON"),
        ("[]", "The input string is not a valid JSON"),
        ('{"version":2}', "Not supported version field value 2"),
        ('{"partitions":[{}]}', "No such field exists: `topic`"),
        ('{"partitions":[{"topic":"a","partition":"x","replicas":[1]}]}', "partition"),
        ('{"partitions":[{"topic":"a","partition":0,"replicas":["x"]}]}', "replicas"),
        ('{"partitions":3}', "partitions is no list"),
        (
            '{"partitions":[{"topic":"a","partition":0,"replicas":[1,2],"log_dirs":["any"]}]}',
            r"Size of replicas list \[1, 2\] is different from size of log dirs list \[any\] for "
            "partition a-0",
        ),
    ],
)
def test_what_cannot_be_read(text: str, complaint: str) -> None:
    with pytest.raises(DocumentError, match=complaint):
        moves.parse(text)


@pytest.mark.parametrize(
    ("entries", "complaint"),
    [
        ([], "list cannot be empty"),
        ([("a", 0, [])], "Partition replica list cannot be empty"),
        ([("a", 0, [1]), ("a", 0, [2])], "contains duplicate topic partitions: a-0"),
        ([("a", 0, [1, 2, 1])], "duplicate entries: a-0 contains multiple entries for 1"),
    ],
)
def test_what_cannot_be_executed(entries: list[tuple[str, int, list[int]]], complaint: str) -> None:
    rows = [{"topic": t, "partition": p, "replicas": r} for t, p, r in entries]
    document = moves.parse(json.dumps({"version": 1, "partitions": rows}))
    with pytest.raises(DocumentError, match=complaint):
        moves.check_executable(document)


def test_topics_to_move() -> None:
    assert moves.parse_topics('{"topics":[{"topic":"a"},{"topic":"b"}],"version":1}') == ["a", "b"]


def test_who_is_throttled() -> None:
    """Sources send and targets receive; a move under way keeps the sources it began with."""
    ongoing = {B0: Reassignment((1, 2, 3), adding=(3,), removing=(1,))}
    throttle = throttle_of(ongoing, {A0: (1, 2), A1: (2, 1)}, {A0: (2, 3), A1: (2, 1)})
    assert throttle.leaders == {"a": "0:1,0:2,1:1,1:2", "b": "0:1,0:2"}
    assert throttle.followers == {"a": "0:3", "b": "0:3"}
    assert throttle.brokers == (1, 2, 3)


def test_sizes_are_those_of_the_largest_replica() -> None:
    sizes = {Replica("a", 0, 1): 10, Replica("a", 0, 2): 12, Replica("b", 0, 1): 5}
    assert moves.largest(sizes) == {A0: 12, B0: 5}


def test_how_much_has_arrived() -> None:
    from tidemill.cli.moving import copied

    move = Reassignment((1, 2, 3, 4), adding=(3, 4), removing=(1,))
    sizes = {Replica("a", 0, 1): 100, Replica("a", 0, 2): 90, Replica("a", 0, 3): 40}
    assert copied(A0, move, sizes) == (40, 200)
