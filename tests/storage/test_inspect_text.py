"""What `kafka-dump-log.sh` prints is what Apache Kafka 4.3.1's tool prints, line by line.

The expected text in `dump_expected/` came out of Kafka's tool; `test_kafka_still_says_so` asks it
again where it can run.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.reference.kafka import kafka_jars, run_kafka_tool, unavailable_reason
from tests.storage.dump_samples import START, write_samples

from tidemill.storage.files import OsFiles
from tidemill.storage.inspect import InspectError
from tidemill.storage.inspect_text import DumpOptions, kafka_dump

FILES = OsFiles(open_files_max=16)

EXPECTED = Path(__file__).parent / "dump_expected"
PLAIN = f"plain-0/{START}"
OLD = f"old-0/{START}"
DAMAGED = f"damaged-0/{START[:-2]}20"
INDEXES = (".index", ".timeindex")

CASES: dict[str, tuple[list[str], DumpOptions, list[str]]] = {
    "plain-print": (
        [f"{PLAIN}{end}" for end in (".log", *INDEXES, ".txnindex")]
        + [f"plain-0/{START[:-2]}11.snapshot", "plain-0/leader-epoch-checkpoint"],
        DumpOptions(print_data=True),
        ["--print-data-log"],
    ),
    "plain-shallow": ([f"{PLAIN}.log"], DumpOptions(), []),
    "plain-deep": ([f"{PLAIN}.log"], DumpOptions(deep_iteration=True), ["--deep-iteration"]),
    "plain-skip": (
        [f"{PLAIN}.log"],
        DumpOptions(print_data=True, skip_record_metadata=True),
        ["--print-data-log", "--skip-record-metadata"],
    ),
    "plain-max-bytes": ([f"{PLAIN}.log"], DumpOptions(max_bytes=200), ["--max-bytes", "200"]),
    "plain-sanity": (
        [f"{PLAIN}{end}" for end in INDEXES],
        DumpOptions(index_sanity_only=True),
        ["--index-sanity-check"],
    ),
    "plain-verify": (
        [f"{PLAIN}{end}" for end in INDEXES],
        DumpOptions(verify_index_only=True),
        ["--verify-index-only"],
    ),
    "old-print": (
        [f"{OLD}{end}" for end in (".log", *INDEXES)],
        DumpOptions(print_data=True),
        ["--print-data-log"],
    ),
    "old-shallow": ([f"{OLD}.log"], DumpOptions(), []),
    "damaged-print": (
        [f"{DAMAGED}{end}" for end in (".log", *INDEXES)],
        DumpOptions(print_data=True),
        ["--print-data-log"],
    ),
    "damaged-verify": (
        [f"{DAMAGED}{end}" for end in INDEXES],
        DumpOptions(verify_index_only=True),
        ["--verify-index-only"],
    ),
}


def _ours(directory: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    paths, options, _ = CASES[name]
    monkeypatch.chdir(directory)
    lines = list(kafka_dump(FILES, paths, options, cwd=str(directory)))
    out = "".join(f"{line.text}\n" for line in lines if line.stream == "out")
    return out, "".join(f"{line.text}\n" for line in lines if line.stream == "err")


@pytest.mark.parametrize("name", CASES)
def test_lines_are_kafkas(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_samples(tmp_path)
    out, err = _ours(tmp_path, name, monkeypatch)
    assert out == (EXPECTED / f"{name}.out.txt").read_text()
    assert err.replace(str(tmp_path), "DIR") == (EXPECTED / f"{name}.err.txt").read_text()


@pytest.mark.reference
@pytest.mark.parametrize("name", ["plain-print", "old-print", "damaged-print"])
def test_kafka_still_says_so(name: str, tmp_path: Path) -> None:
    if kafka_jars() is None:
        pytest.skip(f"NO REFERENCE: Apache Kafka cannot run here: {unavailable_reason()}")
    write_samples(tmp_path)
    paths, _, flags = CASES[name]
    out = run_dump_tool(tmp_path, paths, flags)[0]
    wanted = (EXPECTED / f"{name}.out.txt").read_text()
    assert out == "\n".join(_absolute(line, tmp_path) for line in wanted.split("\n"))


def _absolute(line: str, directory: Path) -> str:
    return line.replace("Dumping ", f"Dumping {directory}/") if line.startswith("Dumping") else line


def run_dump_tool(directory: Path, paths: list[str], flags: list[str]) -> tuple[str, str]:
    """Kafka's own tool over the files."""
    files = ",".join(str(directory / path) for path in paths)
    result = run_kafka_tool("kafka-dump-log", "--files", files, *flags)
    return result.stdout, result.stderr


def test_an_index_of_a_torn_size_says_so(tmp_path: Path) -> None:
    (tmp_path / f"{START}.index").write_bytes(b"123")
    (tmp_path / f"{START}.log").write_bytes(b"")
    with pytest.raises(InspectError, match="multiple of 8"):
        list(kafka_dump(FILES, [str(tmp_path / f"{START}.index")], DumpOptions(), cwd="/"))


def test_an_empty_index_says_so(tmp_path: Path) -> None:
    path = tmp_path / f"{START}.index"
    path.write_bytes(b"")
    lines = [line.text for line in kafka_dump(FILES, [str(path)], DumpOptions(), cwd="/")]
    assert lines == [f"Dumping {path}", f"{path} is empty."]


def test_a_preallocated_index_ends_at_its_zeros(tmp_path: Path) -> None:
    write_samples(tmp_path)
    path = tmp_path / f"{PLAIN}.index"
    path.write_bytes(path.read_bytes() + bytes(8 * 1000))
    lines = [line.text for line in kafka_dump(FILES, [str(path)], DumpOptions(), cwd="/")]
    assert len(lines) == 4
