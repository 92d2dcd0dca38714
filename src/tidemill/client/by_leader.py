"""Ask the leaders of many partitions the same question, and ask again where the leader moved.

Offsets, truncation checks, deletions and producer states all go this way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from tidemill.client.admin_types import Results
from tidemill.client.cluster import Cluster
from tidemill.client.connection import Connection
from tidemill.client.errors import ClientError
from tidemill.errors import ErrorCode
from tidemill.types import TopicPartition

V = TypeVar("V")

Answers = dict[TopicPartition, V | ClientError]
Question = Callable[[Connection, list[TopicPartition]], Awaitable[Answers[V]]]
"""Asks one leader about its partitions; a partition without an answer is asked again."""

UNKNOWN_ASKED_MAX = 3

_MOVED = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
)


async def ask_leaders(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    question: Question[V],
    *,
    timeout_ms: float | None = None,
) -> Results[TopicPartition, V]:
    """Each partition's answer, or its error once it is final or the time is over."""
    limit_ms = cluster.settings.default_api_timeout_ms if timeout_ms is None else timeout_ms
    deadline_ms = cluster.clock.monotonic_ms() + limit_ms
    results: Results[TopicPartition, V] = Results()
    waiting = list(dict.fromkeys(partitions))
    failures = 0
    while waiting:
        answers = await _one_round(cluster, waiting, question, first=not failures)
        results.update(answers)
        failures += 1
        waiting = [partition for partition in waiting if _again(answers.get(partition), failures)]
        delay_ms = cluster.retry_backoff.delay_ms(failures)
        if not waiting or cluster.clock.monotonic_ms() + delay_ms >= deadline_ms:
            break
        await asyncio.sleep(delay_ms / 1000)
    return Results({key: results[key] for key in dict.fromkeys(partitions) if key in results})


def _again(answer: object, asked: int) -> bool:
    if not isinstance(answer, ClientError):
        return answer is None
    # News of a topic takes a moment to reach every broker, so one look is not enough to say no.
    unknown = answer.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return answer.code in _MOVED or (unknown and asked < UNKNOWN_ASKED_MAX)


async def _one_round(
    cluster: Cluster, waiting: list[TopicPartition], question: Question[V], *, first: bool
) -> dict[TopicPartition, V | ClientError]:
    unknown = {p.topic for p in waiting if cluster.view.leader(*p) is None}
    stale = {partition.topic for partition in waiting} if not first else unknown
    if stale:
        await cluster.fetch_metadata(sorted(stale))
    answers: dict[TopicPartition, V | ClientError] = {}
    by_node: dict[int, list[TopicPartition]] = {}
    for partition in waiting:
        info = cluster.view.leader(*partition)
        if info is None:
            answers[partition] = _why_no_leader(cluster, partition)
        else:
            by_node.setdefault(info.leader, []).append(partition)
    asked = [_ask_node(cluster, node, part, question) for node, part in by_node.items()]
    for answer in await asyncio.gather(*asked):
        answers.update(answer)
    return answers


async def _ask_node(
    cluster: Cluster, node_id: int, partitions: list[TopicPartition], question: Question[V]
) -> dict[TopicPartition, V | ClientError]:
    try:
        return await question(await cluster.connection(node_id), partitions)
    except ClientError as error:
        return dict.fromkeys(partitions, error)


def _why_no_leader(cluster: Cluster, partition: TopicPartition) -> ClientError:
    view = cluster.view
    error = view.errors.get(partition.topic)
    if error is not None:
        return error
    topic = view.topics.get(partition.topic)
    if topic is None or partition.partition not in topic.partitions:
        return ClientError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {partition}"
        )
    return ClientError(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition} has no leader right now")
