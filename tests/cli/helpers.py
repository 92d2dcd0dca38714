"""Running the commands as a user does: in a process, with nothing but arguments and variables."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from tidemill.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / "bin"
TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Ran:
    """What a finished command left."""

    status: int
    out: str
    err: str


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables of a user who has set nothing of ours: this checkout, this interpreter."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TIDEMILL_", "PYTHON"))}
    return kept | {
        "PYTHONPATH": str(ROOT / "src"),
        "TIDEMILL_PYTHON": sys.executable,
        "NO_COLOR": "1",
        "COLUMNS": "100",
        **(more or {}),
    }


def run(
    command: Sequence[str],
    *,
    stdin: str | None = None,
    variables: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Ran:
    done = subprocess.run(
        list(command),
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        env=environment(variables),
        cwd=cwd,
        timeout=timeout_s,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def tidemill(
    *arguments: str,
    stdin: str | None = None,
    variables: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Ran:
    """`tidemill ARGUMENTS`."""
    command = [sys.executable, "-m", "tidemill.cli", *arguments]
    return run(command, stdin=stdin, variables=variables, cwd=cwd)


def quick(
    *arguments: str,
    stdin: str | None = None,
    variables: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Ran:
    """`tidemill ARGUMENTS` inside this process: the same `main`, without a Python's start."""
    out, err = _Captured(), _Captured()
    source = io.TextIOWrapper(io.BytesIO((stdin or "").encode()))
    with (
        mock.patch.dict(os.environ, environment(variables), clear=True),
        mock.patch.multiple(sys, stdin=source, stdout=out, stderr=err),
        contextlib.chdir(cwd or Path.cwd()),
    ):
        try:
            status = main(arguments)
        except SystemExit as stop:
            status = int(stop.code or 0)
    return Ran(status, out.text(), err.text())


class _Captured(io.TextIOWrapper):
    """A stream that remembers; commands write to its text and to its `buffer`."""

    def __init__(self) -> None:
        self._bytes = io.BytesIO()
        super().__init__(self._bytes, encoding="utf-8", write_through=True)

    def text(self) -> str:
        return self._bytes.getvalue().decode()


def script(
    name: str,
    *arguments: str,
    stdin: str | None = None,
    variables: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Ran:
    """`bin/NAME.sh ARGUMENTS`."""
    path = BIN / (name if name.endswith(".sh") else f"{name}.sh")
    return run([str(path), *arguments], stdin=stdin, variables=variables, cwd=cwd)


def shell(
    line: str,
    *,
    path: Path,
    variables: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Ran:
    """A command line word for word, by /bin/sh, with `path` first on the PATH."""
    found = {"PATH": f"{path}{os.pathsep}{os.environ.get('PATH', '')}", **(variables or {})}
    return run(["/bin/sh", "-c", line], variables=found, cwd=cwd, timeout_s=timeout_s)


def install(directory: Path) -> Path:
    """A folder with `tidemill` and the Kafka-named scripts, as an installation puts them there."""
    directory.mkdir(parents=True, exist_ok=True)
    command = directory / "tidemill"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tidemill.cli "$@"\n')
    command.chmod(0o755)
    for each in BIN.glob("kafka-*.sh"):
        wrapper = directory / each.name
        wrapper.write_text(f'#!/bin/sh\nexec "{each}" "$@"\n')
        wrapper.chmod(0o755)
    return directory
