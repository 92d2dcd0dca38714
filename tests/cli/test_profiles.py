"""Profiles, settings files and other commands that need no cluster."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from tests.cli.helpers import quick

from tidemill.cli.exits import Exit


def test_a_profile_is_created_listed_used_and_kept_with_its_comments(tmp_path: Path) -> None:
    variables = {"TIDEMILL_CONFIG_DIR": str(tmp_path)}
    made = quick(
        "profile", "create", "one", "-b", "h:1", "--set", "client.rack=r1", variables=variables
    )
    assert made.status == 0, made.err
    path = tmp_path / "profiles.toml"
    path.write_text("# mine\n" + path.read_text())
    assert quick("profile", "create", "two", "-b", "h:2", variables=variables).status == 0
    assert quick("profile", "use", "one", variables=variables).status == 0
    document = tomllib.loads(path.read_text())
    assert document["current"] == "one"
    assert path.read_text().startswith("# mine\n")
    assert path.stat().st_mode & 0o077 == 0
    listed = quick("profile", "list", "--format", "json", variables=variables)
    assert json.loads(listed.out) == [
        {"name": "one", "bootstrap": "h:1", "current": True, "settings": {"client.rack": "r1"}},
        {"name": "two", "bootstrap": "h:2", "current": False, "settings": {}},
    ]


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    variables = {"TIDEMILL_CONFIG_DIR": str(tmp_path)}
    ran = quick("profile", "create", "one", "-b", "h:1", "--dry-run", variables=variables)
    assert ran.status == 0
    assert ran.out.startswith("dry run: ")
    assert list(tmp_path.iterdir()) == []


def test_a_profile_that_does_not_exist_is_not_found(tmp_path: Path) -> None:
    variables = {"TIDEMILL_CONFIG_DIR": str(tmp_path)}
    assert quick("profile", "use", "none", variables=variables).status == Exit.NOT_FOUND
    ran = quick("topic", "list", "--profile", "none", variables=variables)
    assert ran.status == Exit.NOT_FOUND
    assert "tidemill profile create" in ran.err


def test_a_broken_profiles_file_is_said_to_be_broken(tmp_path: Path) -> None:
    (tmp_path / "profiles.toml").write_text("current = \n")
    ran = quick("profile", "list", variables={"TIDEMILL_CONFIG_DIR": str(tmp_path)})
    assert ran.status == Exit.FAILED
    assert "TOML" in ran.err
    assert "Traceback" not in ran.err


def test_config_explain_knows_default_value_and_origin() -> None:
    ran = quick(
        "config", "explain", "log.retention.hours", "--set", "log.retention.hours=24",
        "--format", "json",
    )  # fmt: skip
    found = json.loads(ran.out)
    assert (found["default"], found["current"], found["origin"]) == ("168", "24", "--set")


def test_config_explain_of_a_wrong_key_suggests_the_right_one() -> None:
    ran = quick("config", "explain", "retention.mss")
    assert ran.status == Exit.NOT_FOUND
    assert "retention.ms" in ran.err


def test_config_check_finds_what_is_wrong_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("num.partitions=3\nlog.retention.hour=1\n")
    ran = quick("config", "check", str(path), "--format", "json")
    assert ran.status == Exit.FAILED
    [problem] = [p for p in json.loads(ran.out) if p["severity"] == "error"]
    assert (problem["line"], problem["key"]) == (2, "log.retention.hour")
    assert "log.retention.hours" in problem["message"]


def test_config_print_shows_the_origin_of_each_setting() -> None:
    variables = {"TIDEMILL_NUM_PARTITIONS": "7"}
    ran = quick("config", "print", "--format", "json", variables=variables)
    assert {"key": "num.partitions", "value": "7", "source": "$TIDEMILL_NUM_PARTITIONS",
            "read_only": True} in json.loads(ran.out)  # fmt: skip


def test_status_of_a_directory_without_a_broker_is_an_empty_list(tmp_path: Path) -> None:
    ran = quick("status", "--data-dir", str(tmp_path), "--format", "json")
    assert (ran.status, json.loads(ran.out)) == (0, {"brokers": []})


def test_a_setting_that_does_not_exist_stops_up_with_a_suggestion(tmp_path: Path) -> None:
    ran = quick("up", "--data-dir", str(tmp_path / "data"), "--set", "num.partition=3")
    assert ran.status == Exit.USAGE
    assert "num.partitions" in ran.err
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("flags", "variables", "verdict", "status"),
    [
        ((), {"TIDEMILL_BOOTSTRAP": "127.0.0.1:1"}, "warn", Exit.OK),
        (("-b", "127.0.0.1:1"), {}, "fail", Exit.FAILED),
    ],
)
def test_doctor_reports_without_a_cluster(
    tmp_path: Path, flags: tuple[str, ...], variables: dict[str, str], verdict: str, status: Exit
) -> None:
    """There need be none yet; but one that was named on the command line has to answer."""
    command = ("doctor", "--data-dir", str(tmp_path), "--timeout", "0.5", "--format", "json")
    ran = quick(*command, *flags, variables=variables)
    found = {row["check"]: row["verdict"] for row in json.loads(ran.out)}
    assert found["cluster"] == verdict
    assert ran.status == status
    assert {"disk", "fsync", "file limit", "port"} <= set(found)
