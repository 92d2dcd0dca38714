"""Open connections by address and channel: one attempt at a time each, with growing pauses."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from tidemill.client.connection import Address, Connection, Connector, open_connection
from tidemill.client.errors import ClientError
from tidemill.client.retry import Backoff
from tidemill.client.settings import CommonSettings
from tidemill.clock import Clock


def retrieve(future: asyncio.Future[Any]) -> None:
    """Whoever waited may have given up: then the failure is no news to anybody."""
    if not future.cancelled():
        future.exception()


class _Slot:
    """One address and channel: its connection, or the attempt under way."""

    __slots__ = ("attempt", "connection", "failures", "not_before_ms")

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.attempt: asyncio.Task[Connection] | None = None
        self.failures = 0
        self.not_before_ms = 0.0


class Pool:
    """Open connections by address and channel; one attempt at a time each, with pauses."""

    def __init__(
        self, settings: CommonSettings, clock: Clock, random: Random, connector: Connector
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._connector = connector
        self._backoff = Backoff(
            settings.reconnect_backoff_ms, settings.reconnect_backoff_max_ms, random
        )
        self._slots: dict[tuple[Address, str], _Slot] = {}

    def peek(self, address: Address, channel: str) -> Connection | None:
        slot = self._slots.get((address, channel))
        connection = slot.connection if slot is not None else None
        return connection if connection is not None and connection.is_open else None

    def worth(self, address: Address, channel: str) -> tuple[int, float]:
        """Sorts addresses: who answered last, who failed long ago, and at the end who is stuck."""
        connection = self.peek(address, channel)
        if connection is None:
            slot = self._slots.get((address, channel))
            return 1, slot.not_before_ms if slot is not None else 0.0
        if connection.is_stuck:
            return 2, connection.waiting_ms
        return 0, -connection.answered_ms

    async def get(self, address: Address, channel: str) -> Connection:
        connection = self.peek(address, channel)
        if connection is not None:
            return connection
        slot = self._slots.setdefault((address, channel), _Slot())
        if slot.attempt is None:
            loop = asyncio.get_running_loop()
            slot.attempt = loop.create_task(self._connect(address, slot))
            slot.attempt.add_done_callback(retrieve)
        # Several may wait for one attempt: that one of them gives up must not end it.
        return await asyncio.shield(slot.attempt)

    async def _connect(self, address: Address, slot: _Slot) -> Connection:
        try:
            wait_ms = slot.not_before_ms - self._clock.monotonic_ms()
            if wait_ms > 0:
                await asyncio.sleep(wait_ms / 1000)
            slot.connection = await open_connection(
                address, self._settings, self._clock, self._connector
            )
            slot.failures = 0
            return slot.connection
        except ClientError:
            slot.failures += 1
            pause_ms = self._backoff.delay_ms(slot.failures)
            slot.not_before_ms = self._clock.monotonic_ms() + pause_ms
            raise
        finally:
            slot.attempt = None

    def keep_only(self, addresses: list[Address]) -> None:
        """Close connections to brokers that left the cluster."""
        wanted = set(addresses)
        for key in [key for key in self._slots if key[0] not in wanted]:
            _end(self._slots.pop(key))

    def close_idle(self) -> None:
        limit_ms = self._settings.connections_max_idle_ms
        now_ms = self._clock.monotonic_ms()
        for slot in self._slots.values():
            connection = slot.connection
            if limit_ms < 0 or connection is None or connection.in_flight:
                continue
            if now_ms - connection.last_used_ms > limit_ms:
                connection.close()

    def close(self) -> None:
        for slot in self._slots.values():
            _end(slot)
        self._slots.clear()


def _end(slot: _Slot) -> None:
    if slot.attempt is not None:
        slot.attempt.cancel()
    if slot.connection is not None:
        slot.connection.close()
