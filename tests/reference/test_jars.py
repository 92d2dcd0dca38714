"""Where the jars come from: a folder that somebody names, Maven, or a reason why not."""

from __future__ import annotations

import shutil
from pathlib import Path

import platformdirs
import pytest
from tests.reference import jars
from tests.reference.jars import JarSet

PAIR = JarSet("pair", "1", "TIDEMILL_PAIR_JARS", "one-1.jar", ("g:one:1", "g:two:2"), False)


@pytest.fixture(autouse=True)
def _a_machine_with_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda name: str(tmp_path / name))


def test_a_folder_without_the_jars_is_explained(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(PAIR.variable, str(tmp_path))
    assert PAIR.find() == f"TIDEMILL_PAIR_JARS={tmp_path} holds no one-1.jar"
    (tmp_path / "one-1.jar").touch()
    assert PAIR.find() == tmp_path


def test_a_machine_without_maven_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "mvn" else name)
    found = PAIR.find()
    assert isinstance(found, str)
    assert "no `mvn` on the PATH" in found
    assert PAIR.variable in found


def test_jars_that_stand_alone_are_fetched_one_by_one_and_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    def maven(goal: tuple[str, ...], work: Path) -> None:
        name, artifact, into = goal
        assert (name, into) == ("dependency:copy", f"-DoutputDirectory={work}/jars")
        asked.append(artifact)
        (work / "jars").mkdir(exist_ok=True)

    monkeypatch.setattr(jars, "_run_maven", maven)
    assert PAIR.find() == PAIR.find() == tmp_path / "tidemill" / "pair-1"
    assert asked == ["-Dartifact=g:one:1", "-Dartifact=g:two:2"]


def test_a_download_that_fails_leaves_no_folder_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def maven(goal: tuple[str, ...], work: Path) -> None:
        (work / "jars").mkdir(exist_ok=True)
        if goal[1].endswith("two:2"):
            raise jars.JarsUnavailableError("Maven could not fetch the jars: no such thing")

    monkeypatch.setattr(jars, "_run_maven", maven)
    assert PAIR.find() == "Maven could not fetch the jars: no such thing"
    assert [each.name for each in (tmp_path / "tidemill").iterdir()] == ["pair-1.lock"]
