"""From text to typed values, by Kafka's rules and with Kafka's error messages."""

from __future__ import annotations

import re
from typing import Final

from tidemill.config.keys import ConfigKey, ConfigType, Value
from tidemill.config.text import invalid_value

# What Java's `Double.valueOf` takes, hexadecimal aside; compiled by the first number that needs it.
_DECIMAL: Final = r"[+-]?(?:NaN|Infinity|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fFdD]?)"
_DECIMAL_CHARS_MAX: Final = 400
_INTEGER_CHARS_MAX: Final = 20
_BITS: Final = {ConfigType.SHORT: 16, ConfigType.INT: 32, ConfigType.LONG: 64}


def parse(key: ConfigKey, text: str | None) -> Value:
    """The value that `text` stands for, checked against the key's limits."""
    value = parse_type(key.name, key.type, text)
    if key.constraint is not None and value is not None:
        key.constraint.check(key.name, value)
    return value


def parse_type(name: str, kind: ConfigType, text: str | None) -> Value:
    """The value that `text` stands for under a type, limits aside."""
    if text is None or kind is ConfigType.PASSWORD:
        return text
    if kind is ConfigType.BOOLEAN:
        return _parse_boolean(name, text)
    if kind in _BITS:
        return _parse_integer(name, kind, text)
    if kind is ConfigType.DOUBLE:
        return _parse_decimal(name, text)
    trimmed = text.strip()
    if kind is ConfigType.LIST:
        # A word that comes twice counts once, as Kafka has it.
        words = (word.strip() for word in trimmed.split(","))
        return tuple(dict.fromkeys(words)) if trimmed else ()
    return trimmed


def _parse_boolean(name: str, text: str) -> bool:
    lowered = text.strip().lower()
    if lowered not in ("true", "false"):
        raise invalid_value(name, text, "Expected value to be either true or false")
    return lowered == "true"


def _parse_integer(name: str, kind: ConfigType, text: str) -> int:
    bound = 1 << (_BITS[kind] - 1)
    trimmed = text.strip()
    if _is_integer(trimmed):
        number = int(trimmed)
        if -bound <= number < bound:
            return number
    raise invalid_value(name, text, f"Not a number of type {kind.name}")


def _is_integer(text: str) -> bool:
    """What Java's number parsers take: a sign and digits, and none of Python's extras."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    return len(text) <= _INTEGER_CHARS_MAX and digits.isascii() and digits.isdigit()


def _parse_decimal(name: str, text: str) -> float:
    trimmed = text.strip()
    is_short = len(trimmed) <= _DECIMAL_CHARS_MAX
    if not (is_short and re.fullmatch(_DECIMAL, trimmed, re.ASCII)):
        raise invalid_value(name, text, "Not a number of type DOUBLE")
    is_word = trimmed.endswith(("NaN", "Infinity"))
    return float(trimmed if is_word else trimmed.rstrip("fFdD"))
