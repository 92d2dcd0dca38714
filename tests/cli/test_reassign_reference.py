"""`kafka-reassign-partitions` and `kafka-leader-election` beside Kafka's own, on an Apache Kafka of
two nodes: the same words come out.

What changes the cluster runs on a topic of its own for each of the two tools.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.cli.helpers import Ran, quick, script
from tests.cli.test_kafka_reference import both, first_complaint
from tests.reference.kafka import (
    ApacheKafka,
    free_ports,
    kafka_jars,
    run_kafka_tool,
    unavailable_reason,
)

from tidemill.cli import moves
from tidemill.types import TopicPartition

pytestmark = [pytest.mark.reference, pytest.mark.timeout(300)]

REASSIGN, ELECT = "kafka-reassign-partitions", "kafka-leader-election"


@dataclass(frozen=True, slots=True)
class Scene:
    """Two brokers and a folder with the files that the cases name."""

    bootstrap: str
    folder: Path

    def line(self, line: str) -> str:
        words = re.sub(r"\bB\b", self.bootstrap, line)
        return re.sub(r"\b([\w-]+\.json)\b", lambda m: str(self.folder / m[1]), words)

    def write(self, name: str, document: object) -> Path:
        path = self.folder / name
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return path


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    if kafka_jars() is None:
        pytest.skip(f"NO REFERENCE: Apache Kafka cannot run here: {unavailable_reason()}")
    with ApacheKafka(heap="256m") as first, second_broker(first):
        made = Scene(first.bootstrap, tmp_path_factory.mktemp("files"))
        wait_for_two(first.bootstrap)
        create(first.bootstrap, "still", "0:[1, 2]")
        write_files(made)
        yield made


def second_broker(first: ApacheKafka) -> ApacheKafka:
    """A broker that meets the first one's controller."""
    voters = first._settings()["controller.quorum.voters"]
    [port] = free_ports(1)
    second = ApacheKafka(
        heap="256m",
        properties={
            "process.roles": "broker",
            "node.id": "2",
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        },
    )
    second.port = port
    return second


def wait_for_two(bootstrap: str) -> None:
    deadline = time.monotonic() + 60
    while '"brokers": 2' not in quick("cluster", "info", "--format", "json", "-b", bootstrap).out:
        assert time.monotonic() < deadline
        time.sleep(0.3)


def create(bootstrap: str, name: str, assignment: str) -> None:
    """A topic of one partition, by Kafka's own command, which takes an assignment."""
    replicas = ":".join(re.findall(r"\d+", assignment.partition(":")[2]))
    run_kafka_tool(
        "kafka-topics", "--bootstrap-server", bootstrap, "--create", "--topic", name,
        "--replica-assignment", replicas, check=True,
    )  # fmt: skip


def partition(topic: str, *replicas: int, index: int = 0) -> dict[str, object]:
    return {"topic": topic, "partition": index, "replicas": list(replicas)}


def document(*partitions: dict[str, object]) -> dict[str, object]:
    return {"version": 1, "partitions": list(partitions)}


def write_files(scene: Scene) -> None:
    scene.write("still.json", document(partition("still", 1, 2)))
    scene.write("other.json", document(partition("still", 2, 1)))
    scene.write("unknown.json", document(partition("no-such", 1)))
    scene.write("no-partition.json", document(partition("still", 1, index=7)))
    scene.write("no-broker.json", document(partition("still", 1, 77)))
    scene.write("twice.json", document(partition("still", 1), partition("still", 2)))
    scene.write("double.json", document(partition("still", 1, 1)))
    scene.write("empty.json", document())
    scene.write("nobody.json", document(partition("still")))
    scene.write("version.json", {"version": 9, "partitions": []})
    scene.write("dirs.json", document(partition("still", 1, 2) | {"log_dirs": ["any"]}))
    scene.write("topics.json", {"version": 1, "topics": [{"topic": "still"}]})
    scene.write("topics-twice.json", {"topics": [{"topic": "still"}, {"topic": "still"}]})
    scene.write("topics-unknown.json", {"topics": [{"topic": "no-such"}]})
    scene.write("elect.json", {"partitions": [{"topic": "still", "partition": 0}]})
    scene.write("elect-twice.json", {"partitions": [{"topic": "still", "partition": 0}] * 2})
    scene.write("elect-none.json", {"topics": []})
    scene.write("elect-unknown.json", {"partitions": [{"topic": "no-such", "partition": 0}]})


SAME_OUTPUT: list[tuple[str, str]] = [
    (REASSIGN, "--bootstrap-server B --list"),
    (REASSIGN, "--bootstrap-server B --verify --reassignment-json-file still.json"),
    (REASSIGN, "--bootstrap-server B --verify --reassignment-json-file other.json"),
    (
        REASSIGN,
        "--bootstrap-server B --verify --reassignment-json-file still.json --preserve-throttles",
    ),
    (REASSIGN, "--bootstrap-server B --cancel --reassignment-json-file still.json"),
    (REASSIGN, "--bootstrap-server B --execute --reassignment-json-file still.json"),
    (ELECT, "--bootstrap-server B --election-type preferred --topic still --partition 0"),
    (ELECT, "--bootstrap-server B --election-type unclean --topic still --partition 0"),
    (ELECT, "--bootstrap-server B --election-type preferred --path-to-json-file elect.json"),
    (ELECT, "--bootstrap-server B --election-type preferred --all-topic-partitions"),
]

SAME_FIRST_LINE: list[tuple[str, str]] = [
    (REASSIGN, "--bootstrap-server B --execute --reassignment-json-file unknown.json"),
    (REASSIGN, "--bootstrap-server B --execute --reassignment-json-file no-partition.json"),
    (REASSIGN, "--bootstrap-server B --execute --reassignment-json-file no-broker.json"),
    (REASSIGN, "--bootstrap-server B --execute --reassignment-json-file twice.json"),
    (REASSIGN, "--bootstrap-server B --execute --reassignment-json-file double.json"),
    (REASSIGN, "--bootstrap-server B --execute --reassignment-json-file empty.json"),
    (REASSIGN, "--bootstrap-server B --execute --reassignment-json-file nobody.json"),
    (REASSIGN, "--bootstrap-server B --execute --reassignment-json-file version.json"),
    (REASSIGN, "--bootstrap-server B --execute --reassignment-json-file dirs.json"),
    (REASSIGN, "--bootstrap-server B --execute --reassignment-json-file missing.json"),
    (
        REASSIGN,
        "--bootstrap-server B --generate --topics-to-move-json-file topics.json --broker-list 1,1",
    ),
    (
        REASSIGN,
        "--bootstrap-server B --generate --topics-to-move-json-file topics.json --broker-list x",
    ),
    (
        REASSIGN,
        "--bootstrap-server B --generate --topics-to-move-json-file topics.json --broker-list 1",
    ),
    (
        REASSIGN,
        "--bootstrap-server B --generate --topics-to-move-json-file topics-twice.json "
        "--broker-list 1,2",
    ),
    (
        REASSIGN,
        "--bootstrap-server B --generate --topics-to-move-json-file topics-unknown.json "
        "--broker-list 1,2",
    ),
    (ELECT, "--bootstrap-server B --election-type preferred --path-to-json-file elect-twice.json"),
    (ELECT, "--bootstrap-server B --election-type preferred --path-to-json-file elect-none.json"),
    (ELECT, "--bootstrap-server B --election-type preferred --path-to-json-file missing.json"),
    (
        ELECT,
        "--bootstrap-server B --election-type preferred --path-to-json-file elect-unknown.json",
    ),
]

SAME_USAGE: list[tuple[str, str]] = [
    (REASSIGN, "--bootstrap-server B"),
    (REASSIGN, "--bootstrap-server B --list --verify"),
    (REASSIGN, "--list"),
    (REASSIGN, "--bootstrap-server B --bootstrap-controller B --list"),
    (REASSIGN, "--bootstrap-server B --verify"),
    (REASSIGN, "--bootstrap-server B --generate --broker-list 1"),
    (REASSIGN, "--bootstrap-server B --list --throttle 5"),
    (REASSIGN, "--bootstrap-server B --verify --reassignment-json-file still.json --additional"),
    (ELECT, "--election-type preferred --all-topic-partitions"),
    (ELECT, "--bootstrap-server B --all-topic-partitions"),
    (ELECT, "--bootstrap-server B --election-type preferred"),
    (ELECT, "--bootstrap-server B --election-type preferred --topic still"),
    (ELECT, "--bootstrap-server B --election-type preferred --partition 0 --all-topic-partitions"),
    (ELECT, "--bootstrap-server B --election-type odd --all-topic-partitions"),
]


def name_of(case: tuple[str, str]) -> str:
    return " ".join(case).replace("--bootstrap-server B ", "")


@pytest.mark.parametrize("case", SAME_OUTPUT, ids=name_of)
def test_same_output(case: tuple[str, str], scene: Scene) -> None:
    theirs, ours = both(case[0], scene.line(case[1]))
    assert (ours.status, ours.out) == (theirs.status, theirs.out), (ours.err, theirs.err)


def test_generate_shows_what_is_and_proposes(scene: Scene) -> None:
    """The proposal is our own; Kafka draws lots."""
    line = (
        "--bootstrap-server B --generate --topics-to-move-json-file topics.json --broker-list 1,2"
    )
    theirs, ours = both(REASSIGN, scene.line(line))
    assert ours.status == theirs.status == 0
    assert ours.out.splitlines()[:4] == theirs.out.splitlines()[:4]
    assert len(ours.out.splitlines()) == len(theirs.out.splitlines())
    proposed = moves.parse(ours.out.splitlines()[-1])
    assert proposed.assignment == {TopicPartition("still", 0): (1, 2)}


@pytest.mark.parametrize("case", SAME_FIRST_LINE, ids=name_of)
def test_same_complaint(case: tuple[str, str], scene: Scene) -> None:
    """Kafka prints a stack trace after its complaint; we do not."""
    theirs, ours = both(case[0], scene.line(case[1]))
    assert ours.status == theirs.status == 1
    assert said_first(ours) == said_first(theirs)


def said_first(ran: Ran) -> tuple[str, str]:
    first = ran.out.splitlines()[0] if ran.out else ""
    return first, first_complaint(ran.err)


@pytest.mark.parametrize("case", SAME_USAGE, ids=name_of)
def test_same_usage_error(case: tuple[str, str], scene: Scene) -> None:
    theirs, ours = both(case[0], scene.line(case[1]))
    assert ours.status == theirs.status == 1
    assert said_first(ours) == said_first(theirs)


def test_a_move_from_its_begin_to_its_end(scene: Scene) -> None:
    """Both tools move a topic of their own from one broker to the other, throttled, and verify."""
    stories = in_step(scene, "moving", "0:[1]", [
        (REASSIGN, "--execute --reassignment-json-file FILE --throttle 10000000"),
        ("wait", ""),
        (REASSIGN, "--verify --reassignment-json-file FILE"),
        (REASSIGN, "--cancel --reassignment-json-file FILE"),
    ], to=(2,))  # fmt: skip
    assert stories["ours"] == stories["theirs"]


def test_a_preferred_leader_comes_back(scene: Scene) -> None:
    """A new order of replicas, then the election that puts the first one in office."""
    stories = in_step(scene, "leading", "0:[1, 2]", [
        (REASSIGN, "--execute --reassignment-json-file FILE"),
        ("wait", ""),
        (ELECT, "--election-type preferred --topic TOPIC --partition 0"),
        (ELECT, "--election-type preferred --topic TOPIC --partition 0"),
    ], to=(2, 1))  # fmt: skip
    assert stories["ours"] == stories["theirs"]


def in_step(
    scene: Scene, stem: str, before: str, steps: list[tuple[str, str]], *, to: tuple[int, ...]
) -> dict[str, list[tuple[int, str]]]:
    """Run the steps with each tool on its own topic; what each said, with the names evened out.

    One after the other: each would see the other's moves.
    """
    return {whose: one_story(scene, stem, whose, before, steps, to) for whose in ("ours", "theirs")}


def one_story(
    scene: Scene,
    stem: str,
    whose: str,
    before: str,
    steps: list[tuple[str, str]],
    to: tuple[int, ...],
) -> list[tuple[int, str]]:
    topic = f"{stem}-{whose}"
    create(scene.bootstrap, topic, before)
    file = scene.write(f"{topic}.json", document(partition(topic, *to)))
    story = []
    for tool, line in steps:
        if tool == "wait":
            wait_until_moved(scene.bootstrap, topic, to)
            continue
        words = line.replace("FILE", str(file)).replace("TOPIC", topic).split()
        words = ["--bootstrap-server", scene.bootstrap, "--additional", *words]
        if "--execute" not in words:
            words.remove("--additional")
        if whose == "ours":
            ran = script(tool, *words)
        else:
            done = run_kafka_tool(tool, *words)
            ran = Ran(done.returncode, done.stdout, done.stderr)
        story.append((ran.status, ran.out.replace(topic, "TOPIC")))
    return story


def wait_until_moved(bootstrap: str, topic: str, to: tuple[int, ...]) -> None:
    deadline = time.monotonic() + 60
    while True:
        ran = quick("topic", "describe", topic, "--format", "json", "-b", bootstrap)
        if ran.status == 0:
            [only] = json.loads(ran.out)["partitions"]
            if only["replicas"] == list(to) and sorted(only["isr"]) == sorted(to):
                return
        assert time.monotonic() < deadline, ran.out
        time.sleep(0.3)
