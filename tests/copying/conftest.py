"""Two clusters of one broker each, to copy between."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tidemill.testing.process import KEEPS_ALL, BrokerProcess


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    here = tmp_path_factory.mktemp("copying")
    with (
        BrokerProcess(here / "east", KEEPS_ALL) as east,
        BrokerProcess(here / "west", KEEPS_ALL) as west,
    ):
        yield east.bootstrap, west.bootstrap
