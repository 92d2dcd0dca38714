"""FindCoordinator: v0-6.

Behaviour: names the broker that coordinates a group (type 0): the leader of the partition of
`__consumer_offsets` that the group's name hashes to. The first to ask has the topic made, and waits
for it. For a transactional id (type 1) every broker names the same live one, which then says that
there are no transactions: a client that was told to ask again would do so for ever. Share groups
(type 2) are not there and get INVALID_REQUEST.
Version notes: v1 key types; v4 many keys at once (KIP-699); v6 share groups (KIP-932).
Deviations: Kafka says COORDINATOR_NOT_AVAILABLE until the topic is there, and clients ask again.
"""

from __future__ import annotations

from collections.abc import Awaitable

from tidemill.broker.context import Broker
from tidemill.broker.dispatch import RequestContext, handles
from tidemill.coordinators.coordinator import OFFSETS_TOPIC
from tidemill.coordinators.group_hash import partition_of
from tidemill.errors import ErrorCode
from tidemill.types import NO_BROKER
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

GROUP = 0
TRANSACTION = 1
SHARE = 2
_BATCHED_FROM_VERSION = 4


@handles(ApiKey.FIND_COORDINATOR, 0, 6)
def find_coordinator(
    broker: Broker, context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse | Awaitable[FindCoordinatorResponse]:
    if request.key_type == GROUP and broker.image.topic(OFFSETS_TOPIC) is None:
        return _find_later(broker, context, request)
    return _find(broker, context, request)


async def _find_later(
    broker: Broker, context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    await broker.offsets_topic.ensure(broker.image)
    return _find(broker, context, request)


def _find(
    broker: Broker, context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    if context.version >= _BATCHED_FROM_VERSION:
        keys = request.coordinator_keys
        found = [_coordinator(broker, context, request.key_type, key) for key in keys]
        return FindCoordinatorResponse(coordinators=found)
    one = _coordinator(broker, context, request.key_type, request.key)
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message or "NONE",
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


def _coordinator(broker: Broker, context: RequestContext, key_type: int, key: str) -> Coordinator:
    if key_type not in (GROUP, TRANSACTION):
        why = "" if key_type == SHARE else f"there is no coordinator type {key_type}"
        return _nobody(key, ErrorCode.INVALID_REQUEST, why)
    broker_id = _group_leader(broker, key) if key_type == GROUP else _any_broker(broker, key)
    member = broker.image.broker(broker_id)
    endpoint = member.endpoint(context.listener) if member else None
    if member is None or endpoint is None:
        return _nobody(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "")
    return Coordinator(
        key=key,
        node_id=member.broker_id,
        host=endpoint.host,
        port=endpoint.port,
        error_message="",
    )


def _group_leader(broker: Broker, group_id: str) -> int:
    topic = broker.image.topic(OFFSETS_TOPIC)
    if topic is None:
        return NO_BROKER
    return topic.partitions[partition_of(group_id, len(topic.partitions))].leader


def _any_broker(broker: Broker, key: str) -> int:
    """One of those alive, the same wherever one asks."""
    alive = broker.image.alive_brokers()
    return alive[partition_of(key, len(alive))].broker_id if alive else NO_BROKER


def _nobody(key: str, code: ErrorCode, why: str) -> Coordinator:
    return Coordinator(key=key, node_id=-1, port=-1, error_code=int(code), error_message=why)
