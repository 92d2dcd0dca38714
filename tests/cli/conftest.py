"""A live cluster for the commands: Tidemill's broker, or any Kafka that a variable names."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli.helpers import install

from tidemill.testing.process import BrokerProcess

BOOTSTRAP_VARIABLE = "TIDEMILL_TEST_BOOTSTRAP"
_numbers = itertools.count()


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker that the whole run shares."""
    if given := os.environ.get(BOOTSTRAP_VARIABLE):
        yield given
        return
    data_dir = tmp_path_factory.mktemp("cli-broker") / "data"
    with BrokerProcess(data_dir) as broker:
        yield broker.bootstrap


@pytest.fixture
def topic_name() -> Callable[[str], str]:
    """Names that no other test uses."""
    return lambda stem: f"{stem}-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder to put first on the PATH."""
    return install(tmp_path / "bin")
