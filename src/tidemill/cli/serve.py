"""`tidemill up` and `kafka-server-start`: become the broker.

This module is the fast path: a broker process needs neither the command framework nor a help
renderer, so it parses its few options with argparse and goes straight to the server. Only with
several brokers (`--brokers N`) this process is not one of them: it watches (`supervise.py`).
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from tidemill.cli import fleet as fleets
from tidemill.cli import muster
from tidemill.cli.exits import CommandError, Exit

if TYPE_CHECKING:
    from tidemill.broker.server import BrokerServer
    from tidemill.config import BrokerConfig

DEFAULT_HOST = "127.0.0.1"
CONFIG_VARIABLE = "TIDEMILL_CONFIG"
LOG_LEVEL_VARIABLE = "TIDEMILL_LOG_LEVEL"
DATA_DIR_VARIABLE = "TIDEMILL_DATA_DIR"
# Variables that steer the commands themselves; they are no settings of a broker.
COMMAND_VARIABLES = frozenset({"TIDEMILL_CONFIG_DIR", "TIDEMILL_PYTHON"})


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"error: {message}\nhint: see `tidemill up --help`\n")
        raise SystemExit(Exit.USAGE)


def parser() -> argparse.ArgumentParser:
    p = _Parser(prog="tidemill up", add_help=False, allow_abbrev=False)
    p.add_argument("--port", type=int)
    p.add_argument("--data-dir")
    p.add_argument("--brokers", type=int)
    p.add_argument("--store")
    p.add_argument("--set", "-s", action="append", default=[], dest="overrides")
    p.add_argument("--config")
    p.add_argument("--log-level", action="append", default=[])
    p.add_argument("--dry-run", action="store_true")
    p.add_argument("--format", choices=("table", "json"), default="table")
    p.add_argument("--verbose", "-v", action="store_true")
    # Global options that mean nothing to a broker are taken without a word.
    for name in ("--profile", "--bootstrap", "-b", "-X", "--timeout"):
        p.add_argument(name, help=argparse.SUPPRESS)
    for name in ("--yes", "-y", "--no-color"):
        p.add_argument(name, action="store_true", help=argparse.SUPPRESS)
    return p


def main(argv: Sequence[str]) -> int:
    """`tidemill up`."""
    try:
        options = parser().parse_args(list(argv))
    except SystemExit as stop:
        return int(stop.code or 0)
    try:
        overrides = [*options.overrides, *_shortcuts(options)]
    except ValueError as error:
        return _fail(error, options.format, Exit.USAGE)
    path = options.config or os.environ.get(CONFIG_VARIABLE)
    is_toml = path is not None and path.endswith(".toml")
    try:
        config = _load(
            properties_file=None if is_toml else path,
            toml_file=path if is_toml else None,
            overrides=overrides,
        )
    except Exception as error:  # noqa: BLE001 - whatever is wrong with settings is said, not traced
        return _fail(error, options.format, Exit.USAGE)
    try:
        return _up(config, options)
    except CommandError as error:
        return _fail(error, options.format, error.exit_code)
    except OSError as error:
        if options.verbose:
            raise
        return _fail(_about_directory(error, config), options.format, Exit.FAILED)


def _up(config: BrokerConfig, options: argparse.Namespace) -> int:
    """One broker in this process, or several in processes that this one watches."""
    count = muster.wanted_count(config, options.brokers)
    levels = options.log_level or [_default_level()]
    if muster.is_alone(config, count):
        if options.dry_run:
            return _dry_run(config, options.format)
        return _run_alone(config, options.format, levels, options.verbose)
    fleet = muster.several(config, count, levels)
    if options.dry_run:
        return _dry_run_several(fleet, count, options.format)
    _check_levels(levels)
    from tidemill.cli.supervise import Supervisor

    return Supervisor(fleet, count, options.format).run()


def _run_alone(config: BrokerConfig, fmt: str, levels: Sequence[str], verbose: bool) -> int:
    """A broker in the foreground; it leaves a note, so that others can join it."""

    def ready(server: BrokerServer) -> None:
        with fleets.changing(muster.home_of(config)):
            fleets.save(muster.alone(config, levels, server.port))
        _ready(server, fmt)

    status = _run(config, fmt, levels, verbose, ready)
    fleet = fleets.load(muster.home_of(config))
    if fleet is not None and len(fleet.members) > 1:
        from tidemill.cli.supervise import stop_others

        stop_others(fleet)
    return status


def _shortcuts(options: argparse.Namespace) -> list[str]:
    """`--port`, `--data-dir` and `--store` as the settings they stand for."""
    found = []
    given = {text.partition("=")[0].strip() for text in options.overrides}
    if options.port is not None:
        if not 0 <= options.port < 65_536:
            raise ValueError(f"{options.port} is no port")
        _refuse_both("--port", {"listeners"} & given)
        found.append(f"listeners=PLAINTEXT://{DEFAULT_HOST}:{options.port}")
    if options.data_dir is not None:
        _refuse_both("--data-dir", {"log.dirs", "log.dir"} & given)
        found.append(f"log.dirs={options.data_dir}")
    elif DATA_DIR_VARIABLE in os.environ and not {"log.dirs", "log.dir"} & given:
        found.append(f"log.dirs={os.environ[DATA_DIR_VARIABLE]}")
    if options.store is not None:
        _refuse_both("--store", {fleets.STORE_KEY, fleets.ZOOKEEPER_KEY} & given)
        found.append(f"{fleets.STORE_KEY}={options.store}")
    return found


def _refuse_both(option: str, keys: set[str]) -> None:
    """Two flags for one setting: whichever we took, the other would be ignored unnoticed."""
    if keys:
        raise ValueError(f"{option} and --set {min(keys)}=... both say it; give one of them")


def serve_properties(path: str, overrides: Mapping[str, str]) -> int:
    """`kafka-server-start.sh server.properties --override k=v`."""
    try:
        config = _load(properties_file=path, overrides=overrides)
    except Exception as error:  # noqa: BLE001 - as above
        return _fail(error, "table", Exit.FAILED)
    return _run(config, "table", (_default_level(),), verbose=False)


def serve_settings(settings: Mapping[str, str], levels: Sequence[str]) -> int:
    """One of several brokers: all of its settings are given, and nothing else counts."""
    from tidemill.config import ConfigError, load_broker_config

    try:
        config, _ = load_broker_config(overrides=settings)
    except ConfigError as error:
        return _fail(error, "table", Exit.FAILED)
    return _run(config, "table", levels, verbose=False)


def _load(
    *,
    properties_file: str | None = None,
    toml_file: str | None = None,
    overrides: Mapping[str, str] | Sequence[str],
) -> BrokerConfig:
    from tidemill.config import load_broker_config

    environ = {k: v for k, v in os.environ.items() if k not in COMMAND_VARIABLES}
    config, warnings = load_broker_config(
        properties_file=properties_file,
        toml_file=toml_file,
        environ=environ,
        overrides=overrides,
    )
    for warning in warnings:
        sys.stderr.write(f"warning: {warning}\n")
    return config


def _dry_run(config: BrokerConfig, fmt: str) -> int:
    listeners = ", ".join(f"{each.host}:{each.port}" for each in config.listeners)
    directories = [str(path) for path in config.log_dirs]
    if fmt == "json":
        _say(json.dumps({"dry_run": True, "listeners": listeners, "data_dirs": directories}))
    else:
        _say(f"dry run: would listen on {listeners} with data in {', '.join(directories)}")
    return Exit.OK


def _dry_run_several(fleet: fleets.Fleet, count: int, fmt: str) -> int:
    brokers = [
        {"port": member.port, "data_dir": str(fleet.path_of(member))}
        for member in fleet.members[:count]
    ]
    if fmt == "json":
        _say(json.dumps({"dry_run": True, "brokers": brokers}))
        return Exit.OK
    for broker in brokers:
        _say(f"dry run: would run a broker on port {broker['port']} in {broker['data_dir']}")
    return Exit.OK


def _run(
    config: BrokerConfig,
    fmt: str,
    levels: Sequence[str],
    verbose: bool,
    ready: Callable[[BrokerServer], None] | None = None,
) -> int:
    try:
        _set_up_logging(levels)
    except ValueError as error:
        return _fail(error, fmt, Exit.USAGE)
    from tidemill.broker.server import run

    try:
        run(config, on_ready=ready or (lambda server: _ready(server, fmt)))
    except KeyboardInterrupt:
        return Exit.OK
    except OSError as error:
        if verbose:
            raise
        return _fail(_in_words(error, config), fmt, Exit.FAILED)
    except Exception as error:
        from tidemill.errors import TidemillError

        if verbose or not isinstance(error, TidemillError):
            raise
        return _fail(error, fmt, Exit.FAILED)
    return Exit.OK


def _in_words(error: OSError, config: BrokerConfig) -> Exception:
    """The usual failures of a start: an address that is taken, a directory that cannot be one."""
    if error.errno != errno.EADDRINUSE:
        return _about_directory(error, config)
    addresses = ", ".join(f"{each.host}:{each.port}" for each in config.listeners)
    return OSError(
        f"cannot listen on {addresses}: the address is in use; "
        "is a broker running already (`tidemill status`)? --port takes another"
    )


def _about_directory(error: OSError, config: BrokerConfig) -> Exception:
    """A failure at a data directory, on the way to it or inside, with what to do about it."""
    place = Path(error.filename).absolute() if isinstance(error.filename, str) else Path()
    for path in (each.absolute() for each in config.log_dirs):
        if path.is_relative_to(place) or place.is_relative_to(path):
            return OSError(
                f"cannot keep data in {path}: {_reason(error)} ({place}); "
                "--data-dir takes a directory that can be created or written to"
            )
    return error


def _reason(error: OSError) -> str:
    if error.errno == errno.EEXIST:
        return "it is a file"
    if error.errno == errno.ENOENT:
        return "it cannot be created"
    return (error.strerror or str(error)).lower()


def _ready(server: BrokerServer, fmt: str) -> None:
    """Tell whoever waits, person or script, that clients are served from now on."""
    if fmt == "json":
        _say(json.dumps({"ready": f"{server.host}:{server.port}", "pid": os.getpid()}))
        return
    _say(f"ready on {server.host}:{server.port}")
    if sys.stdout.isatty():
        sys.stderr.write(
            "try: echo hello | tidemill produce clicks\n"
            "     tidemill consume clicks --offset start\n"
        )


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _fail(error: Exception, fmt: str, status: Exit) -> int:
    text = str(error) or type(error).__name__
    hint: str | None = getattr(error, "hint", None)
    if fmt == "json":
        report = {"error": text, "exit_code": int(status)} | ({"hint": hint} if hint else {})
        sys.stderr.write(json.dumps(report) + "\n")
    else:
        sys.stderr.write(f"error: {text}\n" + (f"hint: {hint}\n" if hint else ""))
    return status


def _default_level() -> str:
    return os.environ.get(LOG_LEVEL_VARIABLE, "info")


def _check_levels(levels: Sequence[str]) -> None:
    from tidemill import logs

    try:
        logs.parse_levels(levels)
    except logs.LogLevelError as error:
        raise CommandError(str(error), Exit.USAGE) from None


def _set_up_logging(levels: Sequence[str]) -> None:
    from tidemill import logs

    logs.set_up(levels)
