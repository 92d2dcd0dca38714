"""Records that a query was to read and that are not there any more: an error, or a warning."""

from __future__ import annotations

import logging

from tidemill.errors import TidemillError

logger = logging.getLogger(__name__)


class DataLossError(TidemillError):
    """The option `failOnDataLoss` is on, and something was lost."""


def report_loss(what: str, *, fail: bool) -> None:
    """Raise, or warn and let the query go on with what there is."""
    if fail:
        raise DataLossError(
            f"data was lost: {what}. With the option failOnDataLoss=false the query goes on with "
            "what there is"
        )
    logger.warning("data was lost, and the query goes on: %s", what)
