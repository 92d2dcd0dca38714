"""Connections between brokers: what happens to those who wait for one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import NoReturn

import pytest

from tidemill.broker.peers import Identity, Peers, UnknownPeerError
from tidemill.clock import SystemClock
from tidemill.image import EMPTY_IMAGE, BrokerImage, Endpoint, with_broker
from tidemill.types import BrokerEpoch, BrokerId
from tidemill.wire.messages.api_versions import ApiVersionsRequest

OTHER = BrokerImage(BrokerId(2), BrokerEpoch(1), (Endpoint("PLAINTEXT", "there", 9092),))


async def nobody_answers(
    factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
) -> NoReturn:
    await asyncio.Event().wait()
    raise AssertionError


async def test_who_waits_for_an_incarnation_that_is_gone_is_told_and_goes_on() -> None:
    """A link is closed when its broker came back: no task of ours is cancelled by that."""
    image = with_broker(EMPTY_IMAGE, OTHER)
    peers = Peers(
        Identity(1, lambda: BrokerEpoch(1), lambda: b""),
        lambda: image,
        SystemClock(),
        Random(1),
        connector=nobody_answers,
    )

    def ask() -> asyncio.Task[object]:
        return asyncio.ensure_future(peers.request(2, ApiVersionsRequest(), timeout_ms=60_000))

    waiting = ask()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    image = with_broker(image, replace(OTHER, epoch=BrokerEpoch(5)))
    again = ask()
    with pytest.raises(UnknownPeerError):
        await waiting
    again.cancel()
    with pytest.raises(asyncio.CancelledError):
        await again
    peers.close()
