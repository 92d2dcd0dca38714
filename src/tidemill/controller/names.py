"""Which topic names are allowed, and which two would collide."""

from __future__ import annotations

import re

from tidemill.errors import ApiError, ErrorCode

NAME_CHARS_MAX = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> None:
    """Refuse a name that could not be a folder, or that Kafka would not take."""
    problem = _problem(name)
    if problem is not None:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {problem}")


def _problem(name: str) -> str | None:
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > NAME_CHARS_MAX:
        return f"the length of '{name}' is longer than the max allowed length {NAME_CHARS_MAX}"
    if _LEGAL.fullmatch(name) is None:
        return (
            f"'{name}' contains one or more characters other than "
            "ASCII alphanumerics, '.', '_' and '-'"
        )
    return None


def unified(name: str) -> str:
    """The name as metrics show it, where `.` and `_` are the same character.

    Two topics whose names differ only in that could not be told apart there.
    """
    return name.replace(".", "_")
