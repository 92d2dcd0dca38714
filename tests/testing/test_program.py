"""A user's program as a load: what it says counts, its death is no secret, and it is ended."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.waiting import eventually

from tidemill.client import Admin
from tidemill.client.admin_types import NewTopic
from tidemill.testing.process import BrokerProcess
from tidemill.testing.validation.evidence import FinalLog, Place, read_log
from tidemill.testing.validation.program import RESTARTS_MAX, Program, ProgramError

TOPIC = "t"

WRITER = """
import asyncio, json, os, signal, sys
from tidemill.client import Producer

async def main():
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with Producer(os.environ["BOOTSTRAP_SERVERS"]) as producer:
        for number in range(int(sys.argv[2])):
            at = await producer.send(os.environ["TIDEMILL_TOPIC"], str(number), partition=0)
            event = {"name": "producer_send_success", "value": str(number)}
            event |= {"topic": at.topic, "partition": at.partition, "offset": at.offset}
            if sys.argv[1] == "tells":
                print(json.dumps(event), flush=True)
        print("a line of its own", flush=True)
        if sys.argv[3] == "dies":
            sys.exit("out of luck")
        await stop.wait()

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process


async def program(broker: BrokerProcess, folder: Path, command: str) -> tuple[Program, list[str]]:
    async with Admin(broker.bootstrap) as admin:
        await admin.delete_topics([TOPIC])
        (await admin.create_topics([NewTopic(TOPIC, 2, 1)])).raise_first()
    said: list[str] = []
    variables = {"BOOTSTRAP_SERVERS": broker.bootstrap, "TIDEMILL_TOPIC": TOPIC}
    log = folder / "program.log"
    return Program(command, broker.bootstrap, TOPIC, 2, variables, log, said.append), said


def writer(folder: Path, *words: str) -> str:
    path = folder / "writer.py"
    path.write_text(WRITER)
    return shlex.join([sys.executable, str(path), *words])


async def ended(broker: BrokerProcess, run: Program) -> None:
    """What a trial does when the scenario is over."""
    await run.stop_sending()
    log = await read_log(broker.bootstrap, TOPIC, 2, numbers=False)
    await run.drain(log)


async def test_what_it_was_acknowledged_is_heard(broker: BrokerProcess, tmp_path: Path) -> None:
    run, said = await program(broker, tmp_path, writer(tmp_path, "tells", "20", "waits"))
    await run.start()
    assert run.is_running
    run.struck()
    await ended(broker, run)
    evidence = run.evidence
    assert evidence.knows_acks
    assert evidence.values_are_unique
    assert sorted(map(int, evidence.acked)) == list(range(20))
    assert not evidence.knows_deliveries
    assert len(evidence.ranks) == 20
    assert said == []
    assert "a line of its own" in (tmp_path / "program.log").read_text()


async def test_what_it_does_not_say_is_seen_by_a_reader(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    run, _ = await program(broker, tmp_path, writer(tmp_path, "silent", "5", "waits"))
    await run.start()
    run.struck()
    await ended(broker, run)
    evidence = run.evidence
    assert not evidence.knows_acks
    assert evidence.watched <= {Place(0, offset, str(offset)) for offset in range(5)}
    assert evidence.watched
    assert evidence.values_are_unique
    assert any("producer_send_success" in note for note in evidence.notes)


async def test_its_death_is_told_and_it_is_started_again(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    run, said = await program(broker, tmp_path, writer(tmp_path, "tells", "3", "dies"))
    await run.start()
    assert run._life is not None
    await run._life  # it gives up in the end
    await ended(broker, run)
    assert run.evidence.restarts == RESTARTS_MAX
    assert "ended with status 1" in said[0]
    assert "out of luck" in said[0]
    assert said[0].endswith("started again")
    assert "not started again" in said[-1]
    assert run.evidence.notes[: len(said)] == said
    assert not run.evidence.values_are_unique, "each life sent the same"


async def test_what_it_says_is_news_before_our_reader_has_seen_it(
    broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends, says so and dies, all while our reader still waits for the first answer."""

    async def sees_nothing(self: Program) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Program, "_look_on", sees_nothing)
    run, _ = await program(broker, tmp_path, writer(tmp_path, "tells", "3", "dies"))
    await run.start()
    await run.close()
    assert "0" in run.evidence.acked


async def test_a_program_that_cannot_start_is_an_error(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    run, _ = await program(broker, tmp_path, "no-such-program --at-all")
    with pytest.raises(ProgramError, match="status 127"):
        await run.start()
    await run.close()


async def test_all_its_processes_are_ended(broker: BrokerProcess, tmp_path: Path) -> None:
    """SIGTERM reaches the children of the shell, too."""
    pid = tmp_path / "pid"
    command = f"{writer(tmp_path, 'tells', '1', 'waits')} & echo $! > {pid}; wait; true"
    run, _ = await program(broker, tmp_path, command)
    await run.start()
    # The shell may tell after its child has sent something.
    await asyncio.to_thread(eventually, lambda: pid.exists() and pid.read_text().endswith("\n"))
    child = psutil.Process(int(pid.read_text()))
    await ended(broker, run)
    await asyncio.to_thread(eventually, lambda: gone(child))


def gone(process: psutil.Process) -> bool:
    """Whether a process has ended; nobody may have asked for its status."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_records_and_ranges_that_it_read(tmp_path: Path) -> None:
    log: FinalLog = {0: [(0, "a"), (1, "b")], 1: [(0, "c")]}

    def heard(*events: dict[str, object]) -> Program:
        run = Program("", "127.0.0.1:1", TOPIC, 2, {}, tmp_path / "log", lambda text: None)
        run._final = log
        for event in events:
            assert run._hear(json.dumps(event).encode())
        return run

    record = {"name": "record_data", "topic": TOPIC, "partition": 0, "offset": 1, "value": "b"}
    span = {"topic": TOPIC, "partition": 0, "minOffset": 0, "maxOffset": 1, "count": 2}
    consumed = {"name": "records_consumed", "count": 2, "partitions": [span]}
    assert dict(heard(record).evidence.delivered) == {Place(0, 1, "b"): 1}
    assert dict(heard(consumed).evidence.delivered) == {Place(0, 0, "a"): 1, Place(0, 1, "b"): 1}
    both = heard(record, consumed).evidence.delivered
    assert dict(both) == {Place(0, 1, "b"): 1}, "a range adds nothing to named records"
    other = heard({**record, "topic": "u"}).evidence
    assert not other.delivered
    assert "'u'" in other.notes[0]
    assert "lacks something" in heard({"name": "record_data", "topic": TOPIC}).evidence.notes[0]
