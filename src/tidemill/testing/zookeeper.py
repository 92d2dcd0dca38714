"""A real ZooKeeper, one server or an ensemble, from the jars that PySpark's wheel carries.

with ZooKeeperEnsemble(folder, servers=3) as ensemble:
    store_url = f"zk://{ensemble.hosts}/some/path"
    ensemble.servers[0].kill()       # SIGKILL, as a crash would
    ensemble.servers[0].start()      # the same data and ports again

It needs Java and PySpark (the extra `spark`); `unavailable_reason` says what is missing. Servers
listen on 127.0.0.1 only, write below `folder`, and are ended by their own ids.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from tidemill.children import Running
from tidemill.testing.process import free_port
from tidemill.testing.running import OwnProcess

READY_TIMEOUT_S: Final = 60
PROBE_TIMEOUT_S: Final = 2
TICK_MS: Final = 200
"""ZooKeeper counts in ticks: sessions are looked at once per tick, and last at least two."""

_MAIN: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_JARS: Final = ("zookeeper-", "slf4j-api-", "metrics-core-", "snappy-java-", "netty-")
# A test's server lives for seconds and holds next to nothing: start quickly, stay small.
_JAVA_OPTIONS: Final = (
    "-Xmx64m",
    "-Xss512k",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dzookeeper.forceSync=no",
    "-Dzookeeper.jmx.log4j.disable=true",
)


class ZooKeeperUnavailableError(RuntimeError):
    """ZooKeeper cannot run on this machine; the message says what is missing."""


def unavailable_reason() -> str:
    """Why no ZooKeeper can be started here; empty when it can."""
    try:
        _class_path()
    except ZooKeeperUnavailableError as problem:
        return str(problem)
    return ""


@functools.cache
def _class_path() -> str:
    if shutil.which("java") is None:
        raise ZooKeeperUnavailableError("no `java` on the PATH; ZooKeeper needs Java 17 or newer")
    # Importing PySpark takes a second; its folder is all that is wanted.
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ZooKeeperUnavailableError("PySpark is not installed: pip install 'tidemill[spark]'")
    folder = Path(spec.origin).parent / "jars"
    jars = sorted(str(path) for path in folder.glob("*.jar") if path.name.startswith(_JARS))
    if not any(Path(jar).name.startswith("zookeeper-") for jar in jars):
        raise ZooKeeperUnavailableError(f"{folder} holds no zookeeper-*.jar")
    return os.pathsep.join(jars)


class ZooKeeperServer(OwnProcess):
    """One server process; its data stay in `folder` between `kill` and `start`.

    `members` are the lines that name the servers of an ensemble, none for a server of its own.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        server_id: int = 1,
        port: int | None = None,
        members: Sequence[str] = (),
        tick_ms: int = TICK_MS,
    ) -> None:
        self.folder = Path(folder)
        self.server_id = server_id
        self.port = port if port is not None else free_port()
        self._members = tuple(members)
        self._tick_ms = tick_ms

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def log_path(self) -> Path:
        """What the process printed: the first place to look when it does not start."""
        return self.folder / "zookeeper.out"

    def start(self, *, wait: bool = True) -> Self:
        """Start the process; with `wait`, return once it serves clients."""
        command = ["java", *_JAVA_OPTIONS, "-cp", _class_path(), _MAIN, str(self._configure())]
        with self.log_path.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        if wait:
            self.wait_until_ready()
        return self

    def wait_until_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Return when the server serves; one of an ensemble needs a majority for that."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self.running:
            if self.mode():
                return
            time.sleep(0.05)
        raise RuntimeError(
            f"ZooKeeper did not become ready: {self.log_path.read_text(errors='replace')[-2000:]}"
        )

    def mode(self) -> str:
        """`standalone`, `leader` or `follower`; empty while it does not serve."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), PROBE_TIMEOUT_S) as probe:
                probe.sendall(b"srvr")
                answer = b""
                while chunk := probe.recv(4096):
                    answer += chunk
        except OSError:
            return ""
        for line in answer.decode(errors="replace").splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ")
        return ""

    def _configure(self) -> Path:
        data = self.folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        (data / "myid").write_text(f"{self.server_id}\n")
        settings = [
            f"tickTime={self._tick_ms}",
            f"dataDir={data}",
            f"clientPort={self.port}",
            "clientPortAddress=127.0.0.1",
            "admin.enableServer=false",
            "maxClientCnxns=0",
            "4lw.commands.whitelist=srvr",
            "initLimit=50",
            "syncLimit=25",
            *self._members,
        ]
        path = self.folder / "zoo.cfg"
        path.write_text("\n".join(settings) + "\n")
        return path


class ZooKeeperEnsemble(Running):
    """Several servers that agree by majority."""

    def __init__(self, folder: Path | str, *, servers: int = 3, tick_ms: int = TICK_MS) -> None:
        ids = range(1, servers + 1)
        members = [f"server.{n}=127.0.0.1:{free_port()}:{free_port()}" for n in ids]
        self.servers = [
            ZooKeeperServer(
                Path(folder) / f"server-{n}", server_id=n, members=members, tick_ms=tick_ms
            )
            for n in ids
        ]

    @property
    def hosts(self) -> str:
        """All addresses, as a connect string wants them."""
        return ",".join(server.address for server in self.servers)

    def start(self) -> Self:
        """Start all servers; return once every one serves."""
        for server in self.servers:
            server.start(wait=False)
        for server in self.servers:
            server.wait_until_ready()
        return self

    def leader(self) -> ZooKeeperServer:
        """The server that leads right now."""
        for server in self.servers:
            if server.running and server.mode() == "leader":
                return server
        raise RuntimeError("no ZooKeeper server leads at this moment")

    def stop(self) -> None:
        for server in self.servers:
            server.stop()
