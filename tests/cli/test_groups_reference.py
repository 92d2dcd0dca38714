"""`kafka-consumer-groups` beside Kafka's own, on the same Apache Kafka: the same words come out.

Kafka prints rows in the order of a hash table; so rows are compared in order of their own.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.cli.helpers import Ran, quick
from tests.cli.test_kafka_reference import both, first_complaint
from tests.reference.kafka import SharedKafka

from tidemill.client import Consumer
from tidemill.types import TopicPartition

_THROWN_BY_THE_PARSER = re.compile(r'^Exception in thread "main" joptsimple\.\w+: ')

pytestmark = [pytest.mark.reference, pytest.mark.timeout(240)]


@dataclass(frozen=True, slots=True)
class Scene:
    """A topic and groups: one that is idle, two with a member each, one of offsets alone."""

    bootstrap: str
    stem: str

    def line(self, line: str) -> str:
        words = line.replace(" B", f" {self.bootstrap}")
        return re.sub(r"\b(idle|live|newer|solo|other|topic1)\b", rf"\1-{self.stem}", words)


@pytest.fixture(scope="module")
def scene(apache_kafka: SharedKafka) -> Iterator[Scene]:
    made = Scene(apache_kafka.bootstrap, str(time.time_ns()))
    topic = f"topic1-{made.stem}"
    assert quick("-b", made.bootstrap, "topic", "create", topic, "-p", "2").status == 0
    for partition in "01":
        words = ("-b", made.bootstrap, "produce", topic, "-p", partition)
        assert quick(*words, stdin="a\nb\nc\n").status == 0
    ready, stop = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_populate(made, topic, ready, stop)))
    thread.start()
    assert ready.wait(60)
    yield made
    stop.set()
    thread.join()


async def _populate(
    scene: Scene, topic: str, ready: threading.Event, stop: threading.Event
) -> None:
    def consumer(group: str, **more: Any) -> Consumer:
        settings = {"group_id": f"{group}-{scene.stem}", "auto_offset_reset": "earliest"}
        return Consumer(scene.bootstrap, client_id="cli", **settings, **more)  # type: ignore[arg-type]

    for group in ("idle", "solo"):
        async with consumer(group, enable_auto_commit=False) as outsider:
            await outsider.commit({TopicPartition(topic, 0): 1})
    async with (
        consumer("live", group_instance_id="i1") as live,
        consumer("newer", group_protocol="consumer") as newer,
    ):
        live.subscribe([topic])
        newer.subscribe([topic])
        while not stop.is_set():
            await live.poll(timeout_ms=100)
            await newer.poll(timeout_ms=100)
            if live.assignment() and newer.assignment() and not ready.is_set():
                await live.commit()
                await newer.commit()
                ready.set()


def evened(ran: Ran) -> list[str]:
    return sorted(ran.out.splitlines())


SAME: list[str] = [
    "--bootstrap-server B --describe --group idle",
    "--bootstrap-server B --describe --group live",
    "--bootstrap-server B --describe --group newer --verbose",
    "--bootstrap-server B --describe --group solo --offsets",
    "--bootstrap-server B --describe --group idle --group solo",
    "--bootstrap-server B --describe --group none-such",
    "--bootstrap-server B --describe --group live --members",
    "--bootstrap-server B --describe --group live --members --verbose",
    "--bootstrap-server B --describe --group newer --members --verbose",
    "--bootstrap-server B --describe --group idle --members",
    "--bootstrap-server B --describe --group live --state",
    "--bootstrap-server B --describe --group idle --state --verbose",
    "--bootstrap-server B --describe --group newer --state --verbose",
    "--bootstrap-server B --group idle --reset-offsets --to-earliest --topic topic1",
    "--bootstrap-server B --group idle --reset-offsets --to-earliest --topic topic1 --dry-run",
    "--bootstrap-server B --group idle --reset-offsets --to-latest --topic topic1:1 --dry-run",
    "--bootstrap-server B --group idle --reset-offsets --to-offset 99 --topic topic1 --dry-run",
    "--bootstrap-server B --group idle --reset-offsets --shift-by 1 --topic topic1:0 --dry-run",
    "--bootstrap-server B --group idle --reset-offsets --to-current --all-topics --dry-run",
    "--bootstrap-server B --group idle --reset-offsets --to-current --topic topic1 --dry-run",
    "--bootstrap-server B --group idle --reset-offsets --by-duration PT1H --topic topic1 --dry-run",
    "--bootstrap-server B --group idle --reset-offsets --to-datetime 2099-01-01T00:00:00.000 "
    "--topic topic1 --dry-run",
    "--bootstrap-server B --group idle --reset-offsets --to-latest --all-topics --export --dry-run",
    "--bootstrap-server B --group live --reset-offsets --to-earliest --topic topic1 --execute",
    "--bootstrap-server B --group idle --reset-offsets --to-earliest --topic none-such --dry-run",
    "--bootstrap-server B --group idle --reset-offsets --from-file /no/such/file --dry-run",
    "--bootstrap-server B --group live --delete",
    "--bootstrap-server B --group none-such --delete",
    "--bootstrap-server B --group live --delete-offsets --topic topic1",
    "--bootstrap-server B --group none-such --delete-offsets --topic topic1",
    "--bootstrap-server B",
    "--bootstrap-server B --describe",
    "--bootstrap-server B --delete",
    "--bootstrap-server B --list --group x",
    "--bootstrap-server B --describe --group live --members --state",
    "--bootstrap-server B --group x --reset-offsets --to-earliest --topic t --dry-run --execute",
    # What must not be done because it was not asked for like this.
    "--bootstrap-server B --delete --group idle --topic topic1",
    "--bootstrap-server B --delete --all-groups --topic topic1",
    "--bootstrap-server B --delete --group idle --all-groups",
    "--bootstrap-server B --delete --group idle --verbose",
    "--bootstrap-server B --delete --group idle --members --verbose",
    "--bootstrap-server B --delete --group idle --state",
    "--bootstrap-server B --delete --group idle --type",
    "--bootstrap-server B --reset-offsets --group idle --all-groups --execute",
    "--bootstrap-server B --reset-offsets --group idle --all-groups --to-earliest --all-topics",
    "--bootstrap-server B --reset-offsets --to-earliest --all-topics --dry-run",
    "--bootstrap-server B --reset-offsets --group idle --members --to-earliest --all-topics "
    "--dry-run",
    "--bootstrap-server B --reset-offsets --group idle --to-earliest --to-latest --all-topics "
    "--dry-run",
    "--bootstrap-server B --reset-offsets --group idle --to-current --to-offset 1 --all-topics "
    "--dry-run",
    "--bootstrap-server B --reset-offsets --group idle --from-file x --shift-by 1 --all-topics "
    "--dry-run",
    "--bootstrap-server B --reset-offsets --group idle --topic topic1:0 --all-topics --to-earliest "
    "--dry-run",
    "--bootstrap-server B --delete-offsets --all-groups --topic topic1",
    "--bootstrap-server B --delete-offsets --group idle --all-groups --topic topic1",
    "--bootstrap-server B --delete-offsets --group idle --group solo --topic topic1",
    "--bootstrap-server B --delete-offsets --group idle",
    "--bootstrap-server B --delete-offsets --topic topic1",
    "--bootstrap-server B --delete-offsets",
    "--bootstrap-server B --describe --group idle --topic topic1",
    "--bootstrap-server B --describe --group idle --all-groups",
    "--bootstrap-server B --describe --group idle --type consumer",
    "--bootstrap-server B --describe --group idle --state Stable",
    "--bootstrap-server B --describe --all-groups --delete",
    "--bootstrap-server B --list --members",
    "--bootstrap-server B --list --offsets",
    "--bootstrap-server B --list --verbose",
    "--bootstrap-server B --list --topic topic1",
    "--bootstrap-server B --list --describe",
    "--bootstrap-server B --list --delete-offsets",
    "--bootstrap-server B --validate-regex a --list",
    "--bootstrap-server B --members",
    "--validate-regex [ab].*",
    "--validate-regex (",
    "--validate-regex a --members",
    "--validate-regex a --group g --all-groups",
    "--bootstrap-server B --list --state nonsense",
    "--bootstrap-server B --list --type nonsense",
    "--version",
]


def _complaint(ran: Ran) -> str:
    """What Kafka's parser of options raises nobody catches: only its words count."""
    return _THROWN_BY_THE_PARSER.sub("", first_complaint(ran.err))


@pytest.mark.parametrize("line", SAME, ids=lambda line: line.removeprefix("--bootstrap-server B "))
def test_the_same_words(line: str, scene: Scene) -> None:
    theirs, ours = both("kafka-consumer-groups", scene.line(line))
    assert evened(ours) == evened(theirs)
    assert ours.status == theirs.status
    # Kafka lists alternatives in the order of a hash table, too.
    complaints = [_complaint(ran).replace(",", "").split() for ran in (ours, theirs)]
    assert sorted(complaints[0]) == sorted(complaints[1])


@pytest.mark.parametrize(
    "line", ["--list", "--list --state", "--list --type", "--list --state --type"]
)
def test_the_same_list(line: str, scene: Scene) -> None:
    """Other tests make groups meanwhile, so only ours are looked at."""
    theirs, ours = both("kafka-consumer-groups", f"--bootstrap-server {scene.bootstrap} {line}")
    ours_mine = [row for row in evened(ours) if scene.stem in row]
    theirs_mine = [row for row in evened(theirs) if scene.stem in row]
    assert [row.split() for row in ours_mine] == [row.split() for row in theirs_mine]
    assert len(ours_mine) >= 4


def test_the_same_changes(scene: Scene, tmp_path: Path) -> None:
    """One group moved and deleted by Kafka's tool, another by ours."""
    steps = [
        "--group other --reset-offsets --to-latest --topic topic1 --execute",
        "--describe --group other",
        "--group other --reset-offsets --shift-by -2 --all-topics --execute",
        "--describe --group other",
        "--group other --delete-offsets --topic topic1:0",
        "--describe --group other",
        "--group other --delete",
    ]
    from tests.cli.helpers import script
    from tests.cli.test_kafka_reference import java

    for step in steps:
        outs = []
        for suffix, tool in (("j", java), ("o", script)):
            words = scene.line(f"--bootstrap-server B {step}").replace("other-", f"other{suffix}-")
            ran = tool("kafka-consumer-groups", *words.split())
            outs.append((ran.status, sorted(ran.out.replace(f"other{suffix}-", "").splitlines())))
        assert outs[1] == outs[0], step
