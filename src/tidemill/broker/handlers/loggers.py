"""The resource type BROKER_LOGGER of DescribeConfigs v1-4 and IncrementalAlterConfigs v0-1.

Behaviour: the log levels of this broker process, by logger (KIP-412): `root` is all of Tidemill,
`tidemill.storage` one part of it. A level that is set lasts until the process ends; deleting it
makes the logger follow the one above it again. `configs.py` calls this for its resources.

Deviations: the loggers are Tidemill's own, not Java classes. TRACE is the same as DEBUG.
"""

from __future__ import annotations

import logging

from tidemill.controller.settings import Operation
from tidemill.errors import ApiError, ErrorCode
from tidemill.wire.messages.configs import (
    DescribeConfigsResourceResult,
    IncrementalAlterableConfig,
)

ROOT = "root"
_ALL = "tidemill"
_SOURCE = 6
_LEVELS = {
    "DEBUG": logging.DEBUG,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "INFO": logging.INFO,
    "TRACE": logging.DEBUG,
    "WARN": logging.WARNING,
}
_NAMES = {level: name for name, level in _LEVELS.items() if name != "TRACE"}


def describe_loggers(names: set[str] | None) -> list[DescribeConfigsResourceResult]:
    """Every logger, or those asked for, with the level in force."""
    return [
        DescribeConfigsResourceResult(
            name=name, value=_level_of(name), config_source=_SOURCE, documentation=None
        )
        for name in _loggers()
        if names is None or name in names
    ]


def alter_loggers(changes: list[IncrementalAlterableConfig], *, validate_only: bool) -> None:
    """Set and reset levels: all of them, or none if one cannot be."""
    for change in changes:
        _check(change)
    if validate_only:
        return
    for change in changes:
        deleted = change.config_operation == Operation.DELETE
        level = logging.NOTSET if deleted else _LEVELS[change.value or ""]
        _logger(change.name).setLevel(level)


def _check(change: IncrementalAlterableConfig) -> None:
    name = change.name
    operation = change.config_operation
    if operation not in (Operation.SET, Operation.DELETE):
        known = operation in Operation.__members__.values()
        problem = f"{Operation(operation).name if known else operation} operation is not allowed"
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{problem} for the BROKER_LOGGER resource")
    if name not in _loggers():
        raise ApiError(ErrorCode.INVALID_CONFIG, f"Logger {name} does not exist!")
    if operation == Operation.DELETE and name == ROOT:
        problem = "Removing the log level of the root logger is not allowed"
        raise ApiError(ErrorCode.INVALID_REQUEST, problem)
    if operation == Operation.SET and change.value not in _LEVELS:
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            f"Cannot set the log level of {name} to {change.value} as it is not a supported log "
            f"level. Valid log levels are {', '.join(sorted(_LEVELS))}",
        )


def _loggers() -> list[str]:
    found = logging.root.manager.loggerDict
    return [ROOT, *sorted(name for name in found if name.startswith(f"{_ALL}."))]


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(_ALL if name == ROOT else name)


def _level_of(name: str) -> str:
    level = _logger(name).getEffectiveLevel()
    return _NAMES.get(level, logging.getLevelName(level))
