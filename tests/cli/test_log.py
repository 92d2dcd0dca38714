"""`tidemill log` on files that a broker wrote, and on ones that it did not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.cli.helpers import quick

from tidemill.cli.exits import Exit
from tidemill.testing.process import BrokerProcess

SEGMENT = "00000000000000000000.log"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a broker that stopped cleanly; `t-0` holds three records."""
    here = tmp_path_factory.mktemp("log") / "data"
    with BrokerProcess(here) as broker:
        assert quick("topic", "create", "t", "-p", "1", "-b", broker.bootstrap).status == 0
        sent = quick("produce", "t", "-K:", "-b", broker.bootstrap, stdin="a:1\nb:2\nc:3\n")
        assert sent.status == 0, sent.err
    return here


@pytest.fixture
def partition(written: Path, tmp_path: Path) -> Path:
    """A copy of the partition that a test may damage."""
    return Path(shutil.copytree(written / "t-0", tmp_path / "t-0"))


def test_dump_as_text_and_as_json(partition: Path) -> None:
    text = quick("log", "dump", str(partition / SEGMENT), "--records")
    assert text.status == 0, text.err
    assert " key: b payload: 2" in text.out
    lines = quick("log", "dump", str(partition / SEGMENT), "--records", "--format", "json").out
    batches = [json.loads(line) for line in lines.splitlines()]
    records = [record for batch in batches for record in batch["records"]]
    assert [(r["offset"], r["key"], r["value"]) for r in records] == [
        (0, "a", "1"),
        (1, "b", "2"),
        (2, "c", "3"),
    ]
    assert all(batch["crc_valid"] for batch in batches)


def test_every_kind_of_file_can_be_dumped(partition: Path) -> None:
    for path in partition.iterdir():
        ran = quick("log", "dump", str(path), "--format", "json")
        assert ran.status == 0, (path, ran.err)


def test_verify_finds_a_data_directory_sound(written: Path) -> None:
    ran = quick("log", "verify", str(written), "--deep", "--format", "json")
    assert ran.status == 0, ran.err
    by_name = {Path(row["directory"]).name: row for row in json.loads(ran.out)}
    assert by_name["t-0"]["records"] == 3
    assert by_name["t-0"]["sound"] is True


def test_verify_finds_a_flipped_bit_and_says_what_to_do(partition: Path) -> None:
    data = bytearray((partition / SEGMENT).read_bytes())
    data[-1] ^= 1
    (partition / SEGMENT).write_bytes(data)
    ran = quick("log", "verify", str(partition), "--format", "json")
    assert ran.status == Exit.FAILED
    [row] = json.loads(ran.out)
    assert any(p["severity"] == "error" and p["advice"] for p in row["problems"])


def test_import_writes_a_directory_that_verifies(partition: Path, tmp_path: Path) -> None:
    target = tmp_path / "new" / "t-0"
    dry = quick("log", "import", str(partition), str(target), "--dry-run")
    assert dry.status == 0, dry.err
    assert not target.exists()
    ran = quick("log", "import", str(partition), str(target), "--format", "json")
    assert json.loads(ran.out)["end_offset"] == 3
    assert quick("log", "verify", str(target)).status == 0
    assert quick("log", "import", str(partition), str(target)).status == Exit.FAILED


@pytest.mark.parametrize("verb", ["dump", "verify"])
def test_what_is_not_there_is_not_found(verb: str, tmp_path: Path) -> None:
    assert quick("log", verb, str(tmp_path / "none")).status == Exit.NOT_FOUND
    assert quick("log", verb).status == Exit.USAGE
