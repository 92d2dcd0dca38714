"""Where settings are read from: files, the environment and flags, and how they are put together.

Start at `load_broker_config`. A flag beats the environment, which beats the TOML file, which beats
the properties file; defaults come last. All mistakes of one reading are reported together.
"""

from __future__ import annotations

import resource
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from tidemill.config.broker import BrokerConfig, Setting
from tidemill.config.keys import ConfigError
from tidemill.config.properties import parse_properties
from tidemill.config.vet import Problem, check_startable, ineffective, vet, warnings_about

ENVIRONMENT_PREFIX: Final = "TIDEMILL_"
# Variables that steer commands and tests, or that `tidemill validate` sets for the program it runs,
# which may start brokers of its own; they are no settings of a broker.
OTHER_VARIABLES: Final = frozenset(
    f"{ENVIRONMENT_PREFIX}{name}"
    for name in (
        "BOOTSTRAP",
        "CONFIG",
        "CONFIG_DIR",
        "CONSUMER_CONFIG",
        "DATA_DIR",
        "FORMAT",
        "GROUP",
        "KAFKA_JARS",
        "LOG_LEVEL",
        "PRODUCER_CONFIG",
        "PROFILE",
        "PYTHON",
        "SCENARIO",
        "SPARK_KAFKA_JARS",
        "STATE_DIR",
        "TIMEOUT",
        "TOOL",
        "TOPIC",
    )
)
OTHER_PREFIXES: Final = (f"{ENVIRONMENT_PREFIX}TEST_", f"{ENVIRONMENT_PREFIX}BENCH_")

FILE_BYTES_MAX: Final = 1 << 20
FILES_RESERVED_MIN: Final = 32
FILES_RESERVED_MAX: Final = 512  # for sockets of our own, the store, libraries


class Found(NamedTuple):
    """A setting as it was found: not yet known to be a key, or to fit one."""

    key: str
    text: str
    where: str
    line: int = 0


def load_broker_config(
    *,
    properties_file: Path | str | None = None,
    toml_file: Path | str | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, str] | Iterable[str] | None = None,
    for_start: bool = True,
) -> tuple[BrokerConfig, list[str]]:
    """The settings of a broker and the warnings to show its operator.

    `environ` is usually `os.environ`; None reads no variables. `overrides` are `--set` flags, as a
    mapping or as `key=value` texts. With `for_start`, settings that a broker cannot run with are
    errors. Raises `ConfigError` that lists every problem.
    """
    found: dict[str, Found] = {}
    for each in _all_sources(properties_file, toml_file, environ, overrides):
        found[each.key] = each
    problems: list[Problem] = []
    known = {
        each.key: Setting(each.text, each.where)
        for each in found.values()
        if _passes(each, problems)
    }
    _raise_if_any(problems)
    config = BrokerConfig(known, derived_defaults=derived_defaults())
    if for_start:
        _raise_if_any(check_startable(config))
    return config, warnings_about(config, known)


def derived_defaults() -> dict[str, str]:
    """Defaults that depend on the machine: what the process's file limit leaves room for.

    The hard limit counts: a broker raises its soft limit to it when it starts.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _file_shares(1 << 20 if hard == resource.RLIM_INFINITY else hard)


def _file_shares(limit: int) -> dict[str, str]:
    """Connections and log files together leave room for what a broker opens besides them."""
    reserved = max(FILES_RESERVED_MIN, min(FILES_RESERVED_MAX, limit // 4))
    log_files = max(16, limit // 2 - reserved)
    connections = min(limit // 2, limit - log_files - FILES_RESERVED_MIN)
    return {"max.connections": str(max(1, connections)), "log.open.files.max": str(log_files)}


def check_file(path: Path | str) -> list[Problem]:
    """Everything that is wrong with, or will have no effect in, one settings file."""
    try:
        found = list(read_file(Path(path)))
    except ConfigError as problem:
        return [Problem(0, "", problem.message)]
    problems: list[Problem] = []
    known: dict[str, Setting] = {}
    for each in found:
        if each.key in known:
            problems.append(Problem(each.line, each.key, "is set twice; the last one counts"))
        if _passes(each, problems):
            known[each.key] = Setting(each.text, each.where)
    lines = {each.key: each.line for each in found}
    if all(problem.is_warning for problem in problems):
        problems += _whole_file_problems(known, lines)
    return sorted(problems, key=lambda problem: (problem.line, problem.key))


def _whole_file_problems(
    known: Mapping[str, Setting], lines: Mapping[str, int]
) -> Iterator[Problem]:
    """Problems that show only when every line of the file is taken together."""
    try:
        config = BrokerConfig(known)
    except ConfigError as problem:
        yield Problem(0, "", problem.message)
        return
    for each in check_startable(config):
        yield Problem(lines.get(each.key, 0), each.key, each.message, each.suggestion)
    for each in ineffective(known):
        yield each._replace(line=lines.get(each.key, 0))


def _passes(found: Found, problems: list[Problem]) -> bool:
    problem = vet(found.key, found.text)
    if problem is None:
        return True
    problems.append(
        Problem(found.line, found.key, problem.message, problem.suggestion, where=found.where)
    )
    return False


def _raise_if_any(problems: list[Problem]) -> None:
    if problems:
        raise ConfigError("\n".join(str(problem) for problem in problems))


# --- the sources ----------------------------------------------------------------------------------


def _all_sources(
    properties_file: Path | str | None,
    toml_file: Path | str | None,
    environ: Mapping[str, str] | None,
    overrides: Mapping[str, str] | Iterable[str] | None,
) -> Iterator[Found]:
    """Everything that was set, weakest source first."""
    if properties_file is not None:
        yield from read_properties_file(Path(properties_file))
    if toml_file is not None:
        yield from read_toml_file(Path(toml_file))
    yield from read_environment(environ or {})
    yield from read_overrides(overrides or {})


def read_file(path: Path) -> Iterator[Found]:
    """A settings file, by its ending: `.toml`, or Java properties."""
    return read_toml_file(path) if path.suffix == ".toml" else read_properties_file(path)


def read_properties_file(path: Path) -> Iterator[Found]:
    try:
        for line, key, value in parse_properties(_read_text(path)):
            yield Found(key, value, f"{path.name}:{line}", line)
    except ConfigError as problem:
        raise ConfigError(f"{path}: {problem.message}") from None


def read_toml_file(path: Path) -> Iterator[Found]:
    import tomllib  # only TOML users pay for the import

    text = _read_text(path)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise ConfigError(
            f'{path}: {problem}. Write keys in quotes, as in "log.retention.ms" = 1000: some keys'
            " begin with another whole key, which TOML's dotted form cannot say"
        ) from None
    for key, value in _flatten(document):
        line = _line_of(key, text)
        yield Found(key, _toml_text(key, value), f"{path.name}:{line}" if line else path.name, line)


def read_environment(environ: Mapping[str, str]) -> Iterator[Found]:
    """`TIDEMILL_LOG_RETENTION_MS` is `log.retention.ms`; see `variable_name` for the rule."""
    for variable in sorted(environ):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in OTHER_VARIABLES:
            continue
        if not variable.startswith(OTHER_PREFIXES):
            yield Found(key_of_variable(variable), environ[variable], f"${variable}")


def read_overrides(overrides: Mapping[str, str] | Iterable[str]) -> Iterator[Found]:
    if isinstance(overrides, Mapping):
        for key, text in overrides.items():
            yield Found(key, text, "--set")
        return
    for pair in overrides:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set takes KEY=VALUE, not `{pair if not equals else '=...'}`")
        yield Found(key.strip(), text, "--set")


def variable_name(key: str) -> str:
    """The variable of a key: `-` becomes three underscores, `_` two and `.` one."""
    escaped = key.replace("_", "__").replace("-", "___").replace(".", "_")
    return ENVIRONMENT_PREFIX + escaped.upper()


def key_of_variable(variable: str) -> str:
    """The key of a variable, in small letters."""
    name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
    return name.replace("___", "-").replace("__", "\0").replace("_", ".").replace("\0", "_")


def _read_text(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as problem:
        raise ConfigError(f"{path}: cannot be read: {problem.strerror}") from None
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"{path}: larger than {FILE_BYTES_MAX} bytes; is it a settings file?")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _flatten(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Tables and dotted keys are spelled out: `[log] dir = "x"` is `log.dir`."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _toml_text(key: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(_toml_text(key, each) for each in value)
    if isinstance(value, int | float | str):
        return str(value)
    raise ConfigError(f"{key}: a {type(value).__name__} cannot be the value of a setting")


def _line_of(key: str, text: str) -> int:
    """The line a quoted key stands at, for messages; 0 if it is spelt another way."""
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith((f'"{key}"', f"'{key}'", f"{key} ", f"{key}=")):
            return number
    return 0
