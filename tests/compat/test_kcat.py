"""kcat, where the machine has it or may install it from Debian's packages."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tidemill.testing.process import BrokerProcess


def find_kcat() -> str | None:
    found = shutil.which("kcat") or shutil.which("kafkacat")
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "timeout": 100}
        for command in (["apt-get", "update"], ["apt-get", "install", "-y", "-q", "kcat"]):
            try:
                subprocess.run(command, check=False, **quiet)  # type: ignore[call-overload]
            except subprocess.TimeoutExpired:
                return None
        found = shutil.which("kcat")
    return found


@pytest.fixture(scope="module")
def kcat() -> str:
    found = find_kcat()
    if found is None:
        pytest.skip("NO KCAT: it is not installed and this user cannot install it")
    return found


def test_kcat_produces_consumes_and_lists(kcat: str, broker: BrokerProcess) -> None:
    def run(*arguments: str, text: str = "") -> str:
        done = subprocess.run(
            [kcat, "-b", broker.bootstrap, *arguments],
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("-P", "-t", "kcat", "-p", "0", "-K", ":", "-z", "snappy", text="a:1\nb:2\nc:3\n")
    read = run("-C", "-t", "kcat", "-p", "0", "-o", "beginning", "-e", "-q", "-f", "%k=%s@%o\n")
    assert read == "a=1@0\nb=2@1\nc=3@2\n"
    assert 'topic "kcat" with 4 partitions' in run("-L", "-t", "kcat")
