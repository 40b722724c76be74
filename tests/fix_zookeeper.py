"""A real ZooKeeper for tests: one JVM per test worker, one chroot per test. A test can stop, kill and restart
it, and expire a session.

Fixtures: `zookeeper_server` (the process, session-scoped) and `zookeeper` (a `ZooKeeperRoom`: a chroot on the
server). A test that stops or kills the server uses `private_zookeeper`, a server for that test alone.
"""

import contextlib
import ctypes
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.protocol.serialization import Close, Connect

from fix_ports import free_port
from headrace.coordination.session import ZooKeeperSession
from headrace.coordination.topics import TopicRegistry

START_WAIT_MAX_S = 180.0
EXPIRE_WAIT_MAX_S = 30.0
CLOSE_XID = 1
TICK_MS = 200  # the shortest session timeout is two ticks

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """For `preexec_fn`: the kernel kills the child when its parent thread ends.

    Start such processes from a thread that lives as long as they should.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def zookeeper_jars() -> str:
    """The class path: PySpark ships ZooKeeper's server and its dependencies. Does not import pyspark."""
    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None, (
        "pyspark is not installed: its jars hold the ZooKeeper server"
    )
    return str(Path(spec.origin).parent / "jars" / "*")


class ZooKeeperServer:
    """One ZooKeeper process on a port of 127.0.0.1, with its data in a scratch folder."""

    def __init__(self, directory: Path, host: str = "127.0.0.1") -> None:
        self.directory = directory
        self.host = host
        self.port = free_port(host)
        self.settings = ""  # more lines of zoo.cfg
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        config = self.directory / "zoo.cfg"
        config.write_text(
            f"tickTime={TICK_MS}\ndataDir={self.directory / 'data'}\nclientPort={self.port}\n"
            f"clientPortAddress={self.host}\nadmin.enableServer=false\nmaxClientCnxns=0\nmaxSessionTimeout=60000\n"
            f"{self.settings}"
        )
        command = [
            "java",
            "-Xmx128m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Dzookeeper.forceSync=no",
        ]
        command += ["-cp", zookeeper_jars(), "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(config)]
        with (self.directory / "out.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=die_with_parent)
        self._wait_until_ready()

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Hangs the server: connections stay open, requests get no response, no session expires."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        self.stop()
        self.start()

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(how)
            self._process.wait(timeout=30)
            self._process = None

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_WAIT_MAX_S
        while time.monotonic() < deadline:
            assert self._process is not None
            assert self._process.poll() is None, (
                f"ZooKeeper ended: {(self.directory / 'out.log').read_text()[-2000:]}"
            )
            with (
                contextlib.suppress(OSError),
                socket.create_connection((self.host, self.port), timeout=1) as probe,
            ):
                probe.sendall(b"srvr")
                if b"Zookeeper version" in probe.recv(4096):
                    return
            time.sleep(0.05)
        raise TimeoutError(f"ZooKeeper on {self.address} was not ready within {START_WAIT_MAX_S:g} s")


@dataclass(frozen=True)
class ZooKeeperRoom:
    """A chroot on a server. `hosts` is the connect string for `--zookeeper` and for sessions."""

    server: ZooKeeperServer
    chroot: str

    @property
    def hosts(self) -> str:
        return f"{self.server.address}{self.chroot}"

    def session(
        self, *, timeout_s: float = 4.0, call_timeout_s: float = 20.0, name: str = "test"
    ) -> ZooKeeperSession:
        """A started session; the caller closes it (it is a context manager)."""
        return ZooKeeperSession(
            self.hosts, timeout_s=timeout_s, call_timeout_s=call_timeout_s, name=name
        ).start()

    def expire(self, session: ZooKeeperSession) -> None:
        """Expires the session, as after a long silence: a second connection with its id closes it.

        The first connection comes back at once, and may take the session back before that: then once more.
        """
        assert session.wait_connected(EXPIRE_WAIT_MAX_S)
        left = session.left_session()
        assert left is not None
        timeout_ms, password = int(session.timeout_s * 1000), bytes.fromhex(left.password)
        connect = bytes(Connect(0, 0, timeout_ms, left.session_id, password, False).serialize())
        close = struct.pack(">ii", CLOSE_XID, Close.type)
        sent = b"".join(struct.pack(">i", len(frame)) + frame for frame in (connect, close))
        deadline = time.monotonic() + EXPIRE_WAIT_MAX_S
        while not self._has_closed(sent):
            assert time.monotonic() < deadline, "the session is taken back each time"

    def _has_closed(self, sent: bytes) -> bool:
        """Whether the session has ended: the server answers to the close, or grants it no time any more."""
        host, _, port = self.server.address.rpartition(":")
        received = b""
        with socket.create_connection((host, int(port)), EXPIRE_WAIT_MAX_S) as thief:
            thief.sendall(sent)
            with contextlib.suppress(ConnectionError):
                while data := thief.recv(4096):
                    received += data
        if len(received) < 12:
            return False
        length, _, granted_ms = struct.unpack_from(">iii", received)
        answer = received[4 + length : 12 + length]
        return granted_ms <= 0 or (len(answer) == 8 and struct.unpack(">ii", answer)[1] == CLOSE_XID)


@contextlib.contextmanager
def running_zookeeper() -> Iterator[ZooKeeperServer]:
    directory = Path(tempfile.mkdtemp(prefix="headrace-zookeeper-"))
    server = ZooKeeperServer(directory)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(directory, ignore_errors=True)


def has_topics(session: ZooKeeperSession, *names: str) -> None:
    """Creates topics without a broker: groups' offsets go with their topics."""
    for name in names:
        TopicRegistry(session).create(name, uuid.uuid4(), {0: (1,)})


def room_on(server: ZooKeeperServer) -> ZooKeeperRoom:
    chroot = f"/test-{uuid.uuid4().hex[:12]}"
    client = KazooClient(server.address)
    client.start(timeout=20)
    client.ensure_path(chroot)
    client.stop()
    client.close()
    return ZooKeeperRoom(server, chroot)


@pytest.fixture(scope="session")
def zookeeper_server() -> Iterator[ZooKeeperServer]:
    with running_zookeeper() as server:
        yield server


@pytest.fixture
def zookeeper(zookeeper_server: ZooKeeperServer) -> ZooKeeperRoom:
    return room_on(zookeeper_server)


@pytest.fixture
def private_zookeeper() -> Iterator[ZooKeeperRoom]:
    with running_zookeeper() as server:
        yield room_on(server)
