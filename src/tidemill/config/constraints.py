"""The limits that keys put on their values, with Kafka's wording of what is wrong."""

from __future__ import annotations

import re
from typing import Final

from tidemill.config.keys import ConfigError, Constraint, Value
from tidemill.config.text import format_value, invalid_value

_REPLICA_PAIR: Final = r"[0-9]+:[0-9]+"
_THROTTLED_FORMAT: Final = "[partitionId]:[brokerId],[partitionId]:[brokerId],..."


def at_least(low: int) -> Constraint:
    """A number that is `low` or more."""

    def check(name: str, value: Value) -> None:
        if _number(name, value) < low:
            raise invalid_value(name, format_value(value), f"Value must be at least {low}")

    return Constraint(f"at least {low}", check)


def between(low: int, high: int) -> Constraint:
    """A number from `low` to `high`, both included."""

    def check(name: str, value: Value) -> None:
        number = _number(name, value)
        if number < low:
            raise invalid_value(name, format_value(value), f"Value must be at least {low}")
        if number > high:
            raise invalid_value(name, format_value(value), f"Value must be no more than {high}")

    return Constraint(f"{low} to {high}", check)


def between_or(low: int, high: int, other: int) -> Constraint:
    """A number from `low` to `high`, or exactly `other`."""

    def check(name: str, value: Value) -> None:
        number = _number(name, value)
        if number != other and not low <= number <= high:
            problem = f"Value must be between {low} and {high} or equal to {other}"
            raise invalid_value(name, format_value(value), problem)

    return Constraint(f"{low} to {high}, or {other}", check)


def one_of(*choices: str) -> Constraint:
    """Exactly one of the given words."""

    def check(name: str, value: Value) -> None:
        if value not in choices:
            problem = f"String must be one of: {', '.join(choices)}"
            raise invalid_value(name, format_value(value), problem)

    return Constraint(f"one of {', '.join(choices)}", check)


def one_of_ignoring_case(*choices: str) -> Constraint:
    """One of the given words, in capital or small letters."""

    def check(name: str, value: Value) -> None:
        if str(value).upper() not in choices:
            problem = f"String must be one of (case insensitive): {', '.join(choices)}"
            raise invalid_value(name, format_value(value), problem)

    return Constraint(f"one of {', '.join(choices)} in any case", check)


def list_of(*choices: str, empty: bool = False) -> Constraint:
    """A list of the given words."""

    def check(name: str, value: Value) -> None:
        words = _words(value)
        _refuse_empty(name, words, empty, f"[{', '.join(choices)}]")
        for word in words:
            if word not in choices:
                raise invalid_value(name, word, f"String must be one of: {', '.join(choices)}")

    return Constraint(f"a list of {', '.join(choices)}", check)


def any_list(*, empty: bool = False) -> Constraint:
    """A list of any words."""

    def check(name: str, value: Value) -> None:
        words = _words(value)
        _refuse_empty(name, words, empty, "any non-empty value")
        if "" in words:
            raise ConfigError(f"Configuration '{name}' values must not be empty.")

    return Constraint("a list" if empty else "a list of at least one", check)


def non_empty() -> Constraint:
    """Text of at least one character."""

    def check(name: str, value: Value) -> None:
        if value == "":
            raise invalid_value(name, "", "String must be non-empty")

    return Constraint("not empty", check)


def throttled_replicas() -> Constraint:
    """`*`, or pairs of partition and broker."""

    def check(name: str, value: Value) -> None:
        words = _words(value)
        if words != ("*",) and not all(re.fullmatch(_REPLICA_PAIR, word) for word in words):
            raise invalid_value(
                name,
                f"[{', '.join(words)}]",
                f"{name} must be the literal '*' or a list of replicas in the following format:"
                f" {_THROTTLED_FORMAT}",
            )

    return Constraint(f"`*` or `{_THROTTLED_FORMAT}`", check)


def _number(name: str, value: Value) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise invalid_value(name, format_value(value), "Value must be non-null")
    return value


def _words(value: Value) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else ()


def _refuse_empty(name: str, words: tuple[str, ...], allowed: bool, valid: str) -> None:
    if not words and not allowed:
        raise ConfigError(
            f"Configuration '{name}' must not be empty. Valid values include: {valid}"
        )
