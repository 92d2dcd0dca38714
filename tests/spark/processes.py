"""What tests ask about Spark's processes: who they are, where they listen."""

from __future__ import annotations

import os

import psutil


def listening(process: psutil.Process) -> set[str]:
    """The addresses on which a process takes connections; none once it has ended."""
    try:
        connections = process.net_connections(kind="tcp")
    except psutil.NoSuchProcess:
        return set()
    return {
        each.laddr.ip.removeprefix("::ffff:")
        for each in connections
        if each.status == psutil.CONN_LISTEN
    }


def words(process: psutil.Process) -> str:
    """The command line of a process; empty once it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def executors(worker_pid: int) -> list[psutil.Process]:
    """The executors that a worker of a standalone cluster has started."""
    try:
        children = psutil.Process(worker_pid).children()
    except psutil.NoSuchProcess:
        return []
    return [each for each in children if "CoarseGrainedExecutorBackend" in words(each)]


def pythons(worker_pid: int) -> list[psutil.Process]:
    """The Python that works for the executors of a worker.

    Found by the session that a worker and all below it are in: the process that has forked the
    others may be dead, and those are still at work then, and nobody's children.
    """
    return [
        each
        for each in psutil.process_iter()
        if _session(each) == worker_pid and "pyspark" in words(each)
    ]


def _session(process: psutil.Process) -> int | None:
    try:
        return os.getsid(process.pid)
    except OSError:
        return None
