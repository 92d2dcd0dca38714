"""What the Kafka-named tools do without a cluster: parsing, files, complaints."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.helpers import script

from tidemill.cli.kafka import common, configs, delete_records, get_offsets, storage, topics
from tidemill.cli.kafka.common import ToolError, UsageError
from tidemill.cli.kafka.console_producer import LineReader
from tidemill.cli.kafka.server_start import parse_overrides
from tidemill.types import TopicPartition


def test_a_properties_file_is_read_as_java_reads_it() -> None:
    text = "# c\n! c\na=1\n b : 2 \nc=x=y\nlong=1,\\\n2\nempty=\n"
    assert common.parse_properties(text) == {
        "a": "1",
        "b": "2",
        "c": "x=y",
        "long": "1,2",
        "empty": "",
    }


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("a,b", "b", True),
        ("a.*", "abc", True),
        ("a", "abc", False),
        ('"test\\.topic"', "test.topic", True),
        ('"test\\.topic"', "testXtopic", False),
    ],
)
def test_a_topic_filter_is_kafkas(pattern: str, name: str, matches: bool) -> None:
    assert common.topic_filter(pattern)(name) is matches


def test_pairs_with_brackets_keep_their_commas() -> None:
    text = "retention.ms=5,cleanup.policy=[compact,delete],flush.ms=1"
    assert configs.split_pairs(text) == {
        "retention.ms": "5",
        "cleanup.policy": "compact,delete",
        "flush.ms": "1",
    }
    with pytest.raises(UsageError):
        configs.split_pairs("foo")


def test_replica_assignments() -> None:
    assert topics.parse_assignment("1:2,2:1") == {0: [1, 2], 1: [2, 1]}
    for wrong in ("1:1", "1:2,1", "a"):
        with pytest.raises(ToolError):
            topics.parse_assignment(wrong)


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("t:1", [("t", 1)], [("t", 0), ("u", 1)]),
        ("t:1-3", [("t", 1), ("t", 2)], [("t", 3)]),
        ("t:2-", [("t", 9)], [("t", 1)]),
        ("t:-2", [("t", 0), ("t", 1)], [("t", 2)]),
        (":0", [("x", 0), ("y", 0)], [("x", 1)]),
        ("a.*,b:1", [("ab", 5), ("b", 1)], [("b", 0)]),
    ],
)
def test_topic_partition_patterns(
    text: str, inside: list[tuple[str, int]], outside: list[tuple[str, int]]
) -> None:
    matches = get_offsets.parse_topic_partitions(text)
    assert all(matches(*each) for each in inside)
    assert not any(matches(*each) for each in outside)


def test_offsets_to_delete_are_checked() -> None:
    row = {"topic": "t", "partition": 1, "offset": 5}
    good = {"partitions": [row], "version": 1}
    assert delete_records.parse_offsets(json.dumps(good)) == {TopicPartition("t", 1): 5}
    for bad in (
        "",
        "{}",
        '{"version":2}',
        json.dumps({"partitions": [row, row]}),
        '{"partitions":[{}]}',
    ):
        with pytest.raises(ToolError):
            delete_records.parse_offsets(bad)


def test_overrides_in_both_spellings() -> None:
    assert parse_overrides(["--override", "a=1", "--override=b=2=3"]) == {"a": "1", "b": "2=3"}
    for wrong in (["--override"], ["x"], ["--override", "a"]):
        with pytest.raises(UsageError):
            parse_overrides(wrong)


def test_log_dirs_of_a_properties_file() -> None:
    assert storage.directories({"log.dirs": "/b, /a"}) == ["/a", "/b"]
    assert storage.directories({"log.dir": "/c"}) == ["/c"]
    assert storage.directories({}) == [storage.DEFAULT_DIR]


@given(line=st.text(max_size=60), keys=st.booleans(), headers=st.booleans(), ignore=st.booleans())
def test_any_line_is_a_record_or_a_complaint(
    line: str, keys: bool, headers: bool, ignore: bool
) -> None:
    reader = LineReader(parse_key=keys, parse_headers=headers, ignore_error=ignore)
    try:
        key, value, found = reader.read(line)
    except ToolError:
        assert not ignore
        return
    if not keys and not headers:
        assert (key, value, found) == (None, line.encode("utf-8", "surrogatepass"), [])


TOOLS_OF_A_CLUSTER = [
    "kafka-topics --list",
    "kafka-configs --describe --topic t",
    "kafka-get-offsets --topic t",
    "kafka-log-dirs --describe",
    "kafka-broker-api-versions --help",
    "kafka-console-consumer --topic t",
    "kafka-console-producer --topic t",
]


@pytest.mark.parametrize("line", TOOLS_OF_A_CLUSTER)
def test_without_an_address_a_tool_says_so_and_exits_with_1(line: str, tmp_path: Path) -> None:
    ran = script(*line.split(), variables={"TIDEMILL_CONFIG_DIR": str(tmp_path)})
    assert ran.status == 1
    assert ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("flag", ["--bogus", "--boot"])
def test_an_unknown_or_shortened_option_is_not_recognized(flag: str) -> None:
    ran = script("kafka-topics", flag, "x", "--list")
    assert ran.status == 1
    assert ran.err.startswith(f"{flag[2:]} is not a recognized option\n")


def test_a_broker_that_is_not_there_is_an_error_and_no_traceback(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("default.api.timeout.ms=500\n")
    arguments = ("--bootstrap-server", "127.0.0.1:1", "--command-config", str(path), "--list")
    ran = script("kafka-topics", *arguments)
    assert ran.status == 1
    assert ran.out.startswith("Error while executing topic command : ")
    assert "Traceback" not in ran.err


def test_a_config_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "none.properties"
    arguments = ("--bootstrap-server", "127.0.0.1:1", "--command-config", str(missing), "--list")
    ran = script("kafka-topics", *arguments)
    assert (ran.status, ran.err) == (1, f"{missing} (No such file or directory)\n")


def test_storage_formats_what_its_own_info_then_finds(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text(f"node.id=4\nlog.dirs={tmp_path}/a,{tmp_path}/b\n")
    arguments = ("-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", str(path))
    assert script("kafka-storage", "format", *arguments).status == 0
    info = script("kafka-storage", "info", "-c", str(path))
    assert info.status == 0
    assert "cluster.id=MkU3OEVBNTcwNTJENDM2Qg" in info.out
    again = script("kafka-storage", "format", *arguments)
    assert again.status == 1
    assert "already formatted" in again.err


def test_storage_refuses_a_user_that_would_protect_nothing(tmp_path: Path) -> None:
    """A runbook must not go on in the belief that the cluster asks for passwords."""
    path = tmp_path / "server.properties"
    path.write_text(f"node.id=4\nlog.dirs={tmp_path}/a\n")
    arguments = ("format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", str(path))
    user = ("--add-scram", "SCRAM-SHA-256=[name=alice,password=x]")
    ran = script("kafka-storage", *arguments, *user)
    assert ran.status == 1
    assert ran.err.startswith("--add-scram is not supported")
    assert not (tmp_path / "a").exists()
    ran = script("kafka-storage", *arguments, "--standalone", "--no-initial-controllers")
    assert ran.status == 1
    ran = script("kafka-storage", *arguments, "--feature", "group.version=1")
    assert ran.status == 0
    assert ran.err.startswith("--release-version and --feature have no effect here")


def test_the_scripts_find_a_python_by_themselves(tmp_path: Path) -> None:
    """From another folder, with no variable of ours set."""
    ran = script("kafka-topics", "--version", cwd=tmp_path, variables={"TIDEMILL_PYTHON": ""})
    assert (ran.status, ran.out) == (0, "4.3.1\n"), ran.err


def test_java_classes_in_a_file_of_settings_are_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nearly every producer.properties of a Java program names its serializers."""
    path = tmp_path / "producer.properties"
    path.write_text("acks=all\nkey.serializer=org.apache.kafka.common.serialization.S\n")
    options = argparse.Namespace(bootstrap_server="127.0.0.1:1", command_config=str(path))
    assert common.target(options, "").settings == {"acks": "all"}
    assert "ignored: key.serializer" in capsys.readouterr().err
