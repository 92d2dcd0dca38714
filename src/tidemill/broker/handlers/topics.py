"""CreateTopics: v2-7. DeleteTopics: v1-6. CreatePartitions: v0-3.

Behaviour: each request is one commit: every topic that passes its checks is created, grown or
deleted, and the others answer with Kafka's codes and messages, in Kafka's order of checks. A topic
is visible to Metadata on this broker before the answer leaves. `validate_only` checks and changes
nothing. CreateTopics answers with the topic's settings and its shape (KIP-525), `-1` leaves the
choice of partitions and replicas to the broker (KIP-464).

Version notes: CreateTopics v5 settings in the answer, v7 topic id (KIP-516). DeleteTopics v5 error
messages (KIP-599), v6 by id. A name that occurs twice in one request is refused, not guessed.

Deviations: DeleteTopics answers in the order of the request where Kafka shuffles (that hides which
topics a user may not see; access rules come with their own order). A topic may be created with
10,000 partitions where Kafka stops one short, and too many new partitions in CreatePartitions are
POLICY_VIOLATION where Kafka says UNKNOWN_SERVER_ERROR. The time limit of a request is not used: a
commit takes milliseconds.
"""

from __future__ import annotations

from tidemill.broker.context import Broker
from tidemill.broker.dispatch import RequestContext, handles
from tidemill.errors import ApiError, ErrorCode
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.topics import (
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

_DELETION_DISABLED_FROM = 3
"""Older versions do not know the error code for it."""


@handles(ApiKey.CREATE_TOPICS, 2, 7)
async def create_topics(
    broker: Broker, context: RequestContext, request: CreateTopicsRequest
) -> CreateTopicsResponse:
    try:
        results = await broker.controller.create_topics(
            request.topics, validate_only=request.validate_only
        )
    except ApiError as error:
        results = [
            CreatableTopicResult(
                name=topic.name, error_code=error.code, error_message=error.message
            )
            for topic in request.topics
        ]
    return CreateTopicsResponse(topics=results)


@handles(ApiKey.DELETE_TOPICS, 1, 6)
async def delete_topics(
    broker: Broker, context: RequestContext, request: DeleteTopicsRequest
) -> DeleteTopicsResponse:
    try:
        _check_enabled(broker, context.version)
        plans = await broker.controller.delete_topics(request.topic_names, request.topics)
    except ApiError as error:
        named = [DeleteTopicState(name=name) for name in request.topic_names]
        return DeleteTopicsResponse(
            responses=[
                DeletableTopicResult(
                    name=each.name,
                    topic_id=each.topic_id,
                    error_code=error.code,
                    error_message=error.message,
                )
                for each in [*named, *request.topics]
            ]
        )
    return DeleteTopicsResponse(
        responses=[
            DeletableTopicResult(
                name=plan.name,
                topic_id=plan.topic_id,
                error_code=plan.error.code if plan.error else 0,
                error_message=plan.error.message if plan.error else None,
            )
            for plan in plans
        ]
    )


def _check_enabled(broker: Broker, version: int) -> None:
    if broker.config.bool("delete.topic.enable"):
        return
    if version < _DELETION_DISABLED_FROM:
        raise ApiError(ErrorCode.INVALID_REQUEST)
    raise ApiError(ErrorCode.TOPIC_DELETION_DISABLED)


@handles(ApiKey.CREATE_PARTITIONS, 0, 3)
async def create_partitions(
    broker: Broker, context: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    try:
        plans = await broker.controller.create_partitions(
            request.topics, validate_only=request.validate_only
        )
    except ApiError as error:
        failed = dict.fromkeys(topic.name for topic in request.topics)
        return CreatePartitionsResponse(
            results=[
                CreatePartitionsTopicResult(
                    name=name, error_code=error.code, error_message=error.message
                )
                for name in failed
            ]
        )
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsTopicResult(
                name=plan.name,
                error_code=plan.error.code if plan.error else 0,
                error_message=plan.error.message if plan.error else None,
            )
            for plan in plans
        ]
    )
