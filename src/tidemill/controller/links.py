"""What the controller needs of the way to other brokers; the broker that it runs in gives it."""

from __future__ import annotations

from typing import Any, Protocol

from tidemill.wire.declare import Message


class ClusterLink(Protocol):
    """Brings a message to a broker of the cluster, and its answer back."""

    async def request(
        self,
        broker_id: int,
        message: Message,
        version: int | None = None,
        *,
        channel: str = ...,
        timeout_ms: int,
    ) -> Any:
        """Raises an `ApiError` if there is no answer."""
        ...
