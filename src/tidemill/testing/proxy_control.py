"""Runs `proxy` beside a test and lets the test control it: in a thread, or in a process.

Both take the same commands; a change is in force when the call returns. The thread is simpler; the
process does not compete with a test that keeps its own interpreter busy. The process reads commands
as lines of JSON from its standard input, answers each with a line, and ends when the input does.
"""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Self

import msgspec

from tidemill.children import Running
from tidemill.testing.process import free_port
from tidemill.testing.proxy import HOST, Link, Way

ANSWER_TIMEOUT_S = 30
LINKS_MAX = 256


class ProxyError(RuntimeError):
    """The proxy could not do what it was told."""


class Commands:
    """The links of one proxy, and what each command does; runs on the proxy's loop."""

    def __init__(self) -> None:
        self._links: list[Link] = []

    async def run(self, name: str, link: int, options: dict[str, Any]) -> Any:
        if name == "link":
            return await self._add(**options)
        target = self._links[link]
        if name == "stats":
            return msgspec.to_builtins(dataclasses.asdict(target.stats))
        if "way" in options:
            options["way"] = Way(options["way"])
        done = _METHODS[name](target, **options)
        if isinstance(done, Awaitable):
            await done
        return None

    async def _add(self, host: str, port: int) -> list[int]:
        if len(self._links) >= LINKS_MAX:
            raise ValueError(f"a proxy has at most {LINKS_MAX} links")
        link = Link(host, port, free_port())
        await link.accept()
        self._links.append(link)
        return [len(self._links) - 1, link.port]

    async def close(self) -> None:
        for link in self._links:
            await link.close()


_METHODS: dict[str, Callable[..., Any]] = {
    "accept": Link.accept,
    "refuse": Link.refuse,
    "delay": Link.delay,
    "limit": Link.limit,
    "partition": Link.partition,
    "heal": Link.heal,
    "reset": Link.reset,
}


class LinkControl:
    """A link as tests see it: see the methods of `proxy.Link`."""

    def __init__(self, proxy: _Proxy, number: int, port: int) -> None:
        self.port = port
        self._proxy = proxy
        self._number = number

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def accept(self) -> None:
        """Listen again after `refuse`."""
        self._do("accept")

    def refuse(self) -> None:
        """Close the port: connecting fails. Connections that exist go on."""
        self._do("refuse")

    def delay(
        self, delay_ms: float, jitter_ms: float = 0, *, way: Way = Way.BOTH, who: str = ""
    ) -> None:
        """Hold every chunk for so long, plus up to `jitter_ms`; the order stays."""
        self._do("delay", delay_ms=delay_ms, jitter_ms=jitter_ms, way=way, who=who)

    def limit(self, bytes_per_s: int | None, *, way: Way = Way.BOTH, who: str = "") -> None:
        """Pass at most so many bytes per second and connection."""
        self._do("limit", bytes_per_s=bytes_per_s, way=way, who=who)

    def partition(self, way: Way = Way.BOTH, *, drop: bool = False, who: str = "") -> None:
        """Let nothing through; connections stay as they are."""
        self._do("partition", way=way, drop=drop, who=who)

    def heal(self) -> None:
        """Pass everything at once again, for everybody."""
        self._do("heal")

    def reset(self, *, who: str = "") -> None:
        """Break the connections that exist, with a reset for both sides."""
        self._do("reset", who=who)

    def open_sessions(self) -> int:
        count: int = self._do("stats")["open_sessions"]
        return count

    def passed_bytes(self, way: Way) -> int:
        count: int = self._do("stats")["passed_bytes"][way.value]
        return count

    def dropped_bytes(self, way: Way) -> int:
        count: int = self._do("stats")["dropped_bytes"][way.value]
        return count

    def _do(self, name: str, **options: Any) -> Any:
        return self._proxy.call(name, self._number, options)


class _Proxy(Running):
    """What the thread and the process have in common."""

    def link(self, port: int, host: str = HOST) -> LinkControl:
        """A new link to a port; its own port is free, and the same until the proxy closes."""
        number, own_port = self.call("link", -1, {"host": host, "port": port})
        return LinkControl(self, number, own_port)

    def call(self, name: str, link: int, options: dict[str, Any]) -> Any:
        raise NotImplementedError


class ProxyThread(_Proxy):
    """The proxy in a thread of the test."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._commands = Commands()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tidemill-proxy")

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._wait(self._commands.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def call(self, name: str, link: int, options: dict[str, Any]) -> Any:
        return self._wait(self._commands.run(name, link, options))

    def _wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(ANSWER_TIMEOUT_S)


class ProxyProcess(_Proxy):
    """The proxy in a process of its own."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        command = [sys.executable, "-m", "tidemill.testing.proxy_control"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self

    def stop(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            try:
                process.communicate(timeout=ANSWER_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                raise

    def call(self, name: str, link: int, options: dict[str, Any]) -> Any:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise ProxyError("the proxy was not started")
        process.stdin.write(msgspec.json.encode([name, link, options]) + b"\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise ProxyError(f"the proxy process ended with {process.wait()}")
        answer, error = msgspec.json.decode(line)
        if error is not None:
            raise ProxyError(error)
        return answer


async def _serve_commands() -> None:
    """The process's main function: a command per line until the input ends."""
    loop = asyncio.get_running_loop()
    commands = Commands()
    while line := await loop.run_in_executor(None, sys.stdin.buffer.readline):
        name, link, options = msgspec.json.decode(line)
        try:
            answer, problem = await commands.run(name, link, options), None
        except Exception as error:  # noqa: BLE001 - the test is told, whatever it was
            answer, problem = None, f"{name}: {error!r}"
        sys.stdout.buffer.write(msgspec.json.encode([answer, problem]) + b"\n")
        sys.stdout.buffer.flush()
    await commands.close()


if __name__ == "__main__":
    asyncio.run(_serve_commands())
