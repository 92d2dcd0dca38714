"""`kafka-server-start`: run a broker from a `server.properties`, here or as a daemon."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from tidemill.cli.kafka import common

USAGE = "USAGE: kafka-server-start.sh [-daemon] server.properties [--override property=value]*"


def main(argv: Sequence[str]) -> int:
    daemon, words = split_off_flags(argv)
    if not words or words[0] in ("--help", "-h"):
        common.err(USAGE)
        return 1
    if "--version" in words:
        common.out(common.KAFKA_VERSION)
        return 0
    try:
        path, overrides = words[0], parse_overrides(words[1:])
    except common.UsageError as error:
        common.err(str(error))
        common.err(USAGE)
        return 1
    if not os.path.exists(path):
        common.err(f"{path} (No such file or directory)")
        return 1
    if daemon:
        return _start_daemon(words)
    from tidemill.cli.serve import serve_properties

    return serve_properties(path, overrides)


def split_off_flags(argv: Sequence[str]) -> tuple[bool, list[str]]:
    """Whether it is to be a daemon, and what follows the flags that Kafka's script has."""
    words = list(argv)
    daemon = words[:1] == ["-daemon"]
    if daemon:
        words = words[1:]
    if words[:1] == ["-name"]:
        words = words[2:]
    return daemon, words


def parse_overrides(words: Sequence[str]) -> dict[str, str]:
    """`--override key=value` and `--override=key=value`, any number of them."""
    found: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("--override="):
            pair = word.partition("=")[2]
        elif word == "--override" and rest:
            pair = rest.pop(0)
        elif word == "--override":
            raise common.UsageError("Option override requires an argument")
        else:
            raise common.UsageError(f"Found non argument parameters: {word}")
        key, equals, value = pair.partition("=")
        if not equals:
            raise common.UsageError(f"Invalid command line properties: {pair}")
        found[key] = value
    return found


def _start_daemon(words: Sequence[str]) -> int:
    """The same command, on its own, with its output in `logs/kafkaServer.out`."""
    directory = os.environ.get("LOG_DIR", os.path.join(os.getcwd(), "logs"))
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "kafkaServer.out"), "ab") as output:
        subprocess.Popen(
            [sys.executable, "-m", "tidemill.cli.kafka", "kafka-server-start", *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return 0
