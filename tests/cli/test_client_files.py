"""A user's producer.properties and consumer.properties: told apart, checked, filled in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.cli.client_files import Kind, overridden, read, read_all
from tidemill.cli.exits import CommandError, Exit
from tidemill.config.properties import parse_properties


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("one.properties", "acks=all\n", Kind.PRODUCER),
        ("one.properties", "enable.idempotence=true\nclient.id=x\n", Kind.PRODUCER),
        ("one.properties", "key.serializer=org.example.Serializer\n", Kind.PRODUCER),
        ("one.properties", "group.id=g\n", Kind.CONSUMER),
        ("one.properties", "isolation.level = read_committed\n", Kind.CONSUMER),
        ("my-producer.conf", "client.id=x\n", Kind.PRODUCER),
        ("Consumer.properties", "", Kind.CONSUMER),
        # What it says counts more than what it is called.
        ("consumer.properties", "acks=1\nlinger.ms=5\n", Kind.PRODUCER),
    ],
)
def test_a_file_is_told_by_its_keys_else_by_its_name(
    name: str, text: str, kind: Kind, tmp_path: Path
) -> None:
    assert read(write(tmp_path, name, text)).kind is kind


def test_settings_and_what_is_put_aside(tmp_path: Path) -> None:
    text = (
        "# ours\nbootstrap.servers=prod:9092\nacks : all\nlinger.ms=5\n"
        "sasl.jaas.config=secret\nssl.keystore.location=/x\nsecurity.protocol=SASL_SSL\n"
        "value.serializer=org.example.S\n"
    )
    file = read(write(tmp_path, "a.properties", text))
    assert file.settings == {"acks": "all", "linger.ms": "5"}
    assert set(file.put_aside) == {
        "bootstrap.servers",
        "sasl.jaas.config",
        "ssl.keystore.location",
        "security.protocol",
        "value.serializer",
    }


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("acks=all\nlinger.msec=5\n", "a.properties:2: unknown setting `linger.msec`"),
        ("acks=all\nlinger.msec=5\n", "did you mean `linger.ms`?"),
        ("ack=1\n", "did you mean `acks`?"),
        ("acks=2\n", "a.properties:1: `acks` must be one of"),
        ("acks=all\nretries=many\n", "a.properties:2: `retries` must be a number"),
        ("acks=1\nretries=1\ngroup.id=g\n", "`group.id` is a consumer's setting"),
        ("transactional.id=t\n", "the load has no transactions"),
        ("acks=all\nrequest.required.acks=1\n", "was removed from Kafka; use acks"),
        ("client.id=x\n", "cannot tell whether"),
        ("acks=all\nclient.id=\\u12\n", "line 2"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(CommandError) as caught:
        read(write(tmp_path, "a.properties", text))
    assert complaint in caught.value.message
    assert caught.value.exit_code is Exit.USAGE


def test_a_program_may_know_settings_that_our_clients_do_not(tmp_path: Path) -> None:
    path = write(tmp_path, "a.properties", "acks=all\ntransactional.id=t\nmy.own=1\n")
    file = read(path, strict=False)
    assert file.settings == {"acks": "all"}
    assert set(file.put_aside) == {"transactional.id", "my.own"}


def test_two_files_for_one_client_are_one_too_many(tmp_path: Path) -> None:
    one = write(tmp_path, "one", "acks=all\n")
    two = write(tmp_path, "two", "acks=1\n")
    with pytest.raises(CommandError, match="both for the producer"):
        read_all([str(one), str(two)], strict=True)


def test_a_client_without_a_file_has_the_defaults(tmp_path: Path) -> None:
    path = write(tmp_path, "one", "acks=all\n")
    files = read_all([str(path)], strict=True)
    assert files[Kind.PRODUCER].path == path
    assert files[Kind.CONSUMER].settings == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "acks=all",
        "acks=all\nbootstrap.servers=prod:9092\nlinger.ms=5\n",
        "acks=all\nbootstrap.servers = a:1,\\\n   b:2\nlinger.ms=5\n",
        "acks=all\nlinger.ms=5\\",
        "# bootstrap.servers=old:1\nacks=all\n",
    ],
)
def test_the_brokers_address_is_filled_in_and_all_else_stays(text: str, tmp_path: Path) -> None:
    file = read(write(tmp_path, "producer.properties", text), strict=False)
    found = {each.key: each.value for each in parse_properties(file.filled_in("here:1"))}
    before = {each.key: each.value for each in parse_properties(text)}
    assert found == {**before, "bootstrap.servers": "here:1"}
    assert file.filled_in("here:1").count("bootstrap.servers=") == 1 + text.count("# bootstrap")


def test_settings_of_the_command_line_come_on_top(tmp_path: Path) -> None:
    path = write(tmp_path, "producer.properties", "acks=all\nlinger.ms=5\n")
    files = overridden(
        read_all([str(path)], strict=True), {"acks": "1", "group.id": "g", "client.id": "x"}
    )
    assert files[Kind.PRODUCER].settings == {"acks": "1", "linger.ms": "5", "client.id": "x"}
    assert files[Kind.CONSUMER].settings == {"group.id": "g", "client.id": "x"}
    filled = files[Kind.PRODUCER].filled_in("here:1")
    assert {e.key: e.value for e in parse_properties(filled)}["acks"] == "1"
    with pytest.raises(CommandError, match="did you mean `acks`"):
        overridden(files, {"acs": "1"})
