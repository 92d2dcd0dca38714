"""ApiVersions: v0-4.

Behaviour: lists what the dispatch table has for clients, nothing else. A version from the future is
answered with UNSUPPORTED_VERSION in the v0 layout (KIP-511; see `broker.errors`). From v3 on the
client says what it is, and a name or version outside
`[a-zA-Z0-9](?:[a-zA-Z0-9\\-.]*[a-zA-Z0-9])?` is refused.

Features (KIP-584): finalized are those whose behaviour is here. `metadata.version` is the release
that all ranges together belong to, `group.version` the newer group protocol,
`eligible.leader.replicas.version` elections that know who is complete (KIP-966).
`transaction.version` and `share.version` follow with transactions and share groups, so that no
client picks a protocol that nobody answers. Before v4 a feature whose
minimum is 0 is left out of the supported ones: old clients fail on it.
"""

from __future__ import annotations

import re

from tidemill.broker.context import Broker
from tidemill.broker.dispatch import REGISTRY, RequestContext, handles
from tidemill.errors import ErrorCode
from tidemill.wire.apis import PRIVATE_FROM, ApiKey
from tidemill.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_SOFTWARE_FROM_VERSION = 3
_ZERO_MINIMUM_FROM_VERSION = 4

METADATA_VERSION = 30
"""4.3-IV0: what Apache Kafka 4.3 reports."""

FEATURES = (
    ("eligible.leader.replicas.version", 0, 1),
    ("group.version", 0, 1),
    ("metadata.version", 7, METADATA_VERSION),
)
"""Name, lowest and highest level of what is here; the highest is finalized."""


@handles(ApiKey.API_VERSIONS, 0, 4)
def api_versions(
    broker: Broker, context: RequestContext, request: ApiVersionsRequest
) -> ApiVersionsResponse:
    if context.version >= _SOFTWARE_FROM_VERSION and not _names_software(request):
        return ApiVersionsResponse(error_code=int(ErrorCode.INVALID_REQUEST))
    return ApiVersionsResponse(
        api_keys=_table(),
        supported_features=[
            SupportedFeatureKey(name=name, min_version=lowest, max_version=highest)
            for name, lowest, highest in FEATURES
            if lowest > 0 or context.version >= _ZERO_MINIMUM_FROM_VERSION
        ],
        finalized_features_epoch=broker.image.version,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, _, level in FEATURES
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
        if key < PRIVATE_FROM and not REGISTRY[key].peers_only
    ]
