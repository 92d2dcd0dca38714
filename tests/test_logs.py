"""Log lines: JSON for machines, text for people, nothing that forges a line."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from tidemill import logs


@pytest.fixture(autouse=True)
def untouched_logging() -> Iterator[None]:
    root = logging.getLogger(logs.ROOT)
    before = (root.handlers[:], root.level, root.propagate)
    yield
    root.handlers[:], root.propagate = before[0], before[2]
    root.setLevel(before[1])
    logging.getLogger("tidemill.storage").setLevel(logging.NOTSET)


def lines(stream: io.StringIO) -> list[str]:
    return stream.getvalue().splitlines()


def test_json_where_nobody_watches() -> None:
    stream = io.StringIO()
    logs.set_up(stream=stream)
    fields = {"topic": "clicks", "partition": 3}
    logging.getLogger("tidemill.storage.log").info(
        "rolled %s", "a segment", extra={"fields": fields}
    )
    (event,) = map(json.loads, lines(stream))
    assert event.pop("time").endswith("Z")
    assert event == {
        "level": "info",
        "component": "storage",
        "event": "rolled a segment",
        "topic": "clicks",
        "partition": 3,
    }


def test_text_on_a_terminal() -> None:
    stream = io.StringIO()
    logs.set_up(stream=stream, as_json=False)
    logging.getLogger("tidemill.broker").warning("slow", extra={"fields": {"api": "Fetch"}})
    (line,) = lines(stream)
    assert line.endswith(" warning broker: slow api=Fetch")


def test_levels_by_component() -> None:
    stream = io.StringIO()
    logs.set_up(["warning", "storage=debug"], stream=stream)
    logging.getLogger("tidemill.storage.log").debug("seen")
    logging.getLogger("tidemill.broker").info("not seen")
    assert [json.loads(line)["event"] for line in lines(stream)] == ["seen"]
    logs.set_up(stream=stream)
    assert len(logging.getLogger(logs.ROOT).handlers) == 1
    with pytest.raises(logs.LogLevelError, match="`storage=loud` is not a log level"):
        logs.parse_levels(["storage=loud"])


@pytest.mark.parametrize("as_json", [True, False])
def test_a_hostile_name_stays_on_its_line(as_json: bool) -> None:
    """Rule 3.4.5: what a client sends is escaped in the log and cut to a bearable length."""
    stream = io.StringIO()
    logs.set_up(stream=stream, as_json=as_json)
    name = "x\n00:00:00.000 error broker: forged\x1b[2J" + "y" * 10_000
    logging.getLogger("tidemill.broker").info("client %s", name)
    (line,) = lines(stream)
    assert "\x1b" not in line
    assert len(line) < logs.MESSAGE_CHARS_MAX + 500


def test_exceptions_are_kept() -> None:
    stream = io.StringIO()
    logs.set_up(stream=stream)
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("tidemill.broker").exception("failed")
    assert "ValueError: broken" in json.loads(lines(stream)[0])["exception"]
