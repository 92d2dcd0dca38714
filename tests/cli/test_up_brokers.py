"""`tidemill up --brokers N` and `tidemill broker`, with real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.helpers import quick, tidemill
from tests.cli.ups import Up
from tests.waiting import eventually

from tidemill.cli.exits import Exit
from tidemill.cli.launch import has_ended
from tidemill.testing.process import free_port

pytestmark = [pytest.mark.timeout(240)]


def accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def lines(count: int) -> str:
    return "".join(f"record-{number}\n" for number in range(count))


def test_three_brokers_are_one_cluster_and_stop_together(tmp_path: Path) -> None:
    with Up(tmp_path / "data", "--brokers", "3") as up:
        assert len(up.addresses) == 3
        for address in up.addresses:
            listed = quick("-b", address, "cluster", "brokers", "--format", "json")
            assert [int(n) for n in re.findall(r'"id": (\d+)', listed.out)] == [1, 2, 3]
        assert up.run("topic", "create", "t", "-p", "6").status == 0
        topic = up.json("topic", "describe", "t")
        assert topic["replication_factor"] == 3
        assert up.run("produce", "t", stdin=lines(100)).status == 0
        read = up.run("consume", "t", "-o", "start", "-e", "-f", "%v\\n")
        assert sorted(read.out.split()) == sorted(lines(100).split())
        assert up.json("cluster", "health")["healthy"]
        pids = set(up.pids().values())
        assert len(pids) == 3
        assert up.stop() == 0, up.said
        assert not any(accepts(port) for port in up.ports)
        assert up.status()["brokers"] == []
        assert len(up.status()["down"]) == 3


def test_a_broker_that_dies_stays_dead_until_it_is_brought_back(tmp_path: Path) -> None:
    with Up(tmp_path / "data", "--brokers", "3", "--set", "num.partitions=5") as up:
        assert up.run("topic", "create", "t").status == 0
        port = up.ports[1]
        killed = up.kill(port)
        eventually(lambda: f"pid {killed}) was killed by SIGKILL" in up.said)
        assert f"tidemill broker start --data-dir {up.data_dir} --port {port}" in up.said
        status = up.status()
        assert port not in {broker["port"] for broker in status["brokers"]}
        assert len(status["brokers"]) == 2
        assert [broker["port"] for broker in status["down"]] == [port]
        eventually(lambda: up.json("cluster", "health")["brokers_down"] == [2])
        ill = up.run("cluster", "health")
        assert ill.status == Exit.FAILED
        assert "replicas out of sync" in ill.out
        assert up.run("produce", "t", stdin=lines(50)).status == 0

        brought_back = up.broker("start", port)
        assert brought_back.status == 0, brought_back.err
        assert f"started broker 2 on 127.0.0.1:{port}" in brought_back.out
        assert accepts(port)
        assert len(up.pids()) == 3
        pid = up.pids()[port]
        eventually(lambda: f"broker 2 (port {port}, pid {pid}) runs now" in up.said)
        assert "runs already" in up.broker("start", port).out
        assert up.json("cluster", "health", "--wait", "30")["healthy"]
        partitions = up.json("topic", "describe", "t")["partitions"]
        assert len(partitions) == 5
        assert all(sorted(each["isr"]) == [1, 2, 3] for each in partitions)

        back = up.pids()[port]
        assert up.stop() == 0, up.said
        assert "stopping 3 brokers" in up.said
        assert has_ended(back, 0)


def test_a_broker_is_taken_down_and_the_rest_go_on(tmp_path: Path) -> None:
    with Up(tmp_path / "data", "--brokers", "3") as up:
        assert up.run("topic", "create", "t", "-p", "3").status == 0
        port = up.ports[0]
        stopped = up.broker("stop", port)
        assert (stopped.status, stopped.err) == (0, "")
        assert f"stopped broker 1 on 127.0.0.1:{port}" in stopped.out
        assert not accepts(port)
        assert "does not run" in up.broker("stop", port).out
        eventually(lambda: "stopped; to bring it back" in up.said)
        assert up.run("produce", "t", stdin=lines(50)).status == 0
        assert up.broker("start", port).status == 0
        health = up.json("cluster", "health", "--wait", "30")
        assert health["healthy"]
        assert health["leader_not_preferred"] == 1, "leadership stays where it fell"
        [elected] = up.json("cluster", "elect")
        assert (elected["status"], elected["detail"]) == ("elected", "broker 1")
        eventually(lambda: up.json("cluster", "health")["leader_not_preferred"] == 0)


def test_when_all_have_died_up_ends_and_says_so(tmp_path: Path) -> None:
    with Up(tmp_path / "data", "--brokers", "2") as up:
        for port in up.ports:
            up.kill(port)
        assert up.process.wait(30) == Exit.FAILED
        assert "no broker is left" in up.said


def test_killed_up_takes_its_brokers_with_it(tmp_path: Path) -> None:
    with Up(tmp_path / "data", "--brokers", "2") as up:
        ports = up.ports
        up.process.send_signal(signal.SIGKILL)
        up.process.wait()
        eventually(lambda: not up.pids() and not any(accepts(port) for port in ports))


def test_there_is_one_up_for_a_data_directory(tmp_path: Path) -> None:
    with Up(tmp_path / "data", "--brokers", "2") as up:
        second = tidemill("up", "--data-dir", str(up.data_dir))
        assert second.status == Exit.FAILED
        assert f"runs already for {up.data_dir} (pid {up.process.pid})" in second.err


@contextmanager
def next_port_taken() -> Iterator[int]:
    """A free port; we listen on the one after it, which nobody else did."""
    while True:
        port = free_port()
        try:
            taken = socket.create_server(("127.0.0.1", port + 1))
        except OSError:
            continue
        with taken:
            yield port
        return


def test_a_port_that_is_taken_ends_it_before_it_is_ready(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with next_port_taken() as port:
        ran = tidemill("up", "--brokers", "2", "--port", str(port), "--data-dir", str(data_dir))
    assert ran.status == Exit.FAILED
    assert "ready" not in ran.out
    assert f"broker 2 did not start: cannot listen on 127.0.0.1:{port + 1}" in ran.err
    assert "broker-2.log" in ran.err
    assert '"brokers": []' in quick("status", "--data-dir", str(data_dir), "--format", "json").out


def test_one_broker_alone_is_joined_by_another(tmp_path: Path) -> None:
    """`tidemill up`, then `tidemill broker start` on a port that is not known yet."""
    with Up(tmp_path / "data") as up:
        assert up.run("topic", "create", "t", "-p", "2", "-r", "1").status == 0
        assert up.run("produce", "t", stdin=lines(20)).status == 0
        port = free_port()
        joined = up.broker("start", port)
        assert joined.status == 0, joined.err
        assert f"added broker 1 on 127.0.0.1:{port}" in joined.out
        assert [each["id"] for each in up.json("cluster", "brokers")] == [0, 1]
        joiner = up.pids()[port]
        assert up.stop() == 0
        assert has_ended(joiner, 0)


def test_a_broker_with_data_grows_into_a_cluster(tmp_path: Path) -> None:
    """`tidemill up`, and the next time `tidemill up --brokers 3` on the same directory."""
    plan = tmp_path / "plan.json"
    with Up(tmp_path / "data") as alone:
        assert alone.run("topic", "create", "t", "-p", "1").status == 0
        assert alone.run("produce", "t", stdin=lines(20)).status == 0
        assert alone.stop() == 0
    with Up(tmp_path / "data", "--brokers", "3") as up:
        assert [each["id"] for each in up.json("cluster", "brokers")] == [0, 1, 2]
        row = {"topic": "t", "partition": 0, "replicas": [0, 1, 2]}
        plan.write_text(json.dumps({"version": 1, "partitions": [row]}))
        copied = up.run("cluster", "reassign", "execute", str(plan))
        assert copied.status == 0, copied.err
        up.kill(up.ports[0])
        read = up.run("consume", "t", "-o", "start", "-e", "-f", "%v\\n")
        assert read.out == lines(20), read.err


def test_a_broker_that_was_paused_stops_with_the_rest(tmp_path: Path) -> None:
    with Up(tmp_path / "data", "--brokers", "2") as up:
        os.kill(up.pids()[up.ports[1]], signal.SIGSTOP)
        assert up.stop() == 0, up.said


def test_broker_start_without_up_runs_detached_and_comes_back(tmp_path: Path) -> None:
    port = free_port()
    where = ("--data-dir", str(tmp_path / "data"), "--port", str(port))
    try:
        first = tidemill("broker", "start", *where)
        assert first.status == 0, first.err
        assert accepts(port)
        made = quick("-b", f"127.0.0.1:{port}", "topic", "create", "kept")
        assert made.status == 0, made.err
        assert (tmp_path / "data" / "logs" / "broker.log").exists()
        assert tidemill("broker", "stop", *where).status == 0
        assert not accepts(port)
        assert tidemill("broker", "start", *where).status == 0
        assert "kept" in quick("-b", f"127.0.0.1:{port}", "topic", "list").out
    finally:
        assert tidemill("broker", "stop", *where).status == 0


class TestMistakes:
    def test_stop_where_nothing_was_started(self, tmp_path: Path) -> None:
        ran = quick("broker", "stop", "--data-dir", str(tmp_path / "no"), "--port", "9")
        assert ran.status == Exit.NOT_FOUND
        assert not (tmp_path / "no").exists()

    def test_stop_with_a_port_of_nobody(self, tmp_path: Path) -> None:
        where = ("--data-dir", str(tmp_path / "data"))
        planned = quick("up", "--brokers", "2", "--port", "7000", *where, "--dry-run")
        assert planned.out.count("dry run: would run a broker on port 700") == 2
        assert not (tmp_path / "data").exists()

    def test_a_new_broker_that_cannot_start_is_forgotten(self, tmp_path: Path) -> None:
        port = free_port()
        where = ("--data-dir", str(tmp_path / "data"), "--port", str(port))
        with socket.create_server(("127.0.0.1", port)):
            ran = tidemill("broker", "start", *where)
        assert ran.status == Exit.FAILED
        assert "the address is in use" in ran.err
        assert not (tmp_path / "data" / "brokers.json").exists()

    def test_a_directory_that_cannot_be_one(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        ran = quick("up", "--brokers", "2", "--data-dir", str(tmp_path / "file"))
        assert ran.status == Exit.FAILED
        assert f"cannot keep data in {tmp_path / 'file'}: it is a file" in ran.err

    def test_no_ports_left(self, tmp_path: Path) -> None:
        ran = quick("up", "--brokers", "3", "--port", "65534", "--data-dir", str(tmp_path / "d"))
        assert ran.status == Exit.USAGE
        assert "no port is left above 65535" in ran.err

    @pytest.mark.parametrize("port", ["0", "65536", "-1"])
    def test_ports_that_are_none(self, tmp_path: Path, port: str) -> None:
        ran = quick("broker", "start", "--data-dir", str(tmp_path), f"--port={port}")
        assert ran.status == Exit.USAGE
        assert "is no port" in ran.err
