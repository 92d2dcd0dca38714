"""What Spark lacks on a machine is said in one sentence, with what to do."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tidemill.spark import needs


def java_that_says(folder: Path, version: str) -> str:
    """A `java` on a path of its own."""
    folder.mkdir(parents=True)
    program = folder / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return str(folder)


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which all packages are installed, and JAVA_HOME is not set."""
    monkeypatch.setattr(needs, "PACKAGES", ())
    monkeypatch.delenv("JAVA_HOME", raising=False)


def test_packages_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found = needs.missing()
    assert found is not None
    assert "pyspark, pyarrow, deltalake" in found.what
    assert "pip install 'tidemill[spark]'" in found.remedy


@pytest.mark.usefixtures("packages")
def test_no_java_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = needs.missing()
    assert found is not None
    assert "there is none here" in found.what
    assert "Java 17" in found.remedy


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.21", "16.0.2"])
def test_a_java_that_is_too_old(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{java_that_says(tmp_path / 'bin', version)}:/usr/bin:/bin")
    found = needs.missing()
    assert found is not None
    assert "needs Java 17 or newer" in found.what


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize("version", ["17.0.15", "21", "25-ea"])
def test_a_java_that_will_do(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{java_that_says(tmp_path / 'bin', version)}:/usr/bin:/bin")
    assert needs.missing() is None


@pytest.mark.usefixtures("packages")
def test_java_home_goes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for Spark, which would try what is there and fail."""
    monkeypatch.setenv("PATH", f"{java_that_says(tmp_path / 'bin', '17.0.15')}:/usr/bin:/bin")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    found = needs.missing()
    assert found is not None
    assert str(tmp_path / "nothing/bin/java") in found.what
