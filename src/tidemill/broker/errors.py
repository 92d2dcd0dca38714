"""What a client is told when a handler fails as a whole, and not for one topic or partition."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from tidemill.errors import ApiError, ErrorCode
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.api_versions import ApiVersion, ApiVersionsResponse

if TYPE_CHECKING:
    from tidemill.broker.dispatch import Registration, RequestContext

log = logging.getLogger(__name__)


def answer_to(
    entry: Registration, context: RequestContext, request: object, error: BaseException
) -> Any | None:
    """The response that carries `error` in its own error field; None if it has no such field.

    An `ApiError` is an answer on purpose. Anything else is a defect or a machine in trouble: it
    goes to the log with its traceback, and the client learns no more than that it failed.
    """
    if isinstance(error, ApiError):
        code, message = error.code, error.message
    else:
        code, message = ErrorCode.UNKNOWN_SERVER_ERROR, None
        log.error(
            "%s v%d from %s failed", entry.key.name, context.version, context.client_address,
            exc_info=error,
        )  # fmt: skip
    response = refusal(entry, code)
    if response is not None and hasattr(response, "error_message"):
        response.error_message = message
    return response


def refusal(entry: Registration, code: ErrorCode) -> Any | None:
    """An answer that says no more than `code`; None if the response has no place for it."""
    response = entry.response_type()
    if not hasattr(response, "error_code"):
        return None
    response.error_code = int(code)
    return response


def unsupported_api_versions() -> ApiVersionsResponse:
    """The answer to ApiVersions in a version from the future: which ones there are (KIP-511)."""
    from tidemill.broker.dispatch import REGISTRY

    entry = REGISTRY[ApiKey.API_VERSIONS]
    own = ApiVersion(
        api_key=entry.key, min_version=entry.min_version, max_version=entry.max_version
    )
    return ApiVersionsResponse(error_code=int(ErrorCode.UNSUPPORTED_VERSION), api_keys=[own])
