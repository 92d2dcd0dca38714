"""A door between a client and a server that a test can shut."""

from __future__ import annotations

import asyncio
import contextlib

from tidemill.testing.process import free_port


class Gate:
    """Passes bytes on, until it is shut: then connections break and new ones find nobody."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._port = free_port()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._pass_on, "127.0.0.1", self._port)

    async def shut(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
            for writer in list(self._writers):
                writer.transport.abort()
            await server.wait_closed()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._target_port)
        ends = {writer, back}
        self._writers |= ends
        try:
            await asyncio.gather(_copy(reader, back), _copy(there, writer))
        finally:
            self._writers -= ends


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(65536):
            writer.write(chunk)
            await writer.drain()
    writer.close()
