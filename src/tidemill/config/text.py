"""Values as text, the way DescribeConfigs and error messages show them."""

from __future__ import annotations

import math
from typing import Final

from tidemill.config.keys import ConfigError, Value

HIDDEN: Final = "[hidden]"


def format_value(value: Value) -> str | None:
    """The text form that DescribeConfigs shows."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, float):
        return _format_decimal(value)
    return str(value)


def invalid_value(name: str, text: str | None, reason: str) -> ConfigError:
    """The error for a value that does not fit, in Kafka's words."""
    shown = "null" if text is None else text
    return ConfigError(f"Invalid value {shown} for configuration {name}: {reason}")


def _format_decimal(value: float) -> str:
    """As Java prints a double: plain from 0.001 up to 10 million, else with a capital E."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    from decimal import Decimal  # only the odd huge or tiny number pays for the import

    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    first, rest = str(digits[0]), "".join(map(str, digits[1:]))
    shift = int(exponent) + len(rest)
    return f"{'-' if sign else ''}{first}.{rest or '0'}E{shift}"
