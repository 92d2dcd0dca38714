"""ApiVersions: v0-4.

Behaviour: lists what is in the dispatch table, nothing else. A version from the future is answered
with UNSUPPORTED_VERSION in the v0 layout (KIP-511; see `broker.errors`). From v3 on the client says
what it is, and a name or version outside `[a-zA-Z0-9](?:[a-zA-Z0-9\\-.]*[a-zA-Z0-9])?` is refused.

Features (KIP-584): finalized are those whose behaviour is here. `metadata.version` is the release
that all ranges together belong to; `group.version`, `transaction.version`, `share.version` and
`eligible.leader.replicas.version` follow with groups, transactions, share groups and the cluster,
so that no client picks a protocol that nobody answers. v4 allows a minimum of 0 in the list.
"""

from __future__ import annotations

import re

from tidemill.broker.context import Broker
from tidemill.broker.dispatch import REGISTRY, RequestContext, handles
from tidemill.errors import ErrorCode
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_SOFTWARE_FROM_VERSION = 3

METADATA_VERSION_MIN = 7
METADATA_VERSION = 30
"""4.3-IV0: what Apache Kafka 4.3 reports."""


@handles(ApiKey.API_VERSIONS, 0, 4)
def api_versions(
    broker: Broker, context: RequestContext, request: ApiVersionsRequest
) -> ApiVersionsResponse:
    if context.version >= _SOFTWARE_FROM_VERSION and not _names_software(request):
        return ApiVersionsResponse(error_code=int(ErrorCode.INVALID_REQUEST))
    return ApiVersionsResponse(
        api_keys=_table(),
        supported_features=[
            SupportedFeatureKey(
                name="metadata.version",
                min_version=METADATA_VERSION_MIN,
                max_version=METADATA_VERSION,
            )
        ],
        finalized_features_epoch=broker.image.version,
        finalized_features=[
            FinalizedFeatureKey(
                name="metadata.version",
                max_version_level=METADATA_VERSION,
                min_version_level=METADATA_VERSION,
            )
        ],
    )


def _names_software(request: ApiVersionsRequest) -> bool:
    return all(
        _SOFTWARE.fullmatch(part)
        for part in (request.client_software_name, request.client_software_version)
    )


def _table() -> list[ApiVersion]:
    return [
        ApiVersion(
            api_key=key,
            min_version=REGISTRY[key].advertised_min_version,
            max_version=REGISTRY[key].max_version,
        )
        for key in sorted(REGISTRY)
    ]
