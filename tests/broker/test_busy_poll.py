"""A loop that looks for the next request instead of sleeping: when it begins, when it gives up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.broker.harness import Client, connect, make_server, running_broker

from tidemill.broker import server as server_module
from tidemill.broker.busy_poll import CROWDED_US, ENOUGH, ENOUGH_AGAIN, BusyPoll
from tidemill.broker.server import BrokerServer
from tidemill.wire.messages.api_versions import ApiVersionsRequest
from tidemill.wire.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)

LIMIT_US = 100
EMPTY_TURN_US = 5


class Loop:
    """Turns that take as long as they are told to, on a clock of their own."""

    def __init__(self, limit_us: int = LIMIT_US) -> None:
        self.now_us = 1_000_000
        self.poll = BusyPoll(self._call_soon, lambda: self.now_us, limit_us)
        self._soon: list[Callable[[], None]] = []

    def _call_soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)

    def turn(self, took_us: int = EMPTY_TURN_US) -> bool:
        """One turn with nothing in it but what was asked for; False if that was nothing."""
        self.now_us += took_us
        soon, self._soon = self._soon, []
        for callback in soon:
            callback()
        return bool(soon)

    def polls(self) -> bool:
        return self.poll.is_polling

    def requests(self, count: int, apart_us: int = 50) -> None:
        """Requests one after the other, with as many turns between them as the loop makes."""
        for _ in range(count):
            self.now_us += apart_us
            self.poll.served()

    def turns_until_it_sleeps(self) -> int:
        turns = 0
        while self.turn():
            turns += 1
            assert turns < 10_000
        return turns


def test_requests_in_quick_succession_are_waited_for_awake_and_not_for_longer_than_it_says() -> (
    None
):
    loop = Loop()
    loop.requests(ENOUGH)
    assert not loop.polls()  # The first of them came after a long while.
    loop.requests(1)
    assert loop.polls()
    assert loop.turns_until_it_sleeps() == LIMIT_US // EMPTY_TURN_US
    assert not loop.polls()


def test_a_request_that_comes_meanwhile_puts_the_end_off() -> None:
    loop = Loop()
    loop.requests(ENOUGH + 1)
    for _ in range(LIMIT_US // EMPTY_TURN_US - 1):
        assert loop.turn()
    loop.poll.served()
    assert loop.turns_until_it_sleeps() == LIMIT_US // EMPTY_TURN_US


def test_requests_that_come_slowly_are_slept_for() -> None:
    loop = Loop()
    loop.requests(1_000, apart_us=2 * LIMIT_US + 1)
    assert not loop.turn()


def test_having_looked_in_vain_it_wants_more_proof_than_before() -> None:
    """Each request pays for a few microseconds of looking in vain at most."""
    loop = Loop()
    loop.requests(ENOUGH + 1)
    loop.turns_until_it_sleeps()
    loop.requests(ENOUGH_AGAIN - 1)
    assert not loop.polls()
    loop.requests(1)
    assert loop.polls()


def test_it_gives_up_at_once_where_somebody_else_has_the_core() -> None:
    loop = Loop()
    loop.requests(ENOUGH + 1)
    assert loop.turn()
    loop.turn(took_us=CROWDED_US + 1)
    assert not loop.polls()
    assert not loop.turn()


@pytest.mark.parametrize("when", ["from the start", "while it polls"])
def test_a_limit_of_nothing_switches_it_off(when: str) -> None:
    loop = Loop(0 if when == "from the start" else LIMIT_US)
    loop.requests(ENOUGH + 1)
    loop.poll.limit_us = 0
    loop.turn()
    assert not loop.turn()
    loop.requests(100)
    assert not loop.turn()


class Polls:
    """Those that brokers of this process have made, and how often they looked."""

    def __init__(self) -> None:
        self.made: list[BusyPoll] = []
        self.looks = 0

    def make(self, call_soon: Callable[[Callable[[], None]], object], *others: Any) -> BusyPoll:
        def counted(callback: Callable[[], None]) -> None:
            self.looks += 1
            call_soon(callback)

        self.made.append(BusyPoll(counted, *others))
        return self.made[-1]


@pytest.fixture
def polls(monkeypatch: pytest.MonkeyPatch) -> Polls:
    polls = Polls()
    monkeypatch.setattr(server_module, "BusyPoll", polls.make)
    return polls


async def test_a_broker_that_shares_its_process_never_polls(tmp_path: Path, polls: Polls) -> None:
    async with running_broker(tmp_path):
        assert [poll.limit_us for poll in polls.made] == [0]


@pytest.mark.parametrize(("available", "limit_us"), [(2, LIMIT_US), (1, 0)])
async def test_a_broker_with_a_process_of_its_own_polls_if_there_is_a_core_for_clients(
    tmp_path: Path,
    polls: Polls,
    monkeypatch: pytest.MonkeyPatch,
    available: int,
    limit_us: int,
) -> None:
    monkeypatch.setattr(server_module, "cores", lambda: available)
    async with _served(tmp_path, monkeypatch) as server:
        [poll] = polls.made
        assert poll.limit_us == limit_us
        async with connect(server.port) as client:
            await _set_limit(client, 1_000)
            for _ in range(200):
                await client.ask(ApiVersionsRequest(), 0)
            assert poll.limit_us == (1_000 if limit_us else 0)
    assert (polls.looks > 0) == (limit_us > 0)


@asynccontextmanager
async def _served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[BrokerServer]:
    """A broker as `tidemill up` runs it, but in this loop."""
    monkeypatch.setattr(server_module, "calm_garbage_collector", lambda: None)
    ready: asyncio.Future[BrokerServer] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    config = make_server(tmp_path).config
    running = asyncio.create_task(server_module.serve(config, on_ready=ready.set_result, stop=stop))
    try:
        yield await asyncio.wait_for(ready, 20)
    finally:
        stop.set()
        await running


async def _set_limit(client: Client, limit_us: int) -> None:
    entry = IncrementalAlterableConfig(
        name="socket.busy.poll.us", config_operation=0, value=str(limit_us)
    )
    resource = IncrementalAlterConfigsResource(resource_type=4, resource_name="", configs=[entry])
    request = IncrementalAlterConfigsRequest(resources=[resource])
    answer = await client.ask(request, 1)
    assert [each.error_code for each in answer.responses] == [0]
