"""The TCP proxy, with real sockets: a server that echoes, and clients that go through a link."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from tests.waiting import eventually

from tidemill.testing.proxy import Way, client_id_of
from tidemill.testing.proxy_control import LinkControl, ProxyError, ProxyProcess, ProxyThread
from tidemill.wire.apis import ApiKey
from tidemill.wire.frame import encode_request
from tidemill.wire.messages.api_versions import ApiVersionsRequest

QUIET_S = 0.2
"""How long a test listens to be sure that nothing comes."""


class EchoServer:
    """Sends back what it gets, and remembers it."""

    def __init__(self) -> None:
        self.received = b""
        self.errors: list[OSError] = []
        self.ended = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._echo, args=(accepted,))
            thread.start()
            self._threads.append(thread)

    def _echo(self, accepted: socket.socket) -> None:
        with accepted:
            try:
                while data := accepted.recv(65536):
                    self.received += data
                    accepted.sendall(data)
            except OSError as error:
                self.errors.append(error)
            self.ended.set()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def server() -> Iterator[EchoServer]:
    made = EchoServer()
    yield made
    made.close()


@pytest.fixture
def link(server: EchoServer) -> Iterator[LinkControl]:
    with ProxyThread() as proxy:
        yield proxy.link(server.port)


@contextlib.contextmanager
def connected(link: LinkControl) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", link.port), timeout=10) as client:
        yield client


def exchange(client: socket.socket, data: bytes) -> bytes:
    client.sendall(data)
    return receive(client, len(data))


def receive(client: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        data = client.recv(count - len(found))
        assert data, f"the stream ended after {len(found)} of {count} bytes"
        found += data
    return found


def hears_nothing(client: socket.socket) -> bool:
    client.settimeout(QUIET_S)
    try:
        client.recv(1)
    except TimeoutError:
        return True
    else:
        return False
    finally:
        client.settimeout(10)


def until(condition: threading.Event) -> None:
    assert condition.wait(10)


def test_bytes_pass(link: LinkControl, server: EchoServer) -> None:
    message = bytes(range(256)) * 4_000
    with connected(link) as client:
        sender = threading.Thread(target=client.sendall, args=(message,))
        sender.start()
        assert receive(client, len(message)) == message
        sender.join()
        assert link.open_sessions() == 1
        assert link.passed_bytes(Way.TO_SERVER) == len(message)
    until(server.ended)
    assert server.errors == []


def test_the_end_of_a_stream_passes_one_way_at_a_time(link: LinkControl) -> None:
    with connected(link) as client:
        client.sendall(b"question")
        client.shutdown(socket.SHUT_WR)
        assert receive(client, 8) == b"question"
        assert client.recv(1) == b""


def test_delay(link: LinkControl) -> None:
    with connected(link) as client:
        exchange(client, b"warm")
        link.delay(400, jitter_ms=20, way=Way.TO_SERVER)
        start = time.monotonic()
        assert exchange(client, b"slow") == b"slow"
        assert time.monotonic() - start >= 0.4
        link.delay(600_000, way=Way.TO_SERVER)
        link.heal()
        assert exchange(client, b"fast") == b"fast"


def test_delays_of_several_chunks_do_not_add_up(link: LinkControl) -> None:
    link.delay(200, way=Way.TO_SERVER)
    with connected(link) as client:
        start = time.monotonic()
        for _ in range(100):
            client.sendall(b"x")
            time.sleep(0.005)
        receive(client, 100)
        assert 0.2 <= time.monotonic() - start < 100 * 0.2 / 2


def test_limit(link: LinkControl) -> None:
    with pytest.raises(ValueError, match="above 0"):
        link.limit(0)
    link.limit(200_000, way=Way.TO_CLIENT)
    with connected(link) as client:
        start = time.monotonic()
        exchange(client, bytes(60_000))
        assert time.monotonic() - start >= 0.28


def test_a_partition_holds_bytes_and_keeps_connections(
    link: LinkControl, server: EchoServer
) -> None:
    with connected(link) as client:
        exchange(client, b"before")
        link.partition()
        client.sendall(b"during")
        assert hears_nothing(client)
        assert server.received == b"before"
        assert link.open_sessions() == 1
        link.heal()
        assert receive(client, 6) == b"during"


def test_one_way_to_the_server(link: LinkControl, server: EchoServer) -> None:
    with connected(link) as client:
        exchange(client, b"before")
        link.partition(Way.TO_SERVER)
        client.sendall(b"lost")
        assert hears_nothing(client)
        assert server.received == b"before"


def test_one_way_to_the_client(link: LinkControl, server: EchoServer) -> None:
    """The server works on requests whose sender never hears of them."""
    with connected(link) as client:
        exchange(client, b"before")
        link.partition(Way.TO_CLIENT)
        client.sendall(b"heard")
        eventually(lambda: server.received == b"beforeheard")
        assert hears_nothing(client)
        link.heal()
        assert receive(client, 5) == b"heard"


def test_nobody_hears_of_a_close_during_a_partition(link: LinkControl, server: EchoServer) -> None:
    with connected(link) as client:
        exchange(client, b"before")
        link.partition()
    assert not server.ended.wait(QUIET_S)
    link.heal()
    until(server.ended)


def test_connecting_during_a_partition_reaches_nobody(
    link: LinkControl, server: EchoServer
) -> None:
    link.partition()
    with connected(link) as client:
        client.sendall(b"anybody?")
        assert hears_nothing(client)
        assert server.received == b""
        link.heal()
        assert receive(client, 8) == b"anybody?"


def test_what_a_partition_dropped_ends_the_connection(
    link: LinkControl, server: EchoServer
) -> None:
    with connected(link) as client, connected(link) as other:
        exchange(client, b"before")
        exchange(other, b"other")
        link.partition(drop=True)
        client.sendall(b"lost")
        eventually(lambda: link.dropped_bytes(Way.TO_SERVER) == len(b"lost"))
        assert hears_nothing(client)
        link.heal()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
        assert exchange(other, b"lost nothing") == b"lost nothing"
    assert b"lostlost" not in server.received


def test_reset_tells_both_sides(link: LinkControl, server: EchoServer) -> None:
    with connected(link) as client:
        exchange(client, b"before")
        link.reset()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
        until(server.ended)
        assert [type(error) for error in server.errors] == [ConnectionResetError]
        assert link.open_sessions() == 0


def test_a_reset_by_the_client_reaches_the_server(link: LinkControl, server: EchoServer) -> None:
    with connected(link) as client:
        exchange(client, b"before")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    until(server.ended)
    assert [type(error) for error in server.errors] == [ConnectionResetError]


def test_refuse_and_accept_again_on_the_same_port(link: LinkControl) -> None:
    with connected(link) as client:
        exchange(client, b"before")
        link.refuse()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", link.port), timeout=10)
        assert exchange(client, b"still here") == b"still here"
    link.accept()
    with connected(link) as client:
        assert exchange(client, b"again") == b"again"


def test_a_target_that_is_down_resets_its_clients(server: EchoServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with ProxyThread() as proxy:
        link = proxy.link(port)
        with pytest.raises(ConnectionResetError), connected(link) as client:
            client.recv(1)


def _hello(client_id: str) -> bytes:
    return bytes(encode_request(ApiKey.API_VERSIONS, 3, 1, client_id, ApiVersionsRequest()))


def test_a_rule_for_one_client_leaves_the_others_alone(link: LinkControl) -> None:
    """One broker is cut off from another while clients still reach both."""
    with connected(link) as broker, connected(link) as client:
        exchange(broker, _hello("broker-2-fetcher"))
        exchange(client, _hello("shop"))
        link.partition(who="broker-2")
        broker.sendall(b"blocked")
        assert exchange(client, b"served") == b"served"
        assert hears_nothing(broker)
        link.reset(who="broker-2")
        with pytest.raises(ConnectionResetError):
            broker.recv(1)
        assert exchange(client, b"still served") == b"still served"


def test_a_rule_for_a_source_address(link: LinkControl) -> None:
    source = ("127.0.0.77", 0)
    address = ("127.0.0.1", link.port)
    link.partition(who=source[0])
    with (
        socket.create_connection(address, timeout=10, source_address=source) as far,
        connected(link) as near,
    ):
        far.sendall(b"blocked")
        assert exchange(near, b"served") == b"served"
        assert hears_nothing(far)


def test_client_ids_are_found_and_garbage_has_none() -> None:
    assert client_id_of(_hello("broker-1")) == "broker-1"
    assert client_id_of(b"\0" * 5) == ""
    assert client_id_of(b"\0" * 12 + b"\xff\xff") == ""


def test_the_proxy_in_a_process_takes_the_same_commands(server: EchoServer) -> None:
    with ProxyProcess() as proxy:
        link = proxy.link(server.port)
        with connected(link) as client:
            assert exchange(client, b"hello") == b"hello"
            link.partition(Way.TO_CLIENT)
            client.sendall(b"late")
            assert hears_nothing(client)
            link.heal()
            assert receive(client, 4) == b"late"
            assert link.passed_bytes(Way.TO_SERVER) == 9
            with pytest.raises(ProxyError, match="above 0"):
                link.limit(-1)
            assert link.open_sessions() == 1
    with pytest.raises(ProxyError, match="not started"):
        link.heal()
