"""What brokers say to each other: ClusterHello, ImageDelta, Forward, ControlledShutdown,
OfflineReplicas: v0. AlterPartition: v2-3. AllocateProducerIds: v0.

Behaviour: none of these is advertised. ClusterHello (see `broker.hello`) makes a peer of a
connection; the others are for peers alone and get CLUSTER_AUTHORIZATION_FAILED from anybody else
(CVE-2018-1288 was a client that passed for a broker). A peer speaks for itself: a message that
names another broker is refused. Whoever is not the controller says NOT_CONTROLLER.

Forward runs a client's request that came to another broker as if it had come here, and says in
which image its effect shows.
"""

from __future__ import annotations

import inspect
from typing import Any

from tidemill.broker.context import Broker
from tidemill.broker.deferred import Deferred
from tidemill.broker.dispatch import REGISTRY, Registration, RequestContext, handles
from tidemill.broker.hello import NONCE_BYTES, Greeting, same
from tidemill.errors import ApiError, ErrorCode
from tidemill.image import ReplicaTrouble
from tidemill.invariant import invariant
from tidemill.types import TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.codec import RESPONSE_ELEMENTS_MAX, decode, encode
from tidemill.wire.messages.cluster import (
    ClusterHelloRequest,
    ClusterHelloResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    ForwardRequest,
    ForwardResponse,
    ImageDeltaRequest,
    ImageDeltaResponse,
    OfflineReplicasRequest,
    OfflineReplicasResponse,
)
from tidemill.wire.messages.isr import AlterPartitionRequest, AlterPartitionResponse
from tidemill.wire.messages.producers import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)

FORWARDED = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.ELECT_LEADERS,
    }
)
"""What only the controller can do or say, and clients may ask any broker for."""


@handles(ApiKey.CLUSTER_HELLO, 0, 0)
def cluster_hello(
    broker: Broker, context: RequestContext, request: ClusterHelloRequest
) -> ClusterHelloResponse:
    """Two steps: without a proof the nonces are exchanged, with one the peer is let in."""
    connection = context.connection
    if not request.proof:
        if len(request.nonce) != NONCE_BYTES:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"a nonce has {NONCE_BYTES} bytes")
        nonce = broker.random.randbytes(NONCE_BYTES)
        greeting = Greeting(request.broker_id, request.broker_epoch, request.nonce, nonce)
        connection.greeting = greeting
        proof = greeting.proof_of_asked(broker.controller.secret, broker.broker_id)
        return ClusterHelloResponse(broker_id=broker.broker_id, nonce=nonce, proof=proof)
    asked, connection.greeting = connection.greeting, None
    if asked is None or not same(request.proof, asked.proof_of_asking(broker.controller.secret)):
        raise ApiError(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "the proof does not fit this cluster's secret"
        )
    connection.become_peer(asked.broker_id)
    return ClusterHelloResponse(broker_id=broker.broker_id)


def _check_speaker(context: RequestContext, broker_id: int) -> None:
    if context.peer_id != broker_id:
        problem = f"broker {context.peer_id} cannot speak for broker {broker_id}"
        raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, problem)


def _check_office(broker: Broker) -> None:
    if not broker.controller.active:
        raise ApiError(ErrorCode.NOT_CONTROLLER)


@handles(ApiKey.IMAGE_DELTA, 0, 0, peers_only=True)
async def image_delta(
    broker: Broker, context: RequestContext, request: ImageDeltaRequest
) -> ImageDeltaResponse:
    _check_speaker(context, request.controller_id)
    await broker.controller.follow(request)
    controller = broker.controller
    return ImageDeltaResponse(
        broker_epoch=controller.broker_epoch, version=controller.image.version
    )


@handles(ApiKey.FORWARD, 0, 0, peers_only=True)
async def forward(
    broker: Broker, context: RequestContext, request: ForwardRequest
) -> ForwardResponse:
    _check_speaker(context, request.broker_id)
    _check_office(broker)
    entry = REGISTRY.get(request.api_key)
    version = request.api_version
    if entry is None or entry.key not in FORWARDED:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"api key {request.api_key} is not forwarded")
    if not entry.min_version <= version <= entry.max_version:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    inner = decode(entry.request_type, version, request.body, elements_max=RESPONSE_ELEMENTS_MAX)
    client = RequestContext(
        request.api_key, version, context.correlation_id, context.client_id, context.connection
    )
    response = await _run(entry, broker, client, inner)
    return ForwardResponse(
        image_version=broker.controller.image.version, body=encode(response, version)
    )


async def _run(entry: Registration, broker: Broker, context: RequestContext, request: Any) -> Any:
    response = entry.handler(broker, context, request)
    invariant(not isinstance(response, Deferred), "what is forwarded is not deferred")
    return await response if inspect.isawaitable(response) else response


@handles(ApiKey.CONTROLLED_SHUTDOWN, 0, 0, peers_only=True)
async def controlled_shutdown(
    broker: Broker, context: RequestContext, request: ControlledShutdownRequest
) -> ControlledShutdownResponse:
    _check_speaker(context, request.broker_id)
    image = await broker.controller.shut_down_broker(request.broker_id, request.broker_epoch)
    return ControlledShutdownResponse(image_version=image.version)


@handles(ApiKey.OFFLINE_REPLICAS, 0, 0, peers_only=True)
async def offline_replicas(
    broker: Broker, context: RequestContext, request: OfflineReplicasRequest
) -> OfflineReplicasResponse:
    _check_speaker(context, request.broker_id)
    lost = [
        TopicPartition(each.topic, index) for each in request.topics for index in each.partitions
    ]
    await broker.controller.replicas_of_broker_lost(
        request.broker_id, request.broker_epoch, lost, ReplicaTrouble(request.trouble)
    )
    return OfflineReplicasResponse()


@handles(ApiKey.ALTER_PARTITION, 2, 3, peers_only=True)
async def alter_partition(
    broker: Broker, context: RequestContext, request: AlterPartitionRequest
) -> AlterPartitionResponse:
    _check_speaker(context, request.broker_id)
    _check_office(broker)
    return await broker.controller.alter_partition(request)


@handles(ApiKey.ALLOCATE_PRODUCER_IDS, 0, 0, peers_only=True)
async def allocate_producer_ids(
    broker: Broker, context: RequestContext, request: AllocateProducerIdsRequest
) -> AllocateProducerIdsResponse:
    _check_speaker(context, request.broker_id)
    start, count = await broker.controller.allocate_producer_ids(request.broker_id)
    return AllocateProducerIdsResponse(producer_id_start=start, producer_id_len=count)
