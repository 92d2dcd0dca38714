"""`tidemill ship` as a process: rotated files, killed shippers, killed brokers; nothing is lost."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.helpers import quick
from tests.cli.shipping import Ship
from tests.waiting import eventually

from tidemill.cli.exits import Exit
from tidemill.ship.shipper import ROUND_BYTES
from tidemill.testing.process import BrokerProcess


def records(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    ran = quick("consume", topic, "-o", "start", "-e", "--format", "json", "-b", bootstrap)
    assert ran.status == Exit.OK, ran.err
    found = [json.loads(line) for line in ran.out.splitlines()]
    for record in found:
        record["headers"] = {each["name"]: each["value"] for each in record["headers"]}
    return found


def values(bootstrap: str, topic: str) -> list[str]:
    return [record["value"] for record in records(bootstrap, topic)]


def arrived(bootstrap: str, topic: str) -> int:
    """How many different lines there are."""
    return len(set(values(bootstrap, topic)))


def create(bootstrap: str, name: str, partitions: int = 2) -> str:
    assert quick("topic", "create", name, "-p", str(partitions), "-b", bootstrap).status == Exit.OK
    return name


@pytest.fixture
def topic(bootstrap: str, topic_name: Callable[[str], str]) -> str:
    return create(bootstrap, topic_name("shipped"))


def once(bootstrap: str, topic: str, state: Path, *files: str) -> dict[str, Any]:
    words = ("--topic", topic, "--once", "--state", str(state), "--host", "h", "--format", "json")
    ran = quick("ship", *files, *words, "-b", bootstrap)
    assert ran.status == Exit.OK, ran.err
    report: dict[str, Any] = json.loads(ran.out)
    return report


def test_once_ships_what_is_there_and_the_next_time_what_is_new(
    bootstrap: str, topic: str, tmp_path: Path
) -> None:
    log, state = tmp_path / "a.log", tmp_path / "state.json"
    log.write_text("one\ntwo\nunfini")
    first = once(bootstrap, topic, state, str(log))
    assert (first["lines"], first["files"][0]["left_bytes"]) == (2, len("unfini"))
    with log.open("a") as file:
        file.write("shed\n")
    assert once(bootstrap, topic, state, str(log))["lines"] == 1
    found = records(bootstrap, topic)
    assert [record["value"] for record in found] == ["one", "two", "unfinished"]
    assert {record["key"] for record in found} == {f"h:{log}"}
    headers = [record["headers"] for record in found]
    assert {(each["host"], each["file"]) for each in headers} == {("h", str(log))}
    file_id = headers[0]["position"].partition(":")[0]
    assert [each["position"] for each in headers] == [f"{file_id}:{at}" for at in (0, 4, 8)]


def test_a_dry_run_tells_what_is_left_and_sends_nothing(
    bootstrap: str, topic: str, tmp_path: Path
) -> None:
    log, state = tmp_path / "a.log", tmp_path / "state.json"
    log.write_text("one\n")
    once(bootstrap, topic, state, str(log))
    with log.open("a") as file:
        file.write("two\n")
    before = state.read_bytes()
    ran = quick(
        "ship", str(tmp_path / "*.log"), "-t", topic, "--state", str(state), "--dry-run",
        "--format", "json", "-b", bootstrap,
    )  # fmt: skip
    assert json.loads(ran.out)["files"] == [{"file": str(log), "shipped_bytes": 4, "left_bytes": 4}]
    assert state.read_bytes() == before
    assert values(bootstrap, topic) == ["one"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ship --topic t", "FILES"),
        ("ship x --topic t --line-bytes 1", "--line-bytes must be from 16"),
        ("ship x --topic t --rotated-wait -1", "--rotated-wait must be from 0"),
    ],
)
def test_what_cannot_be_is_refused(line: str, words: str, tmp_path: Path) -> None:
    ran = quick(*line.split(), variables={"TIDEMILL_STATE_DIR": str(tmp_path)})
    assert ran.status == Exit.USAGE
    assert words.lower() in ran.err.lower()


def test_a_topic_of_its_own_state_is_kept_apart(
    bootstrap: str, topic: str, topic_name: Callable[[str], str], tmp_path: Path
) -> None:
    log, state = tmp_path / "a.log", tmp_path / "state.json"
    log.write_text("one\n")
    once(bootstrap, topic, state, str(log))
    other = create(bootstrap, topic_name("other"))
    ran = quick("ship", str(log), "-t", other, "--once", "--state", str(state), "-b", bootstrap)
    assert ran.status == Exit.FAILED
    assert f"belongs to topic '{topic}'" in ran.err


class Writer:
    """Numbered lines into a file that is rotated in both ways."""

    def __init__(self, path: Path, seed: int) -> None:
        self._path = path
        self._chance = random.Random(seed)
        self._copies: Iterator[int] = itertools.count(1)
        self.written = 0

    def write(self, lines: int) -> None:
        with self._path.open("a") as file:
            for _ in range(lines):
                file.write(f"{self.written:08d} {'x' * self._chance.randrange(200)}\n")
                self.written += 1

    def rotate(self) -> None:
        old = self._path.with_name(f"{self._path.name}.{next(self._copies)}")
        if self._chance.random() < 0.5:
            self._path.rename(old)
        else:
            shutil.copy(self._path, old)
            os.truncate(self._path, 0)


def check(found: list[dict[str, Any]], written: int, crashes: int) -> None:
    """Every line is there; one that is there twice has one position, and there are few of them."""
    numbers = [int(record["value"].split()[0]) for record in found]
    assert set(numbers) == set(range(written)), "lines were lost, or came from nowhere"
    by_position: dict[str, int] = {}
    for record, number in zip(found, numbers, strict=True):
        position = record["headers"]["position"]
        assert by_position.setdefault(position, number) == number
    assert len(by_position) == written, "one line came under two positions"
    size = sum(len(record["value"]) for record in found) / len(found)
    assert len(numbers) - written <= crashes * ROUND_BYTES / size


def live_through(tmp_path: Path, *, seed: int, cycles: int, lines: int) -> None:
    """Write, rotate, kill the shipper, kill the broker, and count in the end."""
    chance = random.Random(seed)
    folder = tmp_path / "logs"
    folder.mkdir()
    writer = Writer(folder / "app.log", seed)
    crashes = 0
    with BrokerProcess(tmp_path / "data") as broker:
        topic = create(broker.bootstrap, "logs", partitions=1)
        ship = Ship(broker.bootstrap, topic, folder / "app.log*", tmp_path / "state.json")
        with ship:
            for cycle in range(cycles):
                for _ in range(4):
                    writer.write(lines)
                    time.sleep(chance.random() * 0.2)  # The hour at which a crash comes.
                if cycle % 3 == 2:
                    broker.kill()
                    writer.write(lines)
                    broker.start()
                else:
                    ship.kill()
                    crashes += 1
                    writer.write(lines)
                writer.rotate()
                writer.write(lines)
                if not ship.running:
                    ship.start()
            eventually(lambda: arrived(broker.bootstrap, topic) == writer.written, within_s=300)
            assert ship.stop() == 128 + signal.SIGTERM, ship.said
        check(records(broker.bootstrap, topic), writer.written, crashes)


def test_killed_shippers_brokers_and_rotation_lose_nothing(tmp_path: Path) -> None:
    live_through(tmp_path, seed=3, cycles=3, lines=400)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(8))
def test_killed_shippers_brokers_and_rotation_lose_nothing_for_long(
    tmp_path: Path, seed: int
) -> None:
    live_through(tmp_path, seed=seed, cycles=12, lines=4_000)


def test_a_shipper_that_is_told_to_end_leaves_nothing_to_send_twice(
    bootstrap: str, topic: str, tmp_path: Path
) -> None:
    log = tmp_path / "a.log"
    ship = Ship(bootstrap, topic, log, tmp_path / "state.json")
    for start in (0, 100):
        with log.open("a") as file:
            file.writelines(f"{number}\n" for number in range(start, start + 100))
        with ship:
            eventually(lambda: len(values(bootstrap, topic)) >= start + 100)  # noqa: B023
            assert ship.stop() == 128 + signal.SIGTERM, ship.said
    assert values(bootstrap, topic) == [str(number) for number in range(200)]


def test_a_shipper_waits_for_its_broker(tmp_path: Path) -> None:
    """Started before the broker, it says so, and ships when there is one."""
    log = tmp_path / "a.log"
    log.write_text("one\n")
    broker = BrokerProcess(tmp_path / "data", {"auto.create.topics.enable": "true"})
    with Ship(broker.bootstrap, "logs", log, tmp_path / "state.json") as ship:
        eventually(lambda: "trying again" in ship.said)
        with broker:
            eventually(lambda: "logs" in quick("topic", "list", "-b", broker.bootstrap).out)
            eventually(lambda: values(broker.bootstrap, "logs") == ["one"])
