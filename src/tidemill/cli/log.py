"""`tidemill log`: look into a partition's files, verify them, import old ones. No broker needed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from tidemill.cli.command import command
from tidemill.cli.exits import CommandError, Exit
from tidemill.cli.formats import header, named
from tidemill.cli.options import COMMON, Common, DryRun
from tidemill.cli.render import plain, talk

if TYPE_CHECKING:
    from tidemill.storage.files import Files
    from tidemill.storage.inspect import BatchRow

app = App(name="log")


@dataclass(frozen=True, slots=True)
class ProblemRow:
    """One thing that is wrong in a partition's directory, and what to do about it."""

    severity: str
    file: str
    position: int | None
    message: str
    advice: str


@dataclass(frozen=True, slots=True)
class Verified:
    """What `verify` saw in one directory."""

    directory: str
    sound: bool
    segments: int
    batches: int
    records: int
    old_messages: int
    size_bytes: int
    start_offset: int
    end_offset: int
    problems: tuple[ProblemRow, ...]


class VerifiedAll(list[Verified]):
    @property
    def exit_code(self) -> Exit:
        return Exit.OK if all(v.sound for v in self) else Exit.FAILED


@dataclass(frozen=True, slots=True)
class Imported:
    """What `import` did with one directory."""

    source: str
    target: str
    segments: int
    messages: int
    batches_written: int
    batches_copied: int
    bytes_read: int
    bytes_written: int
    start_offset: int
    end_offset: int
    torn_bytes: int
    dry_run: bool


@command(
    app,
    streams=True,
    examples=[
        "tidemill log dump clicks-0/00000000000000000000.log",
        "tidemill log dump clicks-0/00000000000000000000.log --records --format json",
        "tidemill log dump clicks-0/00000000000000000000.index",
    ],
)
def dump(
    *files: Annotated[str, Parameter(help="Logs, indexes, snapshots, checkpoints.")],
    records: Annotated[
        bool,
        Parameter(
            name=("--records", "-r"), negative=(), show_default=False, help="Show records, too."
        ),
    ] = False,
    common: Common = COMMON,
) -> None:
    """Print what is in files of a partition; old message formats (v0, v1) are understood."""
    from tidemill.storage.files import OsFiles
    from tidemill.storage.inspect_text import DumpOptions, kafka_dump

    if not files:
        raise CommandError("name at least one file", Exit.USAGE)
    for path in files:
        if not os.path.isfile(path):
            raise CommandError(f"{path}: no such file", Exit.NOT_FOUND)
    if common.fmt == "json":
        for path in files:
            for row in _rows(OsFiles(), path, records):
                sys.stdout.write(json.dumps(row) + "\n")
        return
    options = DumpOptions(deep_iteration=records, print_data=records)
    for line in kafka_dump(OsFiles(), files, options, cwd=os.getcwd()):
        stream = sys.stdout if line.stream == "out" else sys.stderr
        stream.write(line.text + "\n")


def _rows(files: Files, path: str, with_records: bool) -> Iterator[dict[str, Any]]:
    """The rows of one file as JSON objects."""
    from tidemill.storage import inspect

    kind = inspect.kind_of(path)
    if kind is inspect.FileKind.LOG:
        yield from _log_rows(files, path, with_records)
        return
    dumpers: dict[Any, Any] = {
        inspect.FileKind.INDEX: inspect.dump_index,
        inspect.FileKind.TIME_INDEX: inspect.dump_time_index,
        inspect.FileKind.TXN_INDEX: inspect.dump_txn_index,
        inspect.FileKind.SNAPSHOT: inspect.dump_snapshot,
        inspect.FileKind.EPOCHS: inspect.dump_epochs,
    }
    if kind not in dumpers:
        talk(f"{path}: not a file of a log")
        return
    for row in dumpers[kind](files, path):
        yield row._asdict() if hasattr(row, "_asdict") else plain(row)


def _log_rows(files: Files, path: str, with_records: bool) -> Iterator[dict[str, Any]]:
    from tidemill.storage.inspect import TailRow, dump_segment

    for row in dump_segment(files, path):
        if isinstance(row, TailRow):
            yield {"tail": row._asdict()}
            continue
        found = _batch_row(row)
        if with_records:
            found["records"] = [
                {"offset": r.offset, "timestamp": r.timestamp}
                | named("key", r.key)
                | named("value", r.value)
                | {"headers": [header(n, v) for n, v in r.headers]}
                for r in row.records()
            ]
        yield found


def _batch_row(row: BatchRow) -> dict[str, Any]:
    found: dict[str, Any] = {
        "position": row.position,
        "size_bytes": row.size_bytes,
        "magic": row.magic,
        "base_offset": row.base_offset,
        "last_offset": row.last_offset,
        "codec": row.codec.name.lower(),
        "max_timestamp": row.max_timestamp,
        "crc": row.crc,
        "crc_valid": row.crc_valid,
    }
    if row.header is not None:
        header = row.header
        found |= {
            "count": header.record_count,
            "leader_epoch": header.partition_leader_epoch,
            "producer_id": header.producer_id,
            "producer_epoch": header.producer_epoch,
            "base_sequence": header.base_sequence,
            "transactional": header.is_transactional,
            "control": header.is_control,
        }
    return found


@command(
    app,
    examples=["tidemill log verify clicks-0", "tidemill log verify clicks-0 --deep --format json"],
)
def verify(
    *directories: Annotated[str, Parameter(help="Directories of partitions, or a data directory.")],
    deep: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Decode every record, too.")
    ] = False,
    common: Common = COMMON,
) -> VerifiedAll:
    """Check checksums, offsets, indexes and checkpoints; changes nothing."""
    from tidemill.cli.progress import Progress
    from tidemill.storage.files import OsFiles
    from tidemill.storage.inspect_verify import verify_log

    chosen = [d for given in directories for d in _partitions(given)]
    if not chosen:
        raise CommandError("name at least one directory of a partition", Exit.USAGE)
    found = VerifiedAll()
    with Progress("verifying", len(chosen), unit="logs", no_color=common.no_color) as progress:
        for directory in chosen:
            report = verify_log(OsFiles(), directory, deep=deep)
            problems = tuple(
                ProblemRow(p.severity.value, p.file, p.position, p.message, p.advice)
                for p in report.problems
            )
            found.append(
                Verified(
                    directory,
                    report.is_sound,
                    report.segments,
                    report.batches,
                    report.records,
                    report.old_messages,
                    report.size_bytes,
                    report.start_offset,
                    report.end_offset,
                    problems,
                )
            )
            progress.advance(1)
    return found


def _partitions(path: str) -> list[str]:
    """The directory itself when it holds segments, else those in it that do."""
    if not os.path.isdir(path):
        raise CommandError(f"{path}: no such directory", Exit.NOT_FOUND)
    clean = path.rstrip("/") or "/"
    if any(name.endswith(".log") for name in os.listdir(clean)):
        return [clean]
    inner = sorted(os.path.join(clean, name) for name in os.listdir(clean))
    return [d for d in inner if _holds_a_log(d)]


def _holds_a_log(directory: str) -> bool:
    """Whether it is a partition's; those of deleted topics wait for their removal only."""
    if directory.endswith("-delete") or not os.path.isdir(directory):
        return False
    return any(name.endswith(".log") for name in os.listdir(directory))


@command(
    app,
    name="import",
    mutates=True,
    examples=[
        "tidemill log import old/clicks-0 imported/clicks-0 --dry-run",
        "tidemill log import old/clicks-0 imported/clicks-0",
    ],
)
def import_log(
    source: Annotated[str, Parameter(help="A partition's directory, any message format.")],
    target: Annotated[str, Parameter(help="A directory to create.")],
    /,
    *,
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> Imported:
    """Rewrite a directory of an old Kafka (v0, v1 message sets) with today's record batches."""
    from tidemill.storage.files import OsFiles
    from tidemill.storage.inspect_import import import_directory

    if not os.path.isdir(source):
        raise CommandError(f"{source}: no such directory", Exit.NOT_FOUND)
    if not dry_run:
        os.makedirs(os.path.dirname(os.path.abspath(target)), exist_ok=True)
    report = import_directory(
        OsFiles(), os.path.abspath(source), os.path.abspath(target), dry_run=dry_run
    )
    return Imported(
        source,
        target,
        report.segments,
        report.messages,
        report.batches_written,
        report.batches_copied,
        report.bytes_read,
        report.bytes_written,
        report.start_offset,
        report.end_offset,
        report.torn_bytes,
        dry_run,
    )
