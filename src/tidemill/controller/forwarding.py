"""Brings what was asked of any broker to the controller, wherever that is.

`Forwarder.ask` runs a change here if this broker is in office, else it sends the request, as it
was, to whoever is (`Forward`). While the office is changing hands it tries again, but only where
nothing can have happened yet: a request that was sent and not answered is answered with
REQUEST_TIMED_OUT, since nobody knows. Having heard the answer it waits a moment for the image in
which the change shows, so that a client finds what it has made on the broker that it asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from tidemill.clock import Clock
from tidemill.controller.links import ClusterLink
from tidemill.controller.office import Office
from tidemill.errors import ApiError, ErrorCode
from tidemill.image import ClusterImage
from tidemill.types import NO_BROKER
from tidemill.wire.apis import APIS, ApiKey
from tidemill.wire.codec import RESPONSE_ELEMENTS_MAX, decode, encode
from tidemill.wire.declare import Message
from tidemill.wire.messages.cluster import ForwardRequest, ForwardResponse

T = TypeVar("T")

PATIENCE_MS = 20_000
"""How long the office may be vacant before a request to it fails."""

ANSWER_MS_MAX = 30_000
IMAGE_WAIT_MS_MAX = 2_000
RETRY_MS = 100

_NOTHING_HAPPENED = frozenset({ErrorCode.NOT_CONTROLLER, ErrorCode.BROKER_NOT_AVAILABLE})


class Forwarder:
    """The way to the controller from one broker."""

    def __init__(self, office: Office, clock: Clock) -> None:
        self.link: ClusterLink | None = None
        self._office = office
        self._clock = clock

    async def ask(self, here: Callable[[], Awaitable[T]], there: Callable[[], Awaitable[T]]) -> T:
        """Run `here` in office, else `there`, until one of them was not refused as misdirected."""
        deadline_ms = self._clock.monotonic_ms() + PATIENCE_MS
        while True:
            try:
                if self._office.active:
                    return await here()
                if self.link is None:
                    raise ApiError(ErrorCode.NOT_CONTROLLER)
                return await there()
            except ApiError as error:
                waited_long = self._clock.monotonic_ms() >= deadline_ms
                if error.code not in _NOTHING_HAPPENED or self.link is None or waited_long:
                    raise
            await asyncio.sleep(RETRY_MS / 1000)

    async def send(self, message: Message, *, timeout_ms: int = ANSWER_MS_MAX) -> Any:
        """Send a message between brokers to the controller."""
        holder = self._office.holder
        if self.link is None or holder in (NO_BROKER, self._office.broker_id):
            raise ApiError(ErrorCode.NOT_CONTROLLER, "there is no controller right now")
        return await self.link.request(holder, message, timeout_ms=timeout_ms)

    async def forward(self, api_key: ApiKey, version: int, request: Message) -> Any:
        """Have the controller answer a client's request."""
        answer: ForwardResponse = await self.send(
            ForwardRequest(
                broker_id=self._office.broker_id,
                api_key=api_key,
                api_version=version,
                body=encode(request, version),
            )
        )
        if answer.error_code:
            raise ApiError(ErrorCode(answer.error_code), answer.error_message)
        await self.wait_for(answer.image_version)
        return decode(
            APIS[api_key].response, version, answer.body, elements_max=RESPONSE_ELEMENTS_MAX
        )

    async def wait_for(self, image_version: int, timeout_ms: int = IMAGE_WAIT_MS_MAX) -> None:
        """Wait, not too long, until this broker has that image."""
        arrived = asyncio.Event()

        def look(image: ClusterImage) -> None:
            if image.version >= image_version:
                arrived.set()

        self._office.listeners.append(look)
        try:
            look(self._office.image)
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_ms / 1000):
                    await arrived.wait()
        finally:
            with suppress(ValueError):
                self._office.listeners.remove(look)
