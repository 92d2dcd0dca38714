"""Style is a test: what a reviewer would have to say twice is checked here once.

Each failure names the replacement. Length and shape of code are judged by reading, not here.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "tidemill"

# Modules that may touch the machine itself; everybody else is handed a clock, files, randomness.
TOUCHES_THE_MACHINE = (
    "clock.py",
    "executor.py",
    "logs.py",
    "storage/files.py",
    "store/sqlite.py",
    "store/sqlite_session.py",
    "broker/listener.py",
    "broker/server.py",
    "broker/status.py",
    "client/connection.py",
    "client/blocking.py",
    "client/blocking_twin.py",
    "config/sources.py",
    "config/reference.py",
    "spark/cluster.py",
    "ship/disk.py",
    "cli/",
    "testing/",
)

BANNED_CALLS = {
    "time.time": "take a Clock and call now_ms()",
    "time.time_ns": "take a Clock and call now_ms()",
    "time.monotonic": "take a Clock and call monotonic_ms()",
    "time.monotonic_ns": "take a Clock and call monotonic_ms()",
    "time.sleep": "schedule on the timing wheel",
    "datetime.now": "take a Clock",
    "datetime.utcnow": "take a Clock",
    "random.random": "take a random.Random",
    "random.randint": "take a random.Random",
    "random.choice": "take a random.Random",
    "uuid.uuid4": "make the id from an injected random.Random",
    "uuid4": "make the id from an injected random.Random",
    "open": "go through storage.files.Files",
    "socket.socket": "only listeners and client connections own sockets",
    "os.urandom": "take a random.Random",
    "eval": "parse the value",
    "pickle.loads": "use msgspec",
    "yaml.load": "use msgspec",
}

# Everywhere, machine-touching or not.
BANNED_EVERYWHERE = {
    "print": "write through cli.output, or log",
    "eval": "parse the value",
    "pickle.loads": "use msgspec",
    "pickle.load": "use msgspec",
    "importlib.import_module": "plug-ins are a fixed table; import them by name",
}

LEFTOVERS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")


def python_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def tracked_text_files() -> Iterator[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    names = listed.stdout.splitlines()
    for name in names or [str(path.relative_to(ROOT)) for path in python_files(SOURCE)]:
        path = ROOT / name
        if path.is_file() and path.suffix in {".py", ".md", ".toml", ".sh", ".txt", ".yml", ""}:
            yield path


def called_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield node.lineno, ast.unparse(node.func)


@pytest.mark.parametrize(
    "path", python_files(SOURCE), ids=lambda path: str(path.relative_to(SOURCE))
)
def test_no_banned_calls(path: Path) -> None:
    """Clock, randomness, files and network are injected, so that a simulation can own them."""
    relative = path.relative_to(SOURCE).as_posix()
    banned = dict(BANNED_EVERYWHERE)
    if not relative.startswith(TOUCHES_THE_MACHINE):
        banned |= BANNED_CALLS
    if relative.startswith("cli/"):
        # The command line loads its sub-commands late, from its own fixed table.
        banned.pop("importlib.import_module")
    if relative == "wire/apis.py":
        banned.pop("importlib.import_module")
    found = [
        f"{relative}:{line}: {name}() - {banned[name]}"
        for line, name in called_names(ast.parse(path.read_text()))
        if name in banned
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "path", python_files(SOURCE), ids=lambda path: str(path.relative_to(SOURCE))
)
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), f"{path.name} has no module docstring"


def test_no_leftover_markers() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked_text_files()
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if LEFTOVERS.search(line)
    ]
    assert not found, f"finish these or delete them: {found}"


def test_every_handler_file_states_its_contract() -> None:
    """A handler file's docstring names the API versions it serves: `ls` is the protocol's index."""
    for path in python_files(SOURCE / "broker" / "handlers"):
        if "@handles(" not in path.read_text():
            continue
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        assert re.search(r"\bv?\d+-\d+|\bv\d+", docstring), f"{path.name}: name its versions"


def test_no_dead_modules() -> None:
    """A module that nothing imports is either an entry point or should be deleted."""
    entry_points = {"__main__", "main", "reference", "kernels"}
    named_in: Counter[str] = Counter()
    words_of: dict[Path, set[str]] = {}
    for path in [*python_files(SOURCE), *python_files(ROOT / "tests")]:
        words_of[path] = set(re.findall(r"\w+", path.read_text()))
        named_in.update(words_of[path])
    for path in python_files(SOURCE):
        if path.stem == "__init__" or path.stem in entry_points:
            continue
        elsewhere = named_in[path.stem] - (path.stem in words_of[path])
        assert elsewhere, f"nothing imports {path.relative_to(ROOT)}"
