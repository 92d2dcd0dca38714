"""Tables are tidied up when a pipeline starts: files that killed runs have left are deleted.

On a thread of its own, beside the queries: looking through a large table takes a while, and nothing
waits for it. What goes wrong is logged and fails nothing. Only files that are a day old are
touched, so that no batch loses files that its commit is about to name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from threading import Thread

from tidemill.spark.tables.target import clean_orphans

log = logging.getLogger(__name__)

_ACCESS = ("storage.", "catalog.")


def tidy_beside(sinks: Iterable[Mapping[str, str]]) -> Thread:
    """Start to tidy up; `sinks` are the options of each."""
    thread = Thread(target=tidy, args=(list(sinks),), name="tidying", daemon=True)
    thread.start()
    return thread


def tidy(
    sinks: Iterable[Mapping[str, str]],
    clean: Callable[[str, Mapping[str, str]], list[str]] = clean_orphans,
) -> None:
    """Each table once, however many sinks write to it."""
    tables = {options["table"]: options for options in sinks if "table" in options}
    for table, options in tables.items():
        access = {name: text for name, text in options.items() if name.startswith(_ACCESS)}
        try:
            deleted = clean(table, access)
        # Libraries of three formats, and any storage behind them.
        except Exception as error:  # noqa: BLE001
            log.info("could not tidy up %s: %s", table, error)
            continue
        if deleted:
            log.info("%s: deleted %d files that no commit names", table, len(deleted))
