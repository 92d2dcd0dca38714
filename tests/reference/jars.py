"""Finds the jars that tests and benchmarks compare with, and has Maven fetch them once.

A `JarSet` is a folder of jars with a name: the folder that its variable names, else a cache folder
that Maven fills. A machine without Java, Maven or a Maven repository gets `None` and a reason,
never a download loop. `kafka.py` holds the set of Apache Kafka, `spark_kafka.py` that of Spark's
Kafka connector.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import platformdirs

DOWNLOAD_TIMEOUT_S: Final = 600

logger = logging.getLogger(__name__)


class JarsUnavailableError(RuntimeError):
    """The jars cannot be had on this machine; the message says what is missing."""


@dataclass(frozen=True)
class JarSet:
    """Jars that belong together, by Maven's coordinates (`group:artifact:version`)."""

    name: str
    """What messages call them, and with the version the cache folder."""

    version: str
    variable: str
    """The environment variable that names a folder of them."""

    first_jar: str
    """A file that must be there, so that a wrong folder is noticed at once."""

    artifacts: tuple[str, ...]
    transitive: bool
    """Whether what they depend on is fetched, too."""

    def find(self) -> Path | str:
        """The jars' folder, or the reason why there is none."""
        try:
            return self._require()
        except JarsUnavailableError as problem:
            logger.warning("%s %s is not available: %s", self.name, self.version, problem)
            return str(problem)

    def _require(self) -> Path:
        if shutil.which("java") is None:
            raise JarsUnavailableError("no `java` on the PATH; Java 17 or newer is needed")
        named = os.environ.get(self.variable)
        if named:
            if not (Path(named) / self.first_jar).is_file():
                raise JarsUnavailableError(f"{self.variable}={named} holds no {self.first_jar}")
            return Path(named)
        cache = Path(platformdirs.user_cache_dir("tidemill")) / f"{self.name}-{self.version}"
        if not cache.is_dir():
            self._download(cache)
        return cache

    def _download(self, target: Path) -> None:
        """Fill `target`: one process at a time, and the folder appears whole or not at all."""
        if shutil.which("mvn") is None:
            raise JarsUnavailableError(
                "no `mvn` on the PATH; install Maven, or let "
                f"{self.variable} name a folder of the jars"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        with (
            locked(target.parent / f"{target.name}.lock"),
            tempfile.TemporaryDirectory(
                dir=target.parent, prefix=f"{self.name}-download-"
            ) as work_dir,
        ):
            if target.is_dir():  # another process finished while this one waited for the lock
                return
            work = Path(work_dir)
            for goal in self._maven_goals(work):
                _run_maven(goal, work)
            os.rename(work / "jars", target)

    def _maven_goals(self, work: Path) -> Iterator[Sequence[str]]:
        into = f"-DoutputDirectory={work}/jars"
        if self.transitive:
            (work / "pom.xml").write_text(_pom(self.name, self.artifacts))
            yield ("dependency:copy-dependencies", into)
            return
        # One by one: a repository that lacks something they depend on does not matter then.
        for artifact in self.artifacts:
            yield ("dependency:copy", f"-Dartifact={artifact}", into)


def _pom(name: str, artifacts: Sequence[str]) -> str:
    wanted = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version></dependency>\n"
        for group, artifact, version in (each.split(":") for each in artifacts)
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0">\n'
        "<modelVersion>4.0.0</modelVersion><groupId>tidemill.reference</groupId>\n"
        f"<artifactId>{name}-jars</artifactId><version>1</version>\n"
        f"<dependencies>\n{wanted}</dependencies>\n</project>\n"
    )


def _run_maven(goal: Sequence[str], work: Path) -> None:
    try:
        done = subprocess.run(
            ["mvn", "-q", "-B", *goal],
            cwd=work, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise JarsUnavailableError(f"Maven did not finish in {DOWNLOAD_TIMEOUT_S} s") from None
    if done.returncode != 0:
        last_lines = " | ".join((done.stdout + done.stderr).strip().splitlines()[-3:])
        raise JarsUnavailableError(f"Maven could not fetch the jars: {last_lines}")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock between processes for the length of the block."""
    with open(path, "w") as lock_file:
        fcntl.flock(lock_file, fcntl.LOCK_EX)
        yield
