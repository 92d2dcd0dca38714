"""kcat, where the machine has it or may install it from Debian's packages."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable

import pytest
from tests.compat.clients import CODECS, CONSUMERS

from tidemill.testing.process import BrokerProcess

INSTALL_TIMEOUT_S = 60
APT = ("apt-get", "-q", "-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=10")

# The foreign clients leave sockets to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

Kcat = Callable[..., str]


def find_kcat() -> tuple[str | None, str]:
    """Where it is, or else why there is none; a machine without a network says so soon."""
    found = shutil.which("kcat") or shutil.which("kafkacat")
    if found is not None:
        return found, ""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return None, "it is not installed, and this user cannot install it"
    for command in ([*APT, "update"], [*APT, "install", "-y", "kcat"]):
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=INSTALL_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return None, f"`{' '.join(command)}` took more than {INSTALL_TIMEOUT_S} s"
        if done.returncode != 0:
            return None, f"`{' '.join(command)}` ended with {done.returncode}"
    return shutil.which("kcat"), "its package has no kcat"


@pytest.fixture(scope="module")
def kcat(broker: BrokerProcess) -> Kcat:
    """Run it on the broker; what it prints."""
    found, reason = find_kcat()
    if found is None:
        pytest.skip(f"NO KCAT: {reason}")

    def run(*arguments: str, text: str = "") -> str:
        done = subprocess.run(
            [found, "-b", broker.bootstrap, *arguments],
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def read(kcat: Kcat, topic: str, form: str) -> str:
    return kcat("-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-f", form)


@pytest.mark.parametrize("codec", CODECS)
def test_kcat_produces_consumes_and_lists(kcat: Kcat, codec: str) -> None:
    topic = f"kcat-{codec}"
    kcat("-P", "-t", topic, "-p", "0", "-K", ":", "-z", codec, text="a:1\nb:2\nc:3\n")
    assert read(kcat, topic, "%k=%s@%o\n") == "a=1@0\nb=2@1\nc=3@2\n"
    assert f'topic "{topic}" with 4 partitions' in kcat("-L", "-t", topic)


def test_kcat_s_headers_tombstones_and_empty_values(kcat: Kcat, broker: BrokerProcess) -> None:
    to = ("-P", "-t", "kcat-all", "-p", "0", "-K", ":")
    kcat(*to, "-H", "one=1", "-H", "empty=", "-H", "one=again", text="k:with headers\n")
    kcat(*to, "-Z", text="k:\n")
    kcat(*to, text="k:\n")
    kcat("-P", "-t", "kcat-all", "-p", "0", text="no key\n")
    expected = [
        (b"k", b"with headers", (("one", b"1"), ("empty", b""), ("one", b"again"))),
        (b"k", None, ()),
        (b"k", b"", ()),
        (None, b"no key", ()),
    ]
    for name, consume in CONSUMERS.items():
        seen = consume(broker.bootstrap, "kcat-all", 0, 0, len(expected))
        assert [(record.key, record.value, record.headers) for record in seen] == expected, name
    times = [record.timestamp_ms for record in seen]
    lines = read(kcat, "kcat-all", "%T|%K|%k|%S|%s|%h\n").splitlines()
    assert lines == [
        f"{times[0]}|1|k|12|with headers|one=1,empty=,one=again",
        f"{times[1]}|1|k|-1||",
        f"{times[2]}|1|k|0||",
        f"{times[3]}|-1||6|no key|",
    ]
