"""The note of a data directory's brokers, and how `up` makes one from what it is given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tidemill.cli import fleet as fleets
from tidemill.cli import muster
from tidemill.cli.exits import CommandError, Exit
from tidemill.cli.fleet import FLAT, Fleet, Member
from tidemill.config import BrokerConfig, load_broker_config

LISTENERS = {"listeners": "PLAINTEXT://127.0.0.1:9092"}


def config(home: Path, **settings: str) -> BrokerConfig:
    overrides = {key.replace("_", "."): value for key, value in settings.items()}
    return load_broker_config(overrides={"log.dirs": str(home), **overrides})[0]


def three(home: Path, **settings: str) -> Fleet:
    return muster.several(config(home, **settings), 3, ["info"])


def test_brokers_get_ports_one_after_the_other_and_a_directory_each(tmp_path: Path) -> None:
    fleet = three(tmp_path, listeners="PLAINTEXT://127.0.0.1:7000")
    assert [(m.id, m.port, m.directory) for m in fleet.members] == [
        (1, 7000, "broker-1"),
        (2, 7001, "broker-2"),
        (3, 7002, "broker-3"),
    ]
    second = fleet.settings_of(fleet.members[1])
    assert second["listeners"] == "PLAINTEXT://127.0.0.1:7001"
    assert second["log.dirs"] == str(tmp_path / "broker-2")
    assert second["store.url"] == f"sqlite://{tmp_path / 'store.db'}"
    assert second["node.id"] == "2"
    assert second["cluster.brokers.min"] == "3"


def test_settings_of_up_are_those_of_every_broker(tmp_path: Path) -> None:
    fleet = three(tmp_path, num_partitions="7")
    assert {fleet.settings_of(member)["num.partitions"] for member in fleet.members} == {"7"}


def test_the_note_survives_and_is_the_owners_alone(tmp_path: Path) -> None:
    fleet = three(tmp_path, num_partitions="7")
    fleets.save(fleet)
    assert fleets.load(tmp_path) == fleet
    assert (tmp_path / fleets.NOTE_NAME).stat().st_mode & 0o077 == 0


def test_a_directory_without_a_note_has_no_fleet(tmp_path: Path) -> None:
    assert fleets.load(tmp_path) is None
    assert muster.wanted_count(config(tmp_path), None) == 1
    assert muster.is_alone(config(tmp_path), 1)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": 9}', '{"format": 1, "members": []}'])
def test_a_damaged_note_is_refused_in_words(tmp_path: Path, text: str) -> None:
    (tmp_path / fleets.NOTE_NAME).write_text(text)
    with pytest.raises(CommandError, match=r"brokers\.json"):
        fleets.load(tmp_path)


def test_up_without_a_number_runs_as_many_as_there_were(tmp_path: Path) -> None:
    fleets.save(three(tmp_path))
    assert muster.wanted_count(config(tmp_path), None) == 3
    assert muster.wanted_count(config(tmp_path), 2) == 2
    assert not muster.is_alone(config(tmp_path), 1)


def test_up_with_fewer_forgets_nobody(tmp_path: Path) -> None:
    fleets.save(three(tmp_path))
    again = muster.several(config(tmp_path), 2, ["info"])
    assert [member.id for member in again.members] == [1, 2, 3]


def test_up_with_more_adds_brokers(tmp_path: Path) -> None:
    fleets.save(three(tmp_path))
    again = muster.several(config(tmp_path), 5, ["info"])
    assert [member.id for member in again.members] == [1, 2, 3, 4, 5]
    assert [member.port for member in again.members] == [9092, 9093, 9094, 9095, 9096]


def test_ports_are_kept_unless_others_are_named(tmp_path: Path) -> None:
    fleets.save(three(tmp_path, listeners="PLAINTEXT://127.0.0.1:7000"))
    kept = muster.several(config(tmp_path), 3, ["info"])
    assert [member.port for member in kept.members] == [7000, 7001, 7002]
    elsewhere = muster.several(
        config(tmp_path, listeners="PLAINTEXT://127.0.0.1:8000"), 3, ["info"]
    )
    assert [member.port for member in elsewhere.members] == [8000, 8001, 8002]
    assert elsewhere.members[2].settings["listeners"] == "PLAINTEXT://127.0.0.1:8002"


def test_port_zero_takes_a_free_port_for_each(tmp_path: Path) -> None:
    fleet = three(tmp_path, listeners="PLAINTEXT://127.0.0.1:0")
    ports = [member.port for member in fleet.members]
    assert len(set(ports)) == 3
    assert set(ports) <= set(muster.FREE_PORTS)
    for member in fleet.members:
        assert member.settings["listeners"] == f"PLAINTEXT://127.0.0.1:{member.port}"


def test_advertised_addresses_move_with_the_listeners(tmp_path: Path) -> None:
    fleet = three(
        tmp_path,
        listeners="PLAINTEXT://0.0.0.0:9092",
        advertised_listeners="PLAINTEXT://example.org:19092",
    )
    assert fleet.members[2].settings == {
        "listeners": "PLAINTEXT://0.0.0.0:9094",
        "advertised.listeners": "PLAINTEXT://example.org:19094",
    }


@pytest.mark.parametrize("key", ["node_id", "broker_id"])
def test_several_brokers_cannot_have_one_number(tmp_path: Path, key: str) -> None:
    with pytest.raises(CommandError, match=r"leave (node|broker)\.id out") as refused:
        three(tmp_path, **{key: "4"})
    assert refused.value.exit_code is Exit.USAGE


def test_several_brokers_take_one_directory(tmp_path: Path) -> None:
    several_dirs = load_broker_config(overrides={"log.dirs": f"{tmp_path}/a,{tmp_path}/b"})[0]
    with pytest.raises(CommandError, match=r"name one in log\.dirs"):
        muster.several(several_dirs, 2, ["info"])


@pytest.mark.parametrize("count", [0, -1, 65])
def test_the_number_of_brokers_is_bounded(tmp_path: Path, count: int) -> None:
    with pytest.raises(CommandError, match="--brokers is 1 to 64"):
        muster.wanted_count(config(tmp_path), count)


def test_on_a_zookeeper_the_numbers_come_from_there(tmp_path: Path) -> None:
    """Two machines that each count from 1 would take each other's brokers for their own."""
    fleet = three(tmp_path, store_url="zk://127.0.0.1:2181/t")
    assert [member.id for member in fleet.members] == [None, None, None]
    settings = fleet.settings_of(fleet.members[0])
    assert settings["store.url"] == "zk://127.0.0.1:2181/t"
    assert "node.id" not in settings


def test_a_store_in_a_file_is_found_from_any_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fleet = three(tmp_path / "d", store_url="sqlite://shared.db")
    assert fleet.store == f"sqlite://{tmp_path / 'shared.db'}"
    assert [member.id for member in fleet.members] == [1, 2, 3]


class TestABrokerThatWasAlone:
    """Its data is in the directory itself; others that join it go where they are no partitions."""

    def test_it_is_written_down_with_its_own_settings(self, tmp_path: Path) -> None:
        fleet = muster.alone(config(tmp_path, num_partitions="7"), ["info"], 9092)
        [member] = fleet.members
        assert (member.id, member.port, member.directory) == (None, 9092, FLAT)
        settings = fleet.settings_of(member)
        assert settings["log.dirs"] == str(tmp_path)
        assert settings["num.partitions"] == "7"
        assert "store.url" not in settings
        assert "node.id" not in settings

    def test_a_port_that_it_was_given_is_the_one_it_comes_back_on(self, tmp_path: Path) -> None:
        fleet = muster.alone(config(tmp_path, listeners="PLAINTEXT://127.0.0.1:0"), [], 4711)
        assert fleet.members[0].settings["listeners"] == "PLAINTEXT://127.0.0.1:4711"

    def test_others_join_it(self, tmp_path: Path) -> None:
        fleet = muster.alone(config(tmp_path), ["info"], 9092)
        fleet = fleets.added(fleet, 9100)
        new = fleet.members[1]
        assert (new.id, new.port, new.directory) == (1, 9100, "brokers/broker-1")
        assert fleet.settings_of(new)["listeners"] == "PLAINTEXT://127.0.0.1:9100"
        for member in fleet.members:
            assert fleet.settings_of(member)["store.url"] == f"sqlite://{tmp_path / 'store.db'}"

    def test_its_data_becomes_the_first_brokers(self, tmp_path: Path) -> None:
        (tmp_path / "meta.properties").write_text("version=1\n")
        fleet = three(tmp_path)
        assert [(m.id, m.directory) for m in fleet.members] == [
            (None, FLAT),
            (1, "brokers/broker-1"),
            (2, "brokers/broker-2"),
        ]

    def test_it_does_not_forget_who_joined_it(self, tmp_path: Path) -> None:
        fleets.save(fleets.added(muster.alone(config(tmp_path), ["info"], 9092), 9093))
        again = muster.alone(config(tmp_path, num_partitions="3"), ["info"], 9092)
        assert [member.port for member in again.members] == [9092, 9093]


@pytest.mark.parametrize(
    ("listeners", "ports", "moved"),
    [
        ("PLAINTEXT://h:1", 2, "PLAINTEXT://h:3"),
        ("A://h:1,B://[::1]:10", 2, "A://h:3,B://[::1]:12"),
        ("A://:0", 2, "A://:0"),
    ],
)
def test_listeners_move_together(listeners: str, ports: int, moved: str) -> None:
    assert fleets.shifted(listeners, ports) == moved


def test_a_new_broker_takes_no_number_that_was_taken(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, (Member(5, 9092, "broker-5", LISTENERS),))
    assert fleets.added(fleet, 9093).members[1].id == 6
    numbered_by_store = replace(fleet, store="zk://h:2181", members=(Member(None, 1, "broker-5"),))
    new = fleets.added(numbered_by_store, 2).members[1]
    assert (new.id, new.directory) == (None, "broker-6")


def test_a_data_directory_has_a_limit(tmp_path: Path) -> None:
    members = tuple(Member(n, 1000 + n, f"broker-{n}", LISTENERS) for n in range(64))
    with pytest.raises(CommandError, match="at most 64"):
        fleets.added(Fleet(tmp_path, members), 9)
