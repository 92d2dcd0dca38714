"""FindCoordinator: v0-6.

Behaviour: names the broker that coordinates a group (type 0) or a transactional id (type 1): with
one broker that is this one, at once: Kafka says COORDINATOR_NOT_AVAILABLE until the topic behind it
is there. Share groups (type 2) are not there and get INVALID_REQUEST.
Version notes: v1 key types; v4 many keys at once (KIP-699); v6 share groups (KIP-932).
"""

from __future__ import annotations

from tidemill.broker.context import Broker
from tidemill.broker.dispatch import RequestContext, handles
from tidemill.errors import ErrorCode
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
    member = broker.image.broker(broker.broker_id)
    endpoint = member.endpoint(context.listener) if member else None
    if member is None or endpoint is None:
        return _nobody(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "this listener has no address")
    return Coordinator(
        key=key,
        node_id=member.broker_id,
        host=endpoint.host,
        port=endpoint.port,
        error_message="",
    )


def _nobody(key: str, code: ErrorCode, why: str) -> Coordinator:
    return Coordinator(key=key, node_id=-1, port=-1, error_code=int(code), error_message=why)
