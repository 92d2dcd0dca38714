"""DescribeCluster: v0-2.

Behaviour: the brokers that clients of this listener can reach, the controller, and the cluster id.
v1 can ask for controllers instead of brokers (KIP-919): this listener has none to name and says
MISMATCHED_ENDPOINT_TYPE. v2 can ask for fenced brokers, too (KIP-1073). A tagged field of our own
tells how many elections were unclean.
"""

from __future__ import annotations

from tidemill.broker.context import Broker
from tidemill.broker.dispatch import RequestContext, handles
from tidemill.broker.handlers.lookup import CLUSTER_OPERATIONS, NOT_ASKED
from tidemill.errors import ErrorCode
from tidemill.image import ClusterImage
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

BROKERS = 1
CONTROLLERS = 2


@handles(ApiKey.DESCRIBE_CLUSTER, 0, 2)
def describe_cluster(
    broker: Broker, context: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    if request.endpoint_type != BROKERS:
        return _wrong_endpoint_type(request)
    image = broker.image
    wants_operations = request.include_cluster_authorized_operations
    return DescribeClusterResponse(
        endpoint_type=BROKERS,
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        brokers=_members(image, context.listener, request.include_fenced_brokers),
        cluster_authorized_operations=CLUSTER_OPERATIONS if wants_operations else NOT_ASKED,
        unclean_elections=image.unclean_elections,
    )


def _wrong_endpoint_type(request: DescribeClusterRequest) -> DescribeClusterResponse:
    if request.endpoint_type == CONTROLLERS:
        code = ErrorCode.MISMATCHED_ENDPOINT_TYPE
        message = "This listener belongs to a broker, and controllers were asked for."
    else:
        code = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        message = f"Unsupported endpoint type {request.endpoint_type}"
    return DescribeClusterResponse(error_code=int(code), error_message=message)


def _members(image: ClusterImage, listener: str, with_fenced: bool) -> list[DescribeClusterBroker]:
    entries = []
    for broker_id in sorted(image.brokers):
        member = image.brokers[broker_id]
        endpoint = member.endpoint(listener)
        if endpoint is not None and (member.alive or with_fenced):
            entries.append(
                DescribeClusterBroker(
                    broker_id=member.broker_id,
                    host=endpoint.host,
                    port=endpoint.port,
                    rack=member.rack,
                    is_fenced=member.fenced,
                )
            )
    return entries
