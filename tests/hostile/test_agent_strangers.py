"""Strangers who connect to an agent: which of them it cuts off, half TLS handshakes, no TLS at all."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fix_agent import HOST, RunningAgent, eventually, half_requests, self_signed
from headrace.agent.serving import CONNECTIONS_MAX
from headrace.process.web import TLS_HANDSHAKE_MAX_S, ConnectionTable


@dataclass(eq=False)
class Connection:
    """One of a server's connections, as its table sees it."""

    awaits_request: bool
    is_strangers: bool
    client: tuple[str, int] | None = None
    is_cut_off: bool = False

    def cut_off(self) -> None:
        self.is_cut_off = True


def test_a_known_clients_idle_connection_outlives_the_half_requests_of_strangers() -> None:
    table = ConnectionTable(3)
    idle = Connection(awaits_request=True, is_strangers=False)
    busy = Connection(awaits_request=False, is_strangers=False)
    half = Connection(awaits_request=True, is_strangers=True)
    opened = [idle, busy, half]

    def cut_off_by(newest: Connection) -> Connection:
        table.add(newest)
        opened.append(newest)
        (cut,) = (each for each in opened if each.is_cut_off)
        opened.remove(cut)
        table.remove(cut)
        return cut

    for each in opened:
        table.add(each)
    second = Connection(awaits_request=True, is_strangers=True)
    assert cut_off_by(second) is half
    assert cut_off_by(Connection(awaits_request=False, is_strangers=True)) is second
    # Without such strangers it goes before what is being answered.
    assert cut_off_by(Connection(awaits_request=True, is_strangers=True)) is idle


# --- half TLS handshakes ---


CLIENT_HELLO_BEGINS = bytes.fromhex("16 03 01 02 00 01 00 01 fc 03 03")


@pytest.fixture(scope="module")
def tls_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAgent]:
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = self_signed(folder, HOST)
    (folder / "home").mkdir()
    made = RunningAgent(folder / "home", "--tls-certificate", str(certificate), "--tls-key", str(key))
    try:
        made.start()
        yield made
    finally:
        made.close()


def has_ended(connection: socket.socket) -> bool:
    """Whether the other end has closed the connection."""
    connection.setblocking(False)
    try:
        return connection.recv(1000) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


@pytest.mark.parametrize("data", [b"", CLIENT_HELLO_BEGINS], ids=["nothing", "half a ClientHello"])
def test_half_tls_handshakes_lock_nobody_out(tls_agent: RunningAgent, data: bytes) -> None:
    with half_requests(tls_agent, data) as opened:
        assert tls_agent.client.units() == []
        kept = [connection for connection in opened if not has_ended(connection)]
        assert len(kept) <= CONNECTIONS_MAX, "their number has a bound"
        # No half request and no half handshake costs the honest ones their turn.
        for _ in range(20):
            assert tls_agent.client.version()["home"] == str(tls_agent.home)


def test_a_half_tls_handshake_ends_soon(tls_agent: RunningAgent) -> None:
    with socket.create_connection(tls_agent.address, 10) as connection:
        connection.sendall(CLIENT_HELLO_BEGINS)
        # asyncio's own bound is 60 s.
        began_s = time.monotonic()
        eventually(lambda: has_ended(connection), 5 * TLS_HANDSHAKE_MAX_S - 5)
        assert time.monotonic() - began_s < 60


def test_who_does_not_speak_tls_and_who_goes_in_the_middle_leave_no_traceback(
    tls_agent: RunningAgent,
) -> None:
    for data in (b"GET / HTTP/1.1\r\n\r\n", CLIENT_HELLO_BEGINS, b"\0" * 100_000, b""):
        with socket.create_connection(tls_agent.address, 10) as connection, contextlib.suppress(OSError):
            connection.sendall(data)
    assert tls_agent.client.units() == []
    assert "Traceback" not in (tls_agent.home / "agent.out").read_text()


def test_a_request_that_comes_with_the_end_of_the_handshake_is_answered(tls_agent: RunningAgent) -> None:
    context = ssl.create_default_context(cafile=str(tls_agent.home.parent / "certificate.pem"))
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = context.wrap_bio(incoming, outgoing, server_hostname=HOST)
    with socket.create_connection(tls_agent.address, 30) as connection:
        while True:
            try:
                session.do_handshake()
                break
            except ssl.SSLWantReadError:
                connection.sendall(outgoing.read())
                incoming.write(connection.recv(65536))
        session.write(b"GET /v1/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        connection.sendall(outgoing.read())  # the handshake's last message and the request together
        answer = b""
        while not answer:
            incoming.write(connection.recv(65536))
            with contextlib.suppress(ssl.SSLWantReadError):
                answer = session.read(15)
        assert answer.startswith(b"HTTP/1.1 ")


# --- health, which needs no token ---


HEALTH = b"GET /v1/health HTTP/1.1\r\nHost: agent\r\n\r\n"
ANSWER_MAX_S = 10.0
"""Of 30 s for which a request waits for a supervisord that hangs."""


def test_strangers_who_ask_for_health_take_no_threads_while_supervisord_hangs(tmp_path: Path) -> None:
    """Each took one for half a minute, also after its connection was cut off: the operator got no answer."""
    agent = RunningAgent(tmp_path)
    agent.start()
    daemon = int(agent.supervisor.pid_path.read_text())
    opened: list[socket.socket] = []
    try:
        os.kill(daemon, signal.SIGSTOP)
        for _ in range(2 * CONNECTIONS_MAX):
            opened.append(socket.create_connection(agent.address, timeout=ANSWER_MAX_S))
            with contextlib.suppress(OSError):
                opened[-1].sendall(HEALTH)
            time.sleep(0.005)
        began_s = time.monotonic()
        assert agent.client.version()["home"] == str(tmp_path)
        assert time.monotonic() - began_s < ANSWER_MAX_S
    finally:
        os.kill(daemon, signal.SIGCONT)
        for each in opened:
            each.close()
        agent.close()
