"""The simulated network behaves as TCP between machines that fail, and repeats itself."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tidemill.client.connection import Address, connect_tcp, open_connection
from tidemill.client.errors import UnreachableError
from tidemill.client.settings import CommonSettings
from tidemill.testing.disk import CrashDisk
from tidemill.testing.loop import SimLoop
from tidemill.testing.network import Quality, SimHost, SimNetwork
from tidemill.testing.pipe import WINDOW_BYTES, End
from tidemill.wire.apis import APIS, ApiKey
from tidemill.wire.frame import decode_request_header, encode_response
from tidemill.wire.messages.api_versions import ApiVersion, ApiVersionsResponse

PORT = 9092
ROOT = Path(__file__).resolve().parents[2]


class World:
    """Two hosts; `two` listens and keeps every connection it accepts."""

    def __init__(self, seed: int = 0, quality: Quality | None = None) -> None:
        self.loop = SimLoop()
        self.network = SimNetwork(self.loop, Random(seed), quality)
        self.one = self.network.host("one")
        self.two = self.network.host("two")
        self.accepted: list[Recorder] = []
        self.two.listen(self._accept, PORT)

    def _accept(self) -> Recorder:
        self.accepted.append(Recorder(self.loop))
        return self.accepted[-1]

    def connect(self) -> Recorder:
        """A connection from `one` to `two`, open at both ends."""
        made = Recorder(self.loop)
        task = self.one.run(self.one.connect(lambda: made, "two", PORT))
        self.loop.run_until_complete(task)
        self.loop.run_for(0.1)
        return made


class Recorder(asyncio.Protocol):
    """Writes down what happens to it."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.data = b""
        self.pieces = 0
        self.heard_at: list[float] = []
        self.events: list[str] = []
        self.error: Exception | None = None
        self.transport: End

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, End)
        self.transport = transport
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.pieces += 1
        self.heard_at.append(self._loop.time())

    def eof_received(self) -> bool:
        self.events.append("eof")
        return False

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.error = exc
        self.events.append("lost")


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.loop.close()
    assert made.loop.unhandled == []


# Bytes


def test_bytes_arrive_in_order_and_in_any_pieces(world: World) -> None:
    near = world.connect()
    message = bytes(Random(3).randbytes(2_000_000))
    near.transport.writelines([message[:7], message[7:1_000], message[1_000:]])
    world.loop.run_for(5)
    assert world.accepted[0].data == message
    assert world.accepted[0].pieces > 30
    world.accepted[0].transport.write(b"answer")
    world.loop.run_for(1)
    assert near.data == b"answer"


def test_the_ends_know_each_other_and_have_no_socket(world: World) -> None:
    near = world.connect()
    far = world.accepted[0]
    assert near.transport.get_extra_info("peername") == ("10.0.0.2", PORT)
    assert far.transport.get_extra_info("peername")[0] == "10.0.0.1"
    assert near.transport.get_extra_info("sockname") == far.transport.get_extra_info("peername")
    assert near.transport.get_extra_info("socket") is None
    assert near.transport.get_protocol() is near


def test_a_buffered_protocol_gets_its_bytes_through_its_own_buffer(world: World) -> None:
    class Small(asyncio.BufferedProtocol):
        def __init__(self) -> None:
            self.buffer = bytearray(10)
            self.data = b""
            self.transport: Any = None

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport

        def get_buffer(self, sizehint: int) -> bytearray:
            return self.buffer

        def buffer_updated(self, nbytes: int) -> None:
            self.data += self.buffer[:nbytes]
            self.transport.pause_reading()
            world.loop.call_later(0.01, self.transport.resume_reading)

    small = Small()
    world.two.listen(lambda: small, 1)
    near = Recorder(world.loop)
    world.loop.run_until_complete(world.one.connect(lambda: near, "two", 1))
    near.transport.write(bytes(range(256)))
    world.loop.run_for(10)
    assert small.data == bytes(range(256))


def test_connections_overtake_each_other() -> None:
    """Order holds within a connection only."""
    orders = set()
    for seed in range(20):
        world = World(seed)
        first, second = world.connect(), world.connect()
        first.transport.write(b"x")
        second.transport.write(b"y")
        world.loop.run_for(1)
        orders.add(world.accepted[0].heard_at < world.accepted[1].heard_at)
        world.loop.close()
    assert orders == {True, False}


def test_a_reader_that_stops_makes_the_writer_pause(world: World) -> None:
    near = world.connect()
    far = world.accepted[0]
    far.transport.pause_reading()
    near.transport.set_write_buffer_limits(high=10_000, low=1_000)
    near.transport.write(bytes(WINDOW_BYTES))
    assert near.transport.get_write_buffer_size() == 0
    near.transport.write(bytes(50_000))
    world.loop.run_for(10)
    assert "pause" in near.events
    assert "resume" not in near.events
    assert near.transport.get_write_buffer_size() > 10_000
    far.transport.resume_reading()
    world.loop.run_for(10)
    assert near.events[-1] == "resume"
    assert len(far.data) == WINDOW_BYTES + 50_000


def test_a_slow_link_takes_its_time(world: World) -> None:
    world.network.set_quality("one", "two", bytes_per_s=100_000)
    near = world.connect()
    start = world.loop.time()
    near.transport.write(bytes(1_000_000))
    world.loop.run_for(60)
    took = world.accepted[0].heard_at[-1] - start
    assert 9.9 < took < 10.5


def test_delay_and_loss_make_it_late_and_never_wrong() -> None:
    world = World(5, Quality(delay_ms_min=50, delay_ms_max=60, loss=0.2))
    near = world.connect()
    start = world.loop.time()
    for number in range(100):
        near.transport.write(bytes([number]))
    world.loop.run_for(10)
    far = world.accepted[0]
    assert far.data == bytes(range(100))
    assert far.heard_at[0] - start >= 0.05
    assert far.heard_at[-1] - start >= 0.2
    world.loop.close()


# Closing


def test_close_sends_what_is_written_and_then_the_end(world: World) -> None:
    near = world.connect()
    near.transport.write(bytes(1_000_000))
    near.transport.close()
    near.transport.write(b"too late")
    world.loop.run_for(5)
    far = world.accepted[0]
    assert len(far.data) == 1_000_000
    assert far.events == ["made", "eof", "lost"]
    assert (far.error, near.error, near.events[-1]) == (None, None, "lost")
    assert not world.one.ends
    assert not world.two.ends


def test_abort_resets_the_peer(world: World) -> None:
    near = world.connect()
    near.transport.write(bytes(1_000_000))
    near.transport.abort()
    world.loop.run_for(5)
    far = world.accepted[0]
    assert len(far.data) <= WINDOW_BYTES
    assert isinstance(far.error, ConnectionResetError)
    assert near.error is None


def test_half_closed_connections_still_answer(world: World) -> None:
    near = world.connect()
    far = world.accepted[0]
    far.eof_received = lambda: True  # type: ignore[method-assign]
    near.transport.write(b"question")
    near.transport.write_eof()
    with pytest.raises(RuntimeError, match="write_eof"):
        near.transport.write(b"more")
    world.loop.run_for(1)
    far.transport.write(b"answer")
    world.loop.run_for(1)
    assert (far.data, near.data) == (b"question", b"answer")


def test_writing_to_a_peer_that_has_closed_ends_in_a_reset(world: World) -> None:
    near = world.connect()
    far = world.accepted[0]
    near.eof_received = lambda: True  # type: ignore[method-assign]
    far.transport.close()
    world.loop.run_for(1)
    near.transport.write(b"hello?")
    world.loop.run_for(1)
    assert isinstance(near.error, ConnectionResetError)


def test_a_protocol_that_fails_loses_its_connection() -> None:
    world = World()
    near = world.connect()

    def fail(data: bytes) -> None:
        raise ValueError("no")

    world.accepted[0].data_received = fail  # type: ignore[method-assign]
    near.transport.write(b"x")
    world.loop.run_for(1)
    assert isinstance(near.error, ConnectionResetError)
    assert isinstance(world.accepted[0].error, ValueError)
    assert len(world.loop.unhandled) == 1
    world.loop.close()


# Connecting


def _connect_error(world: World, host: str, port: int) -> tuple[Exception, float]:
    start = world.loop.time()
    task = world.one.run(world.one.connect(asyncio.Protocol, host, port))
    with pytest.raises(OSError) as caught:
        world.loop.run_until_complete(task)
    return caught.value, world.loop.time() - start


def test_connecting_fails_as_a_kernel_says_it(world: World) -> None:
    error, took_s = _connect_error(world, "two", 1)
    assert isinstance(error, ConnectionRefusedError)
    assert took_s < 0.01
    assert isinstance(_connect_error(world, "nowhere", PORT)[0], socket.gaierror)
    world.network.block("one", "two")
    error, took_s = _connect_error(world, "two", PORT)
    assert isinstance(error, TimeoutError)
    assert took_s == 127


@pytest.mark.parametrize("blocked", [("one", "two"), ("two", "one")])
def test_connecting_hangs_while_either_way_is_blocked(
    world: World, blocked: tuple[str, str]
) -> None:
    world.network.block(*blocked)
    near = Recorder(world.loop)
    task = world.one.run(world.one.connect(lambda: near, "two", PORT))
    world.loop.run_for(10)
    assert not task.done()
    world.network.heal()
    world.loop.run_for(20)
    assert task.done()
    assert near.events == ["made"]


def test_a_port_is_taken_once_and_free_after_close(world: World) -> None:
    with pytest.raises(OSError, match="taken"):
        world.two.listen(asyncio.Protocol, PORT)
    server = world.two.listeners[PORT]
    near = world.connect()
    server.close()
    assert not server.is_serving()
    assert isinstance(_connect_error(world, "two", PORT)[0], ConnectionRefusedError)
    near.transport.write(b"still here")
    world.loop.run_for(1)
    assert world.accepted[0].data == b"still here"
    world.two.listen(asyncio.Protocol, PORT)


def test_hosts_have_names_addresses_and_a_loopback(world: World) -> None:
    resolve = world.network.resolve
    assert resolve("two", world.one) is resolve("10.0.0.2", world.one) is world.two
    assert resolve("localhost", world.one) is world.one


def test_code_outside_every_host_cannot_connect(world: World) -> None:
    with pytest.raises(RuntimeError, match=r"SimHost\.run"):
        world.loop.run_until_complete(connect_tcp(asyncio.Protocol, "two", PORT))


# Partitions


def test_blocked_bytes_come_late_and_nothing_fails(world: World) -> None:
    near = world.connect()
    far = world.accepted[0]
    world.network.partition({"one"}, {"two"})
    near.transport.write(b"first")
    far.transport.write(b"other")
    world.loop.run_for(60)
    near.transport.write(b"second")
    assert (near.data, far.data) == (b"", b"")
    assert (near.events, far.events) == (["made"], ["made"])
    world.network.heal()
    world.loop.run_for(10)
    assert (near.data, far.data) == (b"other", b"firstsecond")


def test_a_one_way_partition_lets_the_other_way_through(world: World) -> None:
    near = world.connect()
    far = world.accepted[0]
    world.network.partition({"one"}, {"two"}, both_ways=False)
    near.transport.write(b"lost for now")
    far.transport.write(b"heard")
    world.loop.run_for(10)
    assert (near.data, far.data) == (b"heard", b"")


def test_without_acknowledgements_the_window_stays_full(world: World) -> None:
    near = world.connect()
    far = world.accepted[0]
    world.network.block("two", "one")
    near.transport.write(bytes(WINDOW_BYTES + 100_000))
    world.loop.run_for(10)
    assert len(far.data) == WINDOW_BYTES
    assert "pause" in near.events
    world.network.unblock("two", "one")
    world.loop.run_for(10)
    assert len(far.data) == WINDOW_BYTES + 100_000
    assert near.events[-1] == "resume"


def test_a_sender_gives_up_in_the_end(world: World) -> None:
    world.network.set_quality("one", "two", give_up_ms=30_000)
    near = world.connect()
    world.network.block("one", "two")
    near.transport.write(b"anybody?")
    world.loop.run_for(29)
    assert near.events == ["made"]
    world.loop.run_for(2)
    assert isinstance(near.error, TimeoutError)
    assert world.accepted[0].error is None
    world.network.heal()
    world.loop.run_for(10)
    assert world.accepted[0].data == b""


def test_an_isolated_host_reaches_nobody(world: World) -> None:
    world.network.host("three").listen(asyncio.Protocol, PORT)
    near = world.connect()
    world.network.isolate("two")
    near.transport.write(b"x")
    world.loop.run_for(1)
    assert world.accepted[0].data == b""
    task = world.one.run(world.one.connect(asyncio.Protocol, "three", PORT))
    world.loop.run_until_complete(task)


def test_links_can_break_connections(world: World) -> None:
    near = world.connect()
    world.network.set_quality("one", "two", reset=1.0)
    near.transport.write(b"x")
    world.loop.run_for(1)
    assert isinstance(near.error, ConnectionResetError)
    assert isinstance(world.accepted[0].error, ConnectionResetError)
    world.network.set_quality("one", "two", reset=0.0)
    again = world.connect()
    world.network.reset_connections("two", "one")
    world.loop.run_for(1)
    assert isinstance(again.error, ConnectionResetError)
    assert isinstance(world.accepted[1].error, ConnectionResetError)


# Hosts


def test_peers_of_a_killed_process_are_told(world: World) -> None:
    near = world.connect()
    far = world.accepted[0]
    world.two.kill()
    world.loop.run_for(1)
    assert near.events == ["made", "eof", "lost"]
    assert far.events == ["made"]
    assert isinstance(_connect_error(world, "two", PORT)[0], ConnectionRefusedError)


def test_unread_bytes_of_a_killed_process_reset_its_peers(world: World) -> None:
    near = world.connect()
    world.accepted[0].transport.pause_reading()
    near.transport.write(b"never read")
    world.loop.run_for(1)
    world.two.kill()
    world.loop.run_for(1)
    assert isinstance(near.error, ConnectionResetError)


def test_what_a_killed_process_has_sent_still_arrives(world: World) -> None:
    near = world.connect()
    world.accepted[0].transport.write(b"last words")
    world.two.kill()
    world.accepted[0].transport.write(b"of a ghost")
    world.loop.run_for(1)
    assert near.data == b"last words"


def test_a_power_cut_is_silent_until_the_machine_is_back(world: World) -> None:
    near = world.connect()
    world.accepted[0].transport.write(b"lost with the machine")
    world.two.power_off()
    near.transport.write(b"hello?")
    world.loop.run_for(60)
    assert near.events == ["made"]
    assert near.data == b""
    with pytest.raises(RuntimeError, match="is running"):
        world.one.boot()
    world.two.boot()
    world.two.listen(world._accept, PORT)
    world.loop.run_for(10)
    assert isinstance(near.error, ConnectionResetError)
    assert world.connect().events == ["made"]
    assert len(world.accepted) == 2


def test_a_paused_process_is_connected_to_but_does_not_answer(world: World) -> None:
    near = world.connect()
    world.two.pause()
    near.transport.write(b"x")
    other = Recorder(world.loop)
    world.loop.run_until_complete(world.one.connect(lambda: other, "two", PORT))
    other.transport.write(b"y")
    world.loop.run_for(60)
    assert [far.data for far in world.accepted] == [b""]
    world.two.resume()
    world.loop.run_for(1)
    assert [far.data for far in world.accepted] == [b"x", b"y"]


# The same code as on a real network


class Greeter(asyncio.BufferedProtocol):
    """Answers ApiVersions as a broker does, from its own receive buffer."""

    def __init__(self) -> None:
        self._buffer = bytearray(64 * 1024)
        self._end = 0
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        size = int.from_bytes(self._buffer[:4], "big")
        if self._end < 4 + size:
            return
        header, _ = decode_request_header(memoryview(bytes(self._buffer[4 : 4 + size])))
        self._end = 0
        entries = [
            ApiVersion(api_key=int(key), min_version=api.min_version, max_version=api.max_version)
            for key, api in APIS.items()
        ]
        answer = ApiVersionsResponse(api_keys=entries)
        version, number = header.api_version, header.correlation_id
        parts = encode_response(ApiKey.API_VERSIONS, version, number, answer)
        self._transport.writelines(parts)


def _settings() -> CommonSettings:
    return CommonSettings(bootstrap_servers=("two:9093",))


def test_the_client_runs_on_it_unchanged(world: World) -> None:
    """`connect_tcp` asks the loop, and the loop asks the network: no code knows the difference."""

    async def serve() -> None:
        await asyncio.get_running_loop().create_server(Greeter, "", 9093)

    async def ask(host: SimHost) -> int:
        connection = await open_connection(Address("two", 9093), _settings(), host.clock)
        return len(connection.versions)

    world.two.run(serve())
    assert world.loop.run_until_complete(world.one.run(ask(world.one))) == len(APIS)
    world.network.isolate("two")
    with pytest.raises(UnreachableError, match="no answer"):
        world.loop.run_until_complete(world.one.run(ask(world.one)))


def test_asyncio_streams_run_on_it(world: World) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readline()).upper())
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def ask() -> bytes:
        reader, writer = await asyncio.open_connection("two", 7)
        writer.write(b"hello\n")
        found = await reader.read()
        writer.close()
        await writer.wait_closed()
        return found

    world.loop.run_until_complete(world.two.run(asyncio.start_server(answer, "", 7)))
    assert world.loop.run_until_complete(world.one.run(ask())) == b"HELLO\n"


def test_a_disk_can_take_its_whole_machine_down(world: World) -> None:
    """The power goes in the middle of a write: no `except`, no answer, and half of the bytes."""
    disk = CrashDisk(Random(1))
    disk.mkdir("/data")
    disk.on_cut = world.two.power_off
    seen: list[str] = []

    class Storing(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            try:
                disk.write_at("/data/log", 0, [data])
            finally:
                world.loop.call_soon(seen.append, "finally")
                assert isinstance(self.transport, End)
                self.transport.write(b"stored")

    world.two.listen(Storing, 7)
    near = Recorder(world.loop)
    world.loop.run_until_complete(world.one.connect(lambda: near, "two", 7))
    disk.cut_after(500)
    near.transport.write(bytes(1_000))
    world.loop.run_for(60)
    assert seen == []
    assert (near.data, near.events) == (b"", ["made"])
    disk.restart()
    assert disk.size("/data/log") < 1_000


# Determinism


def _busy_run(seed: int) -> tuple[int, int, int, int]:
    """A world with everything in it; what it came to."""
    world = World(seed, Quality(loss=0.05, reset=0.001))
    random = Random(seed)

    async def chat(host: SimHost) -> None:
        while True:
            recorder = Recorder(world.loop)
            await host.connect(lambda made=recorder: made, "two", PORT)  # type: ignore[misc]
            while recorder.error is None and not recorder.transport.is_closing():
                recorder.transport.write(random.randbytes(random.randrange(1, 5_000)))
                await asyncio.sleep(random.random())

    for name in ("one", "three", "four"):
        host = world.network.host(name)
        host.run(chat(host))
    for _ in range(10):
        world.network.partition({random.choice(["one", "three", "four"])}, {"two"})
        world.loop.run_for(random.random() * 5)
        world.network.heal()
        world.loop.run_for(random.random() * 5)
    received = sum(len(one.data) for one in world.accepted)
    result = world.network.fingerprint, world.network.arrivals, world.loop.steps, received
    world.loop.close()
    return result


@pytest.mark.parametrize("seed", range(3))
def test_a_seed_repeats_exactly_and_another_one_differs(seed: int) -> None:
    once = _busy_run(seed)
    assert once == _busy_run(seed)
    assert once != _busy_run(seed + 100)
    assert once[3] > 10_000


def test_a_seed_repeats_in_another_process_with_another_hash_seed() -> None:
    code = "from tests.testing.test_network import _busy_run; print(_busy_run(7))"
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": f"{ROOT}/src:{ROOT}"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == str(_busy_run(7))
