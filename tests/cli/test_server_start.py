"""`kafka-server-start.sh` and `kafka-server-stop.sh`, as a runbook that was written for Kafka calls
them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.helpers import BIN, environment, script
from tests.config.helpers import STOCK_PROPERTIES

from tidemill.cli.kafka import server_stop
from tidemill.testing.process import free_port

STOP_TIMEOUT_S = 30
IN_THE_FILE, IN_FORCE = 71_830_000 + 2 * os.getpid(), 71_830_001 + 2 * os.getpid()
"""Ids that no other broker of this machine has, not even those of tests that run beside these."""
GONE_PIDS = (1 << 30, (1 << 30) + 1)
"""Larger than any that a system gives."""

pytestmark = pytest.mark.timeout(120)


@contextmanager
def started(
    properties: Path, port: int, overrides: Sequence[str] = (), *, relative: bool = False
) -> Iterator[subprocess.Popen[str]]:
    """A broker that the script has started and that says it is ready; ended by its own id."""
    words = [f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{free_port()}"]
    words += [f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}"]
    words += [f"log.dirs={properties.parent / 'logs'}"]
    command = [str(BIN / "kafka-server-start.sh")]
    command += [properties.name if relative else str(properties)]
    command += [word for pair in words for word in ("--override", pair)] + list(overrides)
    errors = properties.with_name("stderr")
    with errors.open("w") as log:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment(),
            cwd=properties.parent,
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


@pytest.mark.parametrize("spelling", ["--override=node.id={}", "--override node.id={}"])
def test_a_broker_is_stopped_by_the_id_that_overrides_its_file(stock: Path, spelling: str) -> None:
    stock.write_text(STOCK_PROPERTIES.replace("node.id=1\n", f"node.id={IN_THE_FILE}\n"))
    overrides = spelling.format(IN_FORCE).split()
    with started(stock, free_port(), overrides) as process:
        other = script("kafka-server-stop", "--node-id", str(IN_THE_FILE))
        assert (other.status, other.out) == (1, "No kafka server to stop\n")
        assert script("kafka-server-stop", "--node-id", str(IN_FORCE)).status == 0
        assert process.wait(timeout=STOP_TIMEOUT_S) == 0


def test_a_broker_is_stopped_by_the_id_in_its_file(stock: Path) -> None:
    stock.write_text(STOCK_PROPERTIES.replace("node.id=1\n", f"node.id={IN_THE_FILE}\n"))
    with started(stock, free_port(), relative=True) as process:
        assert script("kafka-server-stop", "--node-id", str(IN_THE_FILE)).status == 0
        assert process.wait(timeout=STOP_TIMEOUT_S) == 0


def test_processes_that_end_while_one_looks_are_no_brokers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One is gone when its owner is asked for, another when it gets the signal."""
    words = ["/usr/bin/python3", "-m", "tidemill.cli.kafka", "kafka-server-start", "no.properties"]
    real_stat = os.stat

    def stat(path: str) -> os.stat_result:
        return real_stat(path.replace(str(GONE_PIDS[1]), "self"))

    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", lambda path: [str(pid) for pid in GONE_PIDS])
        patched.setattr(server_stop, "_command_line", lambda pid: words)
        patched.setattr(os, "stat", stat)
        status = server_stop.main([])
    assert (status, capsys.readouterr().out) == (1, "No kafka server to stop\n")
