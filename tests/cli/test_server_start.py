"""`kafka-server-start.sh` and `kafka-server-stop.sh`, as a runbook that was written for Kafka calls
them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.helpers import BIN, environment, script
from tests.config.helpers import STOCK_PROPERTIES

from tidemill.testing.process import free_port

STOP_TIMEOUT_S = 30

pytestmark = pytest.mark.timeout(120)


@contextmanager
def started(
    properties: Path, port: int, overrides: Sequence[str] = ()
) -> Iterator[subprocess.Popen[str]]:
    """A broker that the script has started and that says it is ready; ended by its own id."""
    words = [f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{free_port()}"]
    words += [f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}"]
    words += [f"log.dirs={properties.parent / 'logs'}"]
    command = [str(BIN / "kafka-server-start.sh"), str(properties)]
    command += [word for pair in words for word in ("--override", pair)] + list(overrides)
    errors = properties.with_name("stderr")
    with errors.open("w") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment()
        )
    try:
        assert process.stdout is not None
        ready = next((line for line in process.stdout if line.startswith("ready on")), "")
        assert f":{port}" in ready, errors.read_text()
        yield process
    finally:
        process.kill()
        process.communicate(timeout=STOP_TIMEOUT_S)


@pytest.fixture
def stock(tmp_path: Path) -> Path:
    path = tmp_path / "server.properties"
    path.write_text(STOCK_PROPERTIES)
    return path


def test_the_stock_file_starts_a_broker_that_serves(stock: Path) -> None:
    port = free_port()
    to = ("--bootstrap-server", f"127.0.0.1:{port}", "--topic", "clicks")
    with started(stock, port) as process:
        sent = script("kafka-console-producer", *to, stdin="one\ntwo\n")
        assert sent.status == 0, sent.err
        read = script("kafka-console-consumer", *to, "--from-beginning", "--max-messages", "2")
        assert read.out == "one\ntwo\n", read.err
        process.terminate()
        assert process.wait(timeout=STOP_TIMEOUT_S) == 0
    assert (stock.parent / "logs" / "clicks-0" / "00000000000000000000.log").stat().st_size > 0
