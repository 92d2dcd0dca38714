"""`kafka-storage`: prepare log directories, look at them, make cluster ids."""

from __future__ import annotations

import argparse
import base64
import os
import sys
import uuid
from collections.abc import Sequence
from typing import NoReturn

from tidemill.cli.kafka import common, features
from tidemill.cli.kafka.common import ToolError, err, out

META = "meta.properties"
DEFAULT_DIR = "/tmp/kafka-logs"


class _Parser(argparse.ArgumentParser):
    """Complains on stderr and exits with 1, as Kafka's does."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        err(f"{self.prog}: error: {message}")
        raise SystemExit(1)


def parser() -> argparse.ArgumentParser:
    root = _Parser(prog="kafka-storage", description="The Kafka storage tool.")
    commands = root.add_subparsers(dest="command", parser_class=_Parser)
    info = commands.add_parser("info", help="Show the log directories.")
    info.add_argument("--config", "-c", required=True)
    form = commands.add_parser("format", help="Format the log directories.")
    form.add_argument("--config", "-c", required=True)
    form.add_argument("--cluster-id", "-t", required=True)
    form.add_argument("--ignore-formatted", "-g", action="store_true")
    form.add_argument("--release-version", "-r", action="append", default=[])
    form.add_argument("--feature", "-f", action="append", default=[])
    form.add_argument("--add-scram", "-S", action="append", default=[])
    # Who the controllers are is no matter of a directory here: they are taken, one at a time.
    quorum = form.add_mutually_exclusive_group()
    quorum.add_argument("--standalone", "-s", action="store_true")
    quorum.add_argument("--no-initial-controllers", "-N", action="store_true")
    quorum.add_argument("--initial-controllers", "-I")
    mapping = commands.add_parser("version-mapping", help="Show the features of a release.")
    mapping.add_argument("--release-version", "-r", default=features.LATEST_STABLE)
    needs = commands.add_parser("feature-dependencies", help="Show what features need.")
    needs.add_argument("--feature", "-f", action="append", required=True)
    commands.add_parser("random-uuid", help="Print a random UUID.")
    return root


def main(argv: Sequence[str]) -> int:
    root = parser()
    options = root.parse_args(list(argv))
    try:
        if options.command is not None:
            return _run(options)
    except (ToolError, OSError) as error:
        err(str(error))
        return 1
    root.print_usage(sys.stderr)
    err("kafka-storage: error: too few arguments")
    return 1


def _run(options: argparse.Namespace) -> int:
    match options.command:
        case "random-uuid":
            return _random_uuid()
        case "info":
            return _info(common.read_properties(options.config))
        case "version-mapping":
            features.print_mapping(options.release_version)
        case "feature-dependencies":
            features.print_dependencies(options.feature)
        case _:
            return _format(options)
    return 0


def _random_uuid() -> int:
    while True:
        text = short_uuid(uuid.uuid4())
        if not text.startswith("-"):  # or else it would look like an option
            out(text)
            return 0


def short_uuid(value: uuid.UUID) -> str:
    """16 bytes as Kafka writes them: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")


def directories(properties: dict[str, str]) -> list[str]:
    """The log directories that a server.properties names."""
    text = properties.get("log.dirs") or properties.get("log.dir") or DEFAULT_DIR
    found = [part.strip() for part in text.split(",") if part.strip()]
    metadata = properties.get("metadata.log.dir")
    if metadata and metadata not in found:
        found.append(metadata)
    return sorted(found)


def _info(properties: dict[str, str]) -> int:
    """What is there: directories, their meta.properties, and what is wrong with them."""
    found = [d for d in directories(properties) if os.path.isdir(d)]
    problems = [f"{d} does not exist" for d in directories(properties) if d not in found]
    metadata: dict[str, str] = {}
    for directory in found:
        path = os.path.join(directory, META)
        if os.path.exists(path):
            metadata |= common.read_properties(path)
        else:
            problems.append(f"{directory} is not formatted.")
    if found:
        out("Found log director" + ("y" if len(found) == 1 else "ies") + ":")
        for directory in found:
            out(f"  {directory}")
        out()
    if metadata:
        pairs = ", ".join(f"{key}={metadata[key]}" for key in sorted(metadata))
        out(f"Found metadata: {{{pairs}}}")
        out()
    if problems:
        out("Found problem" + ("" if len(problems) == 1 else "s") + ":")
        for problem in problems:
            out(f"  {problem}")
        out()
    return 1 if problems else 0


def _format(options: argparse.Namespace) -> int:
    properties = common.read_properties(options.config)
    version = _version_for(options)
    chosen = directories(properties)
    formatted = [d for d in chosen if os.path.exists(os.path.join(d, META))]
    if formatted and not options.ignore_formatted:
        raise ToolError(
            f"Log directory {formatted[0]} is already formatted. Use --ignore-formatted to ignore "
            "this directory and format the others."
        )
    left = [d for d in chosen if d not in formatted]
    if not left:
        out("All of the log directories are already formatted.")
        return 0
    node = properties.get("node.id") or properties.get("broker.id") or "1"
    for directory in left:
        kind = "metadata directory" if directory == chosen[0] else "data directory"
        out(f"Formatting {kind} {directory} with metadata.version {version}.")
        _write_meta(directory, node, options.cluster_id)
    return 0


def _version_for(options: argparse.Namespace) -> str:
    """Checks what KRaft would write into its log; says what of it has no place to go here."""
    wanted = features.parse_features(options.feature)
    version = features.chosen_version(options.release_version, wanted)
    if options.add_scram:
        raise ToolError(
            "--add-scram is not supported: no listener asks for passwords yet, so this user would "
            "protect nothing. Nothing was formatted."
        )
    if options.release_version or wanted:
        err(
            "--release-version and --feature have no effect here: the features of a Tidemill "
            "cluster are those of its brokers' version."
        )
    return version


def _write_meta(directory: str, node: str, cluster_id: str) -> None:
    """Kafka's meta.properties, version 1."""
    os.makedirs(directory, exist_ok=True)
    lines = (
        f"node.id={node}",
        f"directory.id={short_uuid(uuid.uuid4())}",
        "version=1",
        f"cluster.id={cluster_id}",
    )
    path = os.path.join(directory, META)
    with open(f"{path}.tmp", "w", encoding="utf-8") as file:
        file.write("#\n" + "\n".join(lines) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.tmp", path)
