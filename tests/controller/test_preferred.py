"""Leaders go back to where they belong: by themselves when too many are away, and on command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from tests.controller.partitions import applied, broker, cluster, only, partition, policy

from tidemill.controller import changes
from tidemill.controller.changes import PartitionChange
from tidemill.controller.preferred import elect_leaders, moves_back
from tidemill.errors import ApiError, ErrorCode
from tidemill.image import ClusterImage, LeaderRecovery
from tidemill.types import NO_BROKER
from tidemill.wire.codec import decode, encode
from tidemill.wire.messages.reassignments import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)

PREFERRED, UNCLEAN = 0, 1


def moved(image: ClusterImage, percent: int = 10, moves_max: int = 100) -> list[tuple[int, int]]:
    made = moves_back(image, policy(), imbalance_percent=percent, moves_max=moves_max)
    return [(change.partition.index, change.partition.leader) for change in made]


def test_leaders_go_back_when_their_broker_misses_too_many() -> None:
    """Rule K4: one in ten is not above ten percent, one in nine is."""
    states = [partition([1, 2], leader=1, index=index) for index in range(9)]
    nine = cluster([1, 2], [*states[:8], partition([1, 2], leader=2, index=8)])
    ten = cluster([1, 2], [*states, partition([1, 2], leader=2, index=9)])
    assert moved(nine) == [(8, 1)]
    assert moved(ten) == []
    assert moved(ten, percent=9) == [(9, 1)]
    assert moved(applied(nine, moves_back(nine, policy()))) == []


def test_only_live_replicas_in_sync_are_given_leadership() -> None:
    """Rule K4: not in sync, fenced, stopping, and in the middle of a move are left alone."""
    image = cluster(
        [1, 2, broker(3, fenced=True), broker(4, stopping=True)],
        [
            partition([1, 2], [2], leader=2),
            partition([3, 2], leader=2, index=1),
            partition([4, 2], leader=2, index=2),
            partition([1, 2, 5], leader=2, index=3, adding=[5]),
            partition([1, 2], leader=2, index=4),
        ],
    )
    assert moved(image, percent=0) == [(4, 1)]


def test_a_round_moves_only_so_many() -> None:
    states = [partition([1, 2], leader=2, index=index) for index in range(5)]
    image = cluster([1, 2], states)
    assert moved(image, moves_max=2) == [(0, 1), (1, 1)]


def ask(
    image: ClusterImage,
    election: int,
    topics: Mapping[str, Sequence[int]] | None,
    *,
    unclean: bool = False,
) -> tuple[list[tuple[str, int, str, str | None]], list[PartitionChange]]:
    request = ElectLeadersRequest(
        election_type=election,
        topic_partitions=None
        if topics is None
        else [TopicPartitions(topic=name, partitions=list(p)) for name, p in topics.items()],
    )
    response, made = elect_leaders(image, request, policy(2, unclean=unclean))
    response = decode(ElectLeadersResponse, 2, encode(response, 2))
    answers = [
        (topic.topic, p.partition_id, ErrorCode(p.error_code).name, p.error_message)
        for topic in response.replica_election_results
        for p in topic.partition_result
    ]
    return answers, made


def test_a_preferred_election_on_command() -> None:
    """Rule K4: whatever the topic allows, it is never unclean."""
    image = cluster(
        [1, 2],
        [
            partition([1, 2], leader=2),
            partition([1, 2], leader=1, index=1),
            partition([3, 2], [2], index=2),
            partition([3, 1], [], index=3, elr=[3]),
            partition([3, 1], [], index=4, elr=[3, 1]),
        ],
    )
    answers, made = ask(image, PREFERRED, {"t": range(5)}, unclean=True)
    away = ("PREFERRED_LEADER_NOT_AVAILABLE", "The preferred leader was not available.")
    assert answers == [
        ("t", 0, "NONE", None),
        ("t", 1, "ELECTION_NOT_NEEDED", "Leader election not needed for topic partition."),
        ("t", 2, *away),
        ("t", 3, *away),
        ("t", 4, "NONE", None),
    ]
    assert [(c.partition.index, c.partition.leader) for c in made] == [(0, 1), (4, 1)]


def test_an_unclean_election_on_command() -> None:
    """Rule A10: only for partitions without a leader, and complete replicas go first."""
    image = cluster(
        [1, 2],
        [
            partition([1, 2], leader=2),
            partition([3, 2, 1], [], index=1, elr=[3]),
            partition([3, 2, 1], [], index=2, elr=[3, 1]),
            partition([3, 4], [], index=3, elr=[3]),
        ],
    )
    answers, made = ask(image, UNCLEAN, {"t": range(4)})
    assert [code for _, _, code, _ in answers] == [
        "ELECTION_NOT_NEEDED",
        "NONE",
        "NONE",
        "ELIGIBLE_LEADERS_NOT_AVAILABLE",
    ]
    assert answers[3][3] == "Eligible topic partition leaders are not available."
    lossy, clean = (change.partition for change in made)
    assert (lossy.leader, lossy.recovery) == (2, LeaderRecovery.RECOVERING)
    assert (clean.leader, clean.recovery) == (1, LeaderRecovery.RECOVERED)


def test_without_a_list_all_partitions_are_meant_and_the_well_led_left_out() -> None:
    image = cluster(
        [1, 2],
        {"a": [partition([1]), partition([2, 1], leader=1, index=1)], "b": [partition([2])]},
    )
    answers, made = ask(image, PREFERRED, None)
    assert answers == [("a", 1, "NONE", None)]
    assert only(made).leader == 2
    request = ElectLeadersRequest(topic_partitions=None)
    response, _ = elect_leaders(image, request, policy())
    assert [topic.topic for topic in response.replica_election_results] == ["a", "b"]


def test_what_is_unknown() -> None:
    image = cluster([1], [partition([1])])
    answers, made = ask(image, PREFERRED, {"no": [0], "t": [3, -1]})
    code = "UNKNOWN_TOPIC_OR_PARTITION"
    assert made == []
    assert answers == [
        ("no", 0, code, "No such topic as no"),
        ("t", 3, code, "No such partition as t-3"),
        ("t", -1, code, "No such partition as t--1"),
    ]
    with pytest.raises(ApiError, match="Unknown election type 2"):
        elect_leaders(image, ElectLeadersRequest(election_type=2), policy())


def test_a_partition_named_twice_is_elected_once(monkeypatch: pytest.MonkeyPatch) -> None:
    image = cluster([1, 2], [partition([1, 2], leader=2), partition([1, 2], leader=2, index=1)])
    answers, made = ask(image, PREFERRED, {"t": [0, 0]})
    assert [code for _, _, code, _ in answers] == ["NONE", "OPERATION_NOT_ATTEMPTED"]
    assert only(made).leader == 1
    monkeypatch.setattr(changes, "CHANGES_PER_ROUND_MAX", 1)
    answers, made = ask(image, PREFERRED, {"t": [0, 1]})
    assert [code for _, _, code, _ in answers] == ["NONE", "OPERATION_NOT_ATTEMPTED"]


def test_an_offline_partition_whose_preferred_leader_is_away_takes_another() -> None:
    image = cluster([2], [partition([1, 2], [], elr=[2])])
    _, made = ask(image, PREFERRED, {"t": [0]})
    assert only(made).leader == 2
    assert image.topics["t"].partitions[0].leader == NO_BROKER
