"""The shipped pipelines at work: their pages' commands, on a real broker, with something to do.

A `Place` is a folder, a broker and a Spark session. It does what a page of docs/pipelines tells its
reader to do, command by command, and sends records before the pipeline runs; then it shows what is
in the tables and topics. `python -m tests.spark.pictures` draws the pages' pictures with it.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from tests.cli.helpers import Ran, quick, run
from tests.spark.pipeline.cases import records_of

from tidemill.client.blocking import Producer
from tidemill.client.consumer_types import ConsumerRecord
from tidemill.spark.pipeline import jvm

PAGES = Path(__file__).resolve().parents[2] / "docs" / "pipelines"
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
LOGS = "/var/log/app"
"""Where the page about logs has its files; ours are in the place's folder."""

YESTERDAY = datetime.now(UTC).replace(hour=8, minute=0, second=0, microsecond=0) - timedelta(days=1)
"""When everything happens: brokers delete what is old, and what is from the future is refused."""


class Message(NamedTuple):
    """A record to send; what is no bytes is sent as JSON."""

    value: Any
    key: str | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None


class Letter(NamedTuple):
    """A record of a dead-letter topic."""

    value: bytes | None
    key: bytes | None
    stage: str
    cause: str
    whence: tuple[str, int, int]


def at(minutes: float) -> str:
    """A time of the day that everything happens on."""
    return (YESTERDAY + timedelta(minutes=minutes)).isoformat().replace("+00:00", "Z")


@contextmanager
def lent(spark: Any) -> Iterator[None]:
    """`tidemill pipeline` uses this session instead of one of its own, and leaves it running."""
    with (
        mock.patch.object(jvm, "own_session", return_value=spark),
        mock.patch.object(spark, "stop"),
    ):
        yield


def commands_of(page: str) -> list[str]:
    """The commands that a page shows, in their order."""
    (block,) = BLOCK.findall((PAGES / f"{page}.md").read_text())
    return str(block).splitlines()


class Place:
    """A reader of the pages: a folder to work in, a cluster, a session."""

    def __init__(self, spark: Any, bootstrap: str, folder: Path) -> None:
        self._spark = spark
        self.bootstrap = bootstrap
        self.folder = folder
        self._variables = {
            "TIDEMILL_BOOTSTRAP": bootstrap,
            "TIDEMILL_STATE_DIR": str(folder / "state"),
        }

    def follow(self, page: str, inputs: Mapping[str, Iterable[Message]]) -> None:
        """Do what the page says; when it comes to running the pipeline, its topics are filled."""
        for command in commands_of(page):
            if command.startswith("tidemill pipeline run"):
                for topic, messages in inputs.items():
                    self.send(topic, messages)
            self.do(command)

    def do(self, command: str) -> Ran:
        """One command, as a shell would take it apart."""
        words = shlex.split(command.replace(LOGS, str(self.folder)))
        if words[0] == "echo":
            ran = quick(*words[4:], stdin=words[1] + "\n", variables=self._variables)
        elif words[0] == "python":
            ran = run([sys.executable, *words[1:]], cwd=self.folder)
        else:
            assert words[0] == "tidemill"
            with lent(self._spark):
                ran = quick(*words[1:], variables=self._variables, cwd=self.folder)
        assert ran.status == 0, f"{command}: {ran.err} {ran.out}"
        return ran

    def send(self, topic: str, messages: Iterable[Message]) -> None:
        with Producer(self.bootstrap) as producer:
            for message in messages:
                producer.send_soon(
                    topic,
                    _encoded(message.value),
                    key=None if message.key is None else message.key.encode(),
                    headers=message.headers,
                    timestamp_ms=message.timestamp_ms,
                )
            producer.flush()

    # --- what came out ----------------------------------------------------------------------------

    def rows(self, table: str) -> list[dict[str, Any]]:
        """What is in a table."""
        from deltalake import DeltaTable

        path = self.folder / "tables" / table
        found: list[dict[str, Any]] = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
        return found

    def records(self, topic: str) -> list[ConsumerRecord]:
        return records_of(self.bootstrap, topic)

    def values(self, topic: str) -> list[dict[str, Any]]:
        """The values of a topic, read as JSON, with the keys that they came under."""
        return [
            {"key": (each.key or b"").decode(), **json.loads(each.value)}
            for each in self.records(topic)
        ]

    def letters(self, topic: str) -> list[Letter]:
        return [_letter(each) for each in self.records(topic)]


def _encoded(value: Any) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else json.dumps(value).encode()


def _letter(record: ConsumerRecord) -> Letter:
    said = {name: (value or b"").decode() for name, value in record.headers}
    whence = (
        said["tidemill.dlq.topic"],
        int(said["tidemill.dlq.partition"]),
        int(said["tidemill.dlq.offset"]),
    )
    stage, cause = said["tidemill.dlq.stage"], said["tidemill.dlq.error"]
    return Letter(record.value, record.key, stage, cause.partition(":")[0], whence)


# --- site-activity --------------------------------------------------------------------------------


def click(
    number: int, user: str | None, page: str, minutes: float, ms: int | None = 100
) -> Message:
    value = {"id": f"c{number}", "user": user, "page": page, "ms": ms, "at": at(minutes)}
    return Message(value, user)


CLICKS = [
    click(1, "ada", "/", 0),
    click(2, "ada", "/Cart?from=mail", 4, 900),
    click(2, "ada", "/Cart?from=mail", 4, 900),
    click(3, "ada", "/checkout", 7),
    click(4, "bob", "/", 3),
    click(5, "ada", "/", 90),
    Message(b"no json", "ada"),
    click(6, None, "/", 5),
    click(7, "bob", "mailto:bob", 5),
    Message({"id": "c8", "user": "eve", "page": "/", "at": "2999-01-01T00:00:00Z"}, "eve"),
    # So late that everything before it is over.
    click(9, "zoe", "/later", 600),
]

# --- log-aggregation ------------------------------------------------------------------------------


def log_time(seconds: float, separator: str = "T") -> str:
    """A time as it stands at the beginning of a line of a log."""
    when = YESTERDAY + timedelta(seconds=seconds)
    return f"{when:%Y-%m-%d}{separator}{when:%H:%M:%S}"


FIRST_LINES = [
    f"{log_time(0)}Z INFO started".encode(),
    f"{log_time(1, ' ')}.5 Warning: disk is nearly full".encode(),
]
ROTATED_LINES = [b"INFO \xff\xfe", b"INFO a new day, a new file"]
OTHER_LINES = [b"ERROR cannot reach the database", b"  at line 7 of nothing"]


def last_line(timestamp_ms: int) -> Message:
    """As `ship` sends one, and so late that all minutes before it are over."""
    headers = (("host", b"web-9"), ("file", b"x"), ("position", b"f9:0"))
    return Message(b"INFO the last", "web-9:x", headers, timestamp_ms)


# --- metrics-rollup -------------------------------------------------------------------------------


def measured(metric: str, host: str, value: Any, minutes: float) -> Message:
    return Message({"metric": metric, "host": host, "value": value, "at": at(minutes)}, host)


RULES = [
    Message({"above": 0.5, "severity": "warn"}, "cpu"),
    Message({"above": 0.9, "severity": "page"}, "cpu"),
    Message({"below": 10.0}, "free_gb"),
    Message(b"no rule", "load"),
]

METRICS = [
    *[measured("cpu", "web-1", value, n / 10) for n, value in enumerate((0.95, 0.97, 0.99))],
    *[measured("cpu", "web-2", value, n / 10) for n, value in enumerate((0.7, 0.8, 0.6))],
    measured("free_gb", "web-1", 4, 0.5),
    measured("load", "web-1", 99, 0.5),
    measured("cpu", "web-1", 0.1, 1.5),
    Message(b"{", "web-1"),
    measured("cpu", "web-1", None, 0.3),
    Message({"host": "web-1", "value": 1, "at": at(0)}, "web-1"),
    measured("cpu", "web-1", 1, 60 * 24 * 3650),
    measured("end", "x", 1, 60),
]

# --- lakehouse-ingest, change-log, feed -----------------------------------------------------------

ORDERS = [
    Message({"id": "o1", "customer": "ada", "amount": 12.5, "placed": at(0)}, "ada"),
    Message({"id": "o2", "customer": "bob", "amount": 0, "placed": at(1)}, "bob"),
    Message({"id": "o3", "customer": "bob", "amount": -1, "placed": at(2)}, "bob"),
    Message({"id": "o4", "customer": "bob", "placed": at(2)}, "bob"),
    Message(b"<order/>", "bob"),
]

CHANGES = [
    Message({"name": "Ada", "email": "ada@example.org", "city": "London"}, "1"),
    Message({"name": "Bob", "email": "bob@example.org", "city": "Oslo"}, "2"),
    Message({"name": "Ada", "email": "ada@example.org", "city": "Paris"}, "1"),
    Message({"name": "Eve", "email": "nowhere", "city": "Rome"}, "3"),
    Message(None, "2"),
    Message(b"not json", "4"),
]

LATER_CHANGES = [
    Message({"name": "Ada", "email": "ada@example.org", "city": "Rome"}, "1"),
    Message({"name": "Bob", "email": "bob@example.org", "city": "Bergen"}, "2"),
    Message({"name": "Eve", "email": "eve@example.org", "city": "Rome"}, "3"),
    Message(None, "3"),
]


def article(url: str, title: str, body: str) -> Message:
    return Message({"url": url, "title": title, "body": body, "published": at(0)}, url)


INTERESTS = [
    Message({"readers": ["bob"]}, "tide"),
    Message({"readers": ["eve"]}, "cats"),
    Message(None, "cats"),
]

ARTICLES = [
    article("/1", " Spark  and\nthe tide ", "<p>A mill that runs on Spark, with the tide.</p>"),
    article("/1?x", "Spark and the tide", "A mill that runs on  Spark, with the tide."),
    article("/3", "About cats", "<b>Nothing here but cats and more cats.</b>"),
    article("/4", "", "An article that has no title at all."),
    article("/5", "Short", "<p>too short</p>"),
    Message(b"\x00\x01", "/6"),
]
