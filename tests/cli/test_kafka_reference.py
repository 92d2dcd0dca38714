"""Our Kafka-named commands beside Kafka's own, on the same Apache Kafka: the same words come out.

Each case is one command line. Both tools run it against the same node; stdout, the exit status and
the first line of stderr are compared. Commands that change something run on a topic of their own
each, whose name is the only thing that is evened out.
"""

from __future__ import annotations

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.cli.helpers import Ran, quick, script
from tests.reference.kafka import SharedKafka, run_kafka_tool

pytestmark = [pytest.mark.reference, pytest.mark.timeout(240)]

# What logging libraries and clients of the JVM add to stderr; it is no output of the tool.
_NOISE = re.compile(r"SLF4J|^\[main\]|^\[kafka-|^WARN|rebalance protocol \(KIP-848\)|^\tat |^\s*$")


def java(tool: str, *arguments: str, stdin: str | None = None) -> Ran:
    done = run_kafka_tool(tool, *arguments, input=stdin)
    return Ran(done.returncode, done.stdout, done.stderr)


def first_complaint(text: str) -> str:
    lines = [line for line in text.splitlines() if not _NOISE.search(line)]
    return lines[0] if lines else ""


def both(tool: str, line: str, stdin: str | None = None) -> tuple[Ran, Ran]:
    """(Kafka's, ours) for one command line."""
    with ThreadPoolExecutor(2) as pool:
        theirs = pool.submit(java, tool, *line.split(), stdin=stdin)
        ours = pool.submit(script, tool, *line.split(), stdin=stdin)
        return theirs.result(), ours.result()


@pytest.fixture(scope="module")
def topic(apache_kafka: SharedKafka) -> str:
    """A topic with two partitions, a setting of its own, and records with all there is."""
    name = f"cli-reference-{time.time_ns()}"
    address = apache_kafka.bootstrap
    made = quick(
        "topic", "create", name, "-p", "2", "-c", "flush.messages=1", "-c", "retention.ms=9999999",
        "-b", address,
    )  # fmt: skip
    assert made.status == 0, made.err
    sent = quick("-b", address, "produce", name, "-p", "0", "-K:", "-Z", "-H", "h=1",
                    stdin="k1:v1\nk2:\n:v3\nplain\n")  # fmt: skip
    assert sent.status == 0, sent.err
    return name


SAME_OUTPUT: list[tuple[str, str]] = [
    ("kafka-topics", "--bootstrap-server B --describe --topic T"),
    ("kafka-topics", "--bootstrap-server B --list --topic T"),
    ("kafka-topics", "--bootstrap-server B --describe --topic T --topics-with-overrides"),
    ("kafka-topics", "--bootstrap-server B --describe --topic T --at-min-isr-partitions"),
    ("kafka-topics", "--bootstrap-server B --describe --topic none-such"),
    ("kafka-topics", "--bootstrap-server B --create --topic T"),
    ("kafka-topics", "--bootstrap-server B --create --topic T --if-not-exists"),
    ("kafka-topics", "--bootstrap-server B --create --topic bad/name"),
    ("kafka-topics", "--bootstrap-server B --create --topic bad --config nope=1"),
    ("kafka-topics", "--bootstrap-server B --alter --topic T --partitions 1"),
    ("kafka-topics", "--bootstrap-server B --delete --topic none-such"),
    ("kafka-topics", "--bootstrap-server B"),
    ("kafka-topics", "--bootstrap-server B --create"),
    ("kafka-topics", "--version"),
    ("kafka-configs", "--bootstrap-server B --describe --topic T"),
    ("kafka-configs", "--bootstrap-server B --describe --entity-type topics --entity-name T --all"),
    ("kafka-configs", "--bootstrap-server B --describe --topic none-such"),
    ("kafka-configs", "--bootstrap-server B --describe --entity-type brokers"),
    ("kafka-configs", "--bootstrap-server B --describe --broker 77"),
    ("kafka-configs", "--bootstrap-server B --describe --broker x"),
    ("kafka-configs", "--bootstrap-server B --alter --topic T"),
    ("kafka-configs", "--bootstrap-server B --describe --entity-type nonsense"),
    ("kafka-configs", "--bootstrap-server B --describe --entity-type groups --entity-name none"),
    ("kafka-configs", "--bootstrap-server B --describe --entity-type groups --entity-default"),
    ("kafka-configs", "--bootstrap-server B --describe --entity-type broker-loggers "
     "--entity-name 1"),
    ("kafka-configs", "--bootstrap-server B --describe --broker-logger 1 --all"),
    ("kafka-configs", "--bootstrap-server B --describe --entity-type broker-loggers"),
    ("kafka-configs", "--bootstrap-server B --describe --entity-type broker-loggers "
     "--entity-default"),
    ("kafka-configs", "--bootstrap-server B --describe --broker-logger x"),
    ("kafka-configs", "--bootstrap-server B --describe --broker-logger 77"),
    ("kafka-configs", "--bootstrap-server B --alter --entity-type broker-loggers "
     "--add-config root=WARN"),
    ("kafka-configs", "--bootstrap-server B --alter --entity-type broker-loggers "
     "--entity-default --add-config root=WARN"),
    ("kafka-configs", "--bootstrap-server B --alter --broker-logger 1"),
    ("kafka-configs", "--bootstrap-server B --alter --broker-logger 1 --add-config root=WARN"),
    ("kafka-configs", "--bootstrap-server B --alter --broker-logger 1 --add-config nope=INFO"),
    ("kafka-configs", "--bootstrap-server B --alter --broker-logger 1 --delete-config nope"),
    ("kafka-configs", "--bootstrap-server B --alter --broker-logger 1 --add-config root=LOUD"),
    ("kafka-get-offsets", "--bootstrap-server B --topic T"),
    ("kafka-get-offsets", "--bootstrap-server B --topic T --time -2"),
    ("kafka-get-offsets", "--bootstrap-server B --topic T --time max-timestamp"),
    ("kafka-get-offsets", "--bootstrap-server B --topic-partitions T:0-1"),
    ("kafka-get-offsets", "--bootstrap-server B --topic none-such"),
    ("kafka-get-offsets", "--bootstrap-server B --time zzz"),
    ("kafka-log-dirs", "--bootstrap-server B --describe --broker-list 77"),
    ("kafka-broker-api-versions", "--bootstrap-server B"),
    ("kafka-console-consumer", "--bootstrap-server B --topic T --partition 0 --offset earliest "
     "--max-messages 4"),
    ("kafka-console-consumer", "--bootstrap-server B --topic T --partition 0 --offset 1 "
     "--max-messages 3 --property print.key=true --property print.headers=true "
     "--property print.timestamp=true --property print.offset=true --property print.partition=true "
     "--property key.separator=/ --property null.literal=NUL"),
    ("kafka-console-consumer", "--bootstrap-server B --topic T --offset 1"),
    ("kafka-console-consumer", "--bootstrap-server B --topic T --partition 0 --offset never"),
    ("kafka-console-consumer", "--bootstrap-server B"),
    ("kafka-console-consumer", "--bootstrap-server B --topic T --partition 0 --group g"),
    ("kafka-console-consumer", "--bootstrap-server B --topic T --from-beginning "
     "--command-property auto.offset.reset=latest"),
    ("kafka-console-consumer", "--bootstrap-server B --topic T --property a=b "
     "--formatter-property c=d"),
    ("kafka-console-producer", "--bootstrap-server B --topic T --property a=b "
     "--reader-property c=d"),
    ("kafka-console-producer", "--bootstrap-server B --topic T --line-reader none.Such"),
    ("kafka-consumer-perf-test", "--bootstrap-server B --topic T --messages 1 --num-records 1"),
    ("kafka-consumer-perf-test", "--bootstrap-server B --messages 5"),
]  # fmt: skip


@pytest.mark.parametrize(("tool", "line"), SAME_OUTPUT, ids=lambda value: value[:60])
def test_the_same_words(tool: str, line: str, topic: str, apache_kafka: SharedKafka) -> None:
    words = line.replace(" B", f" {apache_kafka.bootstrap}")
    words = re.sub(r"\bT\b", topic, words)
    theirs, ours = both(tool, words)
    assert ours.out == theirs.out
    assert ours.status == theirs.status
    assert first_complaint(ours.err) == first_complaint(theirs.err)


CHANGES: list[tuple[str, str]] = [
    ("kafka-topics", "--bootstrap-server B --create --topic T --partitions 2 --config flush.ms=9"),
    ("kafka-topics", "--bootstrap-server B --alter --topic T --partitions 3"),
    ("kafka-configs", "--bootstrap-server B --alter --topic T "
     "--add-config retention.ms=5,cleanup.policy=[compact,delete]"),
    ("kafka-configs", "--bootstrap-server B --describe --topic T"),
    ("kafka-configs", "--bootstrap-server B --alter --topic T --delete-config retention.ms"),
    ("kafka-topics", "--bootstrap-server B --describe --topic T"),
    ("kafka-configs", "--bootstrap-server B --alter --group T "
     "--add-config consumer.session.timeout.ms=50000"),
    ("kafka-configs", "--bootstrap-server B --describe --entity-type groups --entity-name T --all"),
    ("kafka-configs", "--bootstrap-server B --describe --group T"),
    ("kafka-configs", "--bootstrap-server B --alter --entity-type groups --entity-name T "
     "--delete-config consumer.session.timeout.ms"),
    ("kafka-topics", "--bootstrap-server B --delete --topic T"),
    ("kafka-topics", "--bootstrap-server B --list --topic T"),
]  # fmt: skip


def test_the_same_changes(apache_kafka: SharedKafka) -> None:
    """A topic's life by Kafka's tools and another's by ours: the same words at each step."""
    stem = f"cli-change-{time.time_ns()}"
    for tool, line in CHANGES:
        words = line.replace(" B", f" {apache_kafka.bootstrap}")
        with ThreadPoolExecutor(2) as pool:
            theirs = pool.submit(java, tool, *re.sub(r"\bT\b", f"{stem}-j", words).split())
            ours = pool.submit(script, tool, *re.sub(r"\bT\b", f"{stem}-o", words).split())
        assert _even(ours.result().out) == _even(theirs.result().out), line
        assert ours.result().status == theirs.result().status, line


def _even(text: str) -> str:
    return re.sub(r"TopicId: \S+", "TopicId: ID", re.sub(r"(cli-change-\d+)-[jo]", r"\1", text))


PRODUCED = [
    ("", "one\n\ntwo\n"),
    ("--property parse.key=true --property key.separator=:", "k:v\nk2:\n:v\n"),
    ("--reader-property parse.key=true --reader-property parse.headers=true "
     "--reader-property null.marker=NUL", "a:1,b:2\tk\tv\nNUL\tNUL\tNUL\n"),
    ("--reader-property parse.key=true --reader-property ignore.error=true", "no key\n"),
    ("--compression-codec --sync --request-required-acks 1", "zipped\n"),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "lines"), PRODUCED, ids=[f[:40] or "plain" for f, _ in PRODUCED])
def test_the_same_records(flags: str, lines: str, apache_kafka: SharedKafka) -> None:
    """The same lines through both console producers are the same records."""
    stem = f"cli-lines-{time.time_ns()}"
    address = apache_kafka.bootstrap
    quick("topic", "create", f"{stem}-j", f"{stem}-o", "-p", "1", "-b", address)
    arguments = f"--bootstrap-server {address} {flags}".split()
    theirs = java("kafka-console-producer", "--topic", f"{stem}-j", *arguments, stdin=lines)
    ours = script("kafka-console-producer", "--topic", f"{stem}-o", *arguments, stdin=lines)
    assert (ours.out, ours.status) == (theirs.out, theirs.status)

    def read(name: str) -> list[dict[str, object]]:
        got = quick("consume", name, "-e", "-b", address)
        rows = [json.loads(line) for line in got.out.splitlines()]
        return [{k: r.get(k) for k in ("offset", "key", "value", "headers")} for r in rows]

    assert read(f"{stem}-o") == read(f"{stem}-j")
    assert read(f"{stem}-o")


@pytest.mark.parametrize("line", ["no separator\n", "x\tno header separator\n"])
def test_the_same_complaint_about_a_line(line: str, topic: str, apache_kafka: SharedKafka) -> None:
    flags = (
        f"--bootstrap-server {apache_kafka.bootstrap} --topic {topic} "
        "--reader-property parse.headers=true"
    )
    theirs, ours = both("kafka-console-producer", flags, stdin=line)
    assert ours.status == theirs.status == 1
    assert first_complaint(ours.err) == first_complaint(theirs.err)


def test_the_same_log_dirs(topic: str, apache_kafka: SharedKafka) -> None:
    line = f"--bootstrap-server {apache_kafka.bootstrap} --describe --topic-list {topic}"
    theirs, ours = both("kafka-log-dirs", line)
    *their_talk, their_json = theirs.out.splitlines()
    *our_talk, our_json = ours.out.splitlines()
    assert our_talk == their_talk

    def even(text: str) -> object:
        document = json.loads(text)
        for broker in document["brokers"]:
            for directory in broker["logDirs"]:
                directory["partitions"].sort(key=lambda p: p["partition"])
        return document

    assert even(our_json) == even(their_json)


def test_the_same_deleted_records(apache_kafka: SharedKafka, tmp_path: Path) -> None:
    stem = f"cli-trim-{time.time_ns()}"
    address = apache_kafka.bootstrap
    quick("topic", "create", f"{stem}-j", f"{stem}-o", "-p", "1", "-b", address)
    printed = []
    for name, tool in ((f"{stem}-j", java), (f"{stem}-o", script)):
        quick("produce", name, "-b", address, stdin="a\nb\nc\n")
        path = tmp_path / f"{name}.json"
        row = {"topic": name, "partition": 0, "offset": 2}
        path.write_text(json.dumps({"partitions": [row], "version": 1}))
        ran = tool(
            "kafka-delete-records", "--bootstrap-server", address, "--offset-json-file", str(path)
        )
        printed.append(ran.out.replace(name, stem))
    assert printed[0] == printed[1]


SHAPES = [
    ("kafka-producer-perf-test", "--topic T --num-records 200 --record-size 50 --throughput -1 "
     "--producer-props bootstrap.servers=B acks=1"),
    ("kafka-producer-perf-test", "--topic T --num-records 50 --record-size 50 --throughput 500 "
     "--bootstrap-server B --warmup-records 20"),
    ("kafka-consumer-perf-test", "--topic T --messages 3 --bootstrap-server B"),
    ("kafka-consumer-perf-test", "--topic T --num-records 10000000 --bootstrap-server B "
     "--timeout 300 --hide-header"),
]  # fmt: skip


@pytest.mark.parametrize(("tool", "line"), SHAPES, ids=lambda value: value[:60])
def test_figures_come_in_the_same_shape(
    tool: str, line: str, topic: str, apache_kafka: SharedKafka
) -> None:
    """Numbers differ, the words between them and their decimals do not."""
    words = line.replace("T", topic, 1) if "--topic T" in line else line
    words = words.replace("=B", f"={apache_kafka.bootstrap}").replace(
        "server B", f"server {apache_kafka.bootstrap}"
    )
    theirs, ours = both(tool, words)
    assert ours.status == theirs.status == 0, ours.err

    def shape(text: str) -> str:
        kept = re.sub(r"\d+(?=\.)|(?<![\d.])\d+(?![\d.])", "N", text)
        return re.sub(r"(?<=\.)\d+", lambda m: "d" * len(m[0]), kept)

    assert shape(ours.out) == shape(theirs.out)


def test_the_same_dump(topic: str, apache_kafka: SharedKafka) -> None:
    line = f"--bootstrap-server {apache_kafka.bootstrap} --describe --topic-list {topic}"
    listed = json.loads(script("kafka-log-dirs", *line.split()).out.splitlines()[-1])
    directory = listed["brokers"][0]["logDirs"][0]["logDir"]
    base = f"{directory}/{topic}-0/00000000000000000000"
    for flags in (
        f"--files {base}.log",
        f"--files {base}.log --print-data-log",
        f"--files {base}.log,{base}.index,{base}.timeindex --deep-iteration",
    ):
        theirs, ours = both("kafka-dump-log", flags)
        assert ours.out == theirs.out, flags
        assert ours.status == theirs.status


CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"


def storage_properties(directory: Path, name: str) -> Path:
    """The settings of a node whose data are to be in the folder of this name."""
    path = directory / f"{name}.properties"
    path.write_text(
        "process.roles=broker,controller\nnode.id=1\n"
        "controller.quorum.voters=1@127.0.0.1:19093\ncontroller.listener.names=C\n"
        "listeners=PLAINTEXT://127.0.0.1:19092,C://127.0.0.1:19093\n"
        "listener.security.protocol.map=C:PLAINTEXT,PLAINTEXT:PLAINTEXT\n"
        f"log.dirs={directory / name}\n"
    )
    return path


STORAGE = [
    "version-mapping",
    "version-mapping --release-version 3.3-IV3",
    "version-mapping -r 3.7",
    "version-mapping -r 4.0-IV2",
    "version-mapping -r 4.4-IV0",
    "version-mapping -r 4.4",
    "version-mapping -r 9.9",
    "feature-dependencies -f eligible.leader.replicas.version=1 --feature metadata.version=31",
    "feature-dependencies -f transaction.version=2 -f transaction.version=3",
    "feature-dependencies -f metadata.version=6",
    "feature-dependencies -f nope=1",
    "feature-dependencies -f group.version",
    "feature-dependencies -f group.version=x",
]


@pytest.mark.parametrize("line", STORAGE)
def test_the_same_features(line: str) -> None:
    theirs, ours = both("kafka-storage", line)
    assert (ours.status, ours.out) == (theirs.status, theirs.out)
    assert first_complaint(ours.err) == first_complaint(theirs.err)


FORMATS = [
    ["--release-version", "4.0"],
    ["-r", "4.1-IV0", "-r", "4.0-IV1"],
    ["-r", "4.4-IV0"],
    ["-f", "metadata.version=27"],
    ["-f", "transaction.version=1"],
    ["-f", "nope=1"],
    ["-r", "4.0-IV3", "-f", "metadata.version=20"],
]


@pytest.mark.parametrize("flags", FORMATS, ids=" ".join)
def test_the_same_metadata_version_is_named(flags: list[str], tmp_path: Path) -> None:
    """Ours says besides, on stderr, that it has no effect."""
    printed = []
    for name, tool in (("j", java), ("o", script)):
        path = storage_properties(tmp_path, name)
        ran = tool("kafka-storage", "format", "-t", CLUSTER_ID, "-c", str(path), *flags)
        said = re.sub(r"Bootstrap metadata: .*\n", "", ran.out).replace(str(tmp_path / name), "DIR")
        printed.append((ran.status, said, first_complaint(ran.err) if ran.status else ""))
    assert printed[1] == printed[0]


def test_the_same_storage_answers(tmp_path: Path) -> None:
    """`info` and `format` on a directory that is not there, is new, and is formatted already."""
    printed = []
    for name, tool in (("j", java), ("o", script)):
        path = storage_properties(tmp_path, name)
        steps = (
            ["info", "-c", str(path)],
            ["format", "-t", CLUSTER_ID, "-c", str(path)],
            ["info", "-c", str(path)],
            ["format", "-t", CLUSTER_ID, "-c", str(path)],
            ["format", "-t", CLUSTER_ID, "-c", str(path), "--ignore-formatted"],
        )
        ran = [tool("kafka-storage", *step) for step in steps]
        texts = [re.sub(r"directory.id=\S+,", "directory.id=ID,", r.out + first_complaint(r.err))
                 for r in ran]  # fmt: skip
        texts = [re.sub(r"Bootstrap metadata: .*\n", "", text) for text in texts]
        data = str(tmp_path / name)
        printed.append(([r.status for r in ran], [t.replace(data, "DIR") for t in texts]))
    assert printed[1] == printed[0]
