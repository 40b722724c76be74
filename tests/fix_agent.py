"""A real agent of a host, as a process of its own, for tests that use it and that kill it.

Owns: `RunningAgent`, with the kinds of `stand_in_agent` beside the real ones; `keeper_of`; `self_signed`;
`half_requests`. Fixtures: `agent` (one for each file, without units at the start of each test),
`stand_in_program` (makes `headrace up` start such an agent).
"""

import contextlib
import datetime
import ipaddress
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

import stand_in_agent
from fix_ports import free_port
from headrace.agent import local
from headrace.agent.client import AgentClient
from headrace.agent.desired import DesiredState
from headrace.agent.errors import AgentUnreachableError
from headrace.agent.host import Host
from headrace.agent.keeper import Keeper
from headrace.agent.kinds import Kinds, parse_configuration, unit_of
from headrace.agent.local import find_agent
from headrace.agent.processes import end_units_left_in, unit_processes
from headrace.agent.supervisor import Supervisor
from headrace.agent.unit import UnitState
from headrace.site.addresses import Address

HOST = "127.106.2.1"
WAIT_MAX_S = 60.0
HALF_REQUESTS = 450


def eventually(condition: Callable[[], bool], timeout_s: float = WAIT_MAX_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(0.05)


def units_left_in(home: Path) -> list[int]:
    """The processes of this home's units."""
    return [process.pid for process in unit_processes(home)]


def self_signed(directory: Path, host: str) -> tuple[Path, Path]:
    """A certificate for this address and its key, as files."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "an agent")])
    now = datetime.datetime.now(datetime.UTC)
    alternative = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(alternative, critical=False)
        .sign(key, hashes.SHA256())
    )
    paths = directory / "certificate.pem", directory / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    paths[1].write_bytes(key.private_bytes(pem, pkcs8, serialization.NoEncryption()))
    return paths


class RunningAgent:
    """One home, its agent, and a client of it."""

    def __init__(self, home: Path, *options: str) -> None:
        self.home = home
        self.options = options
        self.address = Address(HOST, free_port(HOST))
        self.supervisor = Supervisor(home)
        self.process: subprocess.Popen[bytes] | None = None
        self.client: AgentClient

    def start(self, program: tuple[str, ...] = stand_in_agent.PROGRAM) -> None:
        assert self.process is None
        words = ["--home", str(self.home), "--listen", str(self.address), *self.options]
        with (self.home / "agent.out").open("ab") as out:
            self.process = subprocess.Popen(
                [*program, *words], stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        self.wait_found()

    def wait_found(self) -> None:
        """Returns once the agent responds."""
        assert self.process is not None
        deadline = time.monotonic() + WAIT_MAX_S
        while True:
            assert self.process.poll() is None, (self.home / "agent.out").read_text()
            assert time.monotonic() < deadline
            if (client := find_agent(self.home)) is not None:
                try:
                    client.health()
                except AgentUnreachableError:
                    client.close()
                else:
                    self.client = client
                    return
            time.sleep(0.05)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Sends the agent a signal; returns its exit code. Its units keep running."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.has_ended()

    def has_ended(self) -> int:
        """Waits until it has ended; returns the exit code."""
        assert self.process is not None
        code = self.process.wait(WAIT_MAX_S)
        self.process = None
        self.client.close()
        return code

    def restart(self) -> None:
        self.end()
        self.start()

    def states(self) -> dict[str, UnitState]:
        """The states that supervisord reports, without the agent."""
        return self.supervisor.states()

    def pid(self, name: str) -> int:
        return self.states()[name].pid

    def pid_or_0(self, name: str) -> int:
        """The pid, 0 while the unit is stopped or supervisord does not have it."""
        state = self.states().get(name)
        return 0 if state is None else state.pid

    def has_other_pid(self, name: str, before: int) -> bool:
        """Whether the unit runs again, in another process than before."""
        return self.pid_or_0(name) not in (0, before)

    def is_ready(self, name: str) -> bool:
        return self.client.unit(name).is_ready

    def stand_in(self, **fields: Any) -> dict[str, Any]:
        """The configuration of a stand-in, with a free address."""
        listen = f"{HOST}:{free_port(HOST)}"
        return {"kind": "stand-in", "datacenter": "east", "listen": listen, **fields}

    def put_all(self, configurations: dict[str, dict[str, Any]]) -> None:
        """Puts several units at once; returns once all are ready."""
        for name in configurations:
            self.client.put(name, configurations[name])
        for name in configurations:
            self.client.unit(name, wait_s=WAIT_MAX_S)

    def close(self) -> None:
        if self.process is not None:
            self.end(signal.SIGKILL)
        if self.supervisor.is_alive():
            self.supervisor.shut_down()
        end_units_left_in(self.home)


@contextlib.contextmanager
def running_agent(home: Path) -> Iterator[RunningAgent]:
    """An agent of this home, which is made unless it is there, and its end."""
    home.mkdir(parents=True, exist_ok=True)
    made = RunningAgent(home)
    try:
        made.start()
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def half_requests(agent: RunningAgent, data: bytes) -> Iterator[list[socket.socket]]:
    """Connections that have sent a part of a request, and nothing more."""
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(HALF_REQUESTS):
            with contextlib.suppress(OSError):
                opened.append(stack.enter_context(socket.create_connection(agent.address, 10)))
                opened[-1].sendall(data)
        yield opened


@pytest.fixture(scope="module")
def _home_with_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAgent]:
    home = tmp_path_factory.mktemp("agent") / "home"
    home.mkdir()
    made = RunningAgent(home)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def agent(_home_with_agent: RunningAgent) -> Iterator[RunningAgent]:
    """One agent for all tests of a file: without units at the start of each test, and started again if the
    test before ended it.
    """
    made = _home_with_agent
    if made.process is None:
        made.start()
    yield made
    for path in (*made.home.glob("*.broken"), *made.home.glob("crash-at")):
        path.unlink()
    names = [path.stem for path in (made.home / "agent" / "units").glob("*.json")]
    if names and made.process is None:
        made.start()
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: made.client.delete(name), names))


@pytest.fixture
def stand_in_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "PROGRAM", stand_in_agent.PROGRAM)


@contextlib.contextmanager
def keeper_of(home: Path, kinds: Kinds) -> Iterator[Keeper]:
    """A keeper in this process, and its supervisord; the units end with it."""
    (home / "logs").mkdir()
    made = Keeper(
        home,
        DesiredState(home / "agent" / "units", partial(parse_configuration, kinds=kinds)),
        partial(unit_of, host=Host.here(home), kinds=kinds),
        ending=threading.Event(),
    )
    made.open()
    try:
        yield made
    finally:
        if (there := Supervisor(home)).is_alive():
            there.shut_down()
        end_units_left_in(home)
        made.close()
