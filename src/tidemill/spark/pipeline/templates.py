"""Pipeline files to begin with: the example of the documentation, and the shipped pipelines."""

from __future__ import annotations

import re
from importlib import resources
from typing import Final

EXAMPLE: Final = "example"
_NAME: Final = re.compile(r'^name = "[^"]*"$', re.MULTILINE)


def names() -> list[str]:
    """What there is, the example first."""
    shipped = resources.files("tidemill.spark") / "jobs"
    found = [each.name for each in shipped.iterdir()] if shipped.is_dir() else []
    return [
        EXAMPLE,
        *sorted(name.removesuffix(".toml") for name in found if name.endswith(".toml")),
    ]


def text_of(template: str, name: str) -> str:
    """The template's text for a pipeline of this name; the template must be one of `names`."""
    here = resources.files("tidemill.spark")
    file = here / "pipeline" / "example.toml"
    if template != EXAMPLE:
        file = here / "jobs" / f"{template}.toml"
    return _NAME.sub(f'name = "{name}"', file.read_text(encoding="utf-8"), count=1)
