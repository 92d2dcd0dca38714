"""Tells every broker of every new image, each at its own pace.

For each other broker there is one sender, and one message to it at a time, so images arrive in
order. A sender that was held up skips what it missed: the next message goes from the image that
the broker confirmed last straight to the newest. A broker that confirmed nothing yet, lost its
connection, or says that it has another version is sent everything. A slow broker holds up nobody
but itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from tidemill.controller.deltas import delta_between
from tidemill.controller.links import ClusterLink
from tidemill.controller.office import Office
from tidemill.errors import ErrorCode, TidemillError
from tidemill.image import ClusterImage
from tidemill.types import BrokerEpoch, BrokerId
from tidemill.wire.messages.cluster import ImageDeltaRequest, ImageDeltaResponse

log = logging.getLogger(__name__)

CHANNEL = "images"
RETRY_MS_MIN = 50
RETRY_MS_MAX = 1_000

Confirmed = Callable[[BrokerId, BrokerEpoch, ClusterImage], None]
"""A broker, in this incarnation, has taken over this image."""


class Propagation:
    """The senders of a controller in office."""

    def __init__(self, office: Office, timeout_ms: Callable[[], int], confirmed: Confirmed) -> None:
        self.link: ClusterLink | None = None
        self._office = office
        self._timeout_ms = timeout_ms
        self._confirmed = confirmed
        self._senders: dict[BrokerId, _Sender] = {}
        self._latest: tuple[ClusterImage | None, ClusterImage, ImageDeltaRequest] | None = None

    def _delta(self, before: ClusterImage | None, after: ClusterImage) -> ImageDeltaRequest:
        """What to send; most brokers are told the same."""
        latest = self._latest
        if latest is None or latest[0] is not before or latest[1] is not after:
            latest = self._latest = (before, after, delta_between(before, after))
        return latest[2]

    def tell(self, image: ClusterImage) -> None:
        """Send this image to all brokers that it has."""
        for broker_id, sender in list(self._senders.items()):
            broker = image.brokers.get(broker_id)
            if broker is None or broker.epoch != sender.broker_epoch:
                self._senders.pop(broker_id).stop()
        if self.link is None:
            return
        for broker_id, broker in image.brokers.items():
            if broker_id == self._office.broker_id:
                continue
            if broker_id not in self._senders:
                self._senders[broker_id] = _Sender(
                    broker_id,
                    broker.epoch,
                    self.link,
                    self._timeout_ms,
                    self._delta,
                    self._confirmed,
                )
            self._senders[broker_id].tell(image)

    def stop(self) -> None:
        """The office is somebody else's: say no more."""
        for sender in self._senders.values():
            sender.stop()
        self._senders.clear()
        self._latest = None

    async def settle(self, timeout_ms: int) -> None:
        """Wait, not too long, until all brokers have confirmed what they were told."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / 1000):
                for sender in list(self._senders.values()):
                    await sender.is_settled.wait()


class _Sender:
    """Brings one incarnation of a broker up to date, again and again."""

    def __init__(
        self,
        broker_id: BrokerId,
        broker_epoch: BrokerEpoch,
        link: ClusterLink,
        timeout_ms: Callable[[], int],
        delta: Callable[[ClusterImage | None, ClusterImage], ImageDeltaRequest],
        confirmed: Confirmed,
    ) -> None:
        self.broker_epoch = broker_epoch
        self.is_settled = asyncio.Event()
        self._broker_id = broker_id
        self._link = link
        self._timeout_ms = timeout_ms
        self._delta = delta
        self._on_confirmed = confirmed
        self._wanted: ClusterImage | None = None
        self._confirmed: ClusterImage | None = None
        self._news = asyncio.Event()
        self._complained = False
        self._task = asyncio.get_running_loop().create_task(self._run())

    def tell(self, image: ClusterImage) -> None:
        self._wanted = image
        self.is_settled.clear()
        self._news.set()

    def stop(self) -> None:
        self.is_settled.set()
        self._task.cancel()

    async def _run(self) -> None:
        pause_ms = RETRY_MS_MIN
        while True:
            await self._news.wait()
            self._news.clear()
            image = self._wanted
            assert image is not None
            if await self._send(image):
                pause_ms = RETRY_MS_MIN
                if self._wanted is image:
                    self.is_settled.set()
            else:
                self._news.set()
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(2 * pause_ms, RETRY_MS_MAX)

    async def _send(self, image: ClusterImage) -> bool:
        """Send one image; False if it has to be sent again."""
        delta = self._delta(self._confirmed, image)
        try:
            answer: ImageDeltaResponse = await self._link.request(
                self._broker_id, delta, channel=CHANNEL, timeout_ms=self._timeout_ms()
            )
        except TidemillError as error:
            self._confirmed = None
            self._complain(str(error))
            return False
        except Exception:
            # A defect; but a broker that is never told anything again would be worse.
            log.exception("telling broker %d of the new image failed", self._broker_id)
            self._confirmed = None
            return False
        if answer.error_code:
            self._confirmed = None
            self._complain(ErrorCode(answer.error_code).name)
            return False
        self._complained = False
        self._confirmed = image
        self._on_confirmed(self._broker_id, self.broker_epoch, image)
        return True

    def _complain(self, why: str) -> None:
        """Once per trouble: it is tried again until it works or the broker is gone."""
        if not self._complained:
            self._complained = True
            log.warning("broker %d was not told of the new image: %s", self._broker_id, why)
