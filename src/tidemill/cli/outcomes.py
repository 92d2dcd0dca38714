"""Results of commands that do one thing to many: what worked, what did not, and the status."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from tidemill.cli.exits import Exit

if TYPE_CHECKING:
    from tidemill.client.admin_types import Results

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one of the things asked for."""

    name: str
    status: str
    detail: str | None = None
    error: str | None = None


class Outcomes(list[Outcome]):
    """One outcome each; the exit status says whether all, some or none worked."""

    @property
    def exit_code(self) -> Exit:
        failed = sum(1 for outcome in self if outcome.error is not None)
        return Exit.OK if not failed else Exit.PARTLY_FAILED


def of(
    results: Results[K, V],
    done: str,
    detail: Callable[[K, V], str | None] = lambda key, value: None,
    label: Callable[[Any], str] = str,
) -> Outcomes:
    """Outcomes from a client's results; when everything failed, the first error is raised."""
    if results and not results.successes():
        results.raise_first()
    worked = results.successes()
    outcomes = Outcomes()
    for key, value in results.items():
        if key in worked:
            outcomes.append(Outcome(label(key), done, detail(key, worked[key])))
        else:
            outcomes.append(Outcome(label(key), "failed", None, str(value)))
    return outcomes


def planned(names: Mapping[str, str | None] | list[str], what: str) -> Outcomes:
    """What a dry run would do."""
    details = names if isinstance(names, Mapping) else dict.fromkeys(names)
    return Outcomes(Outcome(name, f"would be {what}", detail) for name, detail in details.items())
