"""Checks that stay on in production: `assert` can be stripped with `-O`, this cannot."""

from __future__ import annotations


class InvariantError(RuntimeError):
    """A fact the code relies on does not hold; the object it belongs to must not go on."""


def invariant(holds: bool, message: str, **context: object) -> None:
    """Raise `InvariantError` with the given context unless `holds`."""
    if not holds:
        details = ", ".join(f"{name}={value!r}" for name, value in context.items())
        raise InvariantError(f"{message} ({details})" if details else message)
