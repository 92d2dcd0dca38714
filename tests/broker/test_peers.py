"""Connections between brokers: what happens to those who wait for one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import NoReturn

import pytest

from tidemill.broker.peers import CONTROL, FETCH, Identity, Peers, UnknownPeerError
from tidemill.client.connection import Connector
from tidemill.clock import SystemClock
from tidemill.image import (
    EMPTY_IMAGE,
    BrokerImage,
    ClusterImage,
    Endpoint,
    with_broker,
    with_controller,
)
from tidemill.types import BrokerEpoch, BrokerId, ControllerEpoch
from tidemill.wire.messages.api_versions import ApiVersionsRequest

OTHER = BrokerImage(BrokerId(2), BrokerEpoch(1), (Endpoint("PLAINTEXT", "there", 9092),))


async def nobody_answers(
    factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
) -> NoReturn:
    await asyncio.Event().wait()
    raise AssertionError


def peers_of(image: Callable[[], ClusterImage], connector: Connector = nobody_answers) -> Peers:
    who = Identity(1, lambda: BrokerEpoch(1), lambda: b"")
    return Peers(who, image, SystemClock(), Random(1), connector=connector)


def ask(peers: Peers, channel: str = CONTROL) -> asyncio.Task[object]:
    return asyncio.ensure_future(
        peers.request(2, ApiVersionsRequest(), channel=channel, timeout_ms=60_000)
    )


async def under_way(*waiting: asyncio.Task[object]) -> None:
    for _ in range(5):
        await asyncio.sleep(0)
    assert not any(one.done() for one in waiting)


@pytest.mark.parametrize("how", ["gone", "back in another incarnation"])
async def test_who_waits_for_a_broker_that_an_image_does_not_have_is_told_at_once(how: str) -> None:
    """Rule C5: one that stands still, and was replaced, must not hold up what others would do."""
    image = with_broker(EMPTY_IMAGE, OTHER)
    peers = peers_of(lambda: image)
    waiting = [ask(peers, CONTROL), ask(peers, FETCH)]
    await under_way(*waiting)
    peers.follow(image)
    peers.follow(with_broker(image, replace(OTHER, rack="another")))
    await under_way(*waiting)
    gone = how == "gone"
    image = EMPTY_IMAGE if gone else with_broker(image, replace(OTHER, epoch=BrokerEpoch(5)))
    peers.follow(image)
    for one in waiting:
        with pytest.raises(UnknownPeerError):
            await asyncio.wait_for(one, 1)
    peers.close()


async def test_who_asks_a_controller_that_was_replaced_does_not_wait_for_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may still have something to say, but not for long; other connections to it stay."""
    monkeypatch.setattr("tidemill.broker.peers.FAREWELL_S", 0.05)
    image = with_controller(with_broker(EMPTY_IMAGE, OTHER), BrokerId(2), ControllerEpoch(1))
    peers = peers_of(lambda: image)
    peers.follow(image)
    asked, fetching = ask(peers, CONTROL), ask(peers, FETCH)
    await under_way(asked, fetching)
    image = with_controller(image, BrokerId(3), ControllerEpoch(2))
    peers.follow(image)
    await under_way(asked, fetching)
    later = ask(peers, CONTROL)
    with pytest.raises(UnknownPeerError):
        await asyncio.wait_for(asked, 5)
    await under_way(later, fetching)
    for one in (later, fetching):
        one.cancel()
    peers.close()


async def test_who_waits_for_an_incarnation_that_is_gone_is_told_and_goes_on() -> None:
    """A link is closed when its broker came back: no task of ours is cancelled by that."""
    image = with_broker(EMPTY_IMAGE, OTHER)
    peers = peers_of(lambda: image)
    waiting = ask(peers)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    image = with_broker(image, replace(OTHER, epoch=BrokerEpoch(5)))
    again = ask(peers)
    with pytest.raises(UnknownPeerError):
        await waiting
    again.cancel()
    with pytest.raises(asyncio.CancelledError):
        await again
    peers.close()
