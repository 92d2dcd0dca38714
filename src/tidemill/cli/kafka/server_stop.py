"""`kafka-server-stop`: ask every broker that `kafka-server-start` started to stop (SIGTERM).

Kafka looks for Java processes; we look for ours: processes of this user whose command line runs
`kafka-server-start`. `--process-role` and `--node-id` are Kafka's filters.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Sequence

from tidemill.cli.kafka import common
from tidemill.cli.kafka.common import Options
from tidemill.cli.kafka.server_start import parse_overrides, split_off_flags
from tidemill.errors import TidemillError

PROC = "/proc"
TOOL = "kafka-server-start"
ID_KEYS = ("node.id", "broker.id")


def parser() -> Options:
    p = Options("kafka-server-stop", "Stop the brokers of this user on this machine.")
    p.value("process-role", "broker or controller; a broker here is both.")
    p.value("node-id", "Stop only the broker with this id.", type=int)
    return p


def main(argv: Sequence[str]) -> int:
    options_parser = parser()
    try:
        options = options_parser.read(argv) if argv else options_parser.parse_args([])
    except common.UsageError as error:
        return common.usage(options_parser, error)
    stopped = 0
    for pid in broker_pids():
        if options.node_id is not None and not _has_id(pid, options.node_id):
            continue
        with contextlib.suppress(ProcessLookupError):  # it may have ended by itself meanwhile
            os.kill(pid, signal.SIGTERM)
            stopped += 1
    if not stopped:
        common.out("No kafka server to stop")
        return 1
    return 0


def broker_pids() -> Iterator[int]:
    """Processes of ours that are brokers, this one left out."""
    for entry in os.listdir(PROC):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        words = _command_line(int(entry))
        if words and _is_broker(words) and _is_ours(int(entry)):
            yield int(entry)


def _is_ours(pid: int) -> bool:
    try:
        return os.stat(f"{PROC}/{pid}").st_uid == os.getuid()
    except OSError:
        return False  # it has ended meanwhile


def _command_line(pid: int) -> list[str]:
    try:
        with open(f"{PROC}/{pid}/cmdline", "rb") as file:
            return file.read().decode("utf-8", "replace").rstrip("\0").split("\0")
    except OSError:
        return []


def _is_broker(words: list[str]) -> bool:
    """A Python process that runs `kafka-server-start`; a shell that merely has the words in a
    string does not, nor does `tidemill up`, which has a terminal or a supervisor of its own."""
    if "python" not in os.path.basename(words[0]):
        return False
    return "tidemill.cli.kafka" in words and TOOL in words


def _has_id(pid: int, node_id: int) -> bool:
    """Whether this is the id of the broker: what overrides its properties file counts first."""
    words = _command_line(pid)
    _, arguments = split_off_flags(words[words.index(TOOL) + 1 :] if TOOL in words else [])
    try:
        given = parse_overrides(arguments[1:])
        if not given.keys() & set(ID_KEYS):
            # As the process sees it: a relative path begins at its working directory.
            given = common.read_properties(os.path.join(f"{PROC}/{pid}/cwd", arguments[0]))
    except (IndexError, TidemillError):
        return False
    return next((given[key] for key in ID_KEYS if key in given), None) == str(node_id)
