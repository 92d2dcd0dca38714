"""A cluster's secret: for its user's sessions only, and gone with the cluster."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tidemill.spark import access
from tidemill.spark.sessions import recommended_conf, set_environment

MASTER = "spark://127.0.0.1:41234"


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(os, "environ", os.environ.copy())
    os.environ.pop("SPARK_CONF_DIR", None)
    folder = tmp_path / "conf"
    folder.mkdir()
    return folder


def test_only_its_user_can_read_it_and_each_cluster_has_another(conf: Path) -> None:
    found = set()
    for _ in range(2):
        access.write_secret(conf)
        path = conf / "spark-defaults.conf"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(conf.stat().st_mode) == 0o700
        switch, secret = path.read_text().splitlines()
        assert switch == "spark.authenticate true"
        found.add(secret.removeprefix("spark.authenticate.secret "))
    assert len(found) == 2
    assert min(map(len, found)) == 64


def test_a_session_on_this_machine_finds_it_and_shows_it_to_nobody(conf: Path) -> None:
    access.write_secret(conf)
    access.publish(MASTER, conf)
    for other in ("local[2]", "spark://10.0.0.7:41234", "spark://127.0.0.1:41235"):
        set_environment(other)
        assert "SPARK_CONF_DIR" not in os.environ
    set_environment(MASTER)
    assert os.environ["SPARK_CONF_DIR"] == str(conf)
    assert not any("authenticate" in name for name in recommended_conf(MASTER))
    access.withdraw(MASTER)
    assert access.conf_of(MASTER) is None


def test_a_folder_that_went_without_a_word_is_no_cluster(conf: Path) -> None:
    access.publish(MASTER, conf)
    assert access.conf_of(MASTER) is None
