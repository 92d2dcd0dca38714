"""Did you mean …? The nearest known name for one that is not known."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_NAME_CHARS_MAX: Final = 120  # a longer name is no typing error, and comparing would be slow


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The most similar known name, if one is similar enough to be meant."""
    if len(name) > _NAME_CHARS_MAX:
        return None
    from difflib import get_close_matches  # only mistakes pay for the import

    found = get_close_matches(name.lower().replace("_", "."), list(known), n=1, cutoff=0.75)
    return found[0] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence to append to an error, or nothing."""
    found = nearest(name, known)
    return f". Did you mean {found}?" if found else ""
