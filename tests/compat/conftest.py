"""One real broker process for all compatibility tests of a worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tidemill.testing.process import KEEPS_ALL, BrokerProcess


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data_dir = tmp_path_factory.mktemp("compat") / "data"
    with BrokerProcess(data_dir, {"num.partitions": "4", **KEEPS_ALL}) as process:
        yield process
