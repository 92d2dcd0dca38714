"""The registry's client against a real HTTP server that speaks the registry's paths."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from urllib.request import Request

import pytest
from tests.spark.formats.registry_server import RegistryServer

from tidemill.spark.formats import FormatError
from tidemill.spark.formats.registry import (
    Patience,
    Registered,
    Registry,
    RegistryError,
    SchemaNotFoundError,
)
from tidemill.types import TimestampMs

TEXT = '{"type": "string"}'


class SetClock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.ms = 0

    def now_ms(self) -> TimestampMs:
        return TimestampMs(self.ms)

    def monotonic_ms(self) -> int:
        return self.ms


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with RegistryServer().running() as running:
        yield running


def refusing_url() -> str:
    """A port on which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def test_a_schema_is_asked_for_once(server: RegistryServer) -> None:
    number = server.add("clicks-value", TEXT)
    registry = Registry(server.url)
    assert registry.by_id(number) == Registered(number, "AVRO", TEXT)
    assert registry.by_id(number).text == TEXT
    assert server.asked == [f"GET /schemas/ids/{number}"]


def test_the_newest_of_a_subject_is_asked_for_each_time(server: RegistryServer) -> None:
    registry = Registry(server.url)
    server.add("a/b c-value", TEXT)
    assert registry.latest("a/b c-value").id == 1
    server.add("a/b c-value", '"long"')
    assert registry.latest("a/b c-value") == Registered(2, "AVRO", '"long"')


def test_only_as_much_is_kept_as_there_is_room_for(server: RegistryServer) -> None:
    first, second = server.add("a-value", TEXT), server.add("b-value", TEXT)
    registry = Registry(server.url, patience=Patience(kept_max=1))
    for number in (first, second, first):
        registry.by_id(number)
    assert len(server.asked) == 3


def test_an_unknown_id_stays_unknown_for_a_while_only(server: RegistryServer) -> None:
    clock = SetClock()
    registry = Registry(server.url, clock=clock, patience=Patience(unknown_ms=1_000))
    for _ in range(2):
        with pytest.raises(SchemaNotFoundError, match="/schemas/ids/1"):
            registry.by_id(1)
    assert len(server.asked) == 1
    server.add("a-value", TEXT)
    clock.ms = 1_000
    assert registry.by_id(1).text == TEXT


def test_a_busy_registry_is_asked_again_and_not_for_ever(server: RegistryServer) -> None:
    number = server.add("a-value", TEXT)
    pauses: list[float] = []
    registry = Registry(server.url, sleep=pauses.append, patience=Patience(attempts=3))
    server.failing = 2
    assert registry.by_id(number).text == TEXT
    assert pauses == [0.2, 0.4]
    server.failing = 100
    with pytest.raises(RegistryError, match=r"no schema registry answered .*HTTP 503"):
        registry.latest("a-value")
    assert server.failing == 97


def test_the_next_url_is_asked_when_one_does_not_answer(server: RegistryServer) -> None:
    number = server.add("a-value", TEXT)
    registry = Registry(f"{refusing_url()}, {server.url}/", sleep=lambda _: None)
    assert registry.by_id(number).text == TEXT


def test_a_registry_that_accepts_and_says_nothing_is_given_up() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        registry = Registry(url, patience=Patience(timeout_ms=50, attempts=2), sleep=lambda _: None)
        with pytest.raises(RegistryError, match="timed out"):
            registry.by_id(1)


def test_basic_auth_in_both_ways_and_never_in_an_error() -> None:
    with RegistryServer(user="ann:s3cret").running() as server:
        number = server.add("a-value", TEXT)
        assert Registry(server.url, auth="ann:s3cret").by_id(number).id == number
        inside = server.url.replace("http://", "http://ann:s3cret@")
        assert Registry(inside).by_id(number).id == number
        with pytest.raises(RegistryError, match="HTTP 401") as refused:
            Registry(inside.replace("s3cret", "wr0ng")).by_id(number)
        assert "wr0ng" not in str(refused.value)


def test_an_answer_that_is_too_long_or_no_schema(server: RegistryServer) -> None:
    number = server.add("a-value", '"' + "x" * 5_000 + '"')
    with pytest.raises(RegistryError, match="longer than 1000 bytes"):
        Registry(server.url, patience=Patience(answer_bytes_max=1_000)).by_id(number)

    def strange(request: Request, timeout_ms: int, bytes_max: int) -> tuple[int, bytes]:
        return 200, b"<html>"

    with pytest.raises(RegistryError, match="is this a schema registry"):
        Registry(server.url, transport=strange).by_id(1)


def test_references_come_in_order_and_not_without_end(server: RegistryServer) -> None:
    server.add("c", '"c"')
    server.add("b", '"b"', references=[("C", "c", 1)])
    top = server.add("a", '"a"', references=[("B", "b", 1), ("C", "c", 1)])
    registry = Registry(server.url)
    assert [name for name, _ in registry.references(registry.by_id(top))] == ["C", "B"]
    around = server.add("x", '"x"', references=[("X", "x", 1)])
    with pytest.raises(RegistryError, match="refers to itself"):
        registry.references(registry.by_id(around))


def test_lookup_finds_an_id_and_registers_nothing(server: RegistryServer) -> None:
    number = server.add("a-value", TEXT)
    registry = Registry(server.url)
    assert registry.lookup("a-value", TEXT, "AVRO") == number
    with pytest.raises(SchemaNotFoundError):
        registry.lookup("a-value", '"int"', "AVRO")


@pytest.mark.parametrize("url", ["", "registry:8081", "ftp://h", "http://", "http://h:port"])
def test_urls_that_cannot_be(url: str) -> None:
    with pytest.raises(FormatError, match=r"schema\.registry\.url"):
        Registry(url)
